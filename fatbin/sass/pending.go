package sass

import "math/bits"

// Instructions without a fixed latency read their operands and write their
// results some time after they have issued. The six scoreboards say when: an
// instruction names one that is busy until its operands are read, and one that is
// busy until its results are written; later ones wait.

// board is what is on its way of one scoreboard, or of one unit.
type board struct {
	read  Set // operands
	write Set
	// told are the operands for which the scoreboard is a read barrier, and both the
	// operands of those whose results the scoreboard is for: when these are waited
	// for, the operands have been read.
	told, both Set
	// named are the results that no instruction has waited for: a DEPBAR that lets some
	// of a scoreboard be busy leaves open which.
	named Set
}

func (b *board) union(c *board) bool {
	grew := b.read.Union(&c.read)
	grew = b.write.Union(&c.write) || grew
	grew = b.told.Union(&c.told) || grew
	grew = b.both.Union(&c.both) || grew
	return b.named.Union(&c.named) || grew
}

// flight is what is on its way, by scoreboard. Of those that are not used it has nothing.
type flight struct {
	boards [unguarded + units]board
	used   uint16 // bits of the indices with anything in read or write
}

// kept is a flight without what is not used.
type kept struct {
	used   uint16
	boards []board // in order
}

// set has f be what was kept.
func (f *flight) set(k *kept) {
	for m := f.used; m != 0; m &= m - 1 {
		f.boards[bits.TrailingZeros16(m)] = board{}
	}
	f.used = k.used
	n := 0
	for m := k.used; m != 0; m &= m - 1 {
		f.boards[bits.TrailingZeros16(m)] = k.boards[n]
		n++
	}
}

// union adds f, and says whether k grew.
func (k *kept) union(f *flight) bool {
	grew := f.used&^k.used != 0
	if grew {
		old := *k
		k.used |= f.used
		k.boards = make([]board, bits.OnesCount16(k.used))
		from, to := 0, 0
		for m := k.used; m != 0; m &= m - 1 {
			if old.used&(m&-m) != 0 {
				k.boards[to] = old.boards[from]
				from++
			}
			to++
		}
	}
	n := 0
	for m := k.used; m != 0; m &= m - 1 {
		if f.used&(m&-m) != 0 && k.boards[n].union(&f.boards[bits.TrailingZeros16(m)]) {
			grew = true
		}
		n++
	}
	return grew
}

