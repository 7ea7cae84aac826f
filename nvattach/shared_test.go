package nvattach

import (
	"strings"
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// maxProgram calls nvtrace_max with a pointer that is off bytes behind what at puts into
// r1.
func maxProgram(at asm.Instructions, off int32) asm.Instructions {
	insns := append(asm.Instructions{}, at...)
	return append(insns, asm.Add.Imm(asm.R1, off), asm.Mov.Imm(asm.R2, 7), asm.BuiltinFunc(helper.Max).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return())
}

// TestMaxWantsValue: what nvtrace_max changes is 8 aligned bytes of a map's value, for all
// that a program may say.
func TestMaxWantsValue(t *testing.T) {
	lookup := asm.Instructions{
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4), asm.BuiltinFunc(helper.MapLookup).Call(),
	}
	tested := append(asm.Instructions{}, lookup...)
	// Without a value, r0 is 0: the two moves that follow are left out.
	tested = append(tested, asm.JNE.Imm(asm.R0, 0, ""), asm.Mov.Imm(asm.R0, 0), asm.Return(), asm.Mov.Reg(asm.R1, asm.R0))
	tested[6].Offset = 2
	for _, tt := range []struct {
		name string
		prog asm.Instructions
		want string
	}{
		{"value", maxProgram(tested, 0), ""},
		{"second half", maxProgram(tested, 8), ""},
		{"behind", maxProgram(tested, 16), "which has 16"},
		{"before", maxProgram(tested, -8), "which has 16"},
		{"not aligned", maxProgram(tested, 4), "not a pointer to 8 aligned bytes of a map's value"},
		{"stack", maxProgram(asm.Instructions{asm.Mov.Reg(asm.R1, asm.RFP)}, -8), "not a pointer to 8 aligned bytes of a map's value"},
		{"context", maxProgram(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, 0), "context"},
		{"number", maxProgram(asm.Instructions{asm.Mov.Imm(asm.R1, 4096)}, 0), "number"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := object.New("test", &ebpf.CollectionSpec{
				Programs: map[string]*ebpf.ProgramSpec{"p": {SectionName: "cuda.entry/*", Instructions: tt.prog}},
				Maps:     map[string]*ebpf.MapSpec{"m": {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1}},
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = NewPlan([]*object.Object{o}, nil)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}
