package emu

import "math"

// The .approx functions. NVIDIA documents error bounds, not bits; each function
// here returns the double-precision result rounded once, which lies within every
// documented bound (PTX ISA §9.7.3: rcp 1 ulp, sqrt, rsqrt 2^-22.9 relative,
// sin and cos 2^-20.5 absolute in [-2π, 2π], lg2 2^-22, ex2 2 ulp, tanh 2^-11
// relative, div.approx and div.full 2 ulp). A test that compares with a GPU must
// use these bounds and not bits.

// approx1 lifts a function of doubles to the operation's format. Special values
// follow the function: rcp(±0)=±inf, lg2(-x)=NaN, …
func (o floatOp) approx1(f func(float64) float64) fn1 {
	return func(a uint64) uint64 {
		a = o.in(a)
		if o.f == &fmtF32 {
			return o.out(bits32(float32(f(float64(f32(a))))))
		}
		return o.out(fromF64(f(halfToF64(a, o.f)), o.f, roundNearest))
	}
}

func approxRcp(x float64) float64 { return 1 / x }

func approxRsqrt(x float64) float64 {
	if x == 0 {
		return math.Copysign(math.Inf(1), x)
	}
	return 1 / math.Sqrt(x)
}

// The table of one-operand approximations by opcode.
var approxTable = map[string]func(float64) float64{
	"rcp":   approxRcp,
	"sqrt":  math.Sqrt,
	"rsqrt": approxRsqrt,
	"sin":   math.Sin,
	"cos":   math.Cos,
	"lg2":   math.Log2,
	"ex2":   math.Exp2,
	"tanh":  math.Tanh,
}

// approxDiv returns the function of div.approx.f32: a × (1/b), which is zero for
// 2^126 < |b| < 2^128 (PTX ISA §9.7.3.8), and NaN for an infinite a then. With
// full range (div.full) only the rounding differs from div.rn.
func (o floatOp) approxDiv(full bool) fn2 {
	return func(a, b uint64) uint64 {
		a, b = o.in(a), o.in(b)
		x, y := f32(a), f32(b)
		if m := math.Abs(float64(y)); !full && m > 0x1p126 && m < math.Inf(1) {
			y = float32(math.Inf(1))
			if b>>31 != 0 {
				y = -y
			}
		}
		return o.out(bits32(x / y))
	}
}

// approxRcp64 is rcp.approx.ftz.f64 and, with the square root, rsqrt.approx.ftz
// .f64: the high word of the result is computed, the low word is zero.
func approxGross(f func(float64) float64) fn1 {
	return func(a uint64) uint64 {
		r := bits64(f(f64(fmtF64.flush(a))))
		if fmtF64.isNaN(r) {
			return fmtF64.nan
		}
		return fmtF64.flush(r) &^ 0xffffffff
	}
}
