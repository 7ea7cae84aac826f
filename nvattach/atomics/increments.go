package atomics

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf"
)

// Increments returns a program in which "*p += n" on shared memory is one atomic
// addition, and likewise with -=, |=, &= and ^=, of 1 to 8 bytes: a load, operations of
// one kind, and a store to the same place, whose register nobody reads afterwards. What
// threads then see is one of the things that they could have seen before, and nothing is
// lost. Stores in skip are left alone. It reports which stores became atomic; with none,
// the same instructions are returned.
//
// Values of per-thread maps are left alone, as far as it can be seen that they are
// some: nobody else adds to them.
func Increments(prog asm.Instructions, find Maps, helpers map[int32]*bpf.Helper, skip map[int]bool) (asm.Instructions, []int) {
	f := NewFlow(prog, helpers)
	var out asm.Instructions
	var stores []int
	for i := range prog {
		u, ok := f.modification(i)
		if !ok || skip[u.store] || f.ownValue(i, find) {
			continue
		}
		used := f.live(u.store+1, prog[i].Dst)
		if used && !f.canFetch(i, u) {
			continue
		}
		if out == nil {
			out = slices.Clone(prog)
		}
		stores = append(stores, u.store)
		load, store := &prog[i], &prog[u.store]
		r := load.Dst
		if used { // what was there is fetched, and the operation done again
			op := prog[u.op]
			out[i] = operandOf(&op, r).WithMetadata(load.Metadata)
			x := (u.kind | fetching).Mem(store.Dst, r, store.OpCode.Size(), store.Offset)
			out[u.op], out[u.store] = x.WithMetadata(op.Metadata), op.WithMetadata(store.Metadata)
			continue
		}
		// Jumps count instructions, so there must be as many as before: the operations
		// stay, and begin with what changes nothing.
		first := int32(0)
		if u.kind == asm.AndAtomic {
			first = -1
		}
		out[i] = asm.Mov.Imm(r, first).WithMetadata(load.Metadata)
		addend := r
		if op := &prog[i+1]; u.store == i+2 && op.OpCode.ALUOp() == asm.Add {
			fill := asm.Mov.Imm(r, int32(op.Constant))
			if op.OpCode.Source() == asm.RegSource {
				fill, addend = asm.Mov.Imm(r, 0), op.Src
			}
			out[i], out[i+1] = fill.WithMetadata(load.Metadata), fill.WithMetadata(op.Metadata)
		}
		x := u.kind.Mem(store.Dst, addend, asm.Word, store.Offset)
		x.OpCode = x.OpCode.SetSize(store.OpCode.Size())
		out[u.store] = x.WithMetadata(store.Metadata)
	}
	if stores == nil {
		return prog, nil
	}
	return out, stores
}

// fetching is the part of an atomic operation's code that says that it returns what was
// there.
const fetching = asm.FetchAdd &^ asm.AddAtomic

// canFetch reports whether a modification whose result is read can be made atomic: it has
// one operation, in front of the store, with a number that can be put in its register.
func (f *Flow) canFetch(i int, u modification) bool {
	op := &f.Prog[u.op]
	reg := op.OpCode.Source() == asm.RegSource
	for k := i + 1; reg && k < u.op; k++ { // it must be known where the load was
		if _, gone := f.touches(&f.Prog[k], op.Src); gone {
			return false
		}
	}
	return u.ops == 1 && u.op == u.store-1 && f.Prog[i].OpCode.Size().Sizeof() >= 4 && (!reg || op.OpCode.ALUOp() != asm.Sub)
}

// operandOf puts what an operation takes into r; of a subtraction what is added.
func operandOf(op *asm.Instruction, r asm.Register) asm.Instruction {
	switch {
	case op.OpCode.Source() == asm.RegSource:
		return asm.Mov.Reg(r, op.Src)
	case op.OpCode.ALUOp() == asm.Sub:
		return asm.Mov.Imm(r, int32(-op.Constant))
	}
	return asm.Mov.Imm(r, int32(op.Constant))
}

// mostBetween bounds the instructions from a load to its store.
const mostBetween = 64

// A modification is "*p op= n": a load, operations, a store.
type modification struct {
	store int
	op    int // the last operation
	ops   int
	kind  asm.AtomicOp
}

// modification looks for one that begins with a load at i.
func (f *Flow) modification(i int) (u modification, ok bool) {
	load := &f.Prog[i]
	op, r, p, found := load.OpCode, load.Dst, load.Src, false
	if op.Class() != asm.LdXClass || op.Mode() != asm.MemMode || p == asm.RFP || p == r {
		return u, false
	}
	for k := i + 1; k < len(f.Prog) && k < i+mostBetween; k++ {
		in := &f.Prog[k]
		class := in.OpCode.Class()
		if f.target[k] || class.IsJump() {
			return u, false
		}
		if class.IsALU() && in.Dst == r {
			kind, known := atomicOf(in, r, op.Size())
			if !known || found && u.kind != kind {
				return u, false
			}
			u.kind, u.op, u.ops, found = kind, k, u.ops+1, true
			continue
		}
		if class == asm.StXClass && in.Src == r && in.Dst == p {
			u.store = k
			return u, found && in.OpCode.Mode() == asm.MemMode && in.OpCode.Size() == op.Size() && in.Offset == load.Offset
		}
		reads, _ := f.touches(in, r)
		memory := class == asm.StXClass || class == asm.StClass
		elsewhere := in.Dst == asm.RFP || in.Dst == p && apart(in, load)
		if reads || !memory && (in.Dst == r || in.Dst == p) || memory && (!elsewhere || in.OpCode.Mode() != asm.MemMode) {
			return u, false
		}
	}
	return u, false
}

