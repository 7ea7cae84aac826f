package nvattach

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/nvattach/values"
)

// hashRig runs programs of testdata/obj/hashes.bpf.c in vectorAdd, with several blocks
// at the same time.
func hashRig(t *testing.T, grid, block uint32, programs ...string) *rig {
	t.Helper()
	r := newRig(t, &PlanOptions{Programs: programs}, testObject(t, "hashes"))
	r.runAdd(r.weave(vectorAdd).Text, grid, block)
	for _, q := range r.plan.Programs {
		if n, err := r.plan.endedEarly(r.maps, r.machine, q); n != 0 || err != nil {
			t.Errorf("%s was ended %d times, %v", q.Name, n, err)
		}
	}
	return r
}

// entries checks a hash's own count of its entries.
func (r *rig) entries(t *testing.T, name string, want int) []mapmem.Row {
	t.Helper()
	tab := r.table(name)
	var n [4]byte
	if err := r.machine.ReadMem(tab.Map.Base, n[:]); err != nil {
		t.Fatal(err)
	}
	if len(tab.Rows) != want || int(binary.LittleEndian.Uint32(n[:])) != want {
		t.Errorf("%s: %d rows, and it counted %d; want %d", name, len(tab.Rows), binary.LittleEndian.Uint32(n[:]), want)
	}
	return tab.Rows
}

