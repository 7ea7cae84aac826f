package bpf

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx"
)

// TestHelperWritesPieces: what a helper writes to the stack in pieces that are
// not the registers' own, or leaves as it was, is what the program reads.
func TestHelperWritesPieces(t *testing.T) {
	some := &Helper{ // writes bytes 2 and 3 of 16
		Name: "some", Args: []ArgSpec{{Kind: ArgWrite, Size: 16}},
		Emit: func(_ *Gen, c *Call) (ptx.Arg, error) {
			c.Args[0].Store(2, 2, ptx.Imm(0x7766))
			return ptx.Imm(0), nil
		},
		Interpret: func(in *Interpreter, a [5]uint64) (uint64, error) {
			return 0, in.WriteMem(a[0]+2, []byte{0x66, 0x77})
		},
	}
	call := func(id asm.BuiltinFunc, at int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, at),
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -64), id.Call(),
		}
	}
	sum := asm.Instructions{
		asm.LoadMem(asm.R0, asm.R10, -16, asm.DWord), asm.LoadMem(asm.R1, asm.R10, -24, asm.DWord),
		asm.Mul.Imm(asm.R0, 31), asm.Add.Reg(asm.R0, asm.R1), asm.Return(),
	}
	for name, c := range map[string]struct {
		before, call asm.Instructions
		want         uint64
	}{
		"over a boundary": {nil, call(505, -18), 31*0xfffffffe1234 + 0x5678<<48},
		"over what was there": {
			asm.Instructions{asm.StoreImm(asm.R10, -20, -1, asm.Word)}, call(505, -21), 31*0xffffff + 0xfe12345678000000,
		},
		"not all of it": {nil, call(600, -24), 0x7766 << 16},
		"not all of what was there": {
			asm.Instructions{asm.StoreImm(asm.R10, -24, 0x11223344, asm.Word)}, call(600, -24), 0x77663344,
		},
	} {
		w := newWorld(0)
		w.env.Helpers[600] = some
		p := &Program{Name: name}
		p.Insns = append(append(append(p.Insns, c.before...), c.call...), sum...)
		v, err := Verify(p, w.env)
		if err != nil {
			t.Fatal(err)
		}
		code, err := v.Emit(w.site())
		if err != nil {
			t.Fatal(err)
		}
		got := binary.LittleEndian.Uint64(run(t, module(1, code), 1, newWorld(0)))
		res, err := w.interpret(p)
		if err != nil {
			t.Fatal(err)
		}
		if got != c.want || res.R0 != c.want {
			t.Errorf("%s: %#x compiled, %#x interpreted, want %#x\n%s", name, got, res.R0, c.want, code)
		}
	}
}
