package sass

import "math/bits"

// Instructions without a fixed latency read their operands and write their
// results some time after they have issued. The six scoreboards say when: an
// instruction names one that is busy until its operands are read, and one that is
// busy until its results are written; later ones wait.

// unguarded is the index, behind the scoreboards, of operands that nothing will
// tell about: of a store, say, whose registers the code doesn't use again.
const unguarded = 6

// flight is what is on its way, by scoreboard.
type flight struct {
	read  [7]Set
	write [7]Set
	used  uint8 // scoreboards (and unguarded) with anything in read or write
}

func (f *flight) wait(mask uint8) {
	for m := mask & f.used & 0x3f; m != 0; m &= m - 1 {
		i := bits.TrailingZeros8(m)
		f.read[i], f.write[i] = Set{}, Set{}
	}
	f.used &^= mask & 0x3f
}

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
	}
	return grew
}

// totals returns everything that is on its way.
func (f *flight) totals(read, write *Set) {
	*read, *write = Set{}, Set{}
	for m := f.used; m != 0; m &= m - 1 {
		i := bits.TrailingZeros8(m)
		read.Union(&f.read[i])
		write.Union(&f.write[i])
	}
}

// issue adds what an instruction sets out to do, after its wait.
func (f *flight) issue(in *Inst, c Control, read, write *Set) {
	if f.used&(1<<unguarded) != 0 {
		// Code that uses a register again knew that it may.
		f.read[unguarded].Minus(write)
		if f.read[unguarded].Empty() {
			f.used &^= 1 << unguarded
		}
	}
	if in.op == nil {
		return
	}
	rb := c.ReadBar
	if c.WriteBar < unguarded {
		f.write[c.WriteBar].Union(write)
		f.used |= 1 << c.WriteBar
		if rb >= unguarded {
			// Whoever waits for the results has waited for the operands too.
			rb = c.WriteBar
		}
	}
	switch {
	case rb < unguarded:
		f.read[rb].Union(read)
		f.used |= 1 << rb
	case in.op.readBar && c.WriteBar >= unguarded && in.op.flow == FlowNext:
		f.read[unguarded].Union(read)
		f.used |= 1 << unguarded
	}
}

// operands returns what an instruction reads and writes, without the guard, which
// is read as it issues. Nothing for unknown words.
func (i *Inst) operandSets(read, write *Set) {
	*read, *write = Set{}, Set{}
	for j := range i.ops {
		t := &i.ops[j]
		reg := t.fixed
		if t.len != 0 {
			reg = uint8(i.Word.Bits(uint(t.pos), uint(t.len)))
			if reg == t.none {
				continue
			}
		}
		if t.flags&readFlag != 0 {
			read.Add(t.kind, reg, t.count)
		}
		if t.flags&writeFlag != 0 {
			write.Add(t.kind, reg, t.count)
		}
	}
}

// pending fills in PendRead and PendWrite, forwards over the blocks.
func (a *Analysis) pending() {
	n := len(a.Insts)
	a.PendRead, a.PendWrite = make([]Set, n), make([]Set, n)
	a.flights = make([]flight, len(a.Blocks))
	queued := make([]bool, len(a.Blocks))
	work := make([]int, 0, len(a.Blocks))
	for b := len(a.Blocks) - 1; b >= 0; b-- {
		work = append(work, b)
		queued[b] = true
	}
	var f flight
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		queued[b] = false
		f = a.flights[b]
		blk := &a.Blocks[b]
		changed := true
		var pr, pw, read, write Set
		for i := blk.Start; i < blk.End; i++ {
			in := &a.Insts[i]
			c := in.Word.Control()
			if c.Wait&f.used != 0 {
				f.wait(c.Wait)
				changed = true
			}
			if changed {
				f.totals(&pr, &pw)
				changed = false
			}
			a.PendRead[i], a.PendWrite[i] = pr, pw
			in.operandSets(&read, &write)
			if c.WriteBar < unguarded || c.ReadBar < unguarded || f.used&(1<<unguarded) != 0 || in.op != nil && in.op.readBar {
				f.issue(in, c, &read, &write)
				changed = true
			}
		}
		for _, s := range blk.Succ {
			if a.flights[s].union(&f) && !queued[s] {
				queued[s] = true
				work = append(work, s)
			}
		}
	}
}
