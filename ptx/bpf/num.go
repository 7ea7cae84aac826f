package bpf

import (
	"math"
	"math/bits"
)

// A num is what is known of a 64-bit number: bounds of its unsigned and of its
// signed reading, and its known bits. The set of numbers is the intersection.
type num struct {
	umin, umax uint64
	smin, smax int64
	val, mask  uint64 // bits in mask are unknown, the others are those of val
}

// anyNum is every number.
var anyNum = num{umax: math.MaxUint64, smin: math.MinInt64, smax: math.MaxInt64, mask: math.MaxUint64}

func constNum(v uint64) num {
	return num{umin: v, umax: v, smin: int64(v), smax: int64(v), val: v}
}

// rangeNum is lo to hi, unsigned.
func rangeNum(lo, hi uint64) num {
	n := anyNum
	n.umin, n.umax = lo, hi
	n, _ = n.normalize()
	return n
}

// signedNum is lo to hi, signed.
func signedNum(lo, hi int64) num {
	n := anyNum
	n.smin, n.smax = lo, hi
	n, _ = n.normalize()
	return n
}

// bitsNum is every number of so many bits.
func bitsNum(n int) num {
	if n >= 64 {
		return anyNum
	}
	return rangeNum(0, 1<<n-1)
}

func (n num) isConst() bool { return n.umin == n.umax }

// normalize lets bounds and bits learn from one another. It is false for the empty
// set.
func (n num) normalize() (num, bool) {
	for range 2 {
		n.umin, n.umax = max(n.umin, n.val), min(n.umax, n.val|n.mask)
		sign := uint64(1) << 63
		n.smin = max(n.smin, int64(n.val|n.mask&sign))
		n.smax = min(n.smax, int64(n.val|n.mask&^sign))
		if n.umin > n.umax || n.smin > n.smax {
			return n, false
		}
		if int64(n.umin) <= int64(n.umax) { // both on one side of the sign
			n.smin, n.smax = max(n.smin, int64(n.umin)), min(n.smax, int64(n.umax))
		}
		if n.smin >= 0 || n.smax < 0 {
			n.umin, n.umax = max(n.umin, uint64(n.smin)), min(n.umax, uint64(n.smax))
		}
		if n.umin > n.umax || n.smin > n.smax {
			return n, false
		}
		// Bits above the highest that differs between the bounds are known.
		same := ^uint64(0)
		if d := bits.Len64(n.umin ^ n.umax); d > 0 {
			same = ^uint64(0) << (d - 1) << 1
		}
		if known := same &^ n.mask; (n.umin^n.val)&known != 0 {
			return n, false
		}
		n.val |= n.umin & same
		n.mask &^= same
	}
	return n, true
}

func must(n num, ok bool) num {
	if !ok {
		// An operation on two sets that are not empty has results; if the bounds
		// disagree, knowing nothing is right.
		return anyNum
	}
	return n
}

// join is the smallest set known to hold both.
func (n num) join(m num) num {
	mask := n.mask | m.mask | (n.val ^ m.val)
	return must(num{
		umin: min(n.umin, m.umin), umax: max(n.umax, m.umax),
		smin: min(n.smin, m.smin), smax: max(n.smax, m.smax),
		val: n.val &^ mask, mask: mask,
	}.normalize())
}

// meet is the intersection, false when that is empty.
func (n num) meet(m num) (num, bool) {
	if known := ^n.mask & ^m.mask; (n.val^m.val)&known != 0 {
		return n, false
	}
	return num{
		umin: max(n.umin, m.umin), umax: min(n.umax, m.umax),
		smin: max(n.smin, m.smin), smax: min(n.smax, m.smax),
		val: n.val | m.val, mask: n.mask & m.mask,
	}.normalize()
}

