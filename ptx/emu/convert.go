package emu

import "nvtrace/ptx"

// formatOf returns the encoding of a scalar or packed floating-point type, nil
// for other types.
func formatOf(t ptx.Type) *format {
	switch t {
	case ptx.F16, ptx.F16x2:
		return &fmtF16
	case ptx.BF16, ptx.BF16x2:
		return &fmtBF16
	case ptx.F32, ptx.F32x2:
		return &fmtF32
	case ptx.F64:
		return &fmtF64
	case ptx.E4M3, ptx.E4M3x2:
		return &fmtE4M3
	case ptx.E5M2, ptx.E5M2x2:
		return &fmtE5M2
	case ptx.TF32:
		return &fmtTF32
	}
	return nil
}

// intOf returns the width and signedness of an integer or untyped-bits type.
func intOf(t ptx.Type) (intType, bool) {
	switch t {
	case ptx.B8, ptx.B16, ptx.B32, ptx.B64, ptx.U8, ptx.U16, ptx.U32, ptx.U64, ptx.S8, ptx.S16, ptx.S32, ptx.S64:
		return intType{uint(t.Size()) * 8, t.Signed()}, true
	}
	return intType{}, false
}

// A conversion is what a cvt instruction says.
type conversion struct {
	dst, src  ptx.Type
	mode      rounding
	integral  bool // .rni .rzi .rmi .rpi
	ftz, sat  bool
	relu      bool
	satfinite bool
}

// build returns the function of a one-operand scalar cvt. The result has the
// destination type's width; extending it to a wider register is the caller's.
func (c conversion) build() (fn1, bool) {
	di, dInt := intOf(c.dst)
	si, sInt := intOf(c.src)
	df, sf := formatOf(c.dst), formatOf(c.src)
	switch {
	case dInt && sInt:
		return c.intToInt(di, si), true
	case dInt && sf != nil:
		return c.floatToInt(di, sf), true
	case sInt && df != nil:
		return c.intToFloat(df, si), true
	case df == sf && df != nil && c.integral:
		return c.roundIntegral(df), true
	case df != nil && sf != nil:
		return c.floatToFloat(df, sf), true
	}
	return nil, false
}

func (c conversion) intToInt(d, s intType) fn1 {
	if !c.sat {
		return func(a uint64) uint64 { return s.ext(a) & d.mask() }
	}
	lo, hi := d.limits()
	return func(a uint64) uint64 {
		v := s.ext(a)
		if s.signed {
			if int64(v) < 0 {
				if !d.signed {
					return 0
				}
				return uint64(max(int64(v), int64(lo))) & d.mask()
			}
		}
		return min(v, hi)
	}
}

// floatToInt clamps to the destination's range. A NaN becomes 0, or 1<<(w-1)
// when either type has 64 bits (PTX ISA §9.7.9.21).
func (c conversion) floatToInt(d intType, f *format) fn1 {
	nan := uint64(0)
	if d.width == 64 || f == &fmtF64 {
		nan = 1 << (d.width - 1)
	}
	op := floatOp{f: f, ftz: c.ftz && f == &fmtF32}
	return func(a uint64) uint64 {
		n := unpack(op.in(a), f)
		if n.class == numNaN {
			return nan
		}
		return n.toInt(c.mode, d.signed, d.width)
	}
}

func (c conversion) intToFloat(f *format, s intType) fn1 {
	op := c.result(f)
	return func(a uint64) uint64 { return op.out(fromInt(s.ext(a), s.signed).pack(f, c.mode)) }
}

// result is the treatment of the rounded result.
func (c conversion) result(f *format) floatOp {
	return floatOp{f: f, ftz: c.ftz && f == &fmtF32, sat: c.sat, relu: c.relu}
}

// roundIntegral is cvt.rni.f32.f32 and its like.
func (c conversion) roundIntegral(f *format) fn1 {
	op := c.result(f)
	return func(a uint64) uint64 {
		a = op.in(a)
		n := unpack(a, f)
		if n.class != numFinite || n.exp >= 0 {
			return op.outNaN(a, a)
		}
		r := fromInt(n.magnitude(c.mode), false)
		r.neg = n.neg
		return op.out(r.pack(f, roundNearest))
	}
}

