package bpf

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/cilium/ebpf/asm"
)

const (
	minI64 = uint64(1) << 63
	minI32 = uint64(0x8000_0000)
	ones   = ^uint64(0)
	ones32 = uint64(math.MaxUint32)
)

// isaALU are results by RFC 9669, section 4.1, worked out by hand.
var isaALU = []struct {
	op         asm.ALUOp
	w32        bool
	x, y, want uint64
}{
	{asm.Add, false, ones, 1, 0},
	{asm.Add, false, 5, ones, 4},
	{asm.Add, true, ones32, 1, 0},
	{asm.Add, true, 0xdead_0000_0001, 2, 3},
	{asm.Sub, false, 0, 1, ones},
	{asm.Sub, true, 0, 1, ones32},
	{asm.Mul, false, 1 << 32, 1 << 32, 0},
	{asm.Mul, false, ones, ones, 1},
	{asm.Mul, true, 0x1_0001_0000, 0x1_0000, 0},
	{asm.Mul, true, 0xffff_ffff, 0xffff_ffff, 1},
	{asm.Div, false, 7, 2, 3},
	{asm.Div, false, ones, 2, 0x7fff_ffff_ffff_ffff},
	{asm.Div, false, 7, 0, 0},
	{asm.Div, true, 0xff_0000_0007, 0xff_0000_0000, 0},
	{asm.Div, true, 0xff_0000_0007, 2, 3},
	{asm.Div, true, ones, 2, 0x7fff_ffff},
	{asm.Mod, false, 7, 0, 7},
	{asm.Mod, false, ones, 10, 5},
	{asm.Mod, true, 0xff_0000_0007, 0, 7},
	{asm.Mod, true, 0xff_0000_0007, 0x1_0000_0000, 7},
	{asm.Mod, true, ones, 10, 5},
	{asm.SDiv, false, neg(7), 2, neg(3)},
	{asm.SDiv, false, 7, neg(2), neg(3)},
	{asm.SDiv, false, minI64, ones, minI64},
	{asm.SDiv, false, 9, 0, 0},
	{asm.SDiv, true, uint64(uint32(neg(13))), 4, uint64(uint32(neg(3)))},
	{asm.SDiv, true, minI32, ones, minI32},
	{asm.SDiv, true, minI32, ones32, minI32},
	{asm.SDiv, true, 0x1_0000_0009, 0x2_0000_0000, 0},
	{asm.SMod, false, neg(13), 3, neg(1)},
	{asm.SMod, false, 13, neg(3), 1},
	{asm.SMod, false, minI64, ones, 0},
	{asm.SMod, false, neg(5), 0, neg(5)},
	{asm.SMod, true, uint64(uint32(neg(13))), 3, ones32},
	{asm.SMod, true, minI32, ones, 0},
	{asm.SMod, true, 0xabc_ffff_fffb, 0, 0xffff_fffb},
	{asm.Or, false, 0xf0, neg(16), ones &^ 15},
	{asm.Or, true, 0xf_0000_00f0, 0x0f, 0xff},
	{asm.And, false, ones, 0xff00_0000_0000_00ff, 0xff00_0000_0000_00ff},
	{asm.And, true, ones, ones, ones32},
	{asm.Xor, false, ones, 1, ones - 1},
	{asm.Xor, true, ones, 1, ones32 - 1},
	{asm.LSh, false, 1, 63, minI64},
	{asm.LSh, false, 1, 64, 1},
	{asm.LSh, false, 1, 65, 2},
	{asm.LSh, false, 1, ones, minI64},
	{asm.LSh, true, 1, 31, minI32},
	{asm.LSh, true, 1, 32, 1},
	{asm.LSh, true, 3, 31, minI32},
	{asm.RSh, false, minI64, 63, 1},
	{asm.RSh, false, minI64, 64, minI64},
	{asm.RSh, true, 0xf_8000_0000, 31, 1},
	{asm.RSh, true, 0xf_8000_0000, 33, 0x4000_0000},
	{asm.ArSh, false, minI64, 63, ones},
	{asm.ArSh, false, minI64, 66, 0xe000_0000_0000_0000},
	{asm.ArSh, true, minI32, 31, ones32},
	{asm.ArSh, true, 0x7_4000_0000, 30, 1},
	{asm.ArSh, true, minI32, 33, 0xc000_0000},
	{asm.Neg, false, 1, 0, ones},
	{asm.Neg, false, minI64, 0, minI64},
	{asm.Neg, true, 1, 0, ones32},
	{asm.Neg, true, minI32, 0, minI32},
	{asm.Mov, false, 9, ones, ones},
	{asm.Mov, true, 9, ones, ones32},
	{asm.MovSX8, false, 9, 0x180, neg(128)},
	{asm.MovSX8, true, 9, 0x180, 0xffff_ff80},
	{asm.MovSX8, false, 9, 0xff7f, 127},
	{asm.MovSX16, false, 9, 0x1_8000, neg(32768)},
	{asm.MovSX16, true, 9, 0x1_8000, 0xffff_8000},
	{asm.MovSX32, false, 9, 0x1_8000_0000, 0xffff_ffff_8000_0000},
	{asm.MovSX32, false, 9, 0xf_7fff_ffff, 0x7fff_ffff},
}

