package sass

// A total is a number that each thread adds up in a pair of registers of its own, which are
// variables of all of the kernel: 64 bits, since what a kernel that runs for seconds counts is
// more than 32 have. An addition is one instruction, which needs no predicate for a carry, but a
// register that holds 1.

// Totals has each thread add up n numbers of 64 bits, by [Weaver.Add], from 0 on. A body is run as
// by [Weaver.Exits] to make something of them; they are its variables, lower halves first. Like
// [Weaver.Reserve] it has to be called before places get probes. After an error, a [*SiteError],
// all is as it was before.
func (w *Weaver) Totals(n int, body *Body, args ...Arg) (v Variables, err error) {
	own, never, fresh, top, one := len(w.own), w.never, w.fresh, w.top, w.one
	defer func() {
		if err != nil {
			w.own, w.never, w.fresh, w.top, w.one = w.own[:own], never, fresh, top, one
		}
	}()
	if w.one == nil && w.fresh%2 != 0 {
		w.reserveOne() // so that no register is left out
	}
	w.fresh = max(2, w.fresh+w.fresh%2)
	if w.fresh+2*n > w.usable {
		return v, siteError(-1, "there are no %d registers more", 2*n+1)
	}
	if v, err = w.Reserve(make([]uint32, 2*n)); err != nil {
		return v, err
	}
	if w.one == nil {
		w.reserveOne()
	}
	if w.fresh > w.usable {
		return v, siteError(-1, "there are no %d registers more", 2*n+1)
	}
	if err = w.Exits(body, append(args, v.Arg())...); err == nil {
		w.totals++
	}
	return v, err
}

// reserveOne reserves the register that holds 1.
func (w *Weaver) reserveOne() {
	w.one = &ownWord{reg: uint8(w.fresh), value: 1}
	w.own = append(w.own, *w.one)
	w.never.Add(GPR, w.one.reg, 1)
	w.top = max(w.top, w.fresh)
	w.fresh++
}

// An addition is what a site adds to a total.
type addition struct {
	pair    uint8
	n       int32
	guarded bool
}

// CanAdd says why [Weaver.Add] can't be at the instruction at an offset; nil if it can.
func (w *Weaver) CanAdd(offset int, guarded bool) error {
	i, err := w.index(offset)
	if err == nil && guarded && w.a.Insts[i].guardKind() != Pred {
		err = siteError(i, "its guard is a uniform predicate")
	}
	return err
}

// Add adds a number to the total'th of the numbers of Totals before the instruction at an offset,
// in each thread that comes to it, or with guarded in those in which its guard holds.
func (w *Weaver) Add(offset int, v Variables, total int, n int32, guarded bool) error {
	if err := w.CanAdd(offset, guarded); err != nil {
		return err
	}
	s := w.siteAt(offset / WordSize)
	s.adds = append(s.adds, addition{w.own[v.first+2*total].reg, n, guarded})
	return nil
}

// adds writes the additions of a site. Nothing waits for what the registers hold but other
// additions and exits, to which there are jumps.
func (e *emitter) adds(s *site) {
	for k, a := range s.adds {
		word := imadWide(a.pair, e.w.one.reg, uint32(a.n), a.pair)
		if a.guarded {
			word = word.SetBits(12, 4, e.w.a.Insts[s.index].Word.Bits(12, 4))
		}
		if k+1 < len(s.adds) && s.adds[k+1].pair == a.pair {
			e.stall(word, settle)
			continue
		}
		e.fixed(word)
	}
}

// InCollective reports whether an instruction, by its index, is one that other threads of the warp help with.
func (w *Weaver) InCollective(i int) bool { return w.collective[i] }

// Certain reports whether it is known wherever control may go, so that what comes to a block of
// the analysis comes to all of its instructions.
func (w *Weaver) Certain() bool { return w.uncertain == "" }
