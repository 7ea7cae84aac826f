package sass

// Liveness, backwards over the blocks until nothing changes. A write under a
// guard ends nothing. What a call or a return hands on, and what an unknown word
// does, may be any register.

// stackPointer is R1.
const stackPointer = 1

// effect is what the instruction at index at does to the live set, with the piece of code
// that it jumps to and that comes back: reads, and what it surely overwrites.
func (a *Analysis) effect(at int, read, kill *Set) {
	i := &a.Insts[at]
	if i.op == nil {
		*read, *kill = allRegs(), Set{}
	} else {
		a.sure(at, read, kill)
	}
	if s, ok := a.Func.Calls[at]; ok {
		read.Union(&a.Func.Shared[s].Reads)
	}
}

// sure is effect of a known instruction itself.
func (a *Analysis) sure(at int, read, kill *Set) {
	i := &a.Insts[at]
	*read, *kill = a.names[at].read, a.names[at].write
	i.addGuard(read)
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
	may := i.mayWrite()
	kill.P &^= may
	kill.UP &^= may
}

func (a *Analysis) liveness() {
	n := len(a.Insts)
	a.LiveIn, a.LiveOut = resize(&a.room.sets[0], n), resize(&a.room.sets[1], n)
	all := allRegs()
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
			n := a.uses(i)
			a.Used.Union(&n.read)
			a.Used.Union(&n.write)
		}
	}
}
