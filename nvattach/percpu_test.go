package nvattach

import (
	"encoding/binary"
	"testing"

	"nvtrace/nvattach/mapmem"
)

// TestLookupOfOthers: a thread finds the values of all multiprocessors of per-CPU maps, and none
// beyond the last or of a key that is not there.
func TestLookupOfOthers(t *testing.T) {
	r := newRig(t, nil, testObject(t, "percpu"))
	var want [4]uint64
	a, h := r.maps.Find("array"), r.maps.Find("hash")
	if err := r.maps.Update(r.machine, h, mapmem.IndexKey(7), make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	slot, found, err := h.Find(r.machine, mapmem.IndexKey(7))
	if err != nil || !found {
		t.Fatal(err)
	}
	for sm := range uint64(r.maps.SMs) {
		for _, at := range []uint64{a.Base + sm*a.CopyBytes + 2*a.Stride, h.ValueAddr(slot, int(sm))} {
			if err := r.machine.WriteMem(at, binary.LittleEndian.AppendUint64(nil, at%1000+sm)); err != nil {
				t.Fatal(err)
			}
		}
		if sm < 64 {
			want[0] += (a.Base+sm*a.CopyBytes+2*a.Stride)%1000 + sm
			want[1] += h.ValueAddr(slot, int(sm))%1000 + sm
			want[2]++
		}
	}
	r.runAdd(r.weave(vectorAdd).Text, 2, 33)
	for i, n := range want {
		if got := r.value("sums", i); got != n {
			t.Errorf("sum %d is %d, want %d", i, got, n)
		}
	}
}
