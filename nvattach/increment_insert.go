package nvattach

import (
	"github.com/cilium/ebpf/asm"
)

// insertions returns the calls of bpf_map_update_elem with BPF_ANY that only run where a
// lookup of the same key in the same hash found nothing: "v = lookup(m, k); if (!v)
// update(m, k, first)". What they mean is an insertion; where another thread inserts the
// key between the two, its value is the one that counts for the first. The result is by
// index of the instruction.
func insertions(f *flow, o *Object) map[int]bool {
	var calls map[int]bool
	if !stackPointersPass(f.prog) {
		return nil
	}
	for i := range f.prog {
		if call, ok := f.insertion(i, o); ok {
			if calls == nil {
				calls = map[int]bool{}
			}
			calls[call] = true
		}
	}
	return calls
}

// insertion looks for an insertion behind a lookup at i.
func (f *flow) insertion(i int, o *Object) (call int, ok bool) {
	w, d := f.newWalk(i, o)
	if w == nil || d.layout() != layoutHash {
		return 0, false
	}
	w.walk(i + 1) // as far as the test for NULL
	if w.null == 0 {
		return 0, false
	}
	from := w.test
	w.nothing, w.parts.call, w.seen = true, -1, map[int]bool{from: true}
	w.regs = w.before
	if !w.walk(w.null) || !w.same(d.Name) {
		return 0, false
	}
	if flags := w.regs[asm.R4]; flags != (shadow{kind: shadowConst}) {
		return 0, false
	}
	for k, next := range f.next {
		for _, to := range next {
			if to != from && w.seen[to] && !w.seen[k] {
				return 0, false // another way leads there
			}
		}
	}
	return w.parts.call, true
}
