package nvattach

import (
	"github.com/cilium/ebpf/asm"
)

// insertions returns the calls of bpf_map_update_elem that only run where a lookup of the
// same key in the same hash found nothing: "v = lookup(m, k); if (!v) update(m, k, first)",
// with BPF_ANY, or with BPF_NOEXIST where nobody looks at the result. What they mean is an
// insertion; where another thread inserts the key between the two, the value is added to
// that one's. The result is by index of the instruction.
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
	switch flags := w.regs[asm.R4]; {
	case flags == shadow{kind: shadowConst}:
	case flags == shadow{kind: shadowConst, n: flagNoExist} && !f.live(w.parts.call+1, asm.R0):
		// Nobody asks whether the key was there after all: its first value would be lost.
	default:
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
