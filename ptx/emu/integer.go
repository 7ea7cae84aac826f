package emu

import "math/bits"

// sext sign-extends the low width bits of v to 64.
func sext(v uint64, width uint) int64 {
	s := 64 - width
	return int64(v<<s) >> s
}

// An intType is the width and signedness of an integer operation.
type intType struct {
	width  uint
	signed bool
}

func (t intType) mask() uint64 { return widthMask(t.width) }

// ext reads an operand as a 64-bit number of the type's signedness.
func (t intType) ext(v uint64) uint64 {
	if t.signed {
		return uint64(sext(v, t.width))
	}
	return v & t.mask()
}

// lo and hi are the smallest and largest value, extended to 64 bits.
func (t intType) limits() (lo, hi uint64) {
	if t.signed {
		return uint64(int64(-1) << (t.width - 1)), t.mask() >> 1
	}
	return 0, t.mask()
}

func (t intType) less(a, b uint64) bool {
	if t.signed {
		return sext(a, t.width) < sext(b, t.width)
	}
	return a&t.mask() < b&t.mask()
}

func (t intType) add(a, b uint64) uint64   { return (a + b) & t.mask() }
func (t intType) sub(a, b uint64) uint64   { return (a - b) & t.mask() }
func (t intType) mulLo(a, b uint64) uint64 { return (a * b) & t.mask() }

// addSat is add.sat of at most 32 bits.
func (t intType) addSat(a, b uint64) uint64 {
	return t.clamp(int64(t.ext(a)) + int64(t.ext(b)))
}

// subSat is sub.sat.s32.
func (t intType) subSat(a, b uint64) uint64 {
	return t.clamp(sext(a, t.width) - sext(b, t.width))
}

// clamp saturates a signed sum of narrower numbers (at most 32 bits) to t.
func (t intType) clamp(v int64) uint64 {
	lo, hi := t.limits()
	return uint64(min(max(v, int64(lo)), int64(hi))) & t.mask()
}

// mulHi is the upper half of the product.
func (t intType) mulHi(a, b uint64) uint64 {
	if t.width < 64 {
		return t.ext(a) * t.ext(b) >> t.width & t.mask()
	}
	hi, _ := bits.Mul64(a, b)
	if t.signed {
		if int64(a) < 0 {
			hi -= b
		}
		if int64(b) < 0 {
			hi -= a
		}
	}
	return hi
}

// mulWide is the whole product, twice as wide.
func (t intType) mulWide(a, b uint64) uint64 {
	return t.ext(a) * t.ext(b) & widthMask(2*t.width)
}

// mul24 multiplies the low 24 bits; shift is 0 for .lo, 16 for .hi.
func (t intType) mul24(shift uint) fn2 {
	t24 := intType{24, t.signed}
	return func(a, b uint64) uint64 { return t24.ext(a) * t24.ext(b) >> shift & 0xffffffff }
}

// div is integer division. By zero the ISA says "unspecified"; GPUs give all
// ones, and the smallest number divided by -1 is itself.
func (t intType) div(a, b uint64) uint64 {
	a, b = t.ext(a), t.ext(b)
	switch {
	case b == 0:
		return t.mask()
	case !t.signed:
		return a / b
	case int64(b) == -1:
		return -a & t.mask()
	}
	return uint64(int64(a)/int64(b)) & t.mask()
}

// rem is the remainder; by zero GPUs give all ones.
func (t intType) rem(a, b uint64) uint64 {
	a, b = t.ext(a), t.ext(b)
	switch {
	case b == 0:
		return t.mask()
	case !t.signed:
		return a % b
	case int64(b) == -1:
		return 0
	}
	return uint64(int64(a)%int64(b)) & t.mask()
}

func (t intType) min(a, b uint64) uint64 {
	if t.less(a, b) {
		return a & t.mask()
	}
	return b & t.mask()
}

func (t intType) max(a, b uint64) uint64 {
	if t.less(a, b) {
		return b & t.mask()
	}
	return a & t.mask()
}

func (t intType) neg(a uint64) uint64 { return -a & t.mask() }

func (t intType) abs(a uint64) uint64 {
	if sext(a, t.width) < 0 {
		a = -a
	}
	return a & t.mask()
}

