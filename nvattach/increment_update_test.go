package nvattach

import (
	"encoding/binary"
	"testing"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"

	"github.com/cilium/ebpf/asm"
)

// countProgram is "v = 1; if (p = lookup(m, k)) v = *p + 1; update(m, k, v)", as
// compilers write it; other, if not nil, changes it.
func countProgram(kind object.MapType, other func(asm.Instructions) asm.Instructions) (asm.Instructions, *object.Object) {
	call := func(id asm.BuiltinFunc) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, 0).WithReference("m"), id.Call(),
		}
	}
	p := asm.Instructions{asm.StoreImm(asm.R10, -4, 0, asm.Word), asm.StoreImm(asm.R10, -16, 1, asm.DWord)}
	p = append(p, call(1)...)
	p = append(
		p, asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Offset: 3},
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -16), asm.Mov.Imm(asm.R4, 0),
	)
	p = append(p, call(2)...)
	p = append(p, asm.Mov.Imm(asm.R0, 0), asm.Return())
	if other != nil {
		p = other(p)
	}
	return p, &object.Object{Maps: []*object.MapDef{{Name: "m", Type: kind, KeySize: 4, ValueSize: 8, MaxEntries: 4}}}
}

func TestAtomicUpdates(t *testing.T) {
	set := func(i int, in asm.Instruction) func(asm.Instructions) asm.Instructions {
		return func(p asm.Instructions) asm.Instructions { p[i] = in; return p }
	}
	end := func(ins ...asm.Instruction) func(asm.Instructions) asm.Instructions {
		return func(p asm.Instructions) asm.Instructions {
			return append(append(p[:len(p)-2:len(p)-2], ins...), p[len(p)-2:]...)
		}
	}
	for _, tt := range []struct {
		name  string
		kind  object.MapType
		other func(asm.Instructions) asm.Instructions
		want  int
	}{
		{"an array", object.MapArray, nil, 1},
		{"bpftime's", object.MapGPUArray, nil, 1},
		{"a hash", object.MapHash, nil, 0},
		{"per thread", object.MapGPUThreadArray, nil, 0},
		{"a negative number", object.MapArray, set(8, asm.Add.Imm(asm.R1, -7)), 1},
		{"a product", object.MapArray, set(8, asm.Mul.Imm(asm.R1, 3)), 0},
		{"half of the value", object.MapArray, set(7, asm.LoadMem(asm.R1, asm.R0, 0, asm.Word)), 0},
		{"another key", object.MapArray, set(14, asm.Add.Imm(asm.R2, -8)), 0},
		{"another value", object.MapArray, set(11, asm.Add.Imm(asm.R3, -24)), 0},
		{"flags", object.MapArray, set(12, asm.Mov.Imm(asm.R4, 1)), 0},
		{"must exist", object.MapArray, set(12, asm.Mov.Imm(asm.R4, 2)), 1},
		{"the key is changed", object.MapArray, set(9, asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord)), 0},
		{"the result is read", object.MapArray, set(17, asm.Mov.Reg(asm.R6, asm.R0)), 0},
		{"the value is read", object.MapArray, end(asm.LoadMem(asm.R6, asm.R10, -16, asm.DWord)), 0},
		{"the value is passed on", object.MapArray, end(asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -24)), 0},
		{"the stack above is passed on", object.MapArray, end(asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -8)), 1},
		{"a pointer to the stack is kept", object.MapArray, end(asm.Mov.Reg(asm.R6, asm.R10)), 0},
		{"a jump into it", object.MapArray, end(asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R7, Offset: -10}), 0},
	} {
		prog, o := countProgram(tt.kind, tt.other)
		got, n, _ := atomics.Updates(prog, o.AtomicMap, (&proof.Unit{}).Helpers(), true)
		if n != tt.want || len(got) != len(prog) {
			t.Errorf("%s: %d, want %d\n%v", tt.name, n, tt.want, got)
		}
		for i := range got {
			if n == 0 && got[i].OpCode != prog[i].OpCode {
				t.Errorf("%s: changed", tt.name)
			}
		}
	}
}

// TestUpdatesCount: all threads' additions arrive.
func TestUpdatesCount(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"cuda__update"}}, testObject(t, "rows"))
	if n := r.plan.Programs[0].Increments; n != 1 {
		t.Fatalf("%d additions became atomic", n)
	}
	w := r.weave(vectorAdd)
	for range 3 {
		r.runAdd(w.Text, 2, 40)
	}
	if got := binary.LittleEndian.Uint64(r.table("updated").Rows[0].Value); got != 240 {
		t.Errorf("%d, want 240\n%s", got, w.Text)
	}
}