// apart reports whether two accesses behind one pointer touch no byte together.
func apart(x, y *asm.Instruction) bool {
	xo, yo := int(x.Offset), int(y.Offset)
	return xo+x.OpCode.Size().Sizeof() <= yo || yo+y.OpCode.Size().Sizeof() <= xo
}

// atomicOf returns the atomic operation that an operation on what was loaded to r is a
// part of.
func atomicOf(in *asm.Instruction, r asm.Register, size asm.Size) (kind asm.AtomicOp, ok bool) {
	if in.Offset != 0 || in.OpCode.Source() == asm.RegSource && in.Src == r {
		return 0, false
	}
	// Of 64 bits, one of 32 clears the upper half, as a conjunction may.
	cut := size == asm.DWord && in.OpCode.Class() == asm.ALUClass
	switch in.OpCode.ALUOp() {
	case asm.And:
		return asm.AndAtomic, true
	case asm.Add, asm.Sub:
		return asm.AddAtomic, !cut
	case asm.Or:
		return asm.OrAtomic, !cut
	case asm.Xor:
		return asm.XorAtomic, !cut
	}
	return 0, false
}

// ownValue reports whether what instruction i loads is a value of a per-thread map, on every
// path that leads there.
func (f *Flow) ownValue(i int, find Maps) bool {
	lookups, ok := f.objects(i, f.Prog[i].Src)
	for _, k := range lookups {
		loads, known := f.Sources(k, asm.R1)
		ok = ok && known && calls(&f.Prog[k], helperLookup) && len(loads) > 0
		for _, load := range loads {
			d := find(f.Prog[load].Reference())
			ok = ok && f.Prog[load].IsLoadFromMap() && d != nil && d.PerThread
		}
	}
	return ok && len(lookups) > 0
}

// A Flow is what is known of the paths through a program.
type Flow struct {
	Prog    asm.Instructions
	helpers map[int32]*bpf.Helper
	next    [][]int // instructions that may come after; nil after an exit
	prev    [][]int // those that may come before; nil: nobody has asked, see before
	target  []bool  // some jump goes there
}

// NewFlow looks at a program's jumps; helpers, which may be nil, say what calls read.
func NewFlow(prog asm.Instructions, helpers map[int32]*bpf.Helper) *Flow {
	f := &Flow{Prog: prog, helpers: helpers, next: make([][]int, len(prog)), target: make([]bool, len(prog)+1)}
	at, symbols := map[int64]int{}, map[string]int{}
	slots := make([]int64, len(prog)+1)
	for i := range prog {
		at[slots[i]] = i
		slots[i+1] = slots[i] + int64(prog[i].Width())
		if s := prog[i].Symbol(); s != "" {
			symbols[s] = i
			f.target[i] = true
		}
	}
	for i := range prog {
		in := &prog[i]
		if i+1 < len(prog) && !ends(in) {
			f.next[i] = append(f.next[i], i+1)
		}
		if !jumps(in) {
			continue
		}
		off := int64(in.Offset)
		if in.OpCode.Class() == asm.Jump32Class && in.OpCode.JumpOp() == asm.Ja {
			off = in.Constant
		}
		to, ok := at[slots[i+1]+off]
		if s := in.Reference(); s != "" {
			to, ok = symbols[s]
		}
		if ok {
			f.next[i] = append(f.next[i], to)
			f.target[to] = true
		}
	}
	return f
}

func jumps(in *asm.Instruction) bool {
	if !in.OpCode.Class().IsJump() {
		return false
	}
	op := in.OpCode.JumpOp()
	return op != asm.Exit && op != asm.Call
}

// ends reports whether the next instruction is not reached from this one.
func ends(in *asm.Instruction) bool {
	if !in.OpCode.Class().IsJump() {
		return false
	}
	op := in.OpCode.JumpOp()
	return op == asm.Exit || op == asm.Ja
}

// live reports whether a register's value may be read from instruction i on.
func (f *Flow) live(i int, r asm.Register) bool {
	seen := make([]bool, len(f.Prog))
	todo := []int{i}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if i >= len(f.Prog) || seen[i] {
			continue
		}
		seen[i] = true
		reads, writes := f.touches(&f.Prog[i], r)
		if reads {
			return true
		}
		if !writes {
			todo = append(todo, f.next[i]...)
		}
	}
	return false
}

// touches reports whether an instruction may read a register, and whether the value
// is gone behind it.
func (f *Flow) touches(in *asm.Instruction, r asm.Register) (reads, writes bool) {
	op := in.OpCode
	switch class := op.Class(); {
	case class == asm.LdClass:
		// Only loads of 64-bit constants are accepted later.
		return op.Mode() != asm.ImmMode, in.Dst == r
	case class == asm.LdXClass:
		return in.Src == r, in.Dst == r
	case class == asm.StClass:
		return in.Dst == r, false
	case class == asm.StXClass:
		atomic := op.Mode() != asm.MemMode
		return in.Dst == r || in.Src == r || atomic && r == asm.R0, false
	case class.IsALU():
		moves := op.ALUOp() == asm.Mov
		return in.Dst == r && !moves || op.Source() == asm.RegSource && in.Src == r, in.Dst == r
	}
	switch op.JumpOp() {
	case asm.Exit:
		return r == asm.R0, true
	case asm.Call:
		return f.argument(in, r), r <= asm.R5
	}
	return in.Dst == r || op.Source() == asm.RegSource && in.Src == r, false
}

// argument reports whether a call may read a register.
func (f *Flow) argument(in *asm.Instruction, r asm.Register) bool {
	if r < asm.R1 || r > asm.R5 {
		return false
	}
	if !in.IsBuiltinCall() {
		return true
	}
	h := f.helpers[int32(in.Constant)]
	return h == nil || int(r-asm.R1) < len(h.Args)
}
