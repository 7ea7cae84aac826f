package nvattach

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// Programs at many places of a kernel's machine code that do nothing but add numbers which are
// known there to values of maps, as "mem:* { @ = count(); }" does, are put there in a way of their
// own. All that comes to a basic block comes to all of its instructions, so that what is added at
// places in it, with the same guard, is added at one; see alike. Where the kernel leaves registers free, the
// threads add in these, and what came of it is added to the map when they end; elsewhere one
// thread adds to the map for its warp.

// numberAt returns a value that is.
func numberAt(at *proof.Place, v proof.BodyValue, access sass.Access) uint32 {
	switch v {
	case proof.BodySize:
		return uint32(access.Size)
	case proof.BodySpace:
		return spaces[access.Space]
	case proof.BodyAccess:
		return kindOf(access)
	case proof.BodyInsn:
		return at.Insn
	case proof.BodyBlock:
		return at.Block
	case proof.BodyCount:
		return at.Insns
	}
	panic(fmt.Sprintf("BUG: value %d is not known", v))
}

// A tally is what is added at some places of a kernel together.
type tally struct {
	at      []spot
	where   []int // instructions at which it can be added, in the order in which they are tried
	why     error // the first of the places can't be one of these
	guarded bool
	n       []int64 // by sum
	keys    int     // the combination of keys
}

// A spot is a place that programs are put at.
type spot struct{ insn, block, insns int }

// tally finds places of a program that can be one: those to which the same threads come, with one
// guard, which holds as long as nothing writes it. Places that can't be had are noted.
func (m *machine) tally(q *proof.Program, list []sum, keys *kernelKeys) []*tally {
	a := m.weaver.Analysis()
	var all []*tally
	type guard struct {
		reg     uint8
		negated bool
		keys    int
	}
	open := make(map[guard]*tally)
	next, last := 0, -1
	advance := func(to int) { // to the instruction at index to
		for ; next < to; next++ {
			_, write := a.Insts[next].Uses()
			for g := range open {
				if g.reg != sass.PT && write.Has(sass.Pred, g.reg) {
					delete(open, g)
				}
			}
		}
	}
	for _, s := range m.spots(q) {
		in := &a.Insts[s.insn]
		g := guard{reg: sass.PT}
		reg, negated, guarded := in.Guard()
		if guarded && q.Point.Kind != object.KindBlock {
			g = guard{reg: reg, negated: negated}
			if reg == sass.PT {
				continue // it never runs
			}
		}
		g.keys = keys.combination(m.keysAt(q, keys, s))
		if !m.weaver.Certain() || !m.alike(last, s.block) {
			clear(open)
			next = s.insn
		}
		last = s.block
		advance(s.insn)
		where, err := m.where(q, s, g.reg != sass.PT)
		if m.weaver.InCollective(s.insn) || len(where) == 0 && g.reg != sass.PT {
			m.noted(s.insn, err)
			continue
		}
		n := m.numbers(q, list, s)
		t := open[g]
		if t == nil || !t.add(n) {
			t = &tally{guarded: g.reg != sass.PT, n: n, why: err, keys: g.keys}
			open[g], all = t, append(all, t)
		}
		t.at, t.where = append(t.at, s), append(t.where, where...)
	}
	return slices.DeleteFunc(all, func(t *tally) bool {
		if len(t.where) > 0 {
			return false
		}
		for _, at := range t.at {
			m.noted(at.insn, t.why)
		}
		return true
	})
}

// mostTried is how many instructions of a basic block are tried.
const mostTried = 32

// where returns the instructions at which what is added at a place can be, or why there are none: for a
// basic block it can be any of its own.
func (m *machine) where(q *proof.Program, s spot, guarded bool) (list []int, err error) {
	end := s.insn + 1
	if q.Point.Kind == object.KindBlock && m.weaver.Certain() {
		end = s.insn + min(s.insns, mostTried)
	}
	for i := s.insn; i < end && (i == s.insn || !m.weaver.InCollective(i)); i++ {
		why := m.weaver.CanAdd(i*sass.WordSize, guarded)
		if why == nil {
			list = append(list, i)
		} else if i == s.insn {
			err = why
		}
	}
	return list, err
}

