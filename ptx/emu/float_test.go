package emu

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

// The reference arithmetic of these tests is rational: math/big computes the
// exact result, and refRound finds the neighbours in the format by division with
// remainder. It shares nothing with softfloat.go.

var allModes = []rounding{roundNearest, roundZero, roundDown, roundUp}

// refValue is the exact value of a finite v.
func refValue(v uint64, f *format) *big.Rat {
	m := v & (1<<f.frac - 1)
	e := int(v>>f.frac) & (1<<f.exp - 1)
	if e == 0 {
		e = 1
	} else {
		m |= 1 << f.frac
	}
	r := new(big.Rat).SetInt(new(big.Int).SetUint64(m))
	r = scale(r, e-f.bias()-int(f.frac))
	if v&f.signBit() != 0 {
		r.Neg(r)
	}
	return r
}

// scale multiplies by 2^n.
func scale(r *big.Rat, n int) *big.Rat {
	p := new(big.Int).Lsh(big.NewInt(1), uint(max(n, -n)))
	if n < 0 {
		return new(big.Rat).Quo(r, new(big.Rat).SetInt(p))
	}
	return new(big.Rat).Mul(r, new(big.Rat).SetInt(p))
}

// refRound rounds x, which is not zero, to format f.
func refRound(x *big.Rat, f *format, mode rounding) uint64 {
	neg := x.Sign() < 0
	a := new(big.Rat).Abs(x)
	e := a.Num().BitLen() - a.Denom().BitLen() // floor(log2 a) or one more
	if scale(big.NewRat(1, 1), e).Cmp(a) > 0 {
		e--
	}
	emin := 1 - f.bias()
	q := max(e, emin) - int(f.frac) // exponent of the quantum
	n := scale(a, -q)
	m, rem := new(big.Int).QuoRem(n.Num(), n.Denom(), new(big.Int))
	twice := new(big.Int).Lsh(rem, 1).Cmp(n.Denom())
	up := false
	switch mode {
	case roundNearest:
		up = twice > 0 || twice == 0 && m.Bit(0) == 1
	case roundAway:
		up = twice >= 0
	case roundDown:
		up = neg && rem.Sign() != 0
	case roundUp:
		up = !neg && rem.Sign() != 0
	}
	if up {
		m.Add(m, big.NewInt(1))
	}
	v := m.Uint64()
	if v>>f.frac != 0 { // normal: the quantum's exponent gives the biased one
		v += uint64(q+int(f.frac)-emin) << f.frac
	}
	limit := uint64(1<<f.exp-1) << f.frac
	if v >= limit {
		v = limit
		if mode == roundZero || mode == roundDown && !neg || mode == roundUp && neg {
			v--
		}
	}
	if neg {
		v |= f.signBit()
	}
	return v
}

// sample returns operands of format f: special values, near ones, random bits.
func sample(rnd *rand.Rand, f *format) uint64 {
	all := f.signBit()<<1 - 1
	switch rnd.IntN(4) {
	case 0:
		special := []uint64{0, 1, 2, f.inf(), f.inf() - 1, f.inf() + 1, f.nan, f.one(), f.one() + 1, f.one() - 1, 1 << f.frac, 1<<f.frac - 1, 1<<f.frac + 1}
		return (special[rnd.IntN(len(special))] ^ f.signBit()*uint64(rnd.IntN(2))) & all
	case 1: // exponents close to one another
		e := uint64(f.bias()) + uint64(rnd.IntN(9)) - 4
		return (e<<f.frac | rnd.Uint64()&(1<<f.frac-1)) ^ f.signBit()*uint64(rnd.IntN(2))
	case 2: // few bits, so that ties are frequent
		e := rnd.Uint64() & (1<<f.exp - 1)
		return (e<<f.frac | rnd.Uint64()&7<<(f.frac-3)) ^ f.signBit()*uint64(rnd.IntN(2))
	}
	return rnd.Uint64() & all
}

func finite(f *format, vs ...uint64) bool {
	for _, v := range vs {
		if v&^f.signBit() >= f.inf() {
			return false
		}
	}
	return true
}