// widen is a set that holds n and m, chosen so that a sequence of widenings
// ends: bounds that moved go to the next of the limits, or to the end.
func (n num) widen(m num, limits []uint64) num {
	j := n.join(m)
	if j.umin < n.umin {
		j.umin = limitBelow(limits, j.umin)
	}
	if j.umax > n.umax {
		j.umax = limitAbove(limits, j.umax)
	}
	if j.smin < n.smin {
		j.smin = signedBelow(limits, j.smin)
	}
	if j.smax > n.smax {
		j.smax = signedAbove(limits, j.smax)
	}
	if j.mask != n.mask {
		// Keep alignment, which rises in few steps, and forget the rest.
		low := bits.TrailingZeros64(j.mask)
		j.mask = ^uint64(0) << low
		j.val &^= j.mask
	}
	return must(j.normalize())
}

func limitBelow(limits []uint64, v uint64) uint64 {
	best := uint64(0)
	for _, l := range limits {
		if l <= v && l > best {
			best = l
		}
	}
	return best
}

func limitAbove(limits []uint64, v uint64) uint64 {
	best := uint64(math.MaxUint64)
	for _, l := range limits {
		if l >= v && l < best {
			best = l
		}
	}
	return best
}

func signedBelow(limits []uint64, v int64) int64 {
	best := int64(math.MinInt64)
	for _, l := range limits {
		if int64(l) <= v && int64(l) > best {
			best = int64(l)
		}
	}
	return best
}

func signedAbove(limits []uint64, v int64) int64 {
	best := int64(math.MaxInt64)
	for _, l := range limits {
		if int64(l) >= v && int64(l) < best {
			best = int64(l)
		}
	}
	return best
}

// align returns a power of two, at most limit, that divides every number.
func (n num) align(limit int) int {
	for limit > 1 && (n.val|n.mask)&uint64(limit-1) != 0 {
		limit /= 2
	}
	return limit
}

func (n num) add(m num) num {
	r := anyNum
	if lo, c := bits.Add64(n.umin, m.umin, 0); c == 0 {
		if hi, c := bits.Add64(n.umax, m.umax, 0); c == 0 {
			r.umin, r.umax = lo, hi
		}
	} else if hi, c := bits.Add64(n.umax, m.umax, 0); c == 1 { // both wrap
		r.umin, r.umax = lo, hi
	}
	if lo, ok := addSigned(n.smin, m.smin); ok {
		if hi, ok := addSigned(n.smax, m.smax); ok {
			r.smin, r.smax = lo, hi
		}
	}
	sm, sv := n.mask+m.mask, n.val+m.val
	mu := ((sm + sv) ^ sv) | n.mask | m.mask
	r.val, r.mask = sv&^mu, mu
	return must(r.normalize())
}

func (n num) neg() num { return constNum(0).sub(n) }

func (n num) sub(m num) num {
	r := anyNum
	if n.umin >= m.umax {
		r.umin, r.umax = n.umin-m.umax, n.umax-m.umin
	}
	if lo, ok := subSigned(n.smin, m.smax); ok {
		if hi, ok := subSigned(n.smax, m.smin); ok {
			r.smin, r.smax = lo, hi
		}
	}
	dv := n.val - m.val
	mu := ((dv + n.mask) ^ (dv - m.mask)) | n.mask | m.mask
	r.val, r.mask = dv&^mu, mu
	return must(r.normalize())
}

func addSigned(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0) || b == 0
}

func subSigned(a, b int64) (int64, bool) {
	c := a - b
	return c, (c < a) == (b > 0) || b == 0
}

func (n num) mul(m num) num {
	if n.isConst() && m.isConst() {
		return constNum(n.umin * m.umin)
	}
	r := anyNum
	if hi, lo := bits.Mul64(n.umax, m.umax); hi == 0 {
		r.umin, r.umax = n.umin*m.umin, lo
	}
	tz := min(bits.TrailingZeros64(n.val|n.mask)+bits.TrailingZeros64(m.val|m.mask), 63)
	r.mask = ^uint64(0) << tz
	return must(r.normalize())
}

