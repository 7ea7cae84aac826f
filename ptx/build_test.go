package ptx

import (
	"strings"
	"testing"
)

func TestBuilder(t *testing.T) {
	b := NewBuilder(&BuildOptions{Version: Version{7, 8}, Target: Target{SM: 80}})
	r, s := b.Reg(U32, "%r"), b.Reg(S32, "%s")
	d, f, g, p := b.Reg(U64, "%d"), b.Reg(F32, "%f"), b.Reg(F64, "%g"), b.Reg(Pred, "%p")
	cell := Name("cell")
	b.Mov(U32, r, Name("%tid.x"))
	b.Add(U32, r, r, Imm(-1))
	b.Sub(S32, s, s, Hex(0x7fffffff))
	b.Mul(U64, d, d, Imm(3))
	b.Mad(S32, s, s, s, s)
	b.And(U64, d, d, Hex(0xffff_ffff_ffff_fff0))
	b.Or(Pred, p, p, p)
	b.Xor(U32, r, r, r)
	b.Shl(U64, d, d, r)
	b.Cvt("", U64, U32, d, r)
	b.Cvt(".rn", F32, S32, f, s)
	b.Cvt(".rzi", U32, F64, r, g)
	b.Cvt("", F64, F32, g, f)
	b.Setp("lt", S32, p, s, Imm(0))
	b.Setp("hi", U64, p, d, Imm(0))
	b.Setp("nan", F32, p, f, f)
	b.Setp("eq", B32, p, r, Imm(0))
	b.Selp(U32, r, r, Imm(1), p)
	b.Mov(U64, d, cell)
	b.St("", SpaceGlobal, U32, Addr(cell, 4), r)
	b.St("", SpaceGlobal, U16, Addr(d, -8), Imm(-5))
	b.On(p).Red(".relaxed.gpu", SpaceGlobal, "add", U64, Addr(cell, 0), Imm(1))
	b.OnNot(p).Bra("$done")
	b.Label("$done")
	b.Inst("bar.sync", Imm(0))
	code, err := b.Source()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\tadd.u32 %r, %r, -1;\n", "\tmad.lo.s32 %s, %s, %s, %s;\n",
		"\tst.global.u16 [%d+-8], -5;\n", "\t@%p red.relaxed.gpu.global.add.u64 [cell], 1;\n", "\t@!%p bra $done;\n",
	} {
		if !strings.Contains(code, want) {
			t.Errorf("no %q in\n%s", want, code)
		}
	}
	src := ".version 7.8\n.target sm_80\n.address_size 64\n.global .align 8 .b8 cell[16];\n.entry k() {\n" + code + "\tret;\n}\n"
	f2 := mustParse(t, "built", src)
	if errs := f2.CheckFeatures(); len(errs) > 0 {
		t.Error(errs[0])
	}
	as := ptxas(t)
	if out, ok := assemble(t, as, src, "sm_80"); !ok {
		t.Errorf("ptxas: %s\n%s", out, src)
	}
}

// TestBuilderMistakes: every mistake surfaces, once, and the first one counts.
func TestBuilderMistakes(t *testing.T) {
	r, d, p := TypedReg(U32, "%r"), TypedReg(U64, "%d"), TypedReg(Pred, "%p")
	for _, c := range []struct {
		want string
		do   func(b *Builder)
	}{
		{"no such instruction", func(b *Builder) { b.Add(B32, r, r, r) }},
		{"is a register of type .u64", func(b *Builder) { b.Add(U32, r, d, r) }},
		{"is a register of type .pred", func(b *Builder) { b.Mov(U32, r, p) }},
		{"does not fit", func(b *Builder) { b.Add(U32, r, r, Hex(1<<32)) }},
		{"does not fit", func(b *Builder) { b.Add(S16, TypedReg(S16, "h"), TypedReg(S16, "h"), Imm(-32769)) }},
		{"no floating-point constant", func(b *Builder) { b.Mov(F32, TypedReg(F32, "f"), Imm(1)) }},
		{"is an address", func(b *Builder) { b.Add(U64, d, d, Addr(d, 0)) }},
		{"is no address", func(b *Builder) { b.St("", SpaceGlobal, U64, d, d) }},
		{"too narrow", func(b *Builder) { b.St("", SpaceGlobal, U64, Addr(d, 0), r) }},
		{"can't be written", func(b *Builder) { b.St("", SpaceConst, U32, Addr(d, 0), r) }},
		{"does not fit", func(b *Builder) { b.St("", SpaceGlobal, U8, Addr(d, 0), Imm(256)) }},
		{"count %d", func(b *Builder) { b.Shl(U64, d, d, d) }},
		{"destination", func(b *Builder) { b.Setp("eq", U32, r, r, r) }},
		{"no such instruction", func(b *Builder) { b.Setp("lo", S32, p, r, r) }},
		{"no such instruction", func(b *Builder) { b.Setp("smaller", S32, p, r, r) }},
		{"predicate", func(b *Builder) { b.Selp(U32, r, r, r, r) }},
		{"rounding modifier", func(b *Builder) { b.Cvt("", F32, U32, TypedReg(F32, "f"), r) }},
		{"narrower", func(b *Builder) { b.Cvt("", U64, U32, r, r) }},
		{"no such instruction", func(b *Builder) { b.Cvt("", B32, U32, r, r) }},
		{"not a predicate", func(b *Builder) { b.On(r).Bra("x") }},
		{"not an identifier", func(b *Builder) { b.Bra("a b") }},
		{"not an identifier", func(b *Builder) { b.Label("1x") }},
		{"is empty", func(b *Builder) { b.Reg(U32, "") }},
		{"unknown opcode", func(b *Builder) { b.Inst("frobnicate.u32", r) }},
		{"needs PTX ISA 6.0, sm_70; the module says 5.0, sm_60", func(b *Builder) {
			b.version, b.target = Version{5, 0}, Target{SM: 60}
			b.St(".relaxed.gpu", SpaceGlobal, U32, Addr(d, 0), r)
		}},
	} {
		b := NewBuilder(nil)
		c.do(b)
		b.Inst("later.mistake")
		if _, err := b.Source(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}
