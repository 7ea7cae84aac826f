package atomics

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf"
)

// Insertions returns the calls of bpf_map_update_elem that only run where a lookup of the
// same key in the same hash found nothing: "v = lookup(m, k); if (!v) update(m, k, first)",
// with BPF_ANY, or with BPF_NOEXIST where nobody looks at the result. What they mean is an
// insertion; where another thread inserts the key between the two, the value is added to
// that one's. The result is by index of the instruction. shared are those to which other
// ways lead, too, as compilers make one call of two that end alike.
func Insertions(f *Flow, find Maps) (only map[int]bool, shared []int) {
	for i := range f.Prog {
		call, alone, ok := f.insertion(i, find)
		switch {
		case ok && alone:
			if only == nil {
				only = map[int]bool{}
			}
			only[call] = true
		case ok:
			shared = append(shared, call)
		}
	}
	return only, shared
}

// insertion looks for an insertion behind a lookup at i; alone says that no other way
// leads to its call.
func (f *Flow) insertion(i int, find Maps) (call int, alone, ok bool) {
	w, d := f.newWalk(i, find)
	if w == nil || !d.Hash {
		return 0, false, false
	}
	w.walk(i + 1) // as far as the test for NULL
	if w.null == 0 {
		return 0, false, false
	}
	from := w.test
	w.nothing, w.parts.call, w.seen = true, -1, map[int]bool{from: true}
	w.regs = w.before
	if !w.walk(w.null) || !w.same(d.Name) {
		return 0, false, false
	}
	switch flags := w.regs[asm.R4]; {
	case flags == shadow{kind: shadowConst}:
	case flags == shadow{kind: shadowConst, n: flagNoExist} && !f.live(w.parts.call+1, asm.R0):
		// Nobody asks whether the key was there after all: its first value would be lost.
	default:
		return 0, false, false
	}
	for k, next := range f.next {
		for _, to := range next {
			if to != from && w.seen[to] && !w.seen[k] {
				return w.parts.call, false, true
			}
		}
	}
	return w.parts.call, true, true
}

// WithoutCopies returns a program without those calls of bpf_map_update_elem that write a
// value over itself: "v = lookup(m, k); if (v) { *v += n; update(m, k, v); }". The helper
// would read what other threads may change before it writes it back.
func WithoutCopies(prog asm.Instructions, find Maps, helpers map[int32]*bpf.Helper) asm.Instructions {
	f := NewFlow(prog, helpers)
	var out asm.Instructions
	for i := range prog {
		call, ok := f.copyOver(i, find)
		if !ok {
			continue
		}
		if out == nil {
			out = slices.Clone(prog)
		}
		out[call] = asm.Mov.Imm(asm.R0, 0).WithMetadata(prog[call].Metadata)
	}
	if out == nil {
		return prog
	}
	return out
}

// copyOver looks for a call that writes what a lookup at i returned over itself, whose
// result nobody looks at.
func (f *Flow) copyOver(i int, find Maps) (call int, ok bool) {
	w, d := f.newWalk(i, find)
	if w == nil {
		return 0, false
	}
	for k := i + 1; k < len(f.Prog) && !w.seen[k] && len(w.seen) < mostBetween; {
		in := &f.Prog[k]
		if calls(in, helperUpdate) {
			w.seen[k] = true
			flags := w.regs[asm.R4]
			same := w.same(d.Name) && w.regs[asm.R3] == shadow{kind: shadowValue} && flags.kind == shadowConst && (flags.n == 0 || flags.n == flagExist)
			return k, same && w.closed(i) && !f.live(k+1, asm.R0)
		}
		w.seen[k] = true
		next := k + 1
		switch class := in.OpCode.Class(); {
		case jumps(in):
			if next, ok = w.jump(k, in); !ok {
				return 0, false
			}
		case class.IsJump(): // another call, an exit
			return 0, false
		case class == asm.StXClass || class == asm.StClass:
			at, n := int64(in.Offset), int64(in.OpCode.Size().Sizeof())
			if in.Dst != asm.RFP && w.regs[in.Dst].kind != shadowValue || in.Dst == asm.RFP && at < w.key+w.keySize && at+n > w.key {
				return 0, false
			}
			switch {
			case in.OpCode.Mode() == asm.MemMode:
			case in.OpCode.AtomicOp() == asm.CmpXchg:
				w.regs[asm.R0] = shadow{}
			default: // those that return what was there
				w.regs[in.Src] = shadow{}
			}
		default:
			w.move(in)
		}
		k = next
	}
	return 0, false
}