func (c conversion) floatToFloat(d, s *format) fn1 {
	in := floatOp{f: s, ftz: c.ftz && s == &fmtF32}
	op := c.result(d)
	var shift uint
	if d == &fmtTF32 {
		shift = 13
	}
	return func(a uint64) uint64 {
		a = in.in(a)
		if d == s {
			return op.outNaN(a, a)
		}
		n := unpack(a, s)
		if n.class == numNaN {
			return c.convertNaN(a, d, s, op)
		}
		r := n.pack(d, c.mode)
		if c.satfinite && r&^d.signBit() >= d.inf() {
			r = r&d.signBit() | (d.inf() - 1)
		}
		return op.out(r) << shift
	}
}

// convertNaN is the result for a NaN, which the ISA leaves open and an H200
// chooses by path: conversions from or to double precision keep sign and
// payload, quieted; bf16 is widened by a shift and tf32 cut by a mask; the rest,
// and whatever .ftz touches, is canonical.
func (c conversion) convertNaN(a uint64, d, s *format, op floatOp) uint64 {
	if s == &fmtF32 && c.ftz {
		a = fmtF32.nan
	}
	switch {
	case c.sat:
		return 0
	case d == &fmtF64 || s == &fmtF64:
		return resizeNaN(a, d, s)
	case s == &fmtBF16 && d == &fmtF32:
		return a << 16
	case d == &fmtTF32 && c.mode == roundAway:
		return a &^ (1<<13 - 1)
	case d == &fmtTF32:
		return op.f.nan << 13
	}
	return d.nan
}

// resizeNaN keeps sign and the upper bits of the payload.
func resizeNaN(a uint64, d, s *format) uint64 {
	payload := a & (1<<s.frac - 1)
	if d.frac > s.frac {
		payload <<= d.frac - s.frac
	} else {
		payload >>= s.frac - d.frac
	}
	r := d.inf() | 1<<(d.frac-1) | payload
	if a&s.signBit() != 0 {
		r |= d.signBit()
	}
	return r
}

// packed returns the conversion of two single-precision operands to a packed
// pair: a becomes the upper half.
func (c conversion) packed(lane ptx.Type) (fn2, bool) {
	c.dst = lane
	f, ok := c.build()
	if !ok {
		return nil, false
	}
	w := uint(lane.Size()) * 8
	return func(a, b uint64) uint64 { return f(a)<<w | f(b) }, true
}

// lanes returns the conversion of a packed pair to another packed pair.
func (c conversion) lanes(dst, src ptx.Type) (fn1, bool) {
	c.dst, c.src = dst, src
	f, ok := c.build()
	if !ok {
		return nil, false
	}
	dw, sw := uint(dst.Size())*8, uint(src.Size())*8
	return func(a uint64) uint64 { return f(a>>sw&widthMask(sw))<<dw | f(a&widthMask(sw)) }, true
}

// scalarOf returns the element type of a packed type, or the type itself.
func scalarOf(t ptx.Type) ptx.Type {
	switch t {
	case ptx.F16x2:
		return ptx.F16
	case ptx.BF16x2:
		return ptx.BF16
	case ptx.F32x2:
		return ptx.F32
	case ptx.E4M3x2:
		return ptx.E4M3
	case ptx.E5M2x2:
		return ptx.E5M2
	case ptx.U16x2:
		return ptx.U16
	case ptx.S16x2:
		return ptx.S16
	}
	return t
}

// cvtPack is cvt.pack.sat: a and b are clamped and put side by side below the
// low bits of c.
func cvtPack(dst, src intType) fn3 {
	f := conversion{sat: true}.intToInt(dst, src)
	return func(a, b, c uint64) uint64 {
		return (c<<(2*dst.width) | f(a)<<dst.width | f(b)) & 0xffffffff
	}
}
