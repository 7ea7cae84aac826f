package bpf

import (
	"math/bits"
	"strconv"

	"nvtrace/ptx"
)

// Divisions of 64 bits are calls of a function of the compiler's, which code that is
// compiled as a tool's patch can't have.

// A wideDivision is what one of the instructions computes.
type wideDivision struct{ remainder, signed bool }

var wideDivisions = map[string]wideDivision{
	"div.u64": {}, "rem.u64": {remainder: true},
	"div.s64": {signed: true}, "rem.s64": {remainder: true, signed: true},
}

// divide writes a division without a call.
func (g *Gen) divide(n *node, how wideDivision) {
	x, y := g.operand(n.args[0]).String(), n.args[1]
	magnitude := func(of string) string {
		if !how.signed {
			return of
		}
		m := g.Reg(ptx.B64).String()
		g.Line("abs.s64 " + m + ", " + of + ";")
		return m
	}
	var quotient, remainder string
	if by := uint64(y.v); y.kind == aImm {
		if how.signed && y.v < 0 {
			by = -by
		}
		if by&(by-1) == 0 {
			quotient, remainder = g.divideByPower(magnitude(x), by)
		} else {
			quotient, remainder = g.divideByConstant(magnitude(x), by)
		}
	} else {
		quotient, remainder = g.divideBitByBit(magnitude(x), magnitude(g.operand(y).String()))
	}
	result := quotient
	if how.remainder {
		result = remainder
	}
	if how.signed {
		// A quotient has the sign of both, a remainder that of the dividend.
		sign, minus, negative := x, g.Reg(ptx.B64).String(), g.Reg(ptx.Pred).String()
		if !how.remainder {
			sign = g.Reg(ptx.B64).String()
			g.Line("xor.b64 " + sign + ", " + x + ", " + g.operand(y).String() + ";")
		}
		g.Line("setp.lt.s64 " + negative + ", " + sign + ", 0;")
		g.Line("neg.s64 " + minus + ", " + result + ";")
		g.Line("selp.b64 " + g.reg(n.dst).String() + ", " + minus + ", " + result + ", " + negative + ";")
		return
	}
	g.Line("mov.b64 " + g.reg(n.dst).String() + ", " + result + ";")
}

// divideByConstant multiplies by the reciprocal, as in T. Granlund, P. Montgomery,
// "Division by Invariant Integers using Multiplication" (1994), figure 4.1. by is no power
// of two.
func (g *Gen) divideByConstant(x string, by uint64) (quotient, remainder string) {
	length := bits.Len64(by - 1)
	factor, _ := bits.Div64(1<<length-by, 0, by) // 1<<64 is 0: the difference is right modulo 2^64
	factor++
	high, q, product, r := g.Reg(ptx.B64).String(), g.Reg(ptx.B64).String(), g.Reg(ptx.B64).String(), g.Reg(ptx.B64).String()
	g.Line("mul.hi.u64 " + high + ", " + x + ", " + strconv.FormatInt(int64(factor), 10) + ";")
	g.Line("sub.s64 " + q + ", " + x + ", " + high + ";")
	g.Line("shr.u64 " + q + ", " + q + ", 1;")
	g.Line("add.s64 " + q + ", " + q + ", " + high + ";")
	g.Line("shr.u64 " + q + ", " + q + ", " + strconv.Itoa(length-1) + ";")
	g.Line("mul.lo.s64 " + product + ", " + q + ", " + strconv.FormatInt(int64(by), 10) + ";")
	g.Line("sub.s64 " + r + ", " + x + ", " + product + ";")
	return q, r
}

// divideByPower shifts; by is a power of two.
func (g *Gen) divideByPower(x string, by uint64) (quotient, remainder string) {
	q, r := g.Reg(ptx.B64).String(), g.Reg(ptx.B64).String()
	g.Line("shr.u64 " + q + ", " + x + ", " + strconv.Itoa(bits.TrailingZeros64(by)) + ";")
	g.Line("and.b64 " + r + ", " + x + ", " + strconv.FormatInt(int64(by-1), 10) + ";")
	return q, r
}

// divideBitByBit is long division; by is not 0.
func (g *Gen) divideBitByBit(x, by string) (quotient, remainder string) {
	q, r, carry, bit := g.Reg(ptx.B64).String(), g.Reg(ptx.B64).String(), g.Reg(ptx.B64).String(), g.Reg(ptx.B64).String()
	left, p := g.Reg(ptx.B32).String(), g.Reg(ptx.Pred).String()
	loop := g.Label()
	g.Line("mov.b64 " + q + ", " + x + ";")
	g.Line("mov.b64 " + r + ", 0;")
	g.Line("mov.u32 " + left + ", 64;")
	g.Line(".pragma \"nounroll\";")
	g.Builder.Label(loop)
	g.Line("shr.u64 " + carry + ", " + r + ", 63;")
	g.Line("shr.u64 " + bit + ", " + q + ", 63;")
	g.Line("shl.b64 " + r + ", " + r + ", 1;")
	g.Line("or.b64 " + r + ", " + r + ", " + bit + ";")
	g.Line("shl.b64 " + q + ", " + q + ", 1;")
	g.Line("setp.ge.u64 " + p + ", " + r + ", " + by + ";")
	g.Line("setp.ne.or.u64 " + p + ", " + carry + ", 0, " + p + ";")
	g.Line("@" + p + " sub.s64 " + r + ", " + r + ", " + by + ";")
	g.Line("@" + p + " or.b64 " + q + ", " + q + ", 1;")
	g.Line("sub.s32 " + left + ", " + left + ", 1;")
	g.Line("setp.ne.s32 " + p + ", " + left + ", 0;")
	g.Line("@" + p + " bra " + loop + ";")
	return q, r
}
