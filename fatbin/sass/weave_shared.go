package sass

import "slices"

// A body that is long is not copied for each place: that would make a kernel with many
// places hundreds of times as large. Its copies are shared by the places at which the
// same registers are free. A place puts the offset at which the kernel goes on into a
// pair of registers, as compilers do for functions of their own, and jumps to the copy,
// which ends with a return to there.

// longBody is the number of instructions from which on a body is shared.
const longBody = 100

// returnPair is the register of a body, which has none of so high a number, that stands
// for the pair in which a shared copy is told where to return to.
const returnPair = 252

// A sharedCopy is a copy of a body that several places jump to.
type sharedCopy struct {
	body *Body
	regs placement // without what places save
	base int       // index of its first instruction in the new code
	end  int
}

// mostCopies are as many of a body as a kernel gets before its registers are rather saved
// than that there is another copy, which has to be fetched into the cache of instructions.
const mostCopies = 8

// placeBefore chooses registers for a probe before the instruction at index i: those that
// are free, those that are when what is on its way is waited for, those that can be
// saved, or those of instructions that are made to tell when they have read them.
func (w *Weaver) placeBefore(i int, p *probe, copies int) error {
	p.wait, p.spill = 0, Set{}
	busy := w.busy(i)
	live := w.a.LiveIn[i]
	var own Set // what the instruction uses that a probe behind it is told of
	if p.after {
		read, write := w.a.Insts[i].Uses()
		own = read
		own.Union(&write)
		live.Union(&w.a.LiveOut[i])
		live.Union(&own)
	}
	busy.Union(&live)
	err := w.choose(i, p, &busy, copies)
	if err == nil {
		return nil
	}
	busy, p.wait = w.silent(i)
	never := busy
	never.Union(&own)
	busy.Union(&live)
	if w.choose(i, p, &busy, copies) == nil {
		return nil
	}
	var ok bool
	if p.spill, ok = w.spillable(i, p, &never); ok && w.choose(i, p, &busy, copies) == nil {
		return nil
	}
	if w.uncertain != "" || copies < maxBody {
		return err // another copy is cheaper
	}
	// The last stores before an exit tell nobody when they have read their registers. They
	// can be made to.
	never, p.wait, p.spill = w.never, allBoards, Set{}
	untold := w.untoldAt(i)
	never.Union(&untold)
	never.Union(&own)
	busy = never
	busy.Union(&live)
	if w.choose(i, p, &busy, copies) != nil {
		if p.spill, ok = w.spillable(i, p, &never); !ok || w.choose(i, p, &busy, copies) != nil {
			return err
		}
	}
	w.tell = true
	return nil
}

// choose takes the registers of a copy that is there already, or of one that is new.
func (w *Weaver) choose(i int, p *probe, busy *Set, copies int) error {
	from := w.lowest()
	if len(p.body.code) < w.long {
		return w.place(i, p, busy, from)
	}
	if w.reuse(i, p, busy, from) {
		return nil
	}
	n := 0
	for _, s := range w.shared {
		if s.body == p.body {
			n++
		}
	}
	if n >= copies {
		return siteError(i, "the probe has %d copies, of which none can be used here", n)
	}
	p.shared = new(sharedCopy)
	// Registers that the kernel does not have are free at other places too.
	err := w.place(i, p, busy, w.fresh)
	if err != nil {
		err = w.place(i, p, busy, from)
	}
	if err != nil {
		p.shared = nil
		return err
	}
	*p.shared = sharedCopy{body: p.body, regs: p.regs}
	if p.regs.save != 0 {
		var keep Set
		keep.Add(GPR, p.regs.keep, 1)
		p.shared.regs.used.Minus(&keep)
	}
	p.shared.regs.save, p.shared.regs.spilled = 0, nil
	w.shared = append(w.shared, p.shared)
	return nil
}