// refResult rounds the exact x; an exact zero's sign is the caller's.
func refResult(x *big.Rat, f *format, mode rounding, zero uint64) uint64 {
	if x.Sign() == 0 {
		return zero
	}
	return refRound(x, f, mode)
}

func TestArithmeticIsExactlyRounded(t *testing.T) {
	need.OneThread(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, f := range map[string]*format{"f16": &fmtF16, "bf16": &fmtBF16, "f32": &fmtF32, "f64": &fmtF64} {
		for _, mode := range allModes {
			o := floatOp{f: f, mode: mode}
			add, mul, fma, div, sqrt, sub := o.add(), o.mul(), o.fma(), o.div(), o.sqrt(), o.sub()
			for range 4000 {
				a, b, c := sample(rnd, f), sample(rnd, f), sample(rnd, f)
				if !finite(f, a, b, c) {
					continue
				}
				x, y, z := refValue(a, f), refValue(b, f), refValue(c, f)
				sumZero := uint64(0) // the sign of an exact zero sum
				if mode == roundDown {
					sumZero = f.signBit()
				}
				pzero := (a ^ b) & f.signBit()
				check := func(op string, got, want uint64) {
					t.Helper()
					if got != want {
						t.Fatalf("%s.%s mode %d: %#x %#x %#x = %#x, want %#x", op, name, mode, a, b, c, got, want)
					}
				}
				zeroOf := func(p, q uint64) uint64 { // both operands zero of one sign keep it
					if p == q && p&^f.signBit() == 0 {
						return p
					}
					return sumZero
				}
				check("add", add(a, b), refResult(new(big.Rat).Add(x, y), f, mode, zeroOf(a, b)))
				check("sub", sub(a, b), refResult(new(big.Rat).Sub(x, y), f, mode, zeroOf(a, b^f.signBit())))
				prod := new(big.Rat).Mul(x, y)
				check("mul", mul(a, b), refResult(prod, f, mode, pzero))
				fz := sumZero
				if prod.Sign() == 0 {
					fz = zeroOf(pzero, c)
				}
				check("fma", fma(a, b, c), refResult(new(big.Rat).Add(prod, z), f, mode, fz))
				if y.Sign() != 0 {
					check("div", div(a, b), refResult(new(big.Rat).Quo(x, y), f, mode, pzero))
				}
				if x.Sign() > 0 {
					check("sqrt", sqrt(a), refSqrt(x, f, mode))
				}
			}
		}
	}
}

// refSqrt rounds the root of x with 400 bits, which decides every case: a root
// is exact or differs from every number of the format far earlier.
func refSqrt(x *big.Rat, f *format, mode rounding) uint64 {
	v := new(big.Float).SetPrec(400).SetRat(x)
	r, _ := v.Sqrt(v).Rat(nil)
	return refRound(r, f, mode)
}

func TestArithmeticSpecials(t *testing.T) {
	inf, nan, one := fmtF32.inf(), fmtF32.nan, fmtF32.one()
	o := floatOp{f: &fmtF32}
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"inf-inf", o.sub()(inf, inf), nan},
		{"inf+1", o.add()(inf, one), inf},
		{"0*inf", o.mul()(0, inf), nan},
		{"0/0", o.div()(0, 0), nan},
		{"1/-0", o.div()(one, 0x80000000), 0xff800000},
		{"inf/inf", o.div()(inf, inf), nan},
		{"sqrt(-1)", o.sqrt()(0xbf800000), nan},
		{"sqrt(-0)", o.sqrt()(0x80000000), 0x80000000},
		{"nan payload", o.add()(0x7f812345, one), nan},
		{"fma(0,inf,1)", o.fma()(0, inf, one), nan},
		{"fma(1,1,-inf)", o.fma()(one, one, 0xff800000), 0xff800000},
		{"f64 0/0", floatOp{f: &fmtF64}.div()(0, 0), 0xfff8000000000000},
		{"f64 NaN payload", floatOp{f: &fmtF64}.add()(0x7ff0000000000123, bits64(1)), 0x7ff8000000000123},
		{"sat", floatOp{f: &fmtF32, sat: true}.add()(one, one), one},
		{"sat of NaN", floatOp{f: &fmtF32, sat: true}.sub()(inf, inf), 0},
		{"sat of -1", floatOp{f: &fmtF32, sat: true}.sub()(0, one), 0},
		{"ftz in", floatOp{f: &fmtF32, ftz: true}.add()(1, 0), 0},
		{"ftz in sign", floatOp{f: &fmtF32, ftz: true}.mul()(0x80000001, one), 0x80000000},
		{"ftz out", floatOp{f: &fmtF32, ftz: true}.mul()(0x00800000, 0x3f000000), 0},
		{"no ftz", o.mul()(0x00800000, 0x3f000000), 0x00400000},
		{"rz overflow", floatOp{f: &fmtF32, mode: roundZero}.add()(0x7f7fffff, 0x7f7fffff), 0x7f7fffff},
		{"rm overflow", floatOp{f: &fmtF32, mode: roundDown}.add()(0xff7fffff, 0xff7fffff), 0xff800000},
		{"relu", floatOp{f: &fmtF16, relu: true}.fma()(0xbc00, 0x3c00, 0), 0},
		{"abs", o.absolute()(0xbf800000), one},
		{"neg", o.neg()(one), 0xbf800000},
		{"copysign", o.copysign()(0x80000000, one), 0xbf800000},
	} {
		if c.got != c.want {
			t.Errorf("%s = %#x, want %#x", c.name, c.got, c.want)
		}
	}
}