func neg(v uint64) uint64 { return -v }

// instruction returns "r1 = r1 op r2", or with y as a constant.
func aluInstruction(op asm.ALUOp, w32, reg bool, y uint64) asm.Instruction {
	src := asm.ImmSource
	if reg {
		src = asm.RegSource
	}
	i := asm.Instruction{OpCode: op.Op(src), Dst: asm.R1, Constant: int64(y)}
	if w32 {
		i.OpCode = op.Op32(src)
	}
	if reg {
		i.Src, i.Constant = asm.R2, 0
	}
	return i
}

// checkALU runs ins on x and y in all engines: operands from memory, which the
// analysis does not know, and constants, which it folds.
func checkALU(t *testing.T, name string, ins asm.Instruction, x, y, want uint64) {
	t.Helper()
	for _, known := range []bool{false, true} {
		w := newWorld(0)
		binary.LittleEndian.PutUint64(w.mem[w.at[mapData]:], x)
		binary.LittleEndian.PutUint64(w.mem[w.at[mapData]+8:], y)
		load := asm.Instructions{direct(asm.R3, mapData, 0), asm.LoadMem(asm.R1, asm.R3, 0, asm.DWord), asm.LoadMem(asm.R2, asm.R3, 8, asm.DWord)}
		if known {
			load = asm.Instructions{asm.LoadImm(asm.R1, int64(x), asm.DWord), asm.LoadImm(asm.R2, int64(y), asm.DWord)}
		}
		p := &Program{Name: name, Insns: append(load, ins, asm.Mov.Reg(asm.R0, asm.R1), asm.Return())}
		before := newWorld(0)
		copy(before.mem, w.mem)
		v, err := Verify(p, w.env)
		if err != nil {
			t.Fatal(err)
		}
		code, err := v.Emit(w.site())
		if err != nil {
			t.Fatal(err)
		}
		res, err := w.interpret(p)
		if err != nil {
			t.Fatal(err)
		}
		got := binary.LittleEndian.Uint64(run(t, module(1, code), 1, before))
		if res.R0 != want || got != want {
			t.Errorf("%s (known: %v): %#x op %#x = %#x interpreted, %#x compiled, want %#x\n%s", name, known, x, y, res.R0, got, want, code)
		}
	}
}

// TestISA: every ALU operation with the operands at which it matters, from a
// register and as a constant.
func TestISA(t *testing.T) {
	for _, c := range isaALU {
		name := fmt.Sprintf("%v", c.op)
		moves := c.op == asm.MovSX8 || c.op == asm.MovSX16 || c.op == asm.MovSX32
		if c.op == asm.Neg {
			checkALU(t, name, aluInstruction(c.op, c.w32, false, 0), c.x, c.y, c.want)
			continue
		}
		checkALU(t, name, aluInstruction(c.op, c.w32, true, 0), c.x, c.y, c.want)
		if !moves && c.y == uint64(int32(c.y)) {
			checkALU(t, name+" imm", aluInstruction(c.op, c.w32, false, c.y), c.x, c.y, c.want)
		}
	}
	const v = 0x1122334455667788
	for _, c := range []struct {
		ins  asm.Instruction
		want uint64
	}{
		{asm.HostTo(asm.BE, asm.R1, asm.Half), 0x8877},
		{asm.HostTo(asm.BE, asm.R1, asm.Word), 0x88776655},
		{asm.HostTo(asm.BE, asm.R1, asm.DWord), 0x8877665544332211},
		{asm.HostTo(asm.LE, asm.R1, asm.Half), 0x7788},
		{asm.HostTo(asm.LE, asm.R1, asm.Word), 0x55667788},
		{asm.HostTo(asm.LE, asm.R1, asm.DWord), v},
		{asm.BSwap(asm.R1, asm.Half), 0x8877},
		{asm.BSwap(asm.R1, asm.Word), 0x88776655},
		{asm.BSwap(asm.R1, asm.DWord), 0x8877665544332211},
	} {
		checkALU(t, fmt.Sprint(c.ins), c.ins, v, 0, c.want)
	}
}