func TestHashCountsOneKey(t *testing.T) {
	r := hashRig(t, 37, 250, "count_one")
	rows := r.entries(t, "one", 1)
	if n := rows[0].Total(); n != 37*250 {
		t.Errorf("%d, want %d", n, 37*250)
	}
	if x := r.maps.Find("one"); !x.Striped() || !x.Stable {
		t.Errorf("copies for each multiprocessor: %v, stable: %v", x.Striped(), x.Stable)
	}
	key := []byte{7, 0, 0, 0}
	if v, err := r.maps.Lookup(r.machine, r.maps.Find("one"), key); err != nil || binary.LittleEndian.Uint64(v) != 37*250 {
		t.Errorf("lookup: %v, %v", v, err)
	}
	// What the host sets is what is read.
	if err := r.maps.Update(r.machine, r.maps.Find("one"), key, []byte{42, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if v, err := r.maps.Lookup(r.machine, r.maps.Find("one"), key); err != nil || binary.LittleEndian.Uint64(v) != 42 {
		t.Errorf("after an update: %v, %v", v, err)
	}
}

func TestHashCountsManyKeys(t *testing.T) {
	const grid, block = 61, 96
	r := hashRig(t, grid, block, "count_many")
	for _, row := range r.entries(t, "many", grid) {
		n, sum, first, small := binary.LittleEndian.Uint64(row.Value), binary.LittleEndian.Uint64(row.Value[8:]), binary.LittleEndian.Uint32(row.Value[16:]), binary.LittleEndian.Uint32(row.Value[20:])
		if n != block || sum != block*(block-1)/2 || first != 5 || small != 3*block {
			t.Errorf("key %d: %d threads, sum %d, first %d, small %d", binary.LittleEndian.Uint32(row.Key), n, sum, first, small)
		}
	}
}

func TestHashReplacesValues(t *testing.T) {
	r := hashRig(t, 16, 250, "replace", "replace_longer", "count_anyway")
	for _, row := range r.entries(t, "replaced", 64) {
		if binary.LittleEndian.Uint64(row.Value) != uint64(binary.LittleEndian.Uint32(row.Key)) {
			t.Errorf("key %d has value %d", binary.LittleEndian.Uint32(row.Key), binary.LittleEndian.Uint64(row.Value))
		}
	}
	for _, row := range r.entries(t, "longer", 64) {
		if binary.LittleEndian.Uint64(row.Value) != uint64(binary.LittleEndian.Uint32(row.Key[8:])) || binary.LittleEndian.Uint64(row.Value[8:]) != 1 {
			t.Errorf("key %x has value %x", row.Key, row.Value)
		}
	}
	// An insertion with BPF_ANY loses nothing, unless that is asked for.
	if rows := r.entries(t, "anyway", 1); rows[0].Total() != 16*250 {
		t.Errorf("counted %d of %d", rows[0].Total(), 16*250)
	}
	if x := r.maps.Find("anyway"); !x.Striped() {
		t.Error("a map that is only counted in has no copies")
	}
	// Nor does one with BPF_NOEXIST, also where the map is read, and so has no copies.
	for _, others := range [][]string{nil, {"look_first"}} {
		r := newRig(t, &PlanOptions{Programs: append([]string{"count_first"}, others...)}, testObject(t, "hashes"))
		r.runAdd(r.weave(vectorAdd).Text, 16, 250)
		if rows := r.entries(t, "firsts", 1); rows[0].Total() != 16*250 {
			t.Errorf("with %v counted %d of %d", others, rows[0].Total(), 16*250)
		}
		if x := r.maps.Find("firsts"); x.Striped() != (others == nil) {
			t.Errorf("with %v it has copies: %v", others, x.Striped())
		}
	}
	racy := newRig(t, &PlanOptions{Programs: []string{"count_anyway"}, Racy: true}, testObject(t, "hashes"))
	racy.runAdd(racy.weave(vectorAdd).Text, 16, 250)
	if x := racy.maps.Find("anyway"); x.Striped() {
		t.Error("a map whose values are replaced has copies")
	}
	if rows := racy.entries(t, "anyway", 1); rows[0].Total() == 0 || rows[0].Total() > 16*250 {
		t.Errorf("counted %d of %d", rows[0].Total(), 16*250)
	}
}

// TestKeysAreSorted: of a hash, as text and as JSON.
func TestKeysAreSorted(t *testing.T) {
	r := hashRig(t, 16, 250, "replace", "replace_longer")
	for _, name := range []string{"replaced", "longer"} {
		rows := r.table(name).Rows
		less := func(a, b mapmem.Row) int {
			return cmp.Or(cmp.Compare(values.Unsigned(a.Key[:min(len(a.Key), 8)]), values.Unsigned(b.Key[:min(len(b.Key), 8)])), cmp.Compare(binary.LittleEndian.Uint32(a.Key[len(a.Key)-8:]), binary.LittleEndian.Uint32(b.Key[len(b.Key)-8:])))
		}
		if name == "replaced" {
			less = func(a, b mapmem.Row) int {
				return cmp.Compare(binary.LittleEndian.Uint32(a.Key), binary.LittleEndian.Uint32(b.Key))
			}
		}
		if len(rows) != 64 || !slices.IsSortedFunc(rows, less) {
			t.Errorf("%s: %d rows, not in the order of their keys", name, len(rows))
		}
	}
}

// TestInsertions: which updates only insert.
func TestInsertions(t *testing.T) {
	o := testObject(t, "hashes")
	for name, want := range map[string]int{"count_anyway": 1, "count_first": 1, "count_after": 1, "count_one": 1, "replace": 0, "live_entry": 0, "full": 0} {
		p := o.Program(name)
		if got, _ := atomics.Insertions(atomics.NewFlow(p.Insns, (&proof.Unit{Object: o}).Helpers()), o.AtomicMap); len(got) != want {
			t.Errorf("%s: %v, want %d", name, got, want)
		}
	}
}

// TestHashKeysComeAndGo: every thread's key is there from its entry to its exit, and
// what was deleted leaves nothing behind that a search would have to pass.
func TestHashKeysComeAndGo(t *testing.T) {
	const threads = 64 * 250
	r := hashRig(t, 64, 250, "live_entry", "live_exit")
	r.entries(t, "live", 0)
	if n := r.value("results", 0); n != threads {
		t.Errorf("%d keys were deleted, want %d", n, threads)
	}
	sum := uint64(0)
	for i := range 64 {
		sum += r.value("hist", i)
	}
	if sum != threads {
		t.Errorf("%d durations, want %d", sum, threads)
	}
	x := r.maps.Find("live")
	if x.Stable || x.Striped() {
		t.Error("a map whose keys are deleted is taken for one whose keys stay")
	}
	homes := make([]byte, 8*x.Hash.Slots)
	if err := r.machine.ReadMem(x.HomeAddr(0), homes); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(homes); i += 8 {
		if w := binary.LittleEndian.Uint64(homes[i:]); w&(mapmem.HomeLock|mapmem.HomeReach) != 0 {
			t.Fatalf("home %d is %#x with no key left", i/8, w)
		}
	}
}

// TestHashWithoutRoom: with more keys than room, each thread gets one answer, and what was
// inserted can be deleted by who inserted it alone.
func TestHashWithoutRoom(t *testing.T) {
	const threads = 40 * 250
	r := hashRig(t, 40, 250, "full")
	var n [8]uint64
	for i := range n {
		n[i] = r.value("results", i)
	}
	if n[1]+n[2]+n[3] != threads || n[4] != 0 || n[5] != 0 || n[6] != n[1] || n[1] == 0 {
		t.Errorf("inserted %d, there already %d, no room %d, other results %d, wrong values %d, deleted %d, of %d", n[1], n[2], n[3], n[4], n[5], n[6], threads)
	}
	r.entries(t, "tiny", 0)
	if refused, err := r.maps.Refused(r.machine, r.maps.Find("tiny")); err != nil || refused > n[3] {
		t.Errorf("%d were refused, %d were told: %v", refused, n[3], err)
	}
}

// TestCountsAtExitsRunSooner: a program that only counts does so while the last block's
// loads are under way; one that looks at the clock does not, nor does one go past a
// barrier.
func TestCountsAtExitsRunSooner(t *testing.T) {
	order := func(name, src string, words ...string) {
		t.Helper()
		r := newRig(t, &PlanOptions{Programs: []string{"on_exit"}}, testObject(t, name))
		text := r.weave(src).Text
		at := 0
		for _, w := range words {
			i := strings.Index(text[at:], w)
			if i < 0 {
				t.Fatalf("%s: no %q where it is expected:\n%s", name, w, text)
			}
			at += i + len(w)
		}
	}
	order("example_count", vectorAdd, "@%p1 ret", "%f2, [", "red.", "add.f32", "st.global.f32", "\tret;")
	order("example_duration", vectorAdd, "@%p1 ret", "ld.global.f32", "st.global.f32", "red.", "\tret;")
	waits := strings.Replace(vectorAdd, "\tcvta.to.global.u64 %rd9", "\tbar.sync 0;\n\tcvta.to.global.u64 %rd9", 1)
	first := strings.NewReplacer("\tld.global.f32 %f1, [%rd6];\n", "", "\tld.global.f32 %f2, [%rd8];\n", "").Replace(vectorAdd)
	order("example_count", first, "@%p1 ret", "red.", "cvta.to.global.u64 %rd4", "st.global.f32", "\tret;")
	order("example_count", waits, "@%p1 ret", "ld.global.f32", "bar.sync", "red.", "st.global.f32", "\tret;")
}

// TestCountIsToldLater: additions by update are counted exactly, and a call that wants
// the sum gets it.
func TestCountIsToldLater(t *testing.T) {
	r := hashRig(t, 16, 250, "tell_count")
	if n := r.value("counted", 1); n != 16*250 || !r.maps.Find("counted").Striped() || r.plan.Programs[0].Increments != 1 {
		t.Errorf("%d, want %d; copies: %v, %d increments", n, 16*250, r.maps.Find("counted").Striped(), r.plan.Programs[0].Increments)
	}
	rows := r.entries(t, "replaced", 1)
	if n := rows[0].Total(); binary.LittleEndian.Uint32(rows[0].Key) != 5 || n == 0 || n > 16*250 {
		t.Errorf("[%d] = %d", binary.LittleEndian.Uint32(rows[0].Key), n)
	}
	r = newRig(t, &PlanOptions{Programs: []string{"use_count"}}, testObject(t, "hashes"))
	if r.plan.Programs[0].Increments != 0 || r.maps.Find("counted").Striped() {
		t.Error("a number that is a key as well is counted for the calls")
	}
}

// TestSums: threads add different numbers to the same places.
func TestSums(t *testing.T) {
	r := hashRig(t, 9, 250, "sum_entry", "sum_exit")
	if n, sum := r.value("sums", 0), r.value("sums", 1); n != 9*250 || sum < n {
		t.Errorf("%d durations, %d in all", n, sum)
	}
}

// TestOwnVariables: variables of which each thread has its own keep what they held
// from entry to exit, in registers.
func TestOwnVariables(t *testing.T) {
	const threads = 9 * 250
	r := hashRig(t, 9, 250, "own_entry", "own_exit")
	for i, want := range []uint64{11, 2, 3, 9} {
		if n := r.value("results", 10+i); n != want*threads {
			t.Errorf("variable %d: %d in all threads, want %d", i, n, want*threads)
		}
	}
	rows := r.entries(t, "replaced", 1)
	if binary.LittleEndian.Uint32(rows[0].Key) != 14 {
		t.Errorf("key %d, want 14", binary.LittleEndian.Uint32(rows[0].Key))
	}
	if r.maps.Find(object.ThreadSection) != nil || slices.ContainsFunc(r.plan.Objects[0].Vars, func(v object.Var) bool { return v.Name == "started" }) {
		t.Error("the host sees variables of the threads")
	}
}
