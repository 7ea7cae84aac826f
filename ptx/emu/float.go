package emu

import (
	"math"
	"slices"
)

// A fn1, fn2 or fn3 computes one lane's result from its operands. Operands are
// register contents: they may have bits above the type's width, results have
// none.
type (
	fn1 func(a uint64) uint64
	fn2 func(a, b uint64) uint64
	fn3 func(a, b, c uint64) uint64
)

// floatOp holds what the modifiers of a floating-point instruction say.
type floatOp struct {
	f    *format
	mode rounding
	ftz  bool
	sat  bool
	relu bool
	nan  bool // .NaN of min and max
	xabs bool // .xorsign.abs
	abs  bool // .abs of min and max
}

func f32(v uint64) float32    { return math.Float32frombits(uint32(v)) }
func bits32(v float32) uint64 { return uint64(math.Float32bits(v)) }
func f64(v uint64) float64    { return math.Float64frombits(v) }
func bits64(v float64) uint64 { return math.Float64bits(v) }
func flush32(v uint64) uint64 { return fmtF32.flush(uint64(uint32(v))) }

// halfToF64 widens a number of any format up to 32 bits exactly.
func halfToF64(v uint64, f *format) float64 {
	m := v &^ f.signBit()
	e := m >> f.frac
	if e != 0 && m < f.inf() && !f.isNaN(m) {
		b := (e+uint64(1023-f.bias()))<<52 | (m&(1<<f.frac-1))<<(52-f.frac)
		return f64(b | (v&f.signBit())<<(63-f.exp-f.frac))
	}
	return f64(unpack(v, f).pack(&fmtF64, roundNearest))
}

// fromF64 rounds a double to format f.
func fromF64(v float64, f *format, mode rounding) uint64 {
	return unpack(bits64(v), &fmtF64).pack(f, mode)
}

// oddSum returns a + b rounded to odd: truncated, with the last bit set when
// inexact. Rounding that again to a format of at most 51 bits equals rounding
// the exact sum once (Boldo and Melquiond, "Emulation of FMA and correctly
// rounded sums", 2008).
func oddSum(a, b float64) float64 {
	s := a + b
	t := s - a
	err := (a - (s - t)) + (b - t)
	return makeOdd(s, err)
}

// makeOdd moves s, a nearest rounding of s+err, to the odd neighbour on err's
// side when err is not zero.
func makeOdd(s, err float64) float64 {
	u := math.Float64bits(s)
	if err == 0 || u&1 != 0 || math.IsNaN(err) || math.IsInf(s, 0) {
		return s
	}
	if (err > 0) == (s > 0) {
		return math.Float64frombits(u + 1)
	}
	return math.Float64frombits(u - 1)
}

// in prepares an operand: cut to the format's width, flushed when .ftz says so.
func (o *floatOp) in(v uint64) uint64 {
	v &= o.f.signBit()<<1 - 1
	if o.ftz {
		v = o.f.flush(v)
	}
	return v
}

// flushTiny is .ftz for a rounded result v: GPUs decide before rounding, so a
// magnitude below the smallest normal number is flushed even if it rounds up to
// that. rz computes the result rounded towards zero.
func (o *floatOp) flushTiny(v uint64, rz func(mode rounding) uint64) uint64 {
	if o.ftz && v&^o.f.signBit() == 1<<o.f.frac && o.f.isSubnormal(rz(roundZero)) {
		return v & o.f.signBit()
	}
	return v
}

// out applies what follows the rounding: canonical NaN, .ftz, .sat, .relu.
func (o *floatOp) out(v uint64) uint64 {
	if o.f.isNaN(v) {
		if o.sat {
			return 0
		}
		return o.f.nan
	}
	if o.ftz {
		v = o.f.flush(v)
	}
	if (o.sat || o.relu) && v&o.f.signBit() != 0 {
		return 0
	}
	if o.sat {
		v = min(v, o.f.one())
	}
	return v
}

// one returns the encoding of 1.0.
func (f *format) one() uint64 { return uint64(f.bias()) << f.frac }

