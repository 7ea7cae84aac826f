package amd64

import (
	"strings"
	"testing"

	"golang.org/x/arch/x86/x86asm"
)

// TestEncoding: what is written is what another reader of machine code reads, which shows
// that a base needs an index of none by naming that (%riz).
func TestEncoding(t *testing.T) {
	m := Mem{R13, 0}
	for _, c := range []struct {
		want  string
		write func(a *Asm)
	}{
		{"mov %r15,%rax", func(a *Asm) { a.Mov(true, RAX, R15) }},
		{"mov %edi,%r8d", func(a *Asm) { a.Mov(false, R8, RDI) }},
		{"xor %r9d,%r9d", func(a *Asm) { a.MovImm(R9, 0) }},
		{"mov $-0x80000000,%ebx", func(a *Asm) { a.MovImm(RBX, 1<<31) }},
		{"mov $-0x1,%r12", func(a *Asm) { a.MovImm(R12, ^uint64(0)) }},
		{"mov $0x123456789,%rsi", func(a *Asm) { a.MovImm(RSI, 0x123456789) }},
		{"movsbq %sil,%rax", func(a *Asm) { a.Extend(true, true, 1, RAX, RSI) }},
		{"movswl %r9w,%edx", func(a *Asm) { a.Extend(false, true, 2, RDX, R9) }},
		{"movsxd %edi,%r14", func(a *Asm) { a.Extend(true, true, 4, R14, RDI) }},
		{"movzwl %cx,%ecx", func(a *Asm) { a.Extend(false, false, 2, RCX, RCX) }},
		{"movzbl (%r13),%r8d", func(a *Asm) { a.Load(false, 1, R8, m) }},
		{"movsbq -0x1(%r12),%rdi", func(a *Asm) { a.Load(true, 1, RDI, Mem{R12, -1}) }},
		{"mov 0x80(%rsp),%eax", func(a *Asm) { a.Load(false, 4, RAX, Mem{RSP, 128}) }},
		{"mov (%rbp),%r15", func(a *Asm) { a.Load(false, 8, R15, Mem{RBP, 0}) }},
		{"mov %dil,(%rax)", func(a *Asm) { a.Store(1, Mem{RAX, 0}, RDI) }},
		{"mov %r10w,-0x80(%rbx)", func(a *Asm) { a.Store(2, Mem{RBX, -128}, R10) }},
		{"movw $-0x2,(%rdx)", func(a *Asm) { a.StoreImm(2, Mem{RDX, 0}, -2) }},
		{"movq $-0x80000000,0x8(%r12)", func(a *Asm) { a.StoreImm(8, Mem{R12, 8}, -1<<31) }},
		{"lea 0xfffffe00(%rbp),%r11", func(a *Asm) { a.Lea(R11, Mem{RBP, -512}) }},
		{"sub %r8,%r9", func(a *Asm) { a.Op(Sub, true, R9, R8) }},
		{"and $0x7f,%eax", func(a *Asm) { a.OpImm(And, false, RAX, 127) }},
		{"cmp $0x80,%r13", func(a *Asm) { a.OpImm(Cmp, true, R13, 128) }},
		{"lock add %esi,(%r13)", func(a *Asm) { a.OpMem(Add, true, 4, m, RSI) }},
		{"or %sil,(%r13)", func(a *Asm) { a.OpMem(Or, false, 1, m, RSI) }},
		{"subl $0x5,-0x30(%rbp)", func(a *Asm) { a.OpMemImm(Sub, Mem{RBP, -48}, 5) }},
		{"lock xadd %rcx,(%r13)", func(a *Asm) { a.Xadd(true, 8, m, RCX) }},
		{"xchg %r8d,(%r13)", func(a *Asm) { a.Xchg(4, m, R8) }},
		{"lock cmpxchg %r11,(%r10)", func(a *Asm) { a.Cmpxchg(true, 8, Mem{R10, 0}, R11) }},
		{"test %r14,%rdi", func(a *Asm) { a.Test(true, RDI, R14) }},
		{"test $-0x80000000,%r8", func(a *Asm) { a.TestImm(true, R8, -1<<31) }},
		{"imul %r14,%rdx", func(a *Asm) { a.Mul(true, RDX, R14) }},
		{"imul $-0x1,%r8d,%r9d", func(a *Asm) { a.MulImm(false, R9, R8, -1) }},
		{"idiv %r11", func(a *Asm) { a.Div(true, true, R11) }},
		{"div %r11d", func(a *Asm) { a.Div(false, false, R11) }},
		{"mul %r11", func(a *Asm) { a.MulHigh(R11) }},
		{"lea (%r13,%r13,4),%r9", func(a *Asm) { a.LeaTimes(true, R9, R13, 4) }},
		{"rex lea (%rax,%rax,2),%edi", func(a *Asm) { a.LeaTimes(false, RDI, RAX, 2) }},
		{"cqto", func(a *Asm) { a.SignRDX(true) }},
		{"neg %r8", func(a *Asm) { a.Neg(true, R8) }},
		{"bswap %r15", func(a *Asm) { a.Bswap(true, R15) }},
		{"ror $0x8,%r8w", func(a *Asm) { a.Swap16(R8) }},
		{"sar $0x3f,%r9", func(a *Asm) { a.Shift(Sar, true, R9, 63) }},
		{"shl %cl,%r9d", func(a *Asm) { a.ShiftCL(Shl, false, R9) }},
		{"push %r12", func(a *Asm) { a.Push(R12) }},
		{"pop %rbp", func(a *Asm) { a.Pop(RBP) }},
		{"callq *0x8(%r12)", func(a *Asm) { a.CallMem(Mem{R12, 8}) }},
		{"retq", func(a *Asm) { a.Ret() }},
		{"sub $0x70,%rsp", func(a *Asm) { a.SetFrameSize(a.FrameSize(), 0x70) }},
	} {
		var a Asm
		c.write(&a)
		in, err := x86asm.Decode(a.Code, 64)
		got := ""
		if err == nil {
			got = x86asm.GNUSyntax(in, 0, nil)
		}
		if in.Len != len(a.Code) || strings.ReplaceAll(got, ",%riz", "") != c.want {
			t.Errorf("% x is %q of %d bytes (%v), want %q", a.Code, got, in.Len, err, c.want)
		}
	}
}

// TestJumps: jumps go to where labels are, in both directions, and one to no place is an error.
func TestJumps(t *testing.T) {
	var a Asm
	back, ahead := a.NewLabel(), a.NewLabel()
	a.Bind(back)
	a.Jcc(Below, ahead)
	a.Jmp(back)
	a.Bind(ahead)
	a.Ret()
	if err := a.Finish(); err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, want := range []x86asm.Rel{5, -11} {
		in, err := x86asm.Decode(a.Code[at:], 64)
		if err != nil || in.Args[0] != want {
			t.Errorf("% x: %v, %v, want a distance of %d", a.Code[at:], in, err, want)
		}
		at += in.Len
	}
	a.Jmp(a.NewLabel())
	if a.Finish() == nil {
		t.Error("a jump to nowhere is accepted")
	}
}