func (n num) and(m num) num {
	a, b := n.val|n.mask, m.val|m.mask
	v := n.val & m.val
	r := anyNum
	r.val, r.mask = v, a&b&^v
	r.umax = min(n.umax, m.umax)
	return must(r.normalize())
}

func (n num) or(m num) num {
	v := n.val | m.val
	r := anyNum
	r.val, r.mask = v, (n.mask|m.mask)&^v
	r.umin = max(n.umin, m.umin)
	return must(r.normalize())
}

func (n num) xor(m num) num {
	mu := n.mask | m.mask
	r := anyNum
	r.val, r.mask = (n.val^m.val)&^mu, mu
	return must(r.normalize())
}

// lsh, rsh and arsh shift by a known count below 64.
func (n num) lsh(c uint) num {
	r := anyNum
	r.val, r.mask = n.val<<c, n.mask<<c
	if n.umax<<c>>c == n.umax {
		r.umin, r.umax = n.umin<<c, n.umax<<c
	}
	return must(r.normalize())
}

func (n num) rsh(c uint) num {
	r := anyNum
	r.val, r.mask = n.val>>c, n.mask>>c
	r.umin, r.umax = n.umin>>c, n.umax>>c
	return must(r.normalize())
}

func (n num) arsh(c uint) num {
	r := anyNum
	r.val, r.mask = uint64(int64(n.val)>>c), uint64(int64(n.mask)>>c)
	r.val &^= r.mask
	r.smin, r.smax = n.smin>>c, n.smax>>c
	return must(r.normalize())
}

// low keeps so many low bits and zero-extends them.
func (n num) low(width int) num {
	if width >= 64 {
		return n
	}
	keep := uint64(1)<<width - 1
	r := anyNum
	r.val, r.mask = n.val&keep, n.mask&keep
	if n.umin&^keep == n.umax&^keep {
		r.umin, r.umax = n.umin&keep, n.umax&keep
	}
	return must(r.normalize())
}

// extend takes n's low width bits as a signed number.
func (n num) extend(width int) num {
	if width >= 64 {
		return n
	}
	l := n.low(width)
	half := uint64(1) << (width - 1)
	switch {
	case l.umax < half:
		return l
	case l.umin >= half:
		return l.or(constNum(^uint64(0) << width))
	}
	r := signedNum(-int64(half), int64(half)-1)
	r.val, r.mask = l.val, l.mask|^uint64(0)<<width
	r.val &^= r.mask
	if l.mask&half == 0 { // sign known but bounds not tight
		if l.val&half != 0 {
			r.val |= ^uint64(0) << width
		}
		r.mask &^= ^uint64(0) << width
	}
	return must(r.normalize())
}

// udiv and umod know eBPF's rule for a zero divisor.
func (n num) udiv(m num) num {
	if m.isConst() && m.umin == 0 {
		return constNum(0)
	}
	lo := uint64(0)
	if m.umin > 0 && m.umax > 0 {
		lo = n.umin / m.umax
	}
	return rangeNum(lo, n.umax/max(m.umin, 1))
}

func (n num) umod(m num) num {
	switch {
	case n.isConst() && m.isConst():
		if m.umin == 0 {
			return n
		}
		return constNum(n.umin % m.umin)
	case m.umin > 0 && n.umax < m.umin:
		return n
	case m.umin > 0:
		return rangeNum(0, min(n.umax, m.umax-1))
	}
	return rangeNum(0, n.umax)
}

// swap reverses the bytes of the low width bits and clears the others.
func (n num) swap(width int) num {
	r := anyNum
	sh := 64 - width
	r.val, r.mask = bits.ReverseBytes64(n.val)>>sh, bits.ReverseBytes64(n.mask)>>sh
	return must(r.normalize())
}

// A clamp is what a proof says of a register at the head of its loop.
type clamp struct {
	depth int8
	reg   uint8
	n     num
}
