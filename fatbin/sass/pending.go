package sass

import "math/bits"

// Instructions without a fixed latency read their operands and write their
// results some time after they have issued. The six scoreboards say when: an
// instruction names one that is busy until its operands are read, and one that is
// busy until its results are written; later ones wait.

// unguarded is the first index, behind the scoreboards, of what nothing will tell
// about: of a store, say, whose registers the code doesn't use again, or of a load
// that a later one of the same unit stands for. Units are counted from 1.
const (
	unguarded = 6
	units     = 2
)

// flight is what is on its way, by scoreboard.
type flight struct {
	read  [unguarded + units]Set // operands
	write [unguarded + units]Set
	// told are the operands for which the scoreboard is a read barrier, and both the
	// operands of those whose results the scoreboard is for: when these are waited
	// for, the operands have been read.
	told, both [unguarded]Set
	// named are the results that no instruction has waited for: a DEPBAR that lets some
	// of a scoreboard be busy leaves open which.
	named [unguarded]Set
	used  uint8 // bits of the indices with anything in read or write
}

func (f *flight) wait(mask uint8) {
	for m := mask & f.used & 0x3f; m != 0; m &= m - 1 {
		i := bits.TrailingZeros8(m)
		f.read[i], f.write[i], f.told[i], f.named[i] = Set{}, Set{}, Set{}, Set{}
		if !f.both[i].Empty() {
			for j := range f.told {
				f.told[j].Minus(&f.both[i])
			}
			f.both[i] = Set{}
		}
	}
	f.used &^= mask & 0x3f
}

// depbar has a DEPBAR wait.
func (f *flight) depbar(in *Inst) {
	board, most := uint8(in.Word.Bits(depbarBoard, 3)), in.Word.Bits(depbarMost, 6)
	if board >= unguarded {
		return
	}
	if _, _, guarded := in.Guard(); !guarded {
		mask := uint8(in.Word.Bits(depbarMask, 6))
		if in.Word.Bits(depbarLE, 1) != 0 && most == 0 {
			mask |= 1 << board
		}
		f.wait(mask)
	}
	if in.Word.Bits(depbarLE, 1) != 0 {
		f.told[board], f.named[board] = Set{}, Set{}
	}
}

// Fields of DEPBAR: scoreboards to wait for, and with LE one of which so many
// instructions may still be on their way.
const (
	depbarMask  = 32
	depbarMost  = 38
	depbarBoard = 44
	depbarLE    = 47
)

// union adds g and says whether f grew.
func (f *flight) union(g *flight) bool {
	grew := f.used|g.used != f.used
	f.used |= g.used
	for m := g.used; m != 0; m &= m - 1 {
		i := bits.TrailingZeros8(m)
		if f.read[i].Union(&g.read[i]) {
			grew = true
		}
		if f.write[i].Union(&g.write[i]) {
			grew = true
		}
		if i < unguarded && f.told[i].Union(&g.told[i]) {
			grew = true
		}
		if i < unguarded && f.both[i].Union(&g.both[i]) {
			grew = true
		}
		if i < unguarded && f.named[i].Union(&g.named[i]) {
			grew = true
		}
	}
	return grew
}

// totals returns everything that is on its way, and apart what a scoreboard tells
// of: operands by a read barrier, results.
func (f *flight) totals(read, told, write, named *Set) {
	*read, *told, *write, *named = Set{}, Set{}, Set{}, Set{}
	for m := f.used; m != 0; m &= m - 1 {
		i := bits.TrailingZeros8(m)
		if i < unguarded {
			told.Union(&f.told[i])
			named.Union(&f.named[i])
		}
		read.Union(&f.read[i])
		write.Union(&f.write[i])
	}
}

// issue adds what an instruction sets out to do, after its wait.
func (f *flight) issue(in *Inst, c Control, read, write *Set) {
	for u := unguarded; u < unguarded+units; u++ {
		if f.used&(1<<u) == 0 {
			continue
		}
		// Code that uses a register again knew that it may.
		f.read[u].Minus(write)
		f.write[u].Minus(write)
		f.write[u].Minus(read)
		if f.read[u].Empty() && f.write[u].Empty() {
			f.used &^= 1 << u
		}
	}
	if in.op == nil {
		return
	}
	// Predicates are read as it issues, and masks of threads have no scoreboard.
	// A predicate of a load that is read and written decides what it does.
	write.P &^= read.P
	read.P, read.UP, read.B, write.B = 0, 0, 0, 0
	rb, wb := c.ReadBar, c.WriteBar
	if rb < unguarded && in.op.name == "ATOM" {
		// Whether the address is in shared memory is known with the operands.
		f.write[rb].Union(&Set{P: write.P})
		f.named[rb].Union(&Set{P: write.P})
		f.used |= 1 << rb
		write.P = 0
	}
	if wb < unguarded {
		f.write[wb].Union(write)
		f.named[wb].Union(write)
		f.used |= 1 << wb
		if rb >= unguarded {
			// Whoever waits for the results has waited for the operands too. Uniform
			// registers are read as it issues.
			rb = wb
			read.UR = [4]uint64{}
			f.read[rb].Union(read)
		}
	}
	if in.op.earlyUR {
		read.UR = [4]uint64{}
	}
	if c.ReadBar < unguarded {
		f.told[rb].Union(read)
		f.read[rb].Union(read)
		f.used |= 1 << rb
		if wb < unguarded {
			f.both[wb].Union(read)
		}
	}
	if in.op.unit == 0 {
		return
	}
	u := unguarded + in.op.unit - 1
	if rb >= unguarded {
		read.UR = [4]uint64{}
		f.read[u].Union(read)
		f.write[u].Union(write)
		f.used |= 1 << u
		return
	}
	// The unit works in order: earlier instructions have read when this one has.
	f.read[rb].Union(&f.read[u])
	f.read[u] = Set{}
	if wb < unguarded {
		f.write[wb].Union(&f.write[u])
		f.named[wb].Union(&f.write[u])
		f.write[u] = Set{}
	}
	if f.write[u].Empty() {
		f.used &^= 1 << u
	}
}

