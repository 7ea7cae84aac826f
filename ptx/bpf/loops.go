package bpf

import (
	"math"
	"math/bits"

	"github.com/cilium/ebpf/asm"
)

// mostRounds is how often the body of a loop may run by proof each time that it is
// entered. Longer loops are counted while the program runs.
const mostRounds = 1 << 20

// uncounted bounds the instructions of a proven loop that is not counted though the
// loop around it is: its share is what it may execute, not what it does.
const uncounted = 64

// proveLoops looks for loops that count: a register with one constant step per
// round and a test that leaves the loop. It needs the result of the analysis.
func (a *analysis) proveLoops() {
	for i := range a.cfg.loops {
		l := &a.cfg.loops[i]
		l.rounds = 0
		if l.messy || a.in[l.head] == nil {
			continue
		}
		l.rounds = a.countRounds(i, l)
	}
}

// spend divides the fuel, the instructions that one run may execute. What is outside of
// loops takes its share first, then proven loops take what they may execute at most, as
// long as there is enough. All others are counted: each of their rounds takes what it
// may execute from what is left then.
func (a *analysis) spend() {
	loops, outside := a.cfg.loops, uint64(0)
	own, worst := make([]uint64, len(loops)), make([]uint64, len(loops))
	all, messy := uint64(0), false
	for b := range a.cfg.blocks {
		blk := &a.cfg.blocks[b]
		if a.in[b] == nil {
			continue
		}
		n := uint64(blk.last - blk.first + 1)
		if all += n; blk.loop < 0 {
			outside += n
		} else {
			own[blk.loop] += n
		}
	}
	for i := range loops {
		messy = messy || loops[i].messy && a.in[loops[i].head] != nil
		loops[i].cost = own[i]
	}
	for i := len(loops) - 1; i >= 0; i-- { // inner ones first
		l := &loops[i]
		within := own[i]
		for k := i + 1; k < len(loops); k++ {
			if loops[k].outer == i {
				within = min(within+worst[k], math.MaxInt64)
			}
		}
		hi, lo := bits.Mul64(l.rounds, within)
		worst[i] = min(lo, math.MaxInt64)
		if hi > 0 || l.rounds == 0 {
			worst[i] = math.MaxInt64
		}
	}
	left := uint64(a.fuel())
	left -= min(left, outside)
	for i := range loops { // outer ones first
		l := &loops[i]
		switch {
		case messy: // it is not known what is in a loop that is entered in several places
			l.counted, l.cost = true, all
		case l.outer < 0 && worst[i] <= left:
			left -= worst[i]
		case l.outer < 0:
			l.counted = true
		case !loops[l.outer].counted: // part of what that takes
		case worst[i] <= uncounted:
			loops[l.outer].cost += worst[i]
		default:
			l.counted = true
		}
	}
	a.left = uint32(left)
}

func (a *analysis) fuel() uint32 {
	if a.env.Fuel > 0 {
		return a.env.Fuel
	}
	return DefaultFuel
}

// everyRound reports whether block b runs exactly once in each round of loop i
// that comes back.
func (a *analysis) everyRound(i, b int) bool {
	l := &a.cfg.loops[i]
	if a.cfg.blocks[b].loop != i {
		return false
	}
	return a.cfg.dominatesAll(b, l.back)
}

// countRounds returns an upper bound of the rounds of loop i, or 0.
func (a *analysis) countRounds(i int, l *loop) uint64 {
	best := uint64(0)
	for b := range l.blocks {
		o := &a.ops[a.cfg.blocks[b].last]
		if o.kind != opJump || o.dst == 10 || a.in[b] == nil || !a.everyRound(i, b) {
			continue
		}
		succ := a.cfg.blocks[b].succ
		stays := o.jump
		switch in0, in1 := l.blocks[succ[0]], l.blocks[succ[1]]; {
		case in0 && in1, !in0 && !in1:
			continue
		case in1:
			inv, ok := inverse(stays)
			if !ok {
				continue
			}
			stays = inv
		}
		if n := a.countBy(i, l, b, o, stays); n > 0 && (best == 0 || n < best) {
			best = n
		}
	}
	return best
}

// countBy bounds the rounds by the test o at the end of block b, which stays in
// the loop while "stays" holds.
func (a *analysis) countBy(i int, l *loop, b int, o *op, stays asm.JumpOp) uint64 {
	step, half, ok := a.stepOf(i, l, o.depth, o.dst)
	if !ok || step == 0 || half != o.w32 && (stays == asm.JSGT || stays == asm.JSGE) {
		return 0
	}
	half = half || o.w32
	limit := constNum(uint64(o.imm))
	if o.reg {
		if o.src == 10 || a.writtenIn(l, o.depth, o.src) {
			return 0
		}
		v := a.in[b].reg(o.depth, o.src)
		if v.kind != kScalar {
			return 0
		}
		limit = v.n
	}
	start, ok := a.startOf(l, o.depth, o.dst)
	if !ok {
		return 0
	}
	if o.w32 {
		limit = limit.low(32)
	}
	if half {
		if limit.umax > math.MaxUint32 || start.umax > math.MaxUint32 || signedJump(stays) && (start.umax > math.MaxInt32 || limit.umax > math.MaxInt32) {
			return 0
		}
	}
	n := rounds(stays, start, limit, step, half)
	if n > 0 && stays == asm.JNE {
		lo, hi := start.umin, limit.umin
		a.clamps[l.head] = append(a.clamps[l.head], clamp{o.depth, o.dst, rangeNum(min(lo, hi), max(lo, hi))})
	}
	return n
}

