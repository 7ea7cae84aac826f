package nvattach

import (
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"

	"github.com/cilium/ebpf/asm"
)

// TestOwnValueWherePathsMeet: a value of a map that all threads share is added to at once,
// though the lookup nearest to it, on one of the paths, is in a map that each thread has.
func TestOwnValueWherePathsMeet(t *testing.T) {
	o := &object.Object{Maps: []*object.MapDef{
		{Name: "own", Type: object.MapGPUThreadArray, KeySize: 4, ValueSize: 8, MaxEntries: 1},
		{Name: "shared", Type: object.MapArray, KeySize: 4, ValueSize: 8, MaxEntries: 1},
	}}
	lookup := func(name string) asm.Instructions {
		return asm.Instructions{asm.LoadMapPtr(asm.R1, 0).WithReference(name), asm.Mov.Reg(asm.R2, asm.RFP), asm.BuiltinFunc(helper.MapLookup).Call()}
	}
	add := asm.Instructions{asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return()}
	keep := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R0)}
	skip := asm.Instructions{object.Over(asm.JEq.Imm(asm.R7, 0, ""), 4)} // over a lookup, of 4 slots
	for _, tt := range []struct {
		name string
		prog asm.Instructions
		want int
	}{
		{"of each thread", slices.Concat(lookup("own"), keep, add), 0},
		{"of each thread, behind its first byte", slices.Concat(lookup("own"), keep, asm.Instructions{asm.Add.Imm(asm.R6, 8)}, add), 0},
		{"shared", slices.Concat(lookup("shared"), keep, add), 1},
		{"shared, and another lookup on one path", slices.Concat(lookup("shared"), keep, skip, lookup("own"), add), 1},
		{"one or the other", slices.Concat(lookup("own"), keep, over5(), lookup("shared"), keep, add), 1},
	} {
		if _, stores := atomics.Increments(tt.prog, o.AtomicMap, (&proof.Unit{}).Helpers(), nil); len(stores) != tt.want {
			t.Errorf("%s: %d additions at once, want %d", tt.name, len(stores), tt.want)
		}
	}
}

// over5 is a jump over a lookup and an instruction.
func over5() asm.Instructions { return asm.Instructions{object.Over(asm.JEq.Imm(asm.R7, 0, ""), 5)} }

// TestChoicesThatCannotBeFollowed: what cannot be proven is refused, with what to do.
func TestChoicesThatCannotBeFollowed(t *testing.T) {
	f := func(r asm.Register) asm.Instruction {
		return asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: r, Src: asm.PseudoFunc, Constant: -1}.WithReference("f")
	}
	loop, ret := asm.BuiltinFunc(helper.Loop).Call(), asm.Return()
	for name, prog := range map[string]asm.Instructions{
		"an argument":    {loop, ret},
		"a number":       {f(asm.R2), asm.Add.Imm(asm.R2, 8), loop, ret},
		"from the stack": {f(asm.R3), asm.StoreMem(asm.RFP, -8, asm.R3, asm.DWord), asm.LoadMem(asm.R2, asm.RFP, -8, asm.DWord), loop, ret},
		"on one path":    {object.Over(asm.JEq.Imm(asm.R1, 0, ""), 2), f(asm.R2), loop, ret},
		"by a call":      {f(asm.R2), asm.BuiltinFunc(5).Call(), loop, ret},
	} {
		_, err := (&object.Object{}).Expand("p", prog, 0, false)
		if err == nil || !strings.Contains(err.Error(), "which function bpf_loop calls is not known: it is stored, calculated, or an argument") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
