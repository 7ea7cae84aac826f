package emu

import "math/bits"

const fullMask = ^uint32(0)

// sliceFuel is how many instructions a warp runs before another gets its turn.
const sliceFuel = 4096

// src returns the lanes of operand i: a register, or a constant below zero.
func (w *warp) src(i int32) *lanes {
	if i < 0 {
		return &w.consts[^i]
	}
	return &w.regs[i]
}

// fail records the first error of this warp; lane is the thread to blame.
func (w *warp) fail(lane int, err error) {
	if w.err == nil {
		w.err, w.lane = err, lane
	}
}

// tire shortens the slice: the instruction looks like polling.
func (w *warp) tire(n int) { w.fuel -= n }

// runSlice executes until the warp's slice is over or none of its lanes can go on. It
// reports whether a lane still can.
func (w *warp) runSlice() bool {
	w.fuel = sliceFuel
	w.fair = !w.fair
	fair := w.fair
	for w.fuel > 0 {
		if !w.pick(fair) {
			return false
		}
		fair = false
		w.runGroup()
		if w.err != nil {
			return false
		}
	}
	return true
}

// runGroup executes the current group until it has to yield.
func (w *warp) runGroup() {
	g := &w.groups[w.cur]
	code := w.frame.fn.code
	pc, active := g.pc, g.mask
	for {
		in := &code[pc]
		m := active
		if in.guard >= 0 {
			p := w.preds[in.guard]
			if in.guardNot {
				p = ^p
			}
			m &= p
		}
		if !in.hidden {
			w.count += uint64(bits.OnesCount32(m))
			w.warpCount++
		}
		w.pc = pc
		if in.ctl != nil {
			g.pc = pc
			if !in.ctl(w, active, m) {
				return
			}
			pc = g.pc
		} else {
			if m != 0 {
				in.run(w, m)
				if w.err != nil {
					g.pc = pc
					return
				}
			}
			pc++
		}
		w.fuel--
		if pc >= w.stop || w.fuel <= 0 {
			g.pc = pc
			return
		}
	}
}

