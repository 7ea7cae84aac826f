package nvattach

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/object"
)

// TestOwnAdded: what each thread has for itself, each adds for itself, also where the assembler can't see
// that it differs.
func TestOwnAdded(t *testing.T) {
	o, err := object.New("test", &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{"p": {SectionName: "cuda.exit/*", Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"),
			asm.LoadMapValue(asm.R2, 0, 0).WithReference(object.ThreadSection),
			asm.LoadMem(asm.R1, asm.R2, 0, asm.DWord), asm.LoadMem(asm.R3, asm.R2, 12, asm.Word),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Add.Imm(asm.R0, 8), asm.StoreXAdd(asm.R0, asm.R3, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return(),
		}}},
		Maps: map[string]*ebpf.MapSpec{
			"m":                  {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1},
			object.ThreadSection: {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, Contents: []ebpf.MapKV{{Key: uint32(0), Value: make([]byte, 16)}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	plan, maps := placedPlan(t, o)
	for _, sm := range []uint32{75, 90, 120} {
		b, err := plan.bodyText(plan.Programs[0], maps, fatbin.Arch{SM: sm}, nil, "", bodyForm{})
		if err != nil {
			t.Fatal(err)
		}
		image, err := compileBody(t, fatbin.Arch{SM: sm}.String())(b.Text)
		if err != nil {
			t.Fatal(err)
		}
		code, adds := functionOf(t, image, sm), 0
		for _, in := range code {
			if strings.HasPrefix(in.Name(), "VOTE") {
				t.Errorf("sm_%d: one thread adds for others: %v", sm, code)
				break
			}
			if strings.HasPrefix(in.Name(), "RED") {
				adds++
			}
		}
		if adds != 2 {
			t.Errorf("sm_%d: %d additions", sm, adds)
		}
	}
}

// functionOf returns the instructions of a Body.
func functionOf(tb testing.TB, image []byte, sm uint32) []sass.Inst {
	tb.Helper()
	c, err := fatbin.ParseCubin(image)
	if err != nil || len(c.Functions) != 1 {
		tb.Fatal(err, len(c.Functions))
	}
	f := &c.Functions[0]
	return wordsOf(sm, image[c.Sections[f.Section].Offset+f.Offset:][:f.Size])
}

func wordsOf(sm uint32, code []byte) (list []sass.Inst) {
	for _, w := range sass.Words(code) {
		in, _ := sass.Decode(sass.Arch(sm), w)
		list = append(list, in)
	}
	return list
}
