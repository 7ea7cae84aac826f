package emu

import "math/bits"

// A rounding is a rounding mode of PTX's floating-point instructions.
type rounding uint8

const (
	roundNearest rounding = iota // .rn: to nearest, ties to even
	roundZero                    // .rz
	roundDown                    // .rm: to minus infinity
	roundUp                      // .rp: to plus infinity
	roundAway                    // .rna: to nearest, ties away from zero
)

// A format describes a binary floating-point encoding: sign, exponent, fraction.
type format struct {
	frac, exp uint8
	noInf     bool   // the all-ones exponent holds numbers too; only all-ones is NaN (e4m3)
	nan       uint64 // the NaN that an operation without a NaN operand makes
}

// The encodings. The canonical NaNs are the ISA's (§9.7.3: "0x7fffffff" for
// single precision, 0x7fff for the halves); double precision has the NaN of
// NVIDIA's own CUDART_NAN constant.
var (
	fmtF64  = format{frac: 52, exp: 11, nan: 0xfff8000000000000}
	fmtF32  = format{frac: 23, exp: 8, nan: 0x7fffffff}
	fmtF16  = format{frac: 10, exp: 5, nan: 0x7fff}
	fmtBF16 = format{frac: 7, exp: 8, nan: 0x7fff}
	fmtTF32 = format{frac: 10, exp: 8, nan: 0x3ffff} // as 19 bits; the register holds them shifted left by 13
	fmtE4M3 = format{frac: 3, exp: 4, nan: 0x7f, noInf: true}
	fmtE5M2 = format{frac: 2, exp: 5, nan: 0x7f}
)

func (f *format) bias() int       { return 1<<(f.exp-1) - 1 }
func (f *format) signBit() uint64 { return 1 << (f.exp + f.frac) }

// inf returns the encoding of plus infinity, or for a format without one the
// encoding just above its largest number.
func (f *format) inf() uint64 {
	if f.noInf {
		return 1<<(f.exp+f.frac) - 1
	}
	return (1<<f.exp - 1) << f.frac
}

// isNaN reports whether v, in format f, is a NaN.
func (f *format) isNaN(v uint64) bool {
	m := v &^ f.signBit()
	if f.noInf {
		return m == f.inf()
	}
	return m > f.inf()
}

// isSubnormal reports whether v is not zero and below the smallest normal number.
func (f *format) isSubnormal(v uint64) bool {
	m := v &^ f.signBit()
	return m != 0 && m>>f.frac == 0
}

// flush turns a subnormal number into a zero of its sign.
func (f *format) flush(v uint64) uint64 {
	if f.isSubnormal(v) {
		return v & f.signBit()
	}
	return v
}

type numClass uint8

const (
	numZero numClass = iota
	numFinite
	numInf
	numNaN
)

// A num is an unpacked number: (hi:lo) × 2^exp. The lowest bit of lo is sticky:
// it may stand for any smaller non-zero remainder, so an exact value must leave
// room below the rounding position (all callers have 20 bits or more).
type num struct {
	class  numClass
	neg    bool
	exp    int
	hi, lo uint64
}

// unpack reads the value v of format f.
func unpack(v uint64, f *format) num {
	n := num{neg: v&f.signBit() != 0}
	m := v &^ f.signBit()
	switch {
	case f.isNaN(m):
		n.class = numNaN
	case m == f.inf():
		n.class = numInf
	case m == 0:
		n.class = numZero
	default:
		n.class = numFinite
		e := m >> f.frac
		n.lo = m & (1<<f.frac - 1)
		if e == 0 {
			e = 1
		} else {
			n.lo |= 1 << f.frac
		}
		n.exp = int(e) - f.bias() - int(f.frac)
	}
	return n
}

// fromInt returns the number v, or its magnitude's negative.
func fromInt(v uint64, signed bool) num {
	n := num{class: numFinite, lo: v}
	if signed && int64(v) < 0 {
		n.neg, n.lo = true, -v
	}
	if v == 0 {
		n.class = numZero
	}
	return n
}

// normalize shifts the significand left until bit 127 is set.
func (n *num) normalize() {
	if n.hi == 0 {
		n.hi, n.lo = n.lo, 0
		n.exp -= 64
	}
	if s := bits.LeadingZeros64(n.hi); s != 0 {
		n.hi = n.hi<<s | n.lo>>(64-s)
		n.lo <<= s
		n.exp -= s
	}
}