// pick chooses the group to run: the most deeply nested call first and within a
// function the lowest pc, so that lanes that branched over code wait for the
// others at its end. When fair is set it is the one that has waited longest, so
// that lanes spinning on others of their own warp do not starve them.
func (w *warp) pick(fair bool) bool {
	w.merge()
	best := -1
	for i := range w.groups {
		g := &w.groups[i]
		if g.state != groupReady {
			continue
		}
		if best < 0 || w.before(g, &w.groups[best], fair) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	w.enter(best)
	return true
}

func (w *warp) before(a, b *group, fair bool) bool {
	if fair {
		return a.stamp < b.stamp
	}
	if a.frame.depth != b.frame.depth {
		return a.frame.depth > b.frame.depth
	}
	return a.pc < b.pc
}

// enter makes group i the current one.
func (w *warp) enter(i int) {
	g := &w.groups[i]
	w.cur = i
	w.clock++
	g.stamp = w.clock
	f := g.frame
	w.frame, w.regs, w.preds, w.consts = f, f.regs, f.preds, f.fn.consts
	w.stop = len(f.fn.code) + 1
	for j := range w.groups {
		o := &w.groups[j]
		if o.frame == f && o.pc > g.pc && o.state == groupReady {
			w.stop = min(w.stop, o.pc)
		}
	}
}

// merge joins ready groups that are at the same place.
func (w *warp) merge() {
	for i := 0; i < len(w.groups); i++ {
		a := &w.groups[i]
		if a.state != groupReady {
			continue
		}
		for j := i + 1; j < len(w.groups); {
			b := &w.groups[j]
			if b.state != groupReady || b.frame != a.frame || b.pc != a.pc {
				j++
				continue
			}
			a.mask |= b.mask
			a.stamp = min(a.stamp, b.stamp)
			w.drop(j)
		}
	}
}

// drop removes group i.
func (w *warp) drop(i int) {
	last := len(w.groups) - 1
	w.groups[i] = w.groups[last]
	w.groups[last] = group{}
	w.groups = w.groups[:last]
}

// split moves the lanes in m of the current group to a new group at pc, which it
// returns. The current group keeps the rest, which must not be empty. The pointer
// is good until groups change again.
func (w *warp) split(m uint32, pc int) *group {
	g := &w.groups[w.cur]
	g.mask &^= m
	w.groups = append(w.groups, group{frame: g.frame, pc: pc, mask: m, stamp: g.stamp})
	return &w.groups[len(w.groups)-1]
}

// setPC moves the current group.
func (w *warp) setPC(pc int) { w.groups[w.cur].pc = pc }

// branch returns the control of a branch to target.
func branch(target *int) control {
	return func(w *warp, active, m uint32) bool {
		switch m {
		case active:
			w.setPC(*target)
			return true
		case 0:
			w.setPC(w.pc + 1)
			return true
		}
		w.setPC(w.pc + 1)
		w.split(m, *target)
		return false
	}
}

// branchIndexed returns the control of brx.idx.
func branchIndexed(index int32, targets []*int) control {
	return func(w *warp, active, m uint32) bool {
		if m == 0 {
			w.setPC(w.pc + 1)
			return true
		}
		idx := *w.src(index)
		pc := w.pc
		w.setPC(pc + 1)
		for m != 0 {
			lane := bits.TrailingZeros32(m)
			v := idx[lane]
			if v >= uint64(len(targets)) {
				w.fail(lane, errf(ErrInvalid, "branch index %d, the table has %d targets", v, len(targets)))
				return false
			}
			same := sameLanes(&idx, v, m)
			m &^= same
			if same == w.groups[w.cur].mask {
				w.setPC(*targets[v])
				return false
			}
			w.split(same, *targets[v])
		}
		return false
	}
}

// sameLanes returns the lanes of m whose value in r is v.
func sameLanes(r *lanes, v uint64, m uint32) (same uint32) {
	for ; m != 0; m &= m - 1 {
		lane := bits.TrailingZeros32(m)
		if r[lane] == v {
			same |= 1 << lane
		}
	}
	return same
}

// release says that n lanes have left frame f, and keeps it for reuse when
// they were the last.
func (w *warp) release(f *frame, n int) {
	if f.lanes -= n; f.lanes == 0 {
		w.free[f.fn] = append(w.free[f.fn], f)
	}
}

// newFrame returns a cleared frame for fn.
func (w *warp) newFrame(fn *function) *frame {
	if l := w.free[fn]; len(l) != 0 {
		f := l[len(l)-1]
		w.free[fn] = l[:len(l)-1]
		clear(f.regs)
		clear(f.preds)
		*f = frame{fn: fn, regs: f.regs, preds: f.preds}
		return f
	}
	return &frame{fn: fn, regs: make([]lanes, fn.nregs), preds: make([]uint32, fn.npreds)}
}

// growLocal makes room for size bytes of local memory a lane.
func (w *warp) growLocal(size uint64) error {
	if size <= w.stride {
		return nil
	}
	if limit := w.wk.launch.stackLimit; size > limit {
		return errf(ErrStack, "%d bytes of local memory, the limit is %d a thread", size, limit)
	}
	stride := max(w.stride*2, (size+63)&^63)
	local := make([]byte, warpSize*stride)
	for i := range uint64(warpSize) {
		copy(local[i*stride:], w.local[i*w.stride:(i+1)*w.stride])
	}
	w.local, w.stride = local, stride
	return nil
}

// firstLane is the lowest lane in m.
func firstLane(m uint32) int { return bits.TrailingZeros32(m) & 31 }

// noSlot marks an argument in memory.
const noSlot = int32(-1 << 31)

// argValue reads lane i's argument of up to 64 bits.
func (w *warp) argValue(a *argument, f *frame, i int) uint64 {
	switch {
	case a.pred >= 0:
		return uint64(f.preds[a.pred] >> i & 1)
	case a.slot == noSlot:
		return readSome(w.local[uint64(i)*w.stride+f.local+a.off:], a.size)
	case a.slot < 0:
		return f.fn.consts[^a.slot][i]
	}
	return f.regs[a.slot][i]
}

// setArg writes lane i's result of up to 64 bits.
func (w *warp) setArg(a *argument, f *frame, i int, v uint64) {
	switch {
	case a.pred >= 0:
		f.preds[a.pred] = f.preds[a.pred]&^(1<<i) | uint32(v&1)<<i
	case a.slot == noSlot:
		writeSome(w.local[uint64(i)*w.stride+f.local+a.off:], a.size, v)
	default:
		f.regs[a.slot][i] = v
	}
}

// copyLanes copies the lanes in m.
func copyLanes(d, s *lanes, m uint32) {
	if m == fullMask {
		*d = *s
		return
	}
	for ; m != 0; m &= m - 1 {
		i := firstLane(m)
		d[i] = s[i]
	}
}
