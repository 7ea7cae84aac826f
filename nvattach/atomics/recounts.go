package atomics

import (
	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf"
)

// A Recount is a call of bpf_map_update_elem whose value is what an addition by update
// left on the stack: as the addition is made by itself, the value is counted for the
// call, which few threads may come to.
type Recount struct {
	Lookup int    // the addition's lookup
	Name   string // of the map that is added to
}

// laterReads returns the calls of bpf_map_update_elem behind instruction i whose value is
// the size bytes of the stack at off. It reports false if anything else may read them, or
// if they may hold something else at one of the calls.
func (f *Flow) laterReads(i int, off, size int64, find Maps) (calls []int, ok bool) {
	seen := make([]bool, len(f.Prog))
	for todo := append([]int(nil), f.next[i]...); len(todo) > 0; {
		k := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[k] {
			continue
		}
		seen[k] = true
		in := &f.Prog[k]
		at, n := int64(in.Offset), int64(in.OpCode.Size().Sizeof())
		switch class := in.OpCode.Class(); {
		case class.IsALU() && in.OpCode.Source() == asm.RegSource && in.Src == asm.RFP:
			call, whole, apart := f.passed(k, off, size, find)
			switch {
			case whole:
				calls = append(calls, call)
			case !apart:
				return nil, false
			}
		case class == asm.LdXClass && in.Src == asm.RFP, (class == asm.StXClass || class == asm.StClass) && in.Dst == asm.RFP:
			if at < off+size && at+n > off {
				return nil, false
			}
		}
		todo = append(todo, f.next[k]...)
	}
	for _, call := range calls {
		if f.around(i, call) {
			return nil, false
		}
	}
	return calls, true
}

// around reports whether there is a way to an instruction that does not lead over
// another.
func (f *Flow) around(over, to int) bool {
	seen := make([]bool, len(f.Prog))
	for todo := []int{0}; len(todo) > 0; {
		k := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if k == over || seen[k] {
			continue
		}
		if k == to {
			return true
		}
		seen[k] = true
		todo = append(todo, f.next[k]...)
	}
	return false
}

// passed looks at a pointer to the stack that instruction k makes for a call. whole says
// that it is the value of a bpf_map_update_elem, the size bytes at off; apart that the
// call does not touch these.
func (f *Flow) passed(k int, off, size int64, find Maps) (call int, whole, apart bool) {
	r := f.Prog[k].Dst
	w := updateWalk{f: f}
	from := k
	for from > 0 && !f.target[from] && !f.Prog[from-1].OpCode.Class().IsJump() {
		from--
	}
	w.regs[asm.RFP] = shadow{kind: shadowStack}
	for i := from; i < len(f.Prog) && i < from+64; i++ {
		in := &f.Prog[i]
		if in.IsBuiltinCall() {
			if i < k {
				break
			}
			if w.regs[r].kind != shadowStack {
				return 0, false, false
			}
			at := w.regs[r].n
			n, kind := f.extent(&w, in, r, find)
			switch {
			case n < 0:
				return 0, false, false
			case at >= off+size || at+n <= off:
				return 0, false, true
			}
			return i, kind == bpf.ArgValue && in.Constant == helperUpdate && at == off && n == size, false
		}
		if i > from && f.target[i] || in.OpCode.Class().IsJump() {
			break
		}
		w.move(in)
	}
	return 0, false, false
}

// extent returns how many bytes behind the pointer in register r a call touches, less
// than 0 if that is not known, and what for.
func (f *Flow) extent(w *updateWalk, call *asm.Instruction, r asm.Register, find Maps) (int64, bpf.ArgKind) {
	h := f.helpers[int32(call.Constant)]
	k := int(r - asm.R1)
	if h == nil {
		return -1, bpf.ArgAny
	}
	if k >= len(h.Args) {
		return 0, bpf.ArgAny
	}
	spec := &h.Args[k]
	switch spec.Kind {
	case bpf.ArgKey, bpf.ArgValue:
		d := find(w.regs[asm.R1].name)
		if w.regs[asm.R1].kind != shadowMap || d == nil {
			return -1, spec.Kind
		}
		if spec.Kind == bpf.ArgKey {
			return int64(d.KeySize), spec.Kind
		}
		return int64(d.ValueSize), spec.Kind
	case bpf.ArgRead, bpf.ArgWrite, bpf.ArgString, bpf.ArgShared:
		switch d := find(w.regs[asm.R1].name); {
		case spec.Size == bpf.ValueBytes && (w.regs[asm.R1].kind != shadowMap || d == nil):
			return -1, spec.Kind
		case spec.Size == bpf.ValueBytes:
			return int64(d.ValueSize), spec.Kind
		case spec.Size > 0:
			return int64(spec.Size), spec.Kind
		}
		if n := w.regs[asm.R1+asm.Register(spec.SizeArg)]; n.kind == shadowConst && n.n >= 0 {
			return n.n, spec.Kind
		}
		return -1, spec.Kind
	case bpf.ArgAny, bpf.ArgScalar, bpf.ArgConst: // a pointer that nobody follows
		return 0, spec.Kind
	}
	return -1, spec.Kind
}