func TestMinMax(t *testing.T) {
	const one, two, nan, negZero = 0x3f800000, 0x40000000, 0x7fc00000, 0x80000000
	o := floatOp{f: &fmtF32}
	withNaN, xor := floatOp{f: &fmtF32, nan: true}, floatOp{f: &fmtF32, xabs: true}
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"min", o.minmax(false)(two, one), one},
		{"max", o.minmax(true)(two, one), two},
		{"max of negatives", o.minmax(true)(0xc0000000, 0xbf800000), 0xbf800000},
		{"min with NaN", o.minmax(false)(nan, one), one},
		{"max with NaN", o.minmax(true)(one, nan), one},
		{"both NaN", o.minmax(true)(nan, nan), fmtF32.nan},
		{"min.NaN", withNaN.minmax(false)(nan, one), fmtF32.nan},
		{"min zeros", o.minmax(false)(0, negZero), negZero},
		{"max zeros", o.minmax(true)(negZero, 0), 0},
		{"xorsign.abs", xor.minmax(true)(0xc0000000, one), 0xc0000000},
		{"xorsign.abs both", xor.minmax(false)(0xc0000000, 0xbf800000), one},
		{"three", o.minmax3(true)(one, two, nan), two},
	} {
		if c.got != c.want {
			t.Errorf("%s = %#x, want %#x", c.name, c.got, c.want)
		}
	}
}

// TestSmallFormats decodes every value of the 8- and 16-bit formats by the
// definition and converts it there and back.
func TestSmallFormats(t *testing.T) {
	need.OneThread(t)
	for name, f := range map[string]*format{"f16": &fmtF16, "bf16": &fmtBF16, "e4m3": &fmtE4M3, "e5m2": &fmtE5M2} {
		for v := range f.signBit() << 1 {
			wide := halfToF64(v, f)
			switch {
			case f.isNaN(v):
				if !math.IsNaN(wide) {
					t.Fatalf("%s %#x = %v, want NaN", name, v, wide)
				}
				continue
			case v&^f.signBit() == f.inf():
				if !math.IsInf(wide, 0) {
					t.Fatalf("%s %#x = %v, want an infinity", name, v, wide)
				}
			default:
				want, _ := refValue(v, f).Float64()
				if v&(f.signBit()-1) == 0 {
					want = math.Copysign(0, wide)
				}
				if wide != want || math.Signbit(wide) != (v&f.signBit() != 0) {
					t.Fatalf("%s %#x = %v, want %v", name, v, wide, want)
				}
			}
			if back := fromF64(wide, f, roundNearest); back != v {
				t.Fatalf("%s %#x -> %v -> %#x", name, v, wide, back)
			}
		}
	}
	if got := halfToF64(0x7e, &fmtE4M3); got != 448 {
		t.Errorf("largest e4m3 = %v, want 448", got)
	}
}