// shiftRight shifts right by s and keeps what falls out as a sticky bit.
func (n *num) shiftRight(s uint) {
	switch {
	case s == 0:
		return
	case s >= 128:
		n.hi, n.lo = 0, 1
	case s >= 64:
		lost := n.lo
		if s > 64 {
			lost |= n.hi << (128 - s)
		}
		n.lo = n.hi >> (s - 64)
		n.hi = 0
		n.lo |= boolBit(lost != 0)
	default:
		lost := n.lo << (64 - s)
		n.lo = n.lo>>s | n.hi<<(64-s)
		n.hi >>= s
		n.lo |= boolBit(lost != 0)
	}
	n.exp += int(s)
}

func boolBit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// roundUpBy reports whether a magnitude with the discarded fraction (half bit,
// anything below it) must be incremented.
func roundUpBy(mode rounding, neg, odd, half, below bool) bool {
	switch mode {
	case roundNearest:
		return half && (below || odd)
	case roundAway:
		return half
	case roundDown:
		return neg && (half || below)
	case roundUp:
		return !neg && (half || below)
	}
	return false
}

// pack rounds n to format f.
func (n num) pack(f *format, mode rounding) uint64 {
	var sign uint64
	if n.neg {
		sign = f.signBit()
	}
	switch n.class {
	case numZero:
		return sign
	case numInf:
		return sign | f.inf()
	case numNaN:
		return f.nan
	}
	n.normalize()
	e := n.exp + 127 // exponent of the leading bit
	keep := int(f.frac) + 1
	emin := 1 - f.bias()
	sub := e < emin
	if sub {
		keep -= emin - e
	}
	m, half, below := n.top(keep)
	if roundUpBy(mode, n.neg, m&1 != 0, half, below) {
		m++
	}
	if !sub {
		if e > f.bias()+1 {
			return sign | f.overflow(mode, n.neg)
		}
		m += uint64(e+f.bias()-1) << f.frac
	}
	if m >= f.inf() {
		return sign | f.overflow(mode, n.neg)
	}
	return sign | m
}

// top returns the keep highest bits of a normalized significand, the bit below
// them and whether any lower bit is set.
func (n *num) top(keep int) (m uint64, half, below bool) {
	switch {
	case keep < 0:
		return 0, false, true
	case keep == 0:
		return 0, true, n.hi<<1 != 0 || n.lo != 0
	case keep == 64:
		return n.hi, n.lo>>63 != 0, n.lo<<1 != 0
	}
	m = n.hi >> (64 - keep)
	rest := n.hi << keep
	return m, rest>>63 != 0, rest<<1 != 0 || n.lo != 0
}

// overflow returns the magnitude of a result too large for f.
func (f *format) overflow(mode rounding, neg bool) uint64 {
	if mode == roundZero || mode == roundDown && !neg || mode == roundUp && neg {
		return f.inf() - 1
	}
	return f.inf()
}

// softMul returns a × b.
func softMul(a, b num) num {
	r := num{neg: a.neg != b.neg}
	switch {
	case a.class == numNaN || b.class == numNaN,
		a.class == numInf && b.class == numZero, a.class == numZero && b.class == numInf:
		r.class = numNaN
	case a.class == numInf || b.class == numInf:
		r.class = numInf
	case a.class == numZero || b.class == numZero:
		r.class = numZero
	default:
		r.class = numFinite
		r.hi, r.lo = bits.Mul64(a.lo, b.lo)
		r.exp = a.exp + b.exp
	}
	return r
}

// softAdd returns a + b; mode decides the sign of an exact zero.
func softAdd(a, b num, mode rounding) num {
	switch {
	case a.class == numNaN || b.class == numNaN:
		return num{class: numNaN}
	case a.class == numInf && b.class == numInf && a.neg != b.neg:
		return num{class: numNaN}
	case a.class == numInf:
		return a
	case b.class == numInf:
		return b
	case a.class == numZero && b.class == numZero:
		if a.neg != b.neg {
			a.neg = mode == roundDown
		}
		return a
	case a.class == numZero:
		return b
	case b.class == numZero:
		return a
	}
	return addFinite(a, b, mode)
}

