package sass

// Liveness, backwards over the blocks until nothing changes. A write under a
// guard ends nothing. What a call or a return hands on, and what an unknown word
// does, may be any register.

// stackPointer is R1.
const stackPointer = 1

// effect is what an instruction does to the live set: reads, and what it surely
// overwrites.
func (i *Inst) effect(read, kill *Set) {
	if i.op == nil {
		*read, *kill = AllRegs(), Set{}
		return
	}
	i.uses(read, kill)
	if f := i.op.flow; f == FlowExit || f == FlowReturn || f == FlowCall {
		// The stack pointer stays in use as long as there is code.
		read.Add(GPR, stackPointer, 1)
	}
	if i.Word.Lo>>12&15 != guardAlways {
		*kill = Set{}
		return
	}
	// Masks of threads that meet are changed lane by lane.
	kill.B = 0
	kill.P &^= i.mayWrite()
	kill.UP &^= i.mayWrite()
}

// effect is that of the instruction at index i with the piece of code that it jumps to
// and that comes back.
func (a *Analysis) effect(i int, read, kill *Set) {
	a.Insts[i].effect(read, kill)
	if s, ok := a.Func.Calls[i]; ok {
		read.Union(&a.Func.Shared[s].Reads)
	}
}

func (a *Analysis) liveness() {
	n := len(a.Insts)
	a.LiveIn, a.LiveOut = make([]Set, n), make([]Set, n)
	all := AllRegs()
	// What each block reads before it writes it, and what it surely overwrites.
	reads, kills := make([]Set, len(a.Blocks)), make([]Set, len(a.Blocks))
	in := make([]Set, len(a.Blocks))
	queued := make([]bool, len(a.Blocks))
	var read, kill Set
	for b := range a.Blocks {
		blk := &a.Blocks[b]
		for i := blk.End - 1; i >= blk.Start; i-- {
			a.effect(i, &read, &kill)
			reads[b].Minus(&kill)
			reads[b].Union(&read)
			kills[b].Union(&kill)
		}
		queued[b] = true
	}
	out := func(b int) Set {
		if a.Blocks[b].LeavesAnywhere {
			return all
		}
		var live Set
		for _, s := range a.Blocks[b].Succ {
			live.Union(&in[s])
		}
		return live
	}
	// From the end on: most of what a block needs to know is in later ones.
	for again := true; again; {
		again = false
		for b := len(a.Blocks) - 1; b >= 0; b-- {
			if !queued[b] {
				continue
			}
			queued[b] = false
			live := out(b)
			live.Minus(&kills[b])
			live.Union(&reads[b])
			if !in[b].Union(&live) {
				continue
			}
			for _, p := range a.Blocks[b].Pred {
				queued[p] = true
				again = again || p >= b
			}
		}
	}
	for b := range a.Blocks {
		blk := &a.Blocks[b]
		live := out(b)
		for i := blk.End - 1; i >= blk.Start; i-- {
			a.LiveOut[i] = live
			a.effect(i, &read, &kill)
			live.Minus(&kill)
			live.Union(&read)
			a.LiveIn[i] = live
		}
	}
	for i := range a.Insts {
		if a.Insts[i].Known() {
			var read, write Set
			a.Insts[i].uses(&read, &write)
			a.Used.Union(&read)
			a.Used.Union(&write)
		}
	}
}