// rounds is how often a register from start on, moved by step, can satisfy the
// condition against limit, plus slack for where in the round the test stands.
func rounds(stays asm.JumpOp, start, limit num, step int64, w32 bool) uint64 {
	size := uint64(step)
	if step < 0 {
		size = -size
	}
	top := uint64(math.MaxInt64 / 2)
	if w32 {
		top = math.MaxInt32
		if !signedJump(stays) {
			top = math.MaxUint32
		}
	}
	if size > 1<<20 {
		return 0
	}
	span := func(from, to uint64) uint64 {
		if n := (to - from) / size; n < mostRounds {
			return n + 2
		}
		return 0 // too long, or even beyond 64 bits
	}
	switch stays {
	case asm.JNE:
		if !start.isConst() || !limit.isConst() {
			return 0
		}
		from, to := start.umin, limit.umin
		if step < 0 {
			from, to = to, from
		}
		if from >= to || (to-from)%size != 0 {
			return 0
		}
		return span(from, to)
	case asm.JLT, asm.JLE, asm.JSLT, asm.JSLE:
		// The step may come before the first test, and must not lead past the top there.
		if step < 0 || start.umax > top-size || limit.umax > top-2*size || int64(start.umax) < 0 || int64(limit.umax) < 0 {
			return 0
		}
		return span(min(start.umin, limit.umax), limit.umax)
	case asm.JSGT, asm.JSGE:
		if step > 0 || start.smax < 0 || limit.smin < 0 || w32 && start.umax > top {
			return 0
		}
		if w32 && limit.umin < size && size > 1 { // must not get below what 32 bits hold as signed: it may, down to -2^31
			return 0
		}
		return span(min(limit.umin, start.umax), start.umax)
	case asm.JGT, asm.JGE:
		low := size - 1
		if stays == asm.JGE {
			low = size
		}
		if step > 0 || limit.umin < low || start.umin < size || start.umax > math.MaxInt64 {
			return 0
		}
		return span(min(limit.umin, start.umax), start.umax)
	}
	return 0
}

// stepOf returns by how much register r changes in every round,
// and whether it does so with 32 bits.
func (a *analysis) stepOf(i int, l *loop, d int8, r uint8) (step int64, half, ok bool) {
	for b := range l.blocks {
		for k := a.cfg.blocks[b].first; k <= a.cfg.blocks[b].last; k++ {
			o := &a.ops[k]
			if !writes(o, d, r) {
				continue
			}
			if ok || o.kind != opALU || o.reg || o.alu != asm.Add && o.alu != asm.Sub || !a.everyRound(i, b) {
				return 0, false, false
			}
			step, half, ok = o.imm, o.w32, true
			if o.alu == asm.Sub {
				step = -step
			}
		}
	}
	return step, half, ok
}

func (a *analysis) writtenIn(l *loop, d int8, r uint8) bool {
	for b := range l.blocks {
		for k := a.cfg.blocks[b].first; k <= a.cfg.blocks[b].last; k++ {
			if writes(&a.ops[k], d, r) {
				return true
			}
		}
	}
	return false
}

// writes reports whether op o changes register r of the function at depth d.
func writes(o *op, d int8, r uint8) bool {
	switch o.kind {
	case opALU, opConst, opMap, opDirect, opLoad:
		return o.depth == d && o.dst == r
	case opAtomic:
		f, ok := o.fetches()
		return ok && o.depth == d && f == r
	case opHelper:
		return o.depth == d && r <= 5
	case opEnter:
		return o.depth+1 == d
	case opLeave:
		return o.depth-1 == d && r <= 5
	}
	return false
}

// startOf returns what the register holds when the loop is entered.
func (a *analysis) startOf(l *loop, d int8, r uint8) (num, bool) {
	var n num
	found := false
	for _, p := range a.cfg.blocks[l.head].pred {
		if a.cfg.blocks[p].order >= a.cfg.blocks[l.head].order || a.in[p] == nil {
			continue
		}
		outs, err := a.flow(p)
		if err != nil {
			return n, false
		}
		for k, t := range a.cfg.blocks[p].succ {
			if t != l.head || outs[k] == nil {
				continue
			}
			v := outs[k].reg(d, r)
			if v.kind != kScalar {
				return n, false
			}
			if !found {
				n, found = v.n, true
			} else {
				n = n.join(v.n)
			}
		}
	}
	return n, found
}