// outNaN is out for double precision, where a NaN operand is passed on, quieted;
// of several the last (measured on an H200).
func (o *floatOp) outNaN(v uint64, args ...uint64) uint64 {
	if o.f == &fmtF64 && o.f.isNaN(v) && !o.sat {
		for _, a := range slices.Backward(args) {
			if o.f.isNaN(a) {
				return a | 1<<51
			}
		}
	}
	return o.out(v)
}

// add returns the function of add with these modifiers.
func (o floatOp) add() fn2 {
	return func(a, b uint64) uint64 {
		a, b = o.in(a), o.in(b)
		if o.mode == roundNearest {
			switch o.f {
			case &fmtF32:
				return o.out(bits32(f32(a) + f32(b)))
			case &fmtF64:
				return o.outNaN(bits64(f64(a)+f64(b)), a, b)
			}
		}
		return o.outNaN(softAdd(unpack(a, o.f), unpack(b, o.f), o.mode).pack(o.f, o.mode), a, b)
	}
}

// sub returns the function of sub with these modifiers.
func (o floatOp) sub() fn2 {
	add := o.add()
	return func(a, b uint64) uint64 {
		if o.f == &fmtF64 && o.f.isNaN(b) {
			return add(a, b) // a NaN keeps its sign
		}
		return add(a, b^o.f.signBit())
	}
}

// mul returns the function of mul with these modifiers.
func (o floatOp) mul() fn2 {
	return func(a, b uint64) uint64 {
		a, b = o.in(a), o.in(b)
		if o.mode == roundNearest {
			switch o.f {
			case &fmtF32:
				v := bits32(f32(a) * f32(b))
				if o.ftz {
					v = o.flushTiny(v, func(m rounding) uint64 { return o.softMul(a, b, m) })
				}
				return o.out(v)
			case &fmtF64:
				return o.outNaN(bits64(f64(a)*f64(b)), a, b)
			}
		}
		v := o.flushTiny(o.softMul(a, b, o.mode), func(m rounding) uint64 { return o.softMul(a, b, m) })
		return o.outNaN(v, a, b)
	}
}

func (o *floatOp) softMul(a, b uint64, mode rounding) uint64 {
	return softMul(unpack(a, o.f), unpack(b, o.f)).pack(o.f, mode)
}

func (o *floatOp) softFMA(a, b, c uint64, mode rounding) uint64 {
	return softAdd(softMul(unpack(a, o.f), unpack(b, o.f)), unpack(c, o.f), mode).pack(o.f, mode)
}

func (o *floatOp) softDiv(a, b uint64, mode rounding) uint64 {
	return softDiv(unpack(a, o.f), unpack(b, o.f)).pack(o.f, mode)
}

// fma returns the function of fma and mad with these modifiers.
func (o floatOp) fma() fn3 {
	return func(a, b, c uint64) uint64 {
		a, b, c = o.in(a), o.in(b), o.in(c)
		if o.mode == roundNearest {
			switch o.f {
			case &fmtF32:
				v := bits32(fma32(f32(a), f32(b), f32(c)))
				if o.ftz {
					v = o.flushTiny(v, func(m rounding) uint64 { return o.softFMA(a, b, c, m) })
				}
				return o.out(v)
			case &fmtF64:
				return o.outNaN(bits64(math.FMA(f64(a), f64(b), f64(c))), a, b, c)
			}
		}
		v := o.flushTiny(o.softFMA(a, b, c, o.mode), func(m rounding) uint64 { return o.softFMA(a, b, c, m) })
		return o.outNaN(v, a, b, c)
	}
}

// fma32 is a correctly rounded fused multiply-add: the product of two singles is
// exact in a double, and the sum is rounded to odd before the final rounding.
func fma32(a, b, c float32) float32 {
	return float32(oddSum(float64(a)*float64(b), float64(c)))
}

// div returns the function of div.rnd.
func (o floatOp) div() fn2 {
	return func(a, b uint64) uint64 {
		a, b = o.in(a), o.in(b)
		if o.mode == roundNearest {
			switch o.f {
			case &fmtF32:
				v := bits32(f32(a) / f32(b))
				if o.ftz {
					v = o.flushTiny(v, func(m rounding) uint64 { return o.softDiv(a, b, m) })
				}
				return o.out(v)
			case &fmtF64:
				return o.outNaN(bits64(f64(a)/f64(b)), a, b)
			}
		}
		v := o.flushTiny(o.softDiv(a, b, o.mode), func(m rounding) uint64 { return o.softDiv(a, b, m) })
		return o.outNaN(v, a, b)
	}
}