// operands returns what an instruction reads and writes, without the guard, which
// is read as it issues. Nothing for unknown words.
func (i *Inst) operandSets(read, write *Set) {
	*read, *write = Set{}, Set{}
	for j := range i.ops {
		t := &i.ops[j]
		reg, ok := t.reg(i.Word)
		if !ok {
			continue
		}
		if t.flags&readFlag != 0 {
			read.Add(t.kind, reg, t.count)
		}
		if t.flags&writeFlag != 0 {
			write.Add(t.kind, reg, t.count)
		}
	}
	switch i.Word.Opcode() {
	case opP2R:
		read.P &= uint8(i.Word.Bits(32, 7))
	case opR2P:
		write.P &= uint8(i.Word.Bits(32, 7))
	}
}

// pending fills in PendRead and PendWrite, forwards over the blocks.
func (a *Analysis) pending() {
	n := len(a.Insts)
	a.PendRead, a.PendWrite, a.pendTold, a.pendOwn = make([]Set, n), make([]Set, n), make([]Set, n), make([]Set, n)
	a.flights = make([]flight, len(a.Blocks))
	queued := make([]bool, len(a.Blocks))
	for b := range queued {
		queued[b] = true
	}
	var f flight
	for b, again := 0, false; b < len(a.Blocks) || again; b++ {
		if b == len(a.Blocks) {
			b, again = 0, false
		}
		if !queued[b] {
			continue
		}
		queued[b] = false
		f = a.flights[b]
		blk := &a.Blocks[b]
		changed := true
		var pr, pt, pw, pn, read, write Set
		for i := blk.Start; i < blk.End; i++ {
			in := &a.Insts[i]
			c := in.Word.Control()
			if c.Wait&f.used != 0 {
				f.wait(c.Wait)
				changed = true
			}
			if changed {
				f.totals(&pr, &pt, &pw, &pn)
				changed = false
			}
			a.PendRead[i], a.pendTold[i], a.PendWrite[i], a.pendOwn[i] = pr, pt, pw, pn
			if in.op != nil && in.Word.Opcode() == opDEPBAR {
				f.depbar(in)
				changed = true
			}
			in.operandSets(&read, &write)
			if c.WriteBar < unguarded || c.ReadBar < unguarded || f.used>>unguarded != 0 || in.op != nil && in.op.unit != 0 {
				f.issue(in, c, &read, &write)
				changed = true
			}
		}
		for _, s := range a.passes(b) {
			if a.flights[s].union(&f) && !queued[s] {
				queued[s] = true
				again = again || s <= b
			}
		}
	}
	a.callers()
}

// passes are the blocks that get what is on its way at the end of one: those it
// goes on to, but behind a call instead of in the callee. What a callee begins
// goes to behind all calls; what its callers began is added by callers.
func (a *Analysis) passes(b int) []int {
	blk := &a.Blocks[b]
	last := blk.End - 1
	if a.localCalls && a.Insts[last].op.flow == FlowCall && blk.End < len(a.Insts) {
		return []int{int(a.BlockOf[blk.End])}
	}
	return blk.Succ
}

// callers adds, to the instructions of functions that are called, what can be on
// its way at the calls.
func (a *Analysis) callers() {
	if !a.localCalls {
		return
	}
	var read, write Set
	var work []int
	inside := make([]bool, len(a.Blocks))
	for _, i := range a.returns {
		read.Union(&a.PendRead[i-1])
		write.Union(&a.PendWrite[i-1])
		if t, ok := a.Target(i - 1); ok {
			work = append(work, int(a.BlockOf[t]))
		}
	}
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		if inside[b] {
			continue
		}
		inside[b] = true
		blk := &a.Blocks[b]
		for i := blk.Start; i < blk.End; i++ {
			a.PendRead[i].Union(&read)
			a.PendWrite[i].Union(&write)
		}
		if a.Insts[blk.End-1].op.flow != FlowReturn {
			work = append(work, blk.Succ...)
		}
	}
}