func TestConvertFloatToFloat(t *testing.T) {
	need.OneThread(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	pairs := []struct{ d, s ptx.Type }{{ptx.F16, ptx.F32}, {ptx.BF16, ptx.F32}, {ptx.F32, ptx.F64}, {ptx.F16, ptx.F64}, {ptx.F64, ptx.F32}, {ptx.F32, ptx.F16}}
	for _, p := range pairs {
		df, sf := formatOf(p.d), formatOf(p.s)
		for _, mode := range allModes {
			f, ok := conversion{dst: p.d, src: p.s, mode: mode}.build()
			if !ok {
				t.Fatalf("cvt%v%v does not build", p.d, p.s)
			}
			for range 5000 {
				a := sample(rnd, sf)
				if !finite(sf, a) || a&^sf.signBit() == 0 {
					continue
				}
				if got, want := f(a), refRound(refValue(a, sf), df, mode); got != want {
					t.Fatalf("cvt%v%v(%#x) mode %d = %#x, want %#x", p.d, p.s, a, mode, got, want)
				}
			}
		}
	}
	tf32, _ := conversion{dst: ptx.TF32, src: ptx.F32, mode: roundAway}.build()
	for _, c := range [][2]uint64{{0x3f801000, 0x3f802000}, {0x3f800fff, 0x3f800000}, {0xbf801000, 0xbf802000}, {0x7f800000, 0x7f800000}} {
		if got := tf32(c[0]); got != c[1] {
			t.Errorf("cvt.rna.tf32.f32(%#x) = %#x, want %#x", c[0], got, c[1])
		}
	}
	fp8, _ := conversion{dst: ptx.E4M3, src: ptx.F32, satfinite: true}.build()
	for in, want := range map[float32]uint64{1e9: 0x7e, -1e9: 0xfe, 448: 0x7e, 1: 0x38, 0.001953125: 1, float32(math.Inf(1)): 0x7e} {
		if got := fp8(bits32(in)); got != want {
			t.Errorf("cvt.e4m3(%v) = %#x, want %#x", in, got, want)
		}
	}
	if got := fp8(0x7fc00000); got != 0x7f {
		t.Errorf("cvt.e4m3(NaN) = %#x, want 0x7f", got)
	}
}

// TestConvertFloatToInt converts every half and many larger numbers to every integer type.
func TestConvertFloatToInt(t *testing.T) {
	need.OneThread(t)
	rnd := rand.New(rand.NewPCG(5, 6))
	ints := []ptx.Type{ptx.U8, ptx.S8, ptx.U16, ptx.S16, ptx.U32, ptx.S32, ptx.U64, ptx.S64}
	for _, src := range []ptx.Type{ptx.F16, ptx.BF16, ptx.F32, ptx.F64} {
		sf := formatOf(src)
		for _, dst := range ints {
			for _, mode := range allModes {
				f, _ := conversion{dst: dst, src: src, mode: mode, integral: true}.build()
				it, _ := intOf(dst)
				for i := range uint64(3000) {
					a := sample(rnd, sf)
					if src == ptx.F16 {
						a = i * 22 & 0xffff
					}
					if got, want := f(a), refToInt(a, sf, it, mode); got != want {
						t.Fatalf("cvt%v%v(%#x) mode %d = %#x, want %#x", dst, src, a, mode, got, want)
					}
				}
			}
		}
	}
}

func refToInt(a uint64, f *format, it intType, mode rounding) uint64 {
	lo, hi := it.limits()
	limit := func(neg bool) uint64 {
		if neg {
			return lo & it.mask()
		}
		return hi
	}
	switch {
	case f.isNaN(a):
		if it.width == 64 || f == &fmtF64 {
			return 1 << (it.width - 1)
		}
		return 0
	case a&^f.signBit() == f.inf():
		return limit(a&f.signBit() != 0)
	}
	x := refValue(a, f)
	n, rem := new(big.Int).DivMod(x.Num(), x.Denom(), new(big.Int)) // floor for a positive divisor
	twice := new(big.Int).Lsh(rem, 1).Cmp(x.Denom())
	up := false
	switch mode {
	case roundNearest:
		up = twice > 0 || twice == 0 && n.Bit(0) == 1
	case roundUp:
		up = rem.Sign() != 0
	case roundZero:
		up = rem.Sign() != 0 && x.Sign() < 0
	}
	if up {
		n.Add(n, big.NewInt(1))
	}
	min, max := big.NewInt(int64(lo)), new(big.Int).SetUint64(hi)
	if n.Cmp(min) < 0 {
		return limit(true)
	}
	if n.Cmp(max) > 0 {
		return limit(false)
	}
	return new(big.Int).And(n, new(big.Int).SetUint64(^uint64(0))).Uint64() & it.mask()
}

func TestConvertIntToFloat(t *testing.T) {
	need.OneThread(t)
	rnd := rand.New(rand.NewPCG(7, 8))
	for _, src := range []ptx.Type{ptx.U8, ptx.S16, ptx.U32, ptx.S32, ptx.U64, ptx.S64} {
		it, _ := intOf(src)
		for _, dst := range []ptx.Type{ptx.F16, ptx.BF16, ptx.F32, ptx.F64} {
			for _, mode := range allModes {
				f, _ := conversion{dst: dst, src: src, mode: mode}.build()
				for range 2000 {
					a := rnd.Uint64() >> rnd.IntN(64) & it.mask()
					x := new(big.Int).SetUint64(it.ext(a))
					if it.signed {
						x = big.NewInt(int64(it.ext(a)))
					}
					want := uint64(0)
					if x.Sign() != 0 {
						want = refRound(new(big.Rat).SetInt(x), formatOf(dst), mode)
					}
					if got := f(a); got != want {
						t.Fatalf("cvt%v%v(%#x) mode %d = %#x, want %#x", dst, src, a, mode, got, want)
					}
				}
			}
		}
	}
}

func TestConvertIntegral(t *testing.T) {
	for name, mode := range cvtIntegral {
		f, _ := conversion{dst: ptx.F32, src: ptx.F32, mode: mode, integral: true}.build()
		ref := map[rounding]func(float64) float64{roundNearest: math.RoundToEven, roundZero: math.Trunc, roundDown: math.Floor, roundUp: math.Ceil}[mode]
		for _, v := range []float32{0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e30, -0.25, 8388607.5, 0.49999997, 1e-40} {
			if got, want := f(bits32(v)), bits32(float32(ref(float64(v)))); got != want {
				t.Errorf("cvt%s(%v) = %#x, want %#x", name, v, got, want)
			}
		}
	}
}

// TestApproximations checks every approximation against the bound that the ISA
// documents for it, computed with math/big where Go's own function is what the
// machine uses.
func TestApproximations(t *testing.T) {
	o := floatOp{f: &fmtF32}
	rnd := rand.New(rand.NewPCG(9, 10))
	for range 3000 {
		x := float32(math.Ldexp(1+rnd.Float64(), rnd.IntN(60)-30))
		xr := new(big.Rat).SetFloat64(float64(x))
		within(t, "rcp", x, o.approx1(approxTable["rcp"])(bits32(x)), new(big.Rat).Inv(xr), 1)
		sq := f32(o.approx1(approxTable["sqrt"])(bits32(x)))
		rs := f32(o.approx1(approxTable["rsqrt"])(bits32(x)))
		if d := math.Abs(float64(sq)*float64(sq)/float64(x) - 1); d > 0x1p-21 {
			t.Fatalf("sqrt.approx(%v)² is off by %v", x, d)
		}
		if d := math.Abs(float64(rs)*float64(rs)*float64(x) - 1); d > 0x1p-21 {
			t.Fatalf("rsqrt.approx(%v)²·x is off by %v", x, d)
		}
		y := float32(rnd.Float64()*4 - 2)
		e := f32(o.approx1(approxTable["ex2"])(bits32(y)))
		l := f32(o.approx1(approxTable["lg2"])(bits32(e)))
		if d := math.Abs(float64(l - y)); d > 0x1p-21 {
			t.Fatalf("lg2(ex2(%v)) = %v", y, l)
		}
		s, c := f32(o.approx1(approxTable["sin"])(bits32(y))), f32(o.approx1(approxTable["cos"])(bits32(y)))
		if d := math.Abs(float64(s*s+c*c) - 1); d > 0x1p-20 {
			t.Fatalf("sin²+cos² of %v is off by %v", y, d)
		}
		th := f32(o.approx1(approxTable["tanh"])(bits32(y)))
		ex := math.Exp(2 * float64(y))
		if want := (ex - 1) / (ex + 1); math.Abs(float64(th)-want) > 0x1p-11*math.Abs(want)+1e-9 {
			t.Fatalf("tanh(%v) = %v, want %v", y, th, want)
		}
	}
	if got := o.approxDiv(false)(fmtF32.one(), bits32(0x1p127)); got != 0 {
		t.Errorf("div.approx(1, 2^127) = %#x, want 0 (b beyond 2^126)", got)
	}
	if got := o.approxDiv(true)(fmtF32.one(), bits32(0x1p127)); f32(got) != 0x1p-127 {
		t.Errorf("div.full(1, 2^127) = %#x, want 2^-127", got)
	}
	if got := approxGross(approxRcp)(bits64(3)); got != 0x3fd5555500000000 {
		t.Errorf("rcp.approx.ftz.f64(3) = %#x", got)
	}
}

// within fails unless got is at most ulps units in the last place from want.
func within(t *testing.T, op string, x float32, got uint64, want *big.Rat, ulps int64) {
	t.Helper()
	exact := refRound(want, &fmtF32, roundNearest)
	if d := int64(got) - int64(exact); d > ulps || d < -ulps {
		t.Fatalf("%s(%v) = %#x, want %#x within %d ulp", op, x, got, exact, ulps)
	}
}

func TestTestp(t *testing.T) {
	o := floatOp{f: &fmtF32}
	values := []uint64{0x3f800000, 0x7f800000, 0x7fc00000, 0x00000001, 0x80000000}
	for op, want := range map[string][5]bool{
		".finite": {true, false, false, true, true}, ".infinite": {false, true, false, false, false},
		".number": {true, true, false, true, true}, ".notanumber": {false, false, true, false, false},
		".normal": {true, false, false, false, true}, ".subnormal": {false, false, false, true, false},
	} {
		f, ok := o.testp(op)
		if !ok {
			t.Fatal(op)
		}
		for i, v := range values {
			if f(v) != want[i] {
				t.Errorf("testp%s(%#x) = %v", op, v, f(v))
			}
		}
	}
}

func TestCompare(t *testing.T) {
	nan, inf, one := fmtF32.nan, fmtF32.inf(), fmtF32.one()
	order := func(a, b uint64) int {
		x, y := float64(f32(a)), float64(f32(b))
		switch {
		case math.IsNaN(x) || math.IsNaN(y):
			return cmpUnordered
		case x < y:
			return cmpLess
		case x > y:
			return cmpGreater
		}
		return cmpEqual
	}
	for op, want := range cmpOps {
		f, ok := compare(op, ptx.F32, false)
		if !ok {
			t.Fatal(op)
		}
		for _, a := range []uint64{0, 0x80000000, one, inf, nan, 0xbf800000, 1} {
			for _, b := range []uint64{0, 0x80000000, one, inf, nan, 0xbf800000, 1} {
				if got := f(a, b); got != (order(a, b)&want != 0) {
					t.Errorf("setp%s.f32(%#x, %#x) = %v", op, a, b, got)
				}
			}
		}
	}
	if f, _ := compare(".eq", ptx.F32, true); !f(1, 0) {
		t.Error("setp.eq.ftz does not flush")
	}
	for a := range uint64(256) {
		for b := range uint64(256) {
			for op, ref := range map[string]bool{
				".lt": int8(a) < int8(b), ".le": int8(a) <= int8(b), ".gt": int8(a) > int8(b), ".ge": int8(a) >= int8(b),
				".eq": a == b, ".ne": a != b, ".lo": a < b, ".ls": a <= b, ".hi": a > b, ".hs": a >= b,
			} {
				if f, _ := compare(op, ptx.S8, false); f(a, b) != ref {
					t.Fatalf("setp%s.s8(%d, %d) = %v", op, a, b, !ref)
				}
			}
		}
	}
}

// TestFastLoops compares the whole-warp loops with the scalar functions.
func TestFastLoops(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	f := floatOp{f: &fmtF32}
	u32, s32, u64 := intType{32, false}, intType{32, true}, intType{64, false}
	two := map[string]fn2{
		"add.32": u32.add, "add.64": u64.add, "sub.32": u32.sub, "sub.64": u64.sub, "mul.lo.32": u32.mulLo, "mul.lo.64": u64.mulLo,
		"mul.wide.s32": s32.mulWide, "mul.wide.u32": u32.mulWide, "and": u64.and, "or": u64.or, "xor": u64.xor,
		"shl.32": u32.shl, "shl.64": u64.shl, "shr.u32": u32.shr, "shr.s32": s32.shr, "shr.u64": u64.shr,
		"add.f32": f.add(), "sub.f32": f.sub(), "mul.f32": f.mul(),
	}
	three := map[string]fn3{
		"mad.lo.32":    func(a, b, c uint64) uint64 { return u32.add(u32.mulLo(a, b), c) },
		"mad.lo.64":    func(a, b, c uint64) uint64 { return u64.add(u64.mulLo(a, b), c) },
		"fma.f32":      f.fma(),
		"mad.wide.s32": func(a, b, c uint64) uint64 { return s32.mulWide(a, b) + c },
	}
	if len(two) != len(fast2) || len(three) != len(fast3) {
		t.Fatalf("%d of %d and %d of %d loops are tested", len(two), len(fast2), len(three), len(fast3))
	}
	for range 300 {
		var a, b, c, d, wide lanes
		for i := range a {
			wide[i] = rnd.Uint64()
			a[i], b[i], c[i] = sample(rnd, &fmtF32), sample(rnd, &fmtF32), sample(rnd, &fmtF32)
			if rnd.IntN(2) == 0 {
				b[i] = uint64(rnd.IntN(70))
			}
		}
		for name, ref := range two {
			x := a
			if len(name) > 3 && name[len(name)-2:] == "64" {
				x = wide
			}
			fast2[name](&d, &x, &b)
			for i := range d {
				if want := ref(x[i], b[i]); d[i] != want {
					t.Fatalf("%s(%#x, %#x) = %#x, want %#x", name, x[i], b[i], d[i], want)
				}
			}
		}
		for name, ref := range three {
			fast3[name](&d, &a, &b, &c)
			for i := range d {
				if want := ref(a[i], b[i], c[i]); d[i] != want {
					t.Fatalf("%s(%#x, %#x, %#x) = %#x, want %#x", name, a[i], b[i], c[i], d[i], want)
				}
			}
		}
		checkFastCmp(t, &a, &b)
	}
}

func checkFastCmp(t *testing.T, a, b *lanes) {
	t.Helper()
	types := map[string]ptx.Type{"32": ptx.B32, "s32": ptx.S32, "u32": ptx.U32, "f32": ptx.F32}
	for key, f := range fastCmp {
		var op, typ string
		if _, err := fmt.Sscanf(key, ".%2s.%s", &op, &typ); err != nil {
			t.Fatal(key, err)
		}
		ref, _ := compare("."+op, types[typ], false)
		got := f(a, b)
		for i := range a {
			if (got>>i&1 != 0) != ref(a[i], b[i]) {
				t.Fatalf("setp%s(%#x, %#x) = %v", key, a[i], b[i], got>>i&1)
			}
		}
	}
}