func (f *flight) wait(mask uint8) {
	for m := uint16(mask) & f.used & 0x3f; m != 0; m &= m - 1 {
		b := &f.boards[bits.TrailingZeros16(m)]
		both := b.both
		*b = board{}
		if both.Empty() {
			continue
		}
		for n := f.used & 0x3f; n != 0; n &= n - 1 {
			f.boards[bits.TrailingZeros16(n)].told.Minus(&both)
		}
	}
	f.used &^= uint16(mask) & 0x3f
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
		f.boards[board].told, f.boards[board].named = Set{}, Set{}
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

// totals returns everything that is on its way, and apart what a scoreboard tells
// of: operands by a read barrier, results.
func (f *flight) totals(read, told, write, named *Set) {
	*read, *told, *write, *named = Set{}, Set{}, Set{}, Set{}
	for m := f.used; m != 0; m &= m - 1 {
		i := bits.TrailingZeros16(m)
		b := &f.boards[i]
		if i < unguarded {
			told.Union(&b.told)
			named.Union(&b.named)
		}
		read.Union(&b.read)
		write.Union(&b.write)
	}
}

// issue adds what an instruction sets out to do, after its wait.
func (f *flight) issue(in *Inst, c Control, read, write *Set) {
	for u := unguarded; u < unguarded+units; u++ {
		if f.used&(1<<u) == 0 {
			continue
		}
		// Code that uses a register again knew that it may.
		f.boards[u].read.Minus(write)
		f.boards[u].write.Minus(write)
		f.boards[u].write.Minus(read)
		if f.boards[u].read.Empty() && f.boards[u].write.Empty() {
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
		f.boards[rb].write.Union(&Set{P: write.P})
		f.boards[rb].named.Union(&Set{P: write.P})
		f.used |= 1 << rb
		write.P = 0
	}
	if wb < unguarded {
		f.boards[wb].write.Union(write)
		f.boards[wb].named.Union(write)
		f.used |= 1 << wb
		if rb >= unguarded {
			// Whoever waits for the results has waited for the operands too. Uniform
			// registers are read as it issues.
			rb = wb
			read.UR = [4]uint64{}
			f.boards[rb].read.Union(read)
		}
	}
	if in.op.earlyUR {
		read.UR = [4]uint64{}
	}
	if c.ReadBar < unguarded {
		f.boards[rb].told.Union(read)
		f.boards[rb].read.Union(read)
		f.used |= 1 << rb
		if wb < unguarded {
			f.boards[wb].both.Union(read)
		}
	}
	if in.op.unit == 0 {
		return
	}
	u := unguarded + in.op.unit - 1
	if rb >= unguarded {
		read.UR = [4]uint64{}
		f.boards[u].read.Union(read)
		f.boards[u].write.Union(write)
		f.used |= 1 << u
		return
	}
	// The unit works in order: earlier instructions have read when this one has.
	f.boards[rb].read.Union(&f.boards[u].read)
	f.boards[u].read = Set{}
	if wb < unguarded {
		f.boards[wb].write.Union(&f.boards[u].write)
		f.boards[wb].named.Union(&f.boards[u].write)
		f.boards[u].write = Set{}
	} else {
		// A load may have a scoreboard for its operands only.
		f.boards[u].write.Union(write)
	}
	f.used &^= 1 << u
	if !f.boards[u].write.Empty() {
		f.used |= 1 << u
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
	a.PendRead, a.PendWrite = resize(&a.room.sets[2], n), resize(&a.room.sets[3], n)
	a.pendTold, a.pendOwn = resize(&a.room.sets[4], n), resize(&a.room.sets[5], n)
	a.flights = make([]kept, len(a.Blocks))
	a.converge()
	var f flight
	for b := range a.Blocks {
		f.set(&a.flights[b])
		a.follow(b, &f, true)
	}
	a.callers()
}

// converge finds what is on its way at the beginning of each block.
func (a *Analysis) converge() {
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
		f.set(&a.flights[b])
		a.follow(b, &f, false)
		for _, s := range a.passes(b) {
			if a.flights[s].union(&f) && !queued[s] {
				queued[s] = true
				again = again || s <= b
			}
		}
	}
}

// follow has the instructions of a block issue, in order. With note it notes what is on
// its way at each.
func (a *Analysis) follow(b int, f *flight, note bool) {
	blk := &a.Blocks[b]
	changed := true
	var pr, pt, pw, pn, read, write Set
	for i := blk.Start; i < blk.End; i++ {
		in := &a.Insts[i]
		c := in.Word.Control()
		if uint16(c.Wait)&f.used != 0 {
			f.wait(c.Wait)
			changed = true
		}
		if note {
			if changed {
				f.totals(&pr, &pt, &pw, &pn)
				changed = false
			}
			a.PendRead[i], a.pendTold[i], a.PendWrite[i], a.pendOwn[i] = pr, pt, pw, pn
		}
		if in.op != nil && in.Word.Opcode() == opDEPBAR {
			f.depbar(in)
			changed = true
		}
		if c.WriteBar < unguarded || c.ReadBar < unguarded || f.used>>unguarded != 0 || in.op != nil && in.op.unit != 0 {
			read, write = a.names[i].read, a.names[i].write
			f.issue(in, c, &read, &write)
			changed = true
		}
	}
}

// passes are the blocks that get what is on its way at the end of one: those it
// goes on to, but behind a call instead of in the callee. What a callee begins
// goes to behind all calls; what its callers began is added by callers.
func (a *Analysis) passes(b int) []int {
	blk := &a.Blocks[b]
	last := blk.End - 1
	if a.localCalls && a.isCall(last) && blk.End < len(a.Insts) {
		return []int{int(a.BlockOf[blk.End])}
	}
	return blk.Succ
}

// callers adds, to the instructions of functions that are called, what can be on its way at
// the calls, as far as no instruction of theirs has used the registers.
func (a *Analysis) callers() {
	if !a.localCalls {
		return
	}
	a.begun = make([]*named, len(a.Blocks))
	var atCalls named
	for _, i := range a.returns {
		atCalls.read.Union(&a.PendRead[i-1])
		atCalls.write.Union(&a.PendWrite[i-1])
	}
	var work []int
	reach := func(b int, n *named) {
		first := a.begun[b] == nil
		if first {
			a.begun[b] = new(named)
		}
		grew := a.begun[b].read.Union(&n.read)
		if grew = a.begun[b].write.Union(&n.write) || grew; grew || first {
			work = append(work, b)
		}
	}
	for _, i := range a.returns {
		if t, ok := a.Target(i - 1); ok {
			reach(int(a.BlockOf[t]), &atCalls)
		}
	}
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		blk := &a.Blocks[b]
		if a.Insts[blk.End-1].op.flow == FlowReturn {
			continue
		}
		left := a.begunBefore(b, blk.End)
		for _, s := range blk.Succ {
			reach(s, &left)
		}
	}
	for b, n := range a.begun {
		if n == nil {
			continue
		}
		left := *n
		for i := a.Blocks[b].Start; i < a.Blocks[b].End; i++ {
			a.PendRead[i].Union(&left.read)
			a.PendWrite[i].Union(&left.write)
			left.used(&a.names[i])
		}
	}
}

// begunBefore returns what callers may have on their way before the instruction at an index
// of a block, or behind the last one.
func (a *Analysis) begunBefore(b, index int) (left named) {
	if a.begun == nil || a.begun[b] == nil {
		return left
	}
	left = *a.begun[b]
	for i := a.Blocks[b].Start; i < index; i++ {
		left.used(&a.names[i])
	}
	return left
}

// used takes out what an instruction shows to be done: code that reads a result, or uses a
// register again, knew that it may.
func (n *named) used(by *named) {
	n.read.Minus(&by.write)
	n.write.Minus(&by.write)
	n.write.Minus(&by.read)
}