func addFinite(a, b num, mode rounding) num {
	a.normalize()
	b.normalize()
	// Two bits of headroom: one for a carry, one so that a bit shifted out of an
	// operand that is at most one position lower is still exact (significands
	// have at most 106 bits, so the low bits are zero then).
	a.shiftRight(2)
	b.shiftRight(2)
	if a.exp < b.exp {
		a, b = b, a
	}
	b.shiftRight(uint(a.exp - b.exp))
	if a.neg == b.neg {
		var c uint64
		a.lo, c = bits.Add64(a.lo, b.lo, 0)
		a.hi, _ = bits.Add64(a.hi, b.hi, c)
		return a
	}
	lo, c := bits.Sub64(a.lo, b.lo, 0)
	hi, c := bits.Sub64(a.hi, b.hi, c)
	if c != 0 {
		a.neg = !a.neg
		lo, c = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, c)
	}
	a.hi, a.lo = hi, lo
	if hi|lo == 0 {
		return num{class: numZero, neg: mode == roundDown}
	}
	return a
}

// softDiv returns a / b.
func softDiv(a, b num) num {
	r := num{neg: a.neg != b.neg}
	switch {
	case a.class == numNaN || b.class == numNaN,
		a.class == numInf && b.class == numInf, a.class == numZero && b.class == numZero:
		r.class = numNaN
	case a.class == numInf || b.class == numZero:
		r.class = numInf
	case a.class == numZero || b.class == numInf:
		r.class = numZero
	default:
		r.class = numFinite
		a.normalize()
		b.normalize()
		// Both leading bits are bit 127 of the pair, so hi/2 < hi of the divisor.
		q, rem := bits.Div64(a.hi>>1, a.hi<<63, b.hi)
		q2, rem2 := bits.Div64(rem, 0, b.hi)
		r.hi, r.lo = q, q2|boolBit(rem2 != 0)
		r.exp = a.exp - b.exp - 127 // (a.hi·2^63 / b.hi) · 2^64 below the quotient
	}
	return r
}

// softSqrt returns the square root of a.
func softSqrt(a num) num {
	switch {
	case a.class == numNaN, a.class == numZero, a.class == numInf && !a.neg:
		return a
	case a.neg:
		return num{class: numNaN}
	}
	a.normalize()
	if a.exp&1 != 0 {
		a.shiftRight(1)
	}
	root, exact := sqrt128(a.hi, a.lo)
	return num{class: numFinite, hi: root, lo: boolBit(!exact), exp: a.exp/2 - 64}
}

// sqrt128 returns the integer square root of hi:lo.
func sqrt128(hi, lo uint64) (root uint64, exact bool) {
	for bit := uint64(1) << 63; bit != 0; bit >>= 1 {
		t := root | bit
		h, l := bits.Mul64(t, t)
		if h < hi || h == hi && l <= lo {
			root = t
		}
	}
	h, l := bits.Mul64(root, root)
	return root, h == hi && l == lo
}

// toInt rounds n to an integer and clamps it to [min, max], which are given as
// two's complement of the type of the given signedness.
func (n num) toInt(mode rounding, signed bool, width uint) uint64 {
	maxPos, maxNeg := uint64(1)<<(width-1)-1, uint64(1)<<(width-1)
	if !signed {
		maxPos, maxNeg = maxPos<<1|1, 0
	}
	mag := uint64(0)
	switch n.class {
	case numInf:
		mag = ^uint64(0)
	case numFinite:
		mag = n.magnitude(mode)
	}
	if n.neg {
		return -min(mag, maxNeg) & widthMask(width)
	}
	return min(mag, maxPos)
}

// magnitude returns the rounded absolute value, ^0 for anything that does not
// fit.
func (n num) magnitude(mode rounding) uint64 {
	n.normalize()
	keep := n.exp + 128 // number of integer bits
	if keep > 64 {
		return ^uint64(0)
	}
	m, half, below := n.top(keep)
	if roundUpBy(mode, n.neg, m&1 != 0, half, below) && m != ^uint64(0) {
		m++
	}
	return m
}

func widthMask(width uint) uint64 { return ^uint64(0) >> (64 - width) }