// TestISAJumps: every condition at its edges, in 64 and 32 bits.
func TestISAJumps(t *testing.T) {
	for _, c := range []struct {
		op         asm.JumpOp
		x, y       uint64
		wide, half bool // taken in 64 and in 32 bits
	}{
		{asm.JEq, 5, 5, true, true},
		{asm.JEq, 1<<32 | 5, 5, false, true},
		{asm.JNE, 5, 6, true, true},
		{asm.JNE, 1<<32 | 5, 5, true, false},
		{asm.JGT, ones, 1, true, true},
		{asm.JGT, 5, 5, false, false},
		{asm.JGT, 1 << 32, 5, true, false},
		{asm.JGE, 5, 5, true, true},
		{asm.JGE, 4, 5, false, false},
		{asm.JLT, 4, ones, true, true},
		{asm.JLT, 5, 1 << 32, true, false},
		{asm.JLE, 5, 5, true, true},
		{asm.JLE, ones, 5, false, false},
		{asm.JSGT, 1, ones, true, true},
		{asm.JSGT, 0x8000_0000, 1, true, false},
		{asm.JSGE, ones, ones, true, true},
		{asm.JSGE, minI64, 0, false, true},
		{asm.JSLT, ones, 0, true, true},
		{asm.JSLT, 0xffff_ffff, 0, false, true},
		{asm.JSLE, minI64, 5, true, true},
		{asm.JSLE, 6, 5, false, false},
		{asm.JSet, 6, 2, true, true},
		{asm.JSet, 4, 2, false, false},
		{asm.JSet, 1 << 40, 1 << 40, true, false},
		{asm.JSet, minI32, neg(1 << 31), true, true},
	} {
		for _, w32 := range []bool{false, true} {
			for _, reg := range []bool{true, false} {
				want := c.wide
				ins := c.op.Reg(asm.R1, asm.R2, "")
				if w32 {
					want, ins = c.half, c.op.Reg32(asm.R1, asm.R2, "")
				}
				if !reg {
					if c.y != uint64(int32(c.y)) {
						continue
					}
					ins.OpCode &^= 8
					ins.Src, ins.Constant = 0, int64(c.y)
				}
				ins = ins.WithReference("")
				ins.Offset = 1
				checkJump(t, ins, c.x, c.y, want)
			}
		}
	}
}

func checkJump(t *testing.T, ins asm.Instruction, x, y uint64, want bool) {
	t.Helper()
	for _, known := range []bool{false, true} {
		w := newWorld(0)
		binary.LittleEndian.PutUint64(w.mem[w.at[mapData]:], x)
		binary.LittleEndian.PutUint64(w.mem[w.at[mapData]+8:], y)
		load := asm.Instructions{direct(asm.R3, mapData, 0), asm.LoadMem(asm.R1, asm.R3, 0, asm.DWord), asm.LoadMem(asm.R2, asm.R3, 8, asm.DWord)}
		if known {
			load = asm.Instructions{asm.LoadImm(asm.R1, int64(x), asm.DWord), asm.LoadImm(asm.R2, int64(y), asm.DWord)}
		}
		p := &Program{Name: "jump", Insns: append(load, asm.Mov.Imm(asm.R0, 1), ins, asm.Mov.Imm(asm.R0, 0), asm.Return())}
		before := newWorld(0)
		copy(before.mem, w.mem)
		v, err := Verify(p, w.env)
		if err != nil {
			t.Fatal(err)
		}
		code, err := v.Emit(w.site())
		if err != nil {
			t.Fatal(err)
		}
		res, err := w.interpret(p)
		if err != nil {
			t.Fatal(err)
		}
		got := binary.LittleEndian.Uint64(run(t, module(1, code), 1, before))
		if (res.R0 != 0) != want || (got != 0) != want {
			t.Errorf("%v (known: %v) with %#x, %#x: %d interpreted, %d compiled, want %v", ins, known, x, y, res.R0, got, want)
		}
	}
}
