package nvattach

import (
	"encoding/binary"
	"testing"

	"nvtrace/nvattach/mapmem"
)

// TestHeldLockEndsNoKernel: threads that wait for a lock which nobody gives back go on in the
// end, with an error, and are counted.
func TestHeldLockEndsNoKernel(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"count_one"}}, testObject(t, "hashes"))
	x := r.maps.Find("one")
	home := x.HomeAddr(uint64(mapmem.HashKey([]byte{7, 0, 0, 0})) & (x.Hash.Slots - 1))
	if err := r.machine.WriteMem(home, binary.LittleEndian.AppendUint64(nil, mapmem.HomeLock)); err != nil {
		t.Fatal(err)
	}
	const threads = 3
	r.runAdd(r.weave(vectorAdd).Text, 1, threads)
	tab := r.table("one")
	if len(tab.Rows) != 0 || tab.Refused != threads {
		t.Errorf("%d entries, %d refused; want 0 and %d", len(tab.Rows), tab.Refused, threads)
	}
}
