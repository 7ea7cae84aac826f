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
		*read = AllRegs()
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

func (a *Analysis) liveness() {
	n := len(a.Insts)
	a.LiveIn, a.LiveOut = make([]Set, n), make([]Set, n)
	all := AllRegs()
	in := make([]Set, len(a.Blocks))
	queued := make([]bool, len(a.Blocks))
	work := make([]int, 0, len(a.Blocks))
	for b := range a.Blocks {
		work = append(work, b)
		queued[b] = true
	}
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		queued[b] = false
		blk := &a.Blocks[b]
		var live Set
		if blk.LeavesAnywhere {
			live = all
		}
		for _, s := range blk.Succ {
			live.Union(&in[s])
		}
		for i := blk.End - 1; i >= blk.Start; i-- {
			a.LiveOut[i] = live
			var read, kill Set
			a.Insts[i].effect(&read, &kill)
			live.Minus(&kill)
			live.Union(&read)
			a.LiveIn[i] = live
		}
		if live != in[b] {
			in[b] = live
			for _, p := range blk.Pred {
				if !queued[p] {
					queued[p] = true
					work = append(work, p)
				}
			}
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
