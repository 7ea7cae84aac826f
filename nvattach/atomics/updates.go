package atomics

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf"
)

// Updates returns a program in which "v = *lookup(m, k) + n; update(m, k, v)" on
// an array is one atomic addition, where nothing else is done with v and with what
// the update returns. Other threads may see what they could have seen before, and no
// addition is lost. It reports how many there were; with none, the same instructions
// are returned. With later set, v may also be given to other updates, by index of whose
// instruction it returns what they are to count.
func Updates(prog asm.Instructions, find Maps, helpers map[int32]*bpf.Helper, later bool) (asm.Instructions, int, map[int]Recount) {
	if !stackPointersPass(prog) {
		return prog, 0, nil
	}
	recounts := map[int]Recount{}
	f := NewFlow(prog, helpers)
	var out asm.Instructions
	n := 0
	for i := range prog {
		u, ok := f.update(i, find)
		if !ok || len(u.later) > 0 && !later {
			continue
		}
		for _, call := range u.later {
			recounts[call] = Recount{i, u.name}
		}
		if out == nil {
			out = slices.Clone(prog)
		}
		load, add, call := &prog[u.load], &prog[u.add], &prog[u.call]
		// Jumps count instructions, so there must be as many as before.
		out[u.load] = asm.Mov.Imm(load.Dst, int32(add.Constant)).WithMetadata(load.Metadata)
		x := asm.StoreXAdd(load.Src, load.Dst, load.OpCode.Size())
		out[u.add] = x.WithMetadata(add.Metadata)
		out[u.call] = asm.Mov.Imm(asm.R0, 0).WithMetadata(call.Metadata)
		n++
	}
	if n == 0 {
		return prog, 0, nil
	}
	return out, n, recounts
}

// stackPointersPass reports whether pointers to the stack are only made for the next
// call, in registers that it takes away.
func stackPointersPass(prog asm.Instructions) bool {
	for i := range prog {
		in := &prog[i]
		switch class := in.OpCode.Class(); {
		case class.IsALU() && in.OpCode.Source() == asm.RegSource && in.Src == asm.RFP:
			if in.OpCode.ALUOp() != asm.Mov || in.Dst < asm.R1 || in.Dst > asm.R5 {
				return false
			}
		case class == asm.StXClass && in.Src == asm.RFP:
			return false
		}
	}
	return true
}

// A shadow is what a register is known to hold on the way from a lookup to an update.
type shadow struct {
	kind shadowKind
	n    int64  // offset from r10, or the number
	name string // of the map
}

type shadowKind uint8

const (
	shadowOther shadowKind = iota
	shadowStack
	shadowConst
	shadowMap
	shadowValue  // what the lookup returned
	shadowLoaded // *value
	shadowSum    // *value + n
)

// An updateIncrement is where the parts of an addition by update are.
type updateIncrement struct {
	load, add, call int
	name            string // of the map
	later           []int  // updates of which the sum is the value
}

// updateWalk goes from a lookup to an update.
type updateWalk struct {
	f       *Flow
	regs    [11]shadow
	key     int64 // offsets from r10
	keySize int64
	slot    int64
	stored  bool
	size    int64 // of the value
	seen    map[int]bool
	parts   updateIncrement
	null    int        // where the way of a lookup that found nothing begins, 0 for nowhere
	test    int        // the jump that it begins with
	before  [11]shadow // at that jump
	nothing bool
}

// update looks for an addition by update that begins with a lookup at i.
func (f *Flow) update(i int, find Maps) (updateIncrement, bool) {
	known := false
	w, d := f.newWalk(i, find)
	if w == nil || !d.Array || d.Data || d.ValueSize != 4 && d.ValueSize != 8 {
		return updateIncrement{}, false
	}
	if !w.walk(i+1) || w.parts.add < 0 || !w.stored || !w.same(d.Name) {
		return w.parts, false
	}
	if flags := w.regs[asm.R4]; flags.kind != shadowConst || flags.n != 0 && flags.n != flagExist || w.regs[asm.R3] != (shadow{kind: shadowStack, n: w.slot}) {
		return w.parts, false
	}
	call, regs := w.parts.call, w.regs
	if w.null > 0 && !w.walkNull(d.Name) {
		return w.parts, false
	}
	for r := asm.R6; r <= asm.R9; r++ {
		if k := regs[r].kind; (k == shadowLoaded || k == shadowSum) && f.live(call+1, r) {
			return w.parts, false
		}
	}
	if !w.closed(i) || f.live(call+1, asm.R0) {
		return w.parts, false
	}
	w.parts.name = d.Name
	if f.slotRead(call, w.slot, w.size) {
		w.parts.later, known = f.laterReads(call, w.slot, w.size, find)
		return w.parts, known && len(w.parts.later) > 0
	}
	return w.parts, true
}

