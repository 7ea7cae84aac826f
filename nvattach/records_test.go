package nvattach

import (
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// TestPerfEventArray: a map as programs for Linux define it, whose values are descriptors
// of 4 bytes, takes records of any size, and the type of the values is not theirs.
func TestPerfEventArray(t *testing.T) {
	d := def("events", object.MapPerfEventArray, 4, 4, 0)
	d.Value = &btf.Int{Name: "unsigned int", Size: 4}
	o := &object.Object{Name: "perf.o", Maps: []*object.MapDef{d}}
	o.Programs = []*object.Program{{
		Name: "prog", Section: "cuda.entry/*", Point: object.Point{Kind: object.KindEntry, Kernel: "*"}, Object: o,
		Insns: asm.Instructions{
			asm.Mov.Imm(asm.R0, 7), asm.StoreMem(asm.RFP, -24, asm.R0, asm.DWord), asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord), asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.LoadMapPtr(asm.R2, 0).WithReference("events"), asm.LoadImm(asm.R3, 0xffffffff, asm.DWord),
			asm.Mov.Reg(asm.R4, asm.RFP), asm.Add.Imm(asm.R4, -24), asm.Mov.Imm(asm.R5, 24), asm.BuiltinFunc(25).Call(),
			asm.Mov.Imm(asm.R0, 0), asm.Return(),
		},
	}}
	r := newRig(t, nil, o)
	r.runAdd(r.weave(vectorAdd).Text, 3, 64)
	x := r.maps.Find("events")
	var got []string
	if err := r.maps.NewReader(x).Drain(r.machine, true, func(rec mapmem.Record) { got = append(got, string(x.AppendRecord(nil, rec.Data))) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3*64 || len(slices.Compact(got)) != 1 || got[0] != "[7, 7, 7]" {
		t.Errorf("records %q", got)
	}
}

// TestRecordLimits: what a definition says that a record can't be is known without any
// GPU.
func TestRecordLimits(t *testing.T) {
	output := func(helper int, m string, size int32) asm.Instructions {
		args := []asm.Register{asm.R1, asm.R2, asm.R3, asm.R4}
		if helper == 25 {
			args = []asm.Register{asm.R2, asm.R4, asm.R5, asm.R3}
		}
		return asm.Instructions{
			asm.LoadMapPtr(args[0], 0).WithReference(m), asm.LoadMapValue(args[1], 0, 0).WithReference(".rodata"), asm.Mov.Imm(args[2], size),
			asm.Mov.Imm(args[3], 0), asm.BuiltinFunc(helper).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
		}
	}
	print := asm.Instructions{
		asm.LoadMapValue(asm.R1, 0, 0).WithReference(".rodata"), asm.Mov.Imm(asm.R2, 1001), asm.BuiltinFunc(6).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
	}
	for _, tt := range []struct {
		name, want string
		prog       asm.Instructions
	}{
		{"all of a ring", "", output(130, "ring", 1024-16)},
		{"more than a ring", "a record of 1009 bytes; those of map ring have at most 1008", output(130, "ring", 1009)},
		{"an event", "", output(25, "events", 4096)},
		{"bpftime's", "", output(25, "slots", 24)},
		{"more than bpftime's value", "a record of 25 bytes; those of map slots have at most 24", output(25, "slots", 25)},
		{"a format", "a format of 1001 bytes; 1000 is the most", print},
	} {
		o := &object.Object{Name: "records.o", Maps: []*object.MapDef{
			def("ring", object.MapRingbuf, 0, 0, 1024), def("events", object.MapPerfEventArray, 4, 4, 0), def("slots", object.MapGPURingbuf, 4, 24, 16),
			{Name: ".rodata", Type: object.MapArray, KeySize: 4, ValueSize: 4096, MaxEntries: 1, Data: true, ReadOnly: true, Initial: make([]byte, 4096)},
		}}
		o.Programs = []*object.Program{{Name: "prog", Section: "cuda.entry/*", Point: object.Point{Kind: object.KindEntry, Kernel: "*"}, Insns: tt.prog, Object: o}}
		_, err := NewPlan([]*object.Object{o}, nil)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestPrintkStrings: %s shows text of maps and global variables; what a thread has on its
// stack is gone when the host looks.
func TestPrintkStrings(t *testing.T) {
	r := newRig(t, nil, testObject(t, "prints"))
	apply(t, r.maps, r.machine, "names[1]={0,\"entry\"}")
	r.runAdd(r.weave(vectorAdd).Text, 3, 64)
	var lines []string
	if err := r.maps.NewPrinter(r.plan.Formats).Drain(r.machine, true, func(_ int, s string) { lines = append(lines, s) }); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"literal, constant, variable\n", "many\n", "no entry: 0x0\n", "hashed\n", "entry\n", "(unreadable 0x0)\n",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
}