func (t intType) not(a uint64) uint64    { return ^a & t.mask() }
func (t intType) cnot(a uint64) uint64   { return boolBit(a&t.mask() == 0) }
func (t intType) and(a, b uint64) uint64 { return a & b & t.mask() }
func (t intType) or(a, b uint64) uint64  { return (a | b) & t.mask() }
func (t intType) xor(a, b uint64) uint64 { return (a ^ b) & t.mask() }

// sad is the sum of absolute differences: c + |a-b|.
func (t intType) sad(a, b, c uint64) uint64 {
	if t.less(a, b) {
		a, b = b, a
	}
	return (c + t.ext(a) - t.ext(b)) & t.mask()
}

// shl and shr clamp the 32-bit count at the width (PTX ISA §9.7.8).
func (t intType) shl(a, b uint64) uint64 {
	if n := b & 0xffffffff; n < uint64(t.width) {
		return a << n & t.mask()
	}
	return 0
}

func (t intType) shr(a, b uint64) uint64 {
	n := min(b&0xffffffff, 63)
	if b&0xffffffff >= uint64(t.width) {
		n = uint64(t.width) - boolBit(t.signed)
	}
	if t.signed {
		return uint64(sext(a, t.width)>>n) & t.mask()
	}
	return a & t.mask() >> n
}

// shf is the funnel shift of the pair b:a (PTX ISA §9.7.8.7).
func shf(left, wrap bool) fn3 {
	return func(a, b, c uint64) uint64 {
		n := c & 0xffffffff
		if wrap {
			n &= 31
		} else {
			n = min(n, 32)
		}
		v := b<<32 | a&0xffffffff
		if left {
			return v << n >> 32 & 0xffffffff
		}
		return v >> n & 0xffffffff
	}
}

// bfe extracts the field of c bits from bit b on (PTX ISA §9.7.1.20).
func (t intType) bfe(a, b, c uint64) uint64 {
	pos, length, msb := uint(b&0xff), uint(c&0xff), t.width-1
	if t.width == 64 {
		// The 64-bit form is a sequence of shifts on an H200, which look at all of
		// the position and length and not, as the ISA says, at their low bytes.
		pos, length = uint(min(b&0xffffffff, 255)), uint(min(c&0xffffffff, 255))
	}
	if length == 0 {
		return 0
	}
	var fill uint64
	if t.signed && a>>min(pos+length-1, msb)&1 != 0 {
		fill = t.mask()
	}
	if pos > msb {
		return fill
	}
	m := widthMask(min(length, t.width-pos))
	return (a&t.mask()>>pos)&m | fill&^m
}

// bfi inserts the low bits of a into b; pos and length are c and d.
func (t intType) bfi(a, b, c, d uint64) uint64 {
	pos, length := uint(c&0xff), uint(d&0xff)
	if t.width == 64 { // see bfe
		pos, length = uint(min(c&0xffffffff, 255)), uint(min(d&0xffffffff, 255))
	}
	m := uint64(1)<<length - 1
	if length >= 64 {
		m = ^uint64(0)
	}
	m = m << pos & t.mask() // a shift of 64 or more gives 0
	return b&^m&t.mask() | a<<pos&m
}

// bfind finds the highest bit that is not a copy of the sign; ^0 for none.
func (t intType) bfind(shiftAmount bool) fn1 {
	return func(a uint64) uint64 {
		if t.signed && sext(a, t.width) < 0 {
			a = ^a
		}
		n := bits.Len64(a&t.mask()) - 1
		if n < 0 {
			return 0xffffffff
		}
		if shiftAmount {
			n = int(t.width) - 1 - n
		}
		return uint64(n)
	}
}

func (t intType) clz(a uint64) uint64 {
	return uint64(bits.LeadingZeros64(a&t.mask())) - uint64(64-t.width)
}
func (t intType) popc(a uint64) uint64 { return uint64(bits.OnesCount64(a & t.mask())) }
func (t intType) brev(a uint64) uint64 { return bits.Reverse64(a) >> (64 - t.width) }

// bmsk makes a mask of b ones from bit a on.
func bmsk(wrap bool) fn2 {
	return func(a, b uint64) uint64 {
		a, b = a&0xffffffff, b&0xffffffff
		if wrap {
			a, b = a&31, b&31
		}
		if a >= 32 {
			return 0
		}
		return (uint64(1)<<min(b, 32) - 1) << a & 0xffffffff
	}
}