// newWalk prepares to go on from a lookup at i whose key is on the stack; it returns nil
// if there is none, and the map.
func (f *Flow) newWalk(i int, find Maps) (*updateWalk, *Map) {
	if !calls(&f.Prog[i], 1) {
		return nil, nil
	}
	w := &updateWalk{f: f, seen: map[int]bool{i: true}, parts: updateIncrement{load: -1, add: -1, call: -1}}
	w.regs[asm.RFP] = shadow{kind: shadowStack}
	for r := asm.R6; r <= asm.R9; r++ {
		w.regs[r] = f.keptPointer(r)
	}
	from := i
	for from > 0 && !f.target[from] && !f.Prog[from-1].OpCode.Class().IsJump() {
		from--
	}
	for k := from; k < i; k++ {
		w.move(&f.Prog[k])
	}
	m, key := w.regs[asm.R1], w.regs[asm.R2]
	if m.kind != shadowMap || key.kind != shadowStack {
		return nil, nil
	}
	d := find(m.name)
	if d == nil {
		return nil, nil
	}
	w.key, w.keySize, w.size = key.n, int64(d.KeySize), int64(d.ValueSize)
	for r := asm.R0; r <= asm.R5; r++ {
		w.regs[r] = shadow{}
	}
	w.regs[asm.R0] = shadow{kind: shadowValue}
	return w, d
}

// keptPointer returns what a register holds that is only ever given one pointer to the
// stack, "r = r10; r += n": wherever it is read, if the program is accepted.
func (f *Flow) keptPointer(r asm.Register) (pointer shadow) {
	for i := 0; i < len(f.Prog); i++ {
		in := &f.Prog[i]
		if _, writes := f.touches(in, r); !writes || in.OpCode.Class().IsJump() {
			continue
		}
		if pointer.kind != shadowOther || i+1 == len(f.Prog) || f.target[i+1] || in.OpCode != asm.Mov.Op(asm.RegSource) || in.Src != asm.RFP {
			return shadow{}
		}
		i++
		add := &f.Prog[i]
		if add.OpCode != asm.Add.Op(asm.ImmSource) || add.Dst != r {
			return shadow{}
		}
		pointer = shadow{kind: shadowStack, n: add.Constant}
	}
	return pointer
}

func calls(in *asm.Instruction, id int64) bool { return in.IsBuiltinCall() && in.Constant == id }

// same reports whether the call at hand has the lookup's map and key.
func (w *updateWalk) same(name string) bool {
	return w.regs[asm.R1] == shadow{kind: shadowMap, name: name} && w.regs[asm.R2] == shadow{kind: shadowStack, n: w.key}
}

// walkNull goes the way of a lookup that found nothing: if it comes to the update,
// that must find nothing either.
func (w *updateWalk) walkNull(name string) bool {
	call, seen := w.parts.call, w.seen
	w.nothing, w.parts.call, w.seen = true, -1, maps.Clone(seen)
	w.regs = [11]shadow{asm.RFP: {kind: shadowStack}}
	reached := w.walk(w.null) && w.parts.call == call
	w.parts.call = call
	if !reached {
		w.seen = seen
	}
	return !reached || w.same(name)
}

// walk follows the instructions from i on to an update.
func (w *updateWalk) walk(i int) bool {
	for steps := 0; steps < 64 && i < len(w.f.Prog); steps++ {
		in := &w.f.Prog[i]
		if calls(in, 2) {
			w.seen[i], w.parts.call = true, i
			return true
		}
		if w.seen[i] && !w.nothing {
			return false
		}
		w.seen[i] = true
		next := i + 1
		switch class := in.OpCode.Class(); {
		case jumps(in):
			to, ok := w.jump(i, in)
			if !ok {
				return false
			}
			next = to
		case class.IsJump(): // another call, an exit
			return false
		case class == asm.LdXClass:
			if !w.load(i, in) {
				return false
			}
		case class == asm.StXClass || class == asm.StClass:
			if !w.store(in) {
				return false
			}
		case w.sum(i, in):
		default:
			if w.tainted(in) {
				return false
			}
			w.move(in)
		}
		i = next
	}
	return false
}

// jump returns where a jump goes that asks for no more than whether the lookup found
// something.
func (w *updateWalk) jump(i int, in *asm.Instruction) (to int, ok bool) {
	next, op := w.f.next[i], in.OpCode.JumpOp()
	if op == asm.Ja {
		if len(next) != 1 {
			return 0, false
		}
		return next[0], true
	}
	null := in.OpCode.Class() == asm.JumpClass && in.OpCode.Source() == asm.ImmSource && in.Constant == 0 && w.regs[in.Dst].kind == shadowValue
	if !null || w.nothing || w.null > 0 || len(next) != 2 || op != asm.JEq && op != asm.JNE {
		return 0, false
	}
	w.test, w.before = i, w.regs
	to, w.null = next[0], next[1] // the next instruction, the jump's target
	if op == asm.JNE {
		to, w.null = w.null, to
	}
	return to, true
}

// load accepts one load of the whole value.
func (w *updateWalk) load(i int, in *asm.Instruction) bool {
	if w.nothing || w.parts.load >= 0 || in.OpCode.Mode() != asm.MemMode || w.regs[in.Src].kind != shadowValue || in.Src == in.Dst ||
		in.Offset != 0 || int64(in.OpCode.Size().Sizeof()) != w.size {
		return false
	}
	w.parts.load = i
	w.regs[in.Dst] = shadow{kind: shadowLoaded}
	return true
}

