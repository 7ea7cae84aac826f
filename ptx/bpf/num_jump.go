package bpf

import (
	"math"

	"github.com/cilium/ebpf/asm"
)

// inverse returns the opposite condition; JSet has none.
func inverse(op asm.JumpOp) (asm.JumpOp, bool) {
	switch op {
	case asm.JEq:
		return asm.JNE, true
	case asm.JNE:
		return asm.JEq, true
	case asm.JGT:
		return asm.JLE, true
	case asm.JGE:
		return asm.JLT, true
	case asm.JLT:
		return asm.JGE, true
	case asm.JLE:
		return asm.JGT, true
	case asm.JSGT:
		return asm.JSLE, true
	case asm.JSGE:
		return asm.JSLT, true
	case asm.JSLT:
		return asm.JSGE, true
	case asm.JSLE:
		return asm.JSGT, true
	}
	return 0, false
}

// refine returns what is known of a and b where the condition came out as
// taken; false if it cannot.
func refine(op asm.JumpOp, a, b num, taken bool) (num, num, bool) {
	if !taken {
		inv, ok := inverse(op)
		if !ok {
			return refineUnset(a, b)
		}
		op = inv
	}
	switch op {
	case asm.JEq:
		m, ok := a.meet(b)
		return m, m, ok
	case asm.JNE:
		return refineNotEqual(a, b)
	case asm.JGT:
		return refineBelow(b, a, true, false, true)
	case asm.JGE:
		return refineBelow(b, a, false, false, true)
	case asm.JLT:
		return refineBelow(a, b, true, false, false)
	case asm.JLE:
		return refineBelow(a, b, false, false, false)
	case asm.JSGT:
		return refineBelow(b, a, true, true, true)
	case asm.JSGE:
		return refineBelow(b, a, false, true, true)
	case asm.JSLT:
		return refineBelow(a, b, true, true, false)
	case asm.JSLE:
		return refineBelow(a, b, false, true, false)
	case asm.JSet:
		if b.isConst() && (a.val|a.mask)&b.umin == 0 || b.isConst() && b.umin == 0 {
			return a, b, false
		}
		return a, b, true
	}
	panic("BUG: no condition")
}

// refineUnset is a&b == 0.
func refineUnset(a, b num) (num, num, bool) {
	if a.val&b.val != 0 {
		return a, b, false
	}
	if b.isConst() {
		clear := anyNum
		clear.mask = ^b.umin
		m, ok := a.meet(clear)
		return m, b, ok
	}
	return a, b, true
}

func refineNotEqual(a, b num) (num, num, bool) {
	if a.isConst() && b.isConst() {
		return a, b, a.umin != b.umin
	}
	ok := true
	if b.isConst() {
		a, ok = a.without(b.umin)
	} else if a.isConst() {
		b, ok = b.without(a.umin)
	}
	return a, b, ok
}

// without takes v off the ends of n's ranges.
func (n num) without(v uint64) (num, bool) {
	if n.umin == v {
		n.umin++
	}
	if n.umax == v {
		n.umax--
	}
	if n.smin == int64(v) {
		n.smin++
	}
	if n.smax == int64(v) {
		n.smax--
	}
	return n.normalize()
}

// refineBelow is lo < hi (strict) or lo <= hi; swapped says in which order to
// return them.
func refineBelow(lo, hi num, strict, signed, swapped bool) (num, num, bool) {
	if signed {
		top, bottom := hi.smax, lo.smin
		if strict {
			if top == math.MinInt64 || bottom == math.MaxInt64 {
				return lo, hi, false
			}
			top, bottom = top-1, bottom+1
		}
		lo.smax, hi.smin = min(lo.smax, top), max(hi.smin, bottom)
	} else {
		top, bottom := hi.umax, lo.umin
		if strict {
			if top == 0 || bottom == math.MaxUint64 {
				return lo, hi, false
			}
			top, bottom = top-1, bottom+1
		}
		lo.umax, hi.umin = min(lo.umax, top), max(hi.umin, bottom)
	}
	if lo.umin > lo.umax || lo.smin > lo.smax || hi.umin > hi.umax || hi.smin > hi.smax {
		return lo, hi, false
	}
	lo, ok1 := lo.normalize()
	hi, ok2 := hi.normalize()
	if swapped {
		return hi, lo, ok1 && ok2
	}
	return lo, hi, ok1 && ok2
}
