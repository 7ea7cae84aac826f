package nvattach

import (
	"encoding/binary"
	"slices"
	"testing"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"

	"github.com/cilium/ebpf/asm"
)

func TestAtomicIncrements(t *testing.T) {
	add := func(size asm.Size, off int16, addend asm.Instruction, rest ...asm.Instruction) asm.Instructions {
		return append(asm.Instructions{
			asm.LoadMem(asm.R1, asm.R6, off, size), addend, asm.StoreMem(asm.R6, off, asm.R1, size),
		}, rest...)
	}
	ret := []asm.Instruction{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	plus := asm.Add.Imm(asm.R1, 1)
	o := &object.Object{}
	helpers := (&proof.Unit{}).Helpers()
	for _, tt := range []struct {
		name string
		prog asm.Instructions
		want int
	}{
		{"64 bits", add(asm.DWord, 8, plus, ret...), 1},
		{"32 bits", add(asm.Word, 0, asm.Add.Imm32(asm.R1, -1), ret...), 1},
		{"a register", add(asm.DWord, 0, asm.Add.Reg(asm.R1, asm.R7), ret...), 1},
		{"itself", add(asm.DWord, 0, asm.Add.Reg(asm.R1, asm.R1), ret...), 0},
		{"16 bits", add(asm.Half, 0, plus, ret...), 1},
		{"8 bits", add(asm.Byte, 3, asm.Or.Imm(asm.R1, 4), ret...), 1},
		{"a difference", add(asm.DWord, 0, asm.Sub.Reg(asm.R1, asm.R7), ret...), 1},
		{"a disjunction", add(asm.Word, 0, asm.Or.Reg(asm.R1, asm.R7), ret...), 1},
		{"a conjunction", add(asm.DWord, 0, asm.And.Imm32(asm.R1, 7), ret...), 1},
		{"two in a row", join2(asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.Add.Reg(asm.R1, asm.R7), asm.LoadMem(asm.R8, asm.RFP, -8, asm.DWord), asm.Sub.Reg(asm.R1, asm.R8), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord)}, ret), 1},
		{"a sum and a disjunction", join2(asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R1, 2), asm.Or.Imm(asm.R1, 1), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord)}, ret), 0},
		{"another store in between", join2(asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R1, 2), asm.StoreMem(asm.R7, 0, asm.R8, asm.DWord), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord)}, ret), 0},
		{"the pointer moves in between", join2(asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R1, 2), asm.Add.Imm(asm.R6, 8), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord)}, ret), 0},
		{"32-bit addition of 64 bits", add(asm.DWord, 0, asm.Add.Imm32(asm.R1, 1), ret...), 0},
		{"32-bit disjunction of 64 bits", add(asm.DWord, 0, asm.Or.Imm32(asm.R1, 1), ret...), 0},
		{"a product", add(asm.DWord, 0, asm.Mul.Imm(asm.R1, 3), ret...), 0},
		{"read later", add(asm.DWord, 0, plus, asm.Mov.Reg(asm.R0, asm.R1), asm.Return()), 1},
		{"16 bits, read later", add(asm.Half, 0, plus, asm.Mov.Reg(asm.R0, asm.R1), asm.Return()), 0},
		{"an argument later", add(asm.DWord, 0, plus, asm.BuiltinFunc(1).Call(), asm.Return()), 1},
		{"a store beside it", join2(asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R1, 2), asm.StoreMem(asm.R6, 8, asm.R8, asm.DWord), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord)}, ret), 1},
		{"a store over it", join2(asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R1, 2), asm.StoreMem(asm.R6, 7, asm.R8, asm.Byte), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord)}, ret), 0},
		{"gone after a call", add(asm.DWord, 0, plus, asm.BuiltinFunc(5).Call(), asm.Return()), 1},
		{"read on one path", add(asm.DWord, 0, plus, asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R7, Offset: 1}, asm.Instruction{OpCode: asm.Ja.Op(asm.ImmSource), Offset: 1}, asm.Mov.Reg(asm.R0, asm.R1), asm.Return()), 1},
		{"a jump into it", append(asm.Instructions{{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R7, Offset: 1}}, add(asm.DWord, 0, plus, ret...)...), 0},
		{"on the stack", asm.Instructions{asm.LoadMem(asm.R1, asm.RFP, -8, asm.DWord), plus, asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return()}, 0},
		{"another place", asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), plus, asm.StoreMem(asm.R6, 8, asm.R1, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return()}, 0},
		{"in a loop, not read", append(add(asm.DWord, 0, plus), asm.Instruction{OpCode: asm.JNE.Op(asm.ImmSource), Dst: asm.R7, Offset: -4}, asm.Mov.Imm(asm.R0, 0), asm.Return()), 1},
	} {
		got, stores := atomics.Increments(tt.prog, o.AtomicMap, helpers, nil)
		n := len(stores)
		if n != tt.want || len(got) != len(tt.prog) {
			t.Errorf("%s: %d, want %d\n%v", tt.name, n, tt.want, got)
		}
		if n == 1 {
			continue
		}
		for i := range got {
			if got[i].OpCode != tt.prog[i].OpCode {
				t.Errorf("%s: changed", tt.name)
			}
		}
	}
}

func join2(a, b asm.Instructions) asm.Instructions { return slices.Concat(a, b) }

func TestSplitPaths(t *testing.T) {
	r := newRig(t, nil, testObject(t, "paths"))
	q := r.plan.Programs[0]
	if q.Report.Insns <= len(q.Insns) {
		t.Errorf("%d instructions of %d: no path was split, so this tests nothing", q.Report.Insns, len(q.Insns))
	}
	// One thread of each key, as the program itself is not atomic.
	w := r.weave(vectorAdd)
	for range 3 {
		r.runAdd(w.Text, 1, 4)
	}
	for _, row := range r.table("totals").Rows {
		if k, v := uint64(binary.LittleEndian.Uint32(row.Key)), binary.LittleEndian.Uint64(row.Value); v != 3*k {
			t.Errorf("key %d: %d, want %d", k, v, 3*k)
		}
	}
	if n := len(r.table("totals").Rows); n != 4 {
		t.Errorf("%d keys, want 4", n)
	}
}
