package emu

import (
	"cmp"
	"fmt"
	"slices"

	"nvtrace/ptx"
)

func (k accessKind) String() string {
	return [...]string{"read", "write", "strong read", "strong write", "atomic"}[k]
}

func (k accessKind) writes() bool {
	return k == accessWrite || k == accessStrongWrite || k == accessAtomic
}
func (k accessKind) strong() bool { return k >= accessStrongRead }

// String returns one line.
func (r *Race) String() string {
	return fmt.Sprintf("race in kernel %s on %v memory at %#x: %s by thread %v of block %v at %v (%s) and %s by thread %v of block %v at %v (%s), %d times",
		r.Kernel, r.Space, r.Addr, r.First.Kind, r.First.Thread, r.First.Block, r.First.Pos, oneLine(r.First.Text),
		r.Second.Kind, r.Second.Thread, r.Second.Block, r.Second.Pos, oneLine(r.Second.Text), r.Count)
}

// Races returns the races found so far, in source order.
func (l *RaceLog) Races() []Race {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Race, 0, len(l.races))
	for _, r := range l.races {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b Race) int {
		return cmp.Or(cmp.Compare(a.First.Pos.Line, b.First.Pos.Line), cmp.Compare(a.Second.Pos.Line, b.Second.Pos.Line),
			cmp.Compare(a.First.Pos.Col, b.First.Pos.Col), cmp.Compare(a.Addr, b.Addr))
	})
	return all
}

func newRaceState(log *RaceLog) *raceState {
	if log == nil {
		return nil
	}
	return &raceState{log: log, global: map[uint64]*cell{}, shared: map[uint64]*cell{}}
}

// newBlock forgets nothing: shared memory is told apart by block.
func (r *raceState) newBlock() { r.block++ }

// fence is called for memory barriers, which order nothing by themselves.
func (r *raceState) fence(*warp) {}

// access notes one access of n bytes by lane i of w and compares it with those
// before.
func (r *raceState) access(w *warp, i int, space ptx.Space, addr, n uint64, kind accessKind) {
	if space == ptx.SpaceGeneric {
		space, addr = splitGeneric(addr)
	}
	cells := r.global
	switch space {
	case ptx.SpaceGlobal:
	case ptx.SpaceShared:
		cells = r.shared
		rank := w.block.rank
		if addr>>clusterShift != 0 {
			rank = int(addr>>clusterShift) - 1
		}
		id := w.block.cluster.serial<<4 | uint64(rank)
		addr = id<<clusterShift | addr&(1<<clusterShift-1)
	default:
		return
	}
	now := touch{
		block: w.block.id, thread: w.tid(i), blockID: w.block.cluster.serial, epoch: w.block.epoch, warp: w.index,
		warpEpoch: w.warpCount + w.turns, kind: kind, in: &w.frame.fn.code[w.pc], fn: w.frame.fn, valid: true,
	}
	for b := range n {
		c := cells[addr+b]
		if c == nil {
			c = &cell{}
			cells[addr+b] = c
		}
		if r.compare(w, c, &now, space, addr+b) {
			n = 0
		}
		c.note(&now)
		if n == 0 {
			return
		}
	}
}

// compare reports the first race of now with what cell c holds.
func (r *raceState) compare(w *warp, c *cell, now *touch, space ptx.Space, addr uint64) bool {
	if r.races(&c.write, now) {
		r.report(w, &c.write, now, space, addr)
		return true
	}
	if now.kind.writes() {
		for k := range c.reads {
			if r.races(&c.reads[k], now) {
				r.report(w, &c.reads[k], now, space, addr)
				return true
			}
		}
	}
	return false
}

// races decides whether two accesses to one byte are unordered.
func (r *raceState) races(old, now *touch) bool {
	switch {
	case !old.valid, old.block == now.block && old.thread == now.thread:
		return false
	case !old.kind.writes() && !now.kind.writes():
		return false
	case old.kind.strong() && now.kind.strong():
		return false
	case old.blockID != now.blockID:
		return true
	case old.epoch != now.epoch:
		return false
	case old.block == now.block && old.warp == now.warp:
		// Lanes of one warp: the same step of the warp writes in lane order, which
		// is a race; later steps are ordered only for lanes that run together,
		// which old PTX relies on and the machine does not tell apart.
		return old.warpEpoch == now.warpEpoch && old.in == now.in
	}
	return true
}

// note keeps the access.
func (c *cell) note(now *touch) {
	if now.kind.writes() {
		c.write = *now
		c.reads = [2]touch{}
		return
	}
	if c.reads[0].valid && c.reads[0].thread != now.thread {
		c.reads[1] = c.reads[0]
	}
	c.reads[0] = *now
}

func (r *raceState) report(w *warp, old, now *touch, space ptx.Space, addr uint64) {
	if space == ptx.SpaceShared {
		addr &= 1<<clusterShift - 1
	}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if r.log.races == nil {
		r.log.races = map[raceKey]*Race{}
	}
	key := raceKey{old.in, now.in}
	if now.in.stmt < old.in.stmt { // the same pair in the other order
		key = raceKey{now.in, old.in}
	}
	if got := r.log.races[key]; got != nil {
		got.Count++
		return
	}
	r.log.races[key] = &Race{
		Kernel: w.wk.launch.kernel.name, Space: space, Addr: addr,
		First: old.side(), Second: now.side(), Count: 1,
	}
}

func (t *touch) side() RaceAccess {
	st := &t.fn.file.Stmts[t.in.stmt]
	return RaceAccess{
		Kind: t.kind.String(), Pos: t.fn.file.Position(st.Pos), Text: t.fn.file.Text(st.Span()),
		Block: t.block, Thread: t.thread,
	}
}
