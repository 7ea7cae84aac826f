package nvattach

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf"
)

// atomicIncrements returns a program in which "*p += n" on shared memory is one
// atomic addition: a load, an addition and a store to the same place, one behind the
// other, whose register nobody reads afterwards. What threads then see is one of the
// things that they could have seen before, and no addition is lost. It reports how
// many there were; with none, the same instructions are returned.
//
// Values of per-thread maps are left alone, as far as it can be seen that they are
// some: nobody else adds to them.
func atomicIncrements(prog asm.Instructions, o *Object, helpers map[int32]*bpf.Helper) (asm.Instructions, int) {
	f := newFlow(prog, helpers)
	var out asm.Instructions
	n := 0
	for i := 0; i+2 < len(prog); i++ {
		if !increment(prog[i:i+3]) || f.target[i+1] || f.target[i+2] || ownValue(prog[:i], o) {
			continue
		}
		load, add, store := prog[i], prog[i+1], prog[i+2]
		if f.live(i+3, load.Dst) {
			continue
		}
		if out == nil {
			out = slices.Clone(prog)
		}
		addend := load.Dst
		value := add.Constant
		if add.OpCode.Source() == asm.RegSource {
			addend, value = add.Src, 0
		}
		// Jumps count instructions, so there must be as many as before.
		fill := asm.Mov.Imm(load.Dst, int32(value))
		out[i] = fill.WithMetadata(load.Metadata)
		out[i+1] = fill.WithMetadata(add.Metadata)
		x := asm.StoreXAdd(store.Dst, addend, store.OpCode.Size())
		x.Offset = store.Offset
		out[i+2] = x.WithMetadata(store.Metadata)
		n++
		i += 2
	}
	if n == 0 {
		return prog, 0
	}
	return out, n
}

// increment reports whether three instructions are r = *(p+o); r += x; *(p+o) = r.
func increment(s asm.Instructions) bool {
	load, add, store := &s[0], &s[1], &s[2]
	size := load.OpCode.Size()
	return load.OpCode.Class() == asm.LdXClass && load.OpCode.Mode() == asm.MemMode && (size == asm.DWord || size == asm.Word) &&
		load.Src != asm.RFP && load.Src != load.Dst &&
		add.OpCode.Class().IsALU() && add.OpCode.ALUOp() == asm.Add && add.Dst == load.Dst && add.Offset == 0 &&
		(add.OpCode.Class() == asm.ALU64Class || size == asm.Word) &&
		(add.OpCode.Source() == asm.ImmSource || add.Src != load.Dst) &&
		store.OpCode.Class() == asm.StXClass && store.OpCode.Mode() == asm.MemMode && store.OpCode.Size() == size &&
		store.Dst == load.Src && store.Src == load.Dst && store.Offset == load.Offset
}

// ownValue reports whether the last lookup before an instruction was in a
// per-thread map.
func ownValue(before asm.Instructions, o *Object) bool {
	called := false
	for i := len(before) - 1; i >= 0 && i >= len(before)-64; i-- {
		in := &before[i]
		switch {
		case in.IsBuiltinCall():
			called = in.Constant == 1
		case called && in.IsLoadFromMap():
			d := o.Map(in.Reference())
			return d != nil && d.PerThread()
		}
	}
	return false
}

// flow is what is known of the paths through a program.
type flow struct {
	prog    asm.Instructions
	helpers map[int32]*bpf.Helper
	next    [][]int // instructions that may come after; nil after an exit
	target  []bool  // some jump goes there
}

func newFlow(prog asm.Instructions, helpers map[int32]*bpf.Helper) *flow {
	f := &flow{prog: prog, helpers: helpers, next: make([][]int, len(prog)), target: make([]bool, len(prog)+1)}
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
func (f *flow) live(i int, r asm.Register) bool {
	seen := make([]bool, len(f.prog))
	todo := []int{i}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if i >= len(f.prog) || seen[i] {
			continue
		}
		seen[i] = true
		reads, writes := f.touches(&f.prog[i], r)
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
func (f *flow) touches(in *asm.Instruction, r asm.Register) (reads, writes bool) {
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
func (f *flow) argument(in *asm.Instruction, r asm.Register) bool {
	if r < asm.R1 || r > asm.R5 {
		return false
	}
	if !in.IsBuiltinCall() {
		return true
	}
	h := f.helpers[int32(in.Constant)]
	return h == nil || int(r-asm.R1) < len(h.Args)
}