// szext sign- or zero-extends a from b bits; clamp treats counts above 32 as 32.
func (t intType) szext(wrap bool) fn2 {
	return func(a, b uint64) uint64 {
		n := b & 0xffffffff
		if wrap {
			n &= 31
		}
		if n >= 32 {
			return a & 0xffffffff
		}
		if n == 0 {
			return 0
		}
		if t.signed {
			return uint64(sext(a, uint(n))) & 0xffffffff
		}
		return a & widthMask(uint(n))
	}
}

// fns finds the offset'th set bit of mask from base on (PTX ISA §9.7.1.18).
func fns(mask, base, offset uint64) uint64 {
	m, pos, n := uint32(mask), int(uint32(base)&31), int32(offset)
	if n == 0 {
		if m>>pos&1 != 0 {
			return uint64(pos)
		}
		return 0xffffffff
	}
	step := 1
	if n < 0 {
		step, n = -1, -n
	}
	for ; pos >= 0 && pos < 32; pos += step {
		if m>>pos&1 == 0 {
			continue
		}
		if n--; n == 0 {
			return uint64(pos)
		}
	}
	return 0xffffffff
}

// lop3 computes the logical function given by the table lut.
func lop3(a, b, c uint64, lut uint8) uint64 {
	var r uint64
	for i := range 8 {
		if lut>>i&1 == 0 {
			continue
		}
		x, y, z := ^a, ^b, ^c
		if i&4 != 0 {
			x = a
		}
		if i&2 != 0 {
			y = b
		}
		if i&1 != 0 {
			z = c
		}
		r |= x & y & z
	}
	return r & 0xffffffff
}

// prmtSelectors gives the control words of prmt's named modes, by c&3
// (PTX ISA §9.7.9.7).
var prmtSelectors = map[string][4]uint64{
	".f4e":  {0x3210, 0x4321, 0x5432, 0x6543},
	".b4e":  {0x5670, 0x6701, 0x7012, 0x0123},
	".rc8":  {0x0000, 0x1111, 0x2222, 0x3333},
	".ecl":  {0x3210, 0x3211, 0x3222, 0x3333},
	".ecr":  {0x0000, 0x1110, 0x2210, 0x3210},
	".rc16": {0x1010, 0x3232, 0x1010, 0x3232},
}

// prmt picks four bytes out of b:a; bit 3 of a selector replicates the byte's sign.
func prmt(a, b, c uint64) uint64 {
	v := b<<32 | a&0xffffffff
	var r uint64
	for i := range uint(4) {
		sel := c >> (4 * i)
		x := v >> (8 * (sel & 7)) & 0xff
		if sel&8 != 0 {
			x = uint64(sext(x, 8)>>7) & 0xff
		}
		r |= x << (8 * i)
	}
	return r
}

// prmtMode returns prmt with a named mode.
func prmtMode(sel [4]uint64) fn3 {
	return func(a, b, c uint64) uint64 { return prmt(a, b, sel[c&3]) }
}

// dp4a adds the dot product of four bytes to c.
func dp4a(aSigned, bSigned bool) fn3 {
	ta, tb := intType{8, aSigned}, intType{8, bSigned}
	return func(a, b, c uint64) uint64 {
		for i := range uint(4) {
			c += ta.ext(a>>(8*i)) * tb.ext(b>>(8*i))
		}
		return c & 0xffffffff
	}
}

// dp2a adds the dot product of two halves of a and the low or high two bytes of
// b to c.
func dp2a(aSigned, bSigned, hi bool) fn3 {
	ta, tb := intType{16, aSigned}, intType{8, bSigned}
	return func(a, b, c uint64) uint64 {
		if hi {
			b >>= 16
		}
		for i := range uint(2) {
			c += ta.ext(a>>(16*i)) * tb.ext(b>>(8*i))
		}
		return c & 0xffffffff
	}
}

// addCarry returns a + b + carry and the carry out at the type's width.
func (t intType) addCarry(a, b, carry uint64) (sum, out uint64) {
	s, c := bits.Add64(a&t.mask(), b&t.mask(), carry)
	if t.width < 64 {
		return s & t.mask(), s >> t.width & 1
	}
	return s, c
}

// subCarry returns a - b - (1 - carry) and the carry out. GPUs subtract by adding the
// complement, so the one flag that additions share means "no borrow": nvcc's 128-bit
// division writes it with subc.cc and reads it with addc.
func (t intType) subCarry(a, b, carry uint64) (diff, out uint64) {
	s, borrow := bits.Sub64(a&t.mask(), b&t.mask(), 1-carry)
	return s & t.mask(), 1 - borrow
}
