package nvattach

import (
	"encoding/binary"
	"testing"

	"nvtrace/nvattach/mapmem"
)

// lruRig runs programs of testdata/obj/lru.bpf.c in vectorAdd.
func lruRig(t *testing.T, grid, block uint32, programs ...string) *rig {
	t.Helper()
	r := newRig(t, &PlanOptions{Programs: programs}, testObject(t, "lru"))
	r.runAdd(r.weave(vectorAdd).Text, grid, block)
	return r
}

// unlocked checks that no home of a hash is left locked.
func (r *rig) unlocked(t *testing.T, name string) {
	t.Helper()
	x := r.maps.Find(name)
	homes := make([]byte, 8*x.Hash.Slots)
	if err := r.machine.ReadMem(x.HomeAddr(0), homes); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(homes); i += 8 {
		if w := binary.LittleEndian.Uint64(homes[i:]); w&mapmem.HomeLock != 0 {
			t.Fatalf("%s: home %d is %#x", name, i/8, w)
		}
	}
}

// TestLRUWithRoom: where there is room for all keys, none goes.
func TestLRUWithRoom(t *testing.T) {
	r := lruRig(t, 37, 128, "count_keys")
	for _, name := range []string{"roomy", "apart"} {
		for _, row := range r.entries(t, name, 64) {
			if n := row.Total(); n != 2*37 {
				t.Errorf("%s: key %d was counted %d times, want %d", name, binary.LittleEndian.Uint32(row.Key), n, 2*37)
			}
		}
		if x := r.maps.Find(name); x.Stable || x.Striped() {
			t.Errorf("%s is taken for a map whose keys stay", name)
		}
	}
}

// TestLRUKeepsWhatIsUsed: of a thousand keys one after another the last are there, and the one
// that was used all the while.
func TestLRUKeepsWhatIsUsed(t *testing.T) {
	r := lruRig(t, 2, 32, "keep_used")
	if in, failed, there, gone := r.value("results", 0), r.value("results", 1), r.value("results", 2), r.value("results", 3); in != 1000 || failed != 0 || there != 1000 || gone != 0 {
		t.Errorf("%d insertions, %d failed; the key that is used was there %d times, and was gone %d times", in, failed, there, gone)
	}
	keys := map[uint32]bool{}
	for _, row := range r.entries(t, "recent", 64) {
		keys[binary.LittleEndian.Uint32(row.Key)] = true
		if want := uint64(3 * binary.LittleEndian.Uint32(row.Key)); binary.LittleEndian.Uint32(row.Key) != 5000 && binary.LittleEndian.Uint64(row.Value) != want {
			t.Errorf("key %d has value %d, want %d", binary.LittleEndian.Uint32(row.Key), binary.LittleEndian.Uint64(row.Value), want)
		}
	}
	if !keys[5000] || !keys[999] || keys[0] {
		t.Errorf("the key that is used: %v, the last: %v, the first: %v", keys[5000], keys[999], keys[0])
	}
	r.unlocked(t, "recent")
}

// TestLRUCrowded: all threads insert keys at once, many times more than there is room for.
func TestLRUCrowded(t *testing.T) {
	const grid, block = 40, 250
	r := lruRig(t, grid, block, "crowd")
	in, failed := r.value("results", 4), r.value("results", 5)
	if in+failed != grid*block || in < grid*block/2 {
		t.Errorf("%d insertions, %d failed, of %d", in, failed, grid*block)
	}
	tab := r.table("crowded")
	if tab.Refused != failed {
		t.Errorf("%d were refused, and %d were told", tab.Refused, failed)
	}
	if n := len(tab.Rows); n > 256 || n < 128 {
		t.Errorf("%d entries of 256", n)
	}
	for _, row := range r.entries(t, "crowded", len(tab.Rows)) {
		if key := binary.LittleEndian.Uint32(row.Key); key >= grid*block || binary.LittleEndian.Uint64(row.Value) != 7*uint64(key)+1 {
			t.Errorf("key %d has value %d", key, binary.LittleEndian.Uint64(row.Value))
		}
	}
	r.unlocked(t, "crowded")
}