// reuse takes the copy of the probe's body for which the fewest registers have to be
// saved; false if there is none.
func (w *Weaver) reuse(i int, p *probe, busy *Set, from int) bool {
	var best *sharedCopy
	for _, s := range w.shared {
		if s.body != p.body || (s.regs.local != nil || s.body.frame > 0) && s.regs.lowered != w.lowered[i] {
			continue
		}
		pl, ok := w.fitsAt(i, &s.regs, busy, &p.spill, from)
		if ok && (best == nil || len(pl.spilled) < len(p.regs.spilled)) {
			best, p.regs = s, pl
		}
	}
	p.shared = best
	if best != nil {
		w.top = max(w.top, p.regs.high)
	}
	return best != nil
}

// fitsAt returns the registers of a copy with what has to be saved of them at the
// instruction at index i.
func (w *Weaver) fitsAt(i int, regs *placement, busy, spill *Set, from int) (placement, bool) {
	pl := *regs
	pl.spilled = nil
	ok := true
	each(&pl.used, func(k RegKind, r int) {
		switch {
		case k == GPR && (r < from || busy.Has(k, uint8(r))):
			if r < from || !spill.Has(k, uint8(r)) {
				ok = false
			}
			pl.spilled = append(pl.spilled, uint8(r))
		case k == Pred && (from > 0 || busy.Has(k, uint8(r))):
			ok = ok && w.savable(i, uint8(r))
			pl.save |= 1 << r
		}
	})
	if !ok {
		return pl, false
	}
	if pl.save != 0 {
		keep := -1
		for r := max(from, 2); r < w.usable && keep < 0; r++ {
			if !busy.Has(GPR, uint8(r)) && !pl.used.Has(GPR, uint8(r)) {
				keep = r
			}
		}
		if keep < 0 {
			return pl, false
		}
		pl.keep = uint8(keep)
		pl.used.Add(GPR, pl.keep, 1)
		pl.high = max(pl.high, keep)
	}
	return pl, true
}

// sharedCopy writes a copy of a body that comes back to where it is jumped to from.
func (e *emitter) sharedCopy(s *sharedCopy) error {
	s.base = len(e.out.Code)
	if err := e.body(&probe{body: s.body, regs: s.regs}, 0, false); err != nil {
		return err
	}
	// The offset is one from the beginning of the code.
	back, ok := RETRel(e.w.arch, s.regs.r[returnPair], -int64(len(e.out.Code)+1)*WordSize)
	if !ok {
		return errTooFar
	}
	e.stall(back, branchStall)
	s.end = len(e.out.Code)
	return nil
}

// call jumps to a shared copy, when what it is given is loaded.
func (e *emitter) call(p *probe) error {
	const length = 3
	pair := p.regs.r[returnPair]
	e.fixed(MOVImm(pair, uint32((len(e.out.Code)+length)*WordSize)))
	e.stall(MOVImm(pair+1, 0), settle)
	at := len(e.out.Code)
	jump, err := e.jump(at, p.shared.base)
	if err != nil {
		return err
	}
	c := jump.Control()
	c.Wait = e.loads
	e.put(jump.WithControl(c))
	e.calls[at] = p.shared
	return nil
}

// describe tells the analysis of the new code about shared copies.
func (e *emitter) describe(fn *Func) {
	fn.Calls = make(map[int]int)
	for _, s := range e.w.shared {
		uses := s.regs.used
		for _, word := range e.out.Code[s.base:s.end] {
			in, ok := Decode(e.w.arch, word)
			_, write := in.Uses()
			if !ok {
				write = allRegs()
			}
			uses.Union(&write)
		}
		pair := s.regs.r[returnPair]
		var reads Set
		reads.Add(GPR, pair, 2)
		each(&s.body.live, func(k RegKind, r int) {
			if k == GPR {
				reads.Add(GPR, s.regs.r[r], 1)
			}
		})
		fn.Shared = append(fn.Shared, Shared{Start: s.base, End: s.end, Reads: reads, Uses: uses})
	}
	for at, s := range e.calls {
		fn.Calls[at] = slices.Index(e.w.shared, s)
	}
}
