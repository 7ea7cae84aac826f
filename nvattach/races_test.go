package nvattach

import (
	"encoding/binary"
	"strings"
	"testing"

	"nvtrace/nvattach/object"
)

// TestChangesAreAtomic: what all threads change at once loses nothing.
func TestChangesAreAtomic(t *testing.T) {
	const blocks, threads = 16, 250
	r := newRig(t, &PlanOptions{Programs: []string{"change", "used"}}, testObject(t, "races"))
	for _, q := range r.plan.Programs {
		if w := q.Warnings(); len(w) > 0 {
			t.Errorf("%s: %v", q.Name, w)
		}
	}
	if n := r.plan.Programs[0].Increments; n != 11 {
		t.Errorf("%d changes became atomic, want 11", n)
	}
	text := r.weave(vectorAdd).Text
	assemble(t, text, "sm_90")
	r.runAdd(text, blocks, threads)
	v := r.table("values").Rows[0].Value
	const all, sum = blocks * threads, blocks * threads * (threads - 1) / 2
	for _, x := range []struct {
		name      string
		got, want uint64
	}{
		{"sum", binary.LittleEndian.Uint64(v), 3*all + sum},
		{"less", binary.LittleEndian.Uint64(v[8:]), 1<<64 - 2*all},
		{"ors", uint64(binary.LittleEndian.Uint32(v[16:])), 1<<32 - 1},
		{"xors", uint64(binary.LittleEndian.Uint32(v[20:])), 0},
		{"ands", binary.LittleEndian.Uint64(v[24:]), 0},
		{"half", uint64(v[32]) | uint64(v[33])<<8, all},
		{"byte", uint64(v[34]), all % 256},
		{"bits", uint64(v[35]), 255},
		{"small", uint64(binary.LittleEndian.Uint32(v[36:])), (1<<32 - sum) % (1 << 32)},
		{"half", r.value("half", 0), all},
	} {
		if x.got != x.want {
			t.Errorf("%s: %d, want %d", x.name, x.got, x.want)
		}
	}
}

// TestTotal: a value that is written over itself by the call that also inserts the first
// one, as in bpftime's cuda-counter, loses nothing.
func TestTotal(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"total"}, Strict: true}, testObject(t, "races"))
	r.runAdd(r.weave(vectorAdd).Text, 16, 250)
	if rows := r.table("totals").Rows; len(rows) != 1 || binary.LittleEndian.Uint64(rows[0].Value) != 16*250*249/2 {
		t.Errorf("%v, want %d", rows, 16*250*249/2)
	}
}

// TestWarnings: what can't be made atomic is warned of, and strictly refused.
func TestWarnings(t *testing.T) {
	o := testObject(t, "races")
	p, err := NewPlan([]*object.Object{o}, &PlanOptions{Programs: []string{"multiply"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "races.bpf.c:63"
	w := p.Programs[0].Warnings()
	if len(w) != 1 || !strings.Contains(w[0], want) || !strings.Contains(w[0], "product") || !strings.Contains(w[0], "__sync_val_compare_and_swap") {
		t.Errorf("%q, want one at %s", w, want)
	}
	if p, err = NewPlan([]*object.Object{o}, &PlanOptions{Programs: []string{"again"}}); err != nil {
		t.Fatal(err)
	}
	if w := p.Programs[0].Warnings(); len(w) != 1 || !strings.Contains(w[0], "races.bpf.c:132") || !strings.Contains(w[0], "totals") {
		t.Errorf("%q, want one of the value that is written over itself", w)
	}
	if _, err := NewPlan([]*object.Object{o}, &PlanOptions{Programs: []string{"multiply"}, Strict: true}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("not refused: %v", err)
	}
	if _, err := NewPlan([]*object.Object{o}, &PlanOptions{Programs: []string{"change", "used"}, Strict: true}); err != nil {
		t.Error(err)
	}
	racy, err := NewPlan([]*object.Object{testObject(t, "races")}, &PlanOptions{Programs: []string{"change", "used"}, Racy: true})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := len(racy.Programs[0].Warnings()), len(racy.Programs[1].Warnings()); a != 11 || b != 1 {
		t.Errorf("%d and %d warnings without atomics, want 11 and 1", a, b)
	}
}

// TestNumberedSites: each number that a program counts by is one of a place that is told.
func TestNumberedSites(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"place"}}, testObject(t, "races"))
	r.runAdd(r.weave(vectorAdd).Text, 4, 64)
	sites := r.plan.NumberedSites()
	rows := r.table("places").Rows
	if len(rows) != len(sites) || len(sites) != 3 {
		t.Fatalf("%d keys, %d places; want 3", len(rows), len(sites))
	}
	for i, want := range []string{": ld.global.f32 ", ": ld.global.f32 ", ": st.global.f32 "} {
		if n := binary.LittleEndian.Uint32(rows[i].Key); int(n) != sites[i].Number || binary.LittleEndian.Uint64(rows[i].Value) != 4*64 || !strings.Contains(sites[i].Site.String(), want) {
			t.Errorf("[%d] = %d, place %d is %v, want one with %q", n, binary.LittleEndian.Uint64(rows[i].Value), sites[i].Number, &sites[i].Site, want)
		}
	}
	if other := newRig(t, &PlanOptions{Programs: []string{"change"}}, testObject(t, "races")); other.weave(vectorAdd).Text == "" || len(other.plan.NumberedSites()) > 0 {
		t.Error("places are told that no program asks for")
	}
}