// alike reports whether the same threads come to a block as to one before it, and do so once: with
// nothing but each other between them, and none that leave.
func (m *machine) alike(from, to int) bool {
	blocks := m.weaver.Analysis().Blocks
	for b := from; b != to; b++ {
		if b < 0 || b > to {
			return false
		}
		this, next := &blocks[b], &blocks[b+1]
		switch m.weaver.Analysis().Insts[this.End-1].Flow().Kind {
		case sass.FlowNext, sass.FlowSet, sass.FlowSync, sass.FlowBreak:
		default:
			return false
		}
		if m.weaver.InCollective(this.End-1) || m.weaver.InCollective(next.Start) {
			return false
		}
		if len(this.Succ) != 1 || this.Succ[0] != b+1 || len(next.Pred) != 1 || this.LeavesAnywhere || next.Entry {
			return false
		}
	}
	return true
}

// numbers are what the sums of a program are made of at a place.
func (m *machine) numbers(q *proof.Program, list []sum, s spot) []int64 {
	access, _ := m.weaver.Analysis().Insts[s.insn].Access()
	at := &proof.Place{Insn: uint32(s.insn), Block: uint32(s.block), Insns: uint32(s.insns)}
	n := make([]int64, len(list))
	for i, x := range list {
		if n[i] = x.n; x.field {
			n[i] = int64(numberAt(at, x.what, access))
		}
	}
	return n
}

// add adds the numbers of one more place; false if they get too large.
func (t *tally) add(n []int64) bool {
	for i := range n {
		if sum := t.n[i] + n[i]; sum != int64(int32(sum)) {
			return false
		}
	}
	for i := range n {
		t.n[i] += n[i]
	}
	return true
}

// prepareSums finds out which programs do nothing but make sums, and gives their totals registers
// where it can.
func (m *machine) prepareSums(programs []*proof.Program) {
	m.sums = make(map[*proof.Program]*sums)
	for _, q := range programs {
		keys := m.keys[q]
		if q.Plain != nil && keys == nil {
			continue
		}
		list := sumsOf(q, m.r.maps)
		if list == nil {
			continue
		}
		s := &sums{list: list, keys: keys, tallies: m.tally(q, list, keys)}
		m.sums[q] = s
		n := keys.combinations()
		// Where it is not known which registers the kernel needs, there are no others for the rest.
		if n*len(list) > mostSums || len(s.tallies) == 0 || len(programs) > 1 && !m.weaver.Certain() {
			continue
		}
		// Before sm_90 there is no such body: what finds threads that have the same is a call there.
		form := bodyForm{sum: sumEnd}
		if keys != nil {
			form.keys = n
		}
		if b, err := m.body(q, "", form); err == nil {
			s.totals, err = m.weaver.Totals(n*len(list), b.code, m.args(q, b, &proof.Place{Slots: keys.slots()}, nil)[:len(b.params)]...)
			s.own = err == nil
		}
	}
}

// sums are those of a program in a kernel.
type sums struct {
	list    []sum
	keys    *kernelKeys // nil: none have places
	tallies []*tally
	own     bool // threads add in registers of theirs
	totals  sass.Variables
}

// addSums puts additions at the places of a program and returns how many these are.
func (m *machine) addSums(q *proof.Program, s *sums) (int, error) {
	var had []spot
	for _, t := range s.tallies {
		ok, err := m.addTally(q, s, t)
		if err != nil {
			return len(had), err
		}
		if ok {
			had = append(had, t.at...)
		}
	}
	slices.SortFunc(had, func(x, y spot) int { return x.insn - y.insn })
	for _, at := range had {
		m.site(q, at.insn, at.block, at.insns)
	}
	return len(had), nil
}

// addTally puts what is added at some places at the first of them that can have it. It
// reports false if none can, which is noted.
func (m *machine) addTally(q *proof.Program, s *sums, t *tally) (bool, error) {
	if s.own {
		for i, n := range t.n {
			if err := m.weaver.Add(t.where[0]*sass.WordSize, s.totals, t.keys*len(s.list)+i, int32(n), t.guarded); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	form := bodyForm{sum: sumHere, guarded: t.guarded}
	if s.keys != nil {
		form.keys = 1
	}
	b, err := m.body(q, "", form)
	if err != nil {
		return false, err
	}
	var first error
	for _, i := range t.where {
		args := m.args(q, b, &proof.Place{Sums: t.n, Slots: s.keys.of(t.keys)}, &m.weaver.Analysis().Insts[i])
		err := m.weaver.Before(i*sass.WordSize, b.code, args...)
		if _, ok := errors.AsType[*sass.SiteError](err); !ok {
			return err == nil, err
		}
		first = cmp.Or(first, err)
	}
	for _, at := range t.at {
		m.noted(at.insn, first)
	}
	return false, nil
}