// sum accepts an addition of a number to what was loaded.
func (w *updateWalk) sum(i int, in *asm.Instruction) bool {
	class := in.OpCode.Class()
	if !class.IsALU() || w.parts.load < 0 || w.parts.add >= 0 || w.regs[in.Dst].kind != shadowLoaded ||
		in.OpCode.ALUOp() != asm.Add || in.OpCode.Source() != asm.ImmSource || class == asm.ALUClass && w.size == 8 {
		return false
	}
	load := &w.f.Prog[w.parts.load]
	if load.Dst != in.Dst || w.regs[load.Src].kind != shadowValue {
		return false
	}
	w.parts.add = i
	w.regs[in.Dst] = shadow{kind: shadowSum}
	return true
}

// store accepts stores to the stack that leave the key alone, and one of the sum.
func (w *updateWalk) store(in *asm.Instruction) bool {
	at, n := int64(in.Offset), int64(in.OpCode.Size().Sizeof())
	if in.OpCode.Mode() != asm.MemMode || in.Dst != asm.RFP || at < w.key+w.keySize && at+n > w.key {
		return false
	}
	if w.stored && !w.nothing && at < w.slot+w.size && at+n > w.slot {
		return false
	}
	if in.OpCode.Class() == asm.StClass {
		return true
	}
	switch w.regs[in.Src].kind {
	case shadowLoaded:
		return false
	case shadowSum:
		if w.stored || n != w.size {
			return false
		}
		w.slot, w.stored = at, true
	}
	return true
}

// tainted reports whether an instruction takes what was loaded for something else.
func (w *updateWalk) tainted(in *asm.Instruction) bool {
	is := func(r asm.Register) bool {
		return r <= asm.RFP && (w.regs[r].kind == shadowLoaded || w.regs[r].kind == shadowSum)
	}
	if !in.OpCode.Class().IsALU() {
		return false
	}
	return is(in.Dst) && in.OpCode.ALUOp() != asm.Mov || in.OpCode.Source() == asm.RegSource && is(in.Src)
}

// move does what an instruction does to the registers, as far as it matters here.
func (w *updateWalk) move(in *asm.Instruction) {
	if in.Dst > asm.R9 {
		return
	}
	d, op := &w.regs[in.Dst], in.OpCode
	wide := op.Class() == asm.ALU64Class && in.Offset == 0
	switch {
	case in.IsLoadFromMap():
		*d = shadow{}
		if in.Src == asm.PseudoMapFD {
			*d = shadow{kind: shadowMap, name: in.Reference()}
		}
	case wide && op.ALUOp() == asm.Mov && op.Source() == asm.RegSource:
		*d = w.regs[in.Src]
	case op.Class().IsALU() && op.ALUOp() == asm.Mov && op.Source() == asm.ImmSource:
		*d = shadow{kind: shadowConst, n: in.Constant}
	case wide && op.ALUOp() == asm.Add && op.Source() == asm.ImmSource && d.kind == shadowStack:
		d.n += in.Constant
	case op.Class().IsALU() || op.Class() == asm.LdClass || op.Class() == asm.LdXClass:
		*d = shadow{}
	}
}

// closed reports whether the instructions behind the lookup are only reached from it.
func (w *updateWalk) closed(lookup int) bool {
	for i, next := range w.f.next {
		for _, to := range next {
			if w.seen[to] && to != lookup && !w.seen[i] {
				return false
			}
		}
	}
	return true
}

// slotRead reports whether size bytes of the stack at off may be read behind
// instruction i before they are written.
func (f *Flow) slotRead(i int, off, size int64) bool {
	seen := make([]bool, len(f.Prog))
	todo := slices.Clone(f.next[i])
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[i] {
			continue
		}
		seen[i] = true
		in := &f.Prog[i]
		at, n := int64(in.Offset), int64(0)
		switch class := in.OpCode.Class(); {
		case class.IsALU() && in.OpCode.Source() == asm.RegSource && in.Src == asm.RFP:
			// A pointer for a call, which goes on from there as far as it likes.
			next := int64(0)
			if i+1 < len(f.Prog) {
				if add := &f.Prog[i+1]; add.OpCode.Class() == asm.ALU64Class && add.OpCode.ALUOp() == asm.Add && add.OpCode.Source() == asm.ImmSource && add.Dst == in.Dst {
					next = add.Constant
				}
			}
			if next < off+size {
				return true
			}
		case class == asm.LdXClass && in.Src == asm.RFP, class == asm.StXClass && in.Dst == asm.RFP && in.OpCode.Mode() != asm.MemMode:
			n = int64(in.OpCode.Size().Sizeof())
			if at < off+size && at+n > off {
				return true
			}
		case (class == asm.StXClass || class == asm.StClass) && in.Dst == asm.RFP:
			n = int64(in.OpCode.Size().Sizeof())
			if at <= off && at+n >= off+size {
				continue
			}
		}
		todo = append(todo, f.next[i]...)
	}
	return false
}