// rcp returns the function of rcp.rnd.
func (o floatOp) rcp() fn1 {
	div := o.div()
	one := o.f.one()
	return func(a uint64) uint64 { return div(one, a) }
}

// sqrt returns the function of sqrt.rnd.
func (o floatOp) sqrt() fn1 {
	return func(a uint64) uint64 {
		a = o.in(a)
		if o.f == &fmtF64 && o.mode == roundNearest {
			return o.outNaN(bits64(math.Sqrt(f64(a))), a)
		}
		return o.outNaN(softSqrt(unpack(a, o.f)).pack(o.f, o.mode), a)
	}
}

// neg returns the function of neg; absolute that of abs. The ISA leaves NaN
// results unspecified; an H200 gives the canonical NaN, and in double precision
// the operand, quieted, with its sign.
func (o floatOp) neg() fn1 {
	return func(a uint64) uint64 {
		if a = o.in(a); o.f.isNaN(a) {
			return o.outNaN(a, a)
		}
		return a ^ o.f.signBit()
	}
}

func (o floatOp) absolute() fn1 {
	return func(a uint64) uint64 {
		if a = o.in(a); o.f.isNaN(a) {
			return o.outNaN(a, a)
		}
		return a &^ o.f.signBit()
	}
}

// minmax returns the function of min (max: the other way round). PTX ISA §9.7.3:
// one NaN operand is ignored unless .NaN is given, -0 is below +0, .xorsign.abs
// compares magnitudes and gives the result the exclusive or of the signs.
func (o floatOp) minmax(isMax bool) fn2 {
	return func(a, b uint64) uint64 {
		a, b = o.in(a), o.in(b)
		var sign uint64
		if o.xabs {
			sign = (a ^ b) & o.f.signBit()
		}
		if o.xabs || o.abs {
			a, b = a&^o.f.signBit(), b&^o.f.signBit()
		}
		an, bn := o.f.isNaN(a), o.f.isNaN(b)
		switch {
		case an && bn, o.nan && (an || bn):
			return o.outNaN(o.f.nan, a, b)
		case an:
			return b | sign
		case bn:
			return a | sign
		}
		if (o.f.order(a) < o.f.order(b)) == isMax {
			a = b
		}
		return a | sign
	}
}

// minmax3 returns the function of the three-operand forms of min and max.
func (o floatOp) minmax3(isMax bool) fn3 {
	f := o.minmax(isMax)
	return func(a, b, c uint64) uint64 { return f(f(a, b), c) }
}

// order maps a number to an integer that sorts like it, -0 before +0.
func (f *format) order(v uint64) int64 {
	if v&f.signBit() != 0 {
		return -int64(v&^f.signBit()) - 1
	}
	return int64(v)
}

// copysign returns b with the sign of a (PTX ISA §9.7.3.7: "copy sign of a into
// value of b").
func (o floatOp) copysign() fn2 {
	s := o.f.signBit()
	return func(a, b uint64) uint64 { return b&(s-1) | a&s }
}

// testp returns the predicate of testp.op.
func (o floatOp) testp(op string) (func(a uint64) bool, bool) {
	f := o.f
	cut := func(a uint64) uint64 { return a & (f.signBit() - 1) }
	switch op {
	case ".finite":
		return func(a uint64) bool { return cut(a) < f.inf() }, true
	case ".infinite":
		return func(a uint64) bool { return cut(a) == f.inf() }, true
	case ".number":
		return func(a uint64) bool { return !f.isNaN(cut(a)) }, true
	case ".notanumber":
		return func(a uint64) bool { return f.isNaN(cut(a)) }, true
	case ".normal":
		// An H200 counts zeros among the normal numbers.
		return func(a uint64) bool { a = cut(a); return !f.isSubnormal(a) && a < f.inf() }, true
	case ".subnormal":
		return func(a uint64) bool { return f.isSubnormal(cut(a)) }, true
	}
	return nil, false
}
