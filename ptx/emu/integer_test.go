package emu

import (
	"fmt"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// TestIntegerExhaustive compares the operations at 8 bits, for all operands,
// with arithmetic on Go's int, which cannot overflow here. The functions are the
// same for all widths; TestIntegerWide samples the others.
func TestIntegerExhaustive(t *testing.T) {
	for _, signed := range []bool{false, true} {
		it := intType{8, signed}
		val := func(v uint64) int {
			if signed {
				return int(int8(v))
			}
			return int(uint8(v))
		}
		lo, hi := 0, 255
		if signed {
			lo, hi = -128, 127
		}
		for a := range uint64(256) {
			for b := range uint64(256) {
				x, y := val(a), val(b)
				clamp := func(v int) int { return min(max(v, lo), hi) }
				count := min(int(b), 8)
				div, rem := 255, 255 // by zero
				if y != 0 {
					div, rem = x/y, x%y
				}
				for _, c := range []struct {
					op   string
					got  uint64
					want int
				}{
					{"add", it.add(a, b), x + y},
					{"sub", it.sub(a, b), x - y},
					{"mul.lo", it.mulLo(a, b), x * y},
					{"mul.hi", it.mulHi(a, b), (x * y) >> 8},
					{"div", it.div(a, b), div},
					{"rem", it.rem(a, b), rem},
					{"min", it.min(a, b), min(x, y)},
					{"max", it.max(a, b), max(x, y)},
					{"sad", it.sad(a, b, 7), max(x, y) - min(x, y) + 7},
					{"shl", it.shl(a, b), x << count},
					{"shr", it.shr(a, b), x >> count},
					{"and", it.and(a, b), int(a & b)},
				} {
					if c.got != uint64(c.want)&0xff {
						t.Fatalf("%s.8 signed=%v (%d, %d) = %#x, want %#x", c.op, signed, x, y, c.got, uint64(c.want)&0xff)
					}
				}
				if got := it.mulWide(a, b); got != uint64(x*y)&0xffff {
					t.Fatalf("mul.wide(%d, %d) = %#x", x, y, got)
				}
				if signed {
					if got, want := it.addSat(a, b), uint64(clamp(x+y))&0xff; got != want {
						t.Fatalf("add.sat(%d, %d) = %#x, want %#x", x, y, got, want)
					}
					if got, want := it.subSat(a, b), uint64(clamp(x-y))&0xff; got != want {
						t.Fatalf("sub.sat(%d, %d) = %#x, want %#x", x, y, got, want)
					}
				}
			}
		}
	}
}

func TestIntegerWide(t *testing.T) {
	rnd := rand.New(rand.NewPCG(20, 21))
	mod := func(x *big.Int, w uint) uint64 {
		return new(big.Int).And(x, new(big.Int).SetUint64(widthMask(w))).Uint64()
	}
	for _, it := range []intType{{16, false}, {16, true}, {32, false}, {32, true}, {64, false}, {64, true}} {
		val := func(v uint64) *big.Int {
			if it.signed {
				return big.NewInt(sext(v, it.width))
			}
			return new(big.Int).SetUint64(v & it.mask())
		}
		for range 3000 {
			a, b, c := rnd.Uint64()>>rnd.IntN(64)&it.mask(), rnd.Uint64()>>rnd.IntN(64)&it.mask(), rnd.Uint64()&it.mask()
			x, y := val(a), val(b)
			p := new(big.Int).Mul(x, y)
			check := func(op string, got uint64, want *big.Int) {
				t.Helper()
				if got != mod(want, it.width) {
					t.Fatalf("%s.%d signed=%v (%#x, %#x, %#x) = %#x, want %#x", op, it.width, it.signed, a, b, c, got, mod(want, it.width))
				}
			}
			check("mul.lo", it.mulLo(a, b), p)
			check("mul.hi", it.mulHi(a, b), new(big.Int).Rsh(p, it.width))
			check("sad", it.sad(a, b, c), new(big.Int).Add(val(c), new(big.Int).Abs(new(big.Int).Sub(x, y))))
			if y.Sign() != 0 {
				check("div", it.div(a, b), new(big.Int).Quo(x, y))
				check("rem", it.rem(a, b), new(big.Int).Rem(x, y))
			}
			sum, carry := it.addCarry(a, b, c&1)
			exact := new(big.Int).Add(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
			exact.Add(exact, new(big.Int).SetUint64(c&1))
			check("addc", sum, exact)
			if carry != uint64(exact.Bit(int(it.width))) {
				t.Fatalf("carry of %#x + %#x + %d = %d", a, b, c&1, carry)
			}
			diff, carry := it.subCarry(a, b, 1-c&1)
			exact = new(big.Int).Sub(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
			exact.Sub(exact, new(big.Int).SetUint64(c&1))
			check("subc", diff, exact)
			if carry != boolBit(exact.Sign() >= 0) {
				t.Fatalf("carry of %#x - %#x - %d = %d", a, b, c&1, carry)
			}
		}
	}
}

// TestCarryMixed: additions and subtractions share one flag, which a subtraction sets
// where it does not borrow.
func TestCarryMixed(t *testing.T) {
	const a, b = 0x80000010, 0x7fffffef
	for _, tt := range []struct {
		name, code string
		want       func(x, y uint32) uint32
	}{
		{"sub.cc, addc", "sub.cc.u32 %r4, %r2, %r3; addc.u32 %r2, 0, 0;", func(x, y uint32) uint32 { return uint32(boolBit(x >= y)) }},
		{"add.cc, subc", "add.cc.u32 %r4, %r2, %r3; subc.u32 %r2, 7, 0;", func(x, y uint32) uint32 { return 6 + uint32(boolBit(x+y < x)) }},
		{"sub.cc, subc.cc, addc", "sub.cc.u32 %r4, %r2, %r3; subc.cc.u32 %r4, %r3, %r2; addc.u32 %r2, 0, 0;", func(x, y uint32) uint32 {
			return uint32(boolBit(uint64(y) >= uint64(x)+boolBit(x < y)))
		}},
		{"addc.cc, subc, mad", "mad.lo.cc.u32 %r4, %r2, 3, %r3; subc.cc.u32 %r4, %r2, %r3; madc.lo.u32 %r2, 0, 0, 0;", func(x, y uint32) uint32 {
			return uint32(boolBit(uint64(x) >= uint64(y)+boolBit(x*3+y >= y)))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := func(tid uint32) (x, y uint32) { return a + tid - 32, b + (tid-16)<<1 }
			expect(t, "add.u32 %r2, %r1, 0x7ffffff0; add.u32 %r3, %r1, %r1; add.u32 %r3, %r3, 0x7fffffcf;"+tt.code, func(tid uint32) uint32 {
				return tt.want(values(tid))
			})
		})
	}
}

// TestBitOperations compares with loops over single bits.
func TestBitOperations(t *testing.T) {
	rnd := rand.New(rand.NewPCG(22, 23))
	bitAt := func(v uint64, i int) uint64 {
		if i < 0 || i > 63 {
			return 0
		}
		return v >> i & 1
	}
	for range 20000 {
		a, b, c := rnd.Uint64()&0xffffffff, rnd.Uint64()&0xffffffff, rnd.Uint64()&0xffffffff
		pos, n := uint64(rnd.IntN(70)), uint64(rnd.IntN(70))
		it, st := intType{32, false}, intType{32, true}
		var ext, sx, ins, rev, lop, perm uint64
		lut := uint8(rnd.Uint32())
		sign := bitAt(a, int(min(pos+n-1, 31)))
		if n == 0 {
			sign = 0
		}
		for i := range 32 {
			in := uint64(i) < n
			if in && pos+uint64(i) < 32 {
				ext |= bitAt(a, int(pos)+i) << i
				sx |= bitAt(a, int(pos)+i) << i
			} else {
				sx |= sign << i
			}
			if uint64(i) >= pos && uint64(i) < pos+n {
				ins |= bitAt(a, i-int(pos)) << i
			} else {
				ins |= bitAt(b, i) << i
			}
			rev |= bitAt(a, 31-i) << i
			lop |= uint64(lut>>(bitAt(a, i)<<2|bitAt(b, i)<<1|bitAt(c, i))&1) << i
		}
		bytes := [8]uint64{a & 255, a >> 8 & 255, a >> 16 & 255, a >> 24, b & 255, b >> 8 & 255, b >> 16 & 255, b >> 24}
		for i := range 4 {
			sel := c >> (4 * i) & 15
			v := bytes[sel&7]
			if sel&8 != 0 {
				v = -(v >> 7) & 255
			}
			perm |= v << (8 * i)
		}
		wide := b<<32 | a
		sh := c & 63
		for _, k := range []struct {
			op        string
			got, want uint64
		}{
			{"bfe.u32", it.bfe(a, pos, n), ext},
			{"bfe.s32", st.bfe(a, pos, n), sx},
			{"bfi", it.bfi(a, b, pos, n), ins},
			{"brev", it.brev(a), rev},
			{"lop3", lop3(a, b, c, lut), lop},
			{"prmt", prmt(a, b, c), perm},
			{"clz", it.clz(a), uint64(bits.LeadingZeros32(uint32(a)))},
			{"popc", it.popc(a), uint64(bits.OnesCount32(uint32(a)))},
			{"shf.l.wrap", shf(true, true)(a, b, c), wide << (c & 31) >> 32},
			{"shf.r.wrap", shf(false, true)(a, b, c), wide >> (c & 31) & 0xffffffff},
			{"shf.l.clamp", shf(true, false)(a, b, sh), wide << min(sh, 32) >> 32},
			{"shf.r.clamp", shf(false, false)(a, b, sh), wide >> min(sh, 32) & 0xffffffff},
			{"bfind.u32", it.bfind(false)(a), uint64(uint32(bits.Len32(uint32(a)) - 1))},
			{"cnot", it.cnot(a), boolBit(a == 0)},
			{"abs", st.abs(a), uint64(uint32(max(int32(a), -int32(a))))},
		} {
			if k.got != k.want {
				t.Fatalf("%s(%#x, %#x, %#x; %d, %d) = %#x, want %#x", k.op, a, b, c, pos, n, k.got, k.want)
			}
		}
	}
}

func TestBitSpecials(t *testing.T) {
	it := intType{32, true}
	for _, c := range []struct {
		op        string
		got, want uint64
	}{
		{"bfind.s32(-1)", it.bfind(false)(0xffffffff), 0xffffffff},
		{"bfind.s32(-2)", it.bfind(false)(0xfffffffe), 0},
		{"bfind.shiftamt(1)", it.bfind(true)(1), 31},
		{"fns 0", fns(0b10110, 1, 0), 1},
		{"fns 0 none", fns(0b10110, 0, 0), 0xffffffff},
		{"fns 2 up", fns(0b10110, 0, 2), 2},
		{"fns 3 up", fns(0b10110, 2, 3), 0xffffffff},
		{"fns 1 down", fns(0b10110, 3, 0xffffffff), 2},
		{"bmsk", bmsk(false)(4, 8), 0xff0},
		{"bmsk clamp", bmsk(false)(40, 8), 0},
		{"bmsk wrap", bmsk(true)(36, 8), 0xff0},
		{"szext", it.szext(false)(0x80, 8), 0xffffff80},
		{"szext u", intType{32, false}.szext(false)(0xf80, 8), 0x80},
		{"dp4a", dp4a(true, true)(0x01ff02fe, 0x01010101, 10), 10},
		{"dp2a.lo", dp2a(false, false, false)(0x00020003, 0x00000504, 1), 1 + 3*4 + 2*5},
		{"dp2a.hi", dp2a(false, false, true)(0x00020003, 0x05040000, 1), 1 + 3*4 + 2*5},
		{"mul24.lo", intType{32, true}.mul24(0)(0xff000003, 0x00fffffe), 0xfffffffa},
		{"mul24.hi", intType{32, false}.mul24(16)(0x00ffffff, 0x00ffffff), 0xfffffe00},
		{"prmt.f4e", prmtMode(prmtSelectors[".f4e"])(0x33221100, 0x77665544, 2), 0x55443322},
		{"prmt.b4e", prmtMode(prmtSelectors[".b4e"])(0x33221100, 0x77665544, 1), 0x66770011},
		{"prmt.rc16", prmtMode(prmtSelectors[".rc16"])(0x33221100, 0, 1), 0x33223322},
		{"bfe.u64 whole", intType{64, false}.bfe(0x123456789abcdef0, 4, 60), 0x123456789abcdef},
		{"cvt.pack", cvtPack(intType{8, false}, intType{32, true})(300, ^uint64(4), 0x1234), 0x1234ff00},
	} {
		if c.got != c.want {
			t.Errorf("%s = %#x, want %#x", c.op, c.got, c.want)
		}
	}
}

// TestAddSat: packed halves saturate each, unsigned sums at the type's largest number.
func TestAddSat(t *testing.T) {
	for _, tt := range []struct {
		typ        string
		a, b, want uint32
	}{
		{"u16x2", 0xffff_0001, 0x0001_fffe, 0xffff_ffff},
		{"u16x2", 0x8000_1234, 0x8000_0001, 0xffff_1235},
		{"s16x2", 0x7fff_8000, 0x0001_ffff, 0x7fff_8000},
		{"s16x2", 0x7fff_0001, 0x8000_ffff, 0xffff_0000},
		{"u32", 0xffff_fff0, 0x20, 0xffff_ffff},
		{"u32", 0x7fff_ffff, 1, 0x8000_0000},
		{"s32", 0x7fff_ffff, 1, 0x7fff_ffff},
		{"s32", 0x8000_0000, 0xffff_ffff, 0x8000_0000},
	} {
		body := fmt.Sprintf("mov.u32 %%r3, %#x; mov.u32 %%r2, %#x; add.sat.%s %%r2, %%r3, %%r2;", tt.a, tt.b, tt.typ)
		expect(t, body, func(uint32) uint32 { return tt.want })
	}
}
