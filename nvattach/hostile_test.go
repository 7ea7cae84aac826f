package nvattach

import (
	"math"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/object"

	"github.com/cilium/ebpf/asm"
)

// TestHostilePrograms: what can't be made safe is refused before anything is woven,
// with the program's name and a reason.
func TestHostilePrograms(t *testing.T) {
	maps := []*object.MapDef{
		def("arr", object.MapArray, 4, 8, 4), def("ring", object.MapRingbuf, 0, 0, 4096), def("stacks", 7, 4, 8, 4), def("progs", 3, 4, 4, 4),
		{Name: ".rodata", Type: object.MapArray, KeySize: 4, ValueSize: 8, MaxEntries: 1, Data: true, ReadOnly: true, Initial: make([]byte, 8)},
	}
	slices.SortFunc(maps, func(a, b *object.MapDef) int { return strings.Compare(a.Name, b.Name) }) // as a loaded object's
	ret := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	lookup := func(name string) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, 0).WithReference(name), asm.BuiltinFunc(1).Call(),
		}
	}
	long := asm.Instructions{}
	for range 200_000 {
		long = append(long, asm.Add.Imm(asm.R0, 1))
	}
	join := func(parts ...asm.Instructions) asm.Instructions {
		var all asm.Instructions
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for _, tt := range []struct {
		name, want string
		prog       asm.Instructions
	}{
		{"an unknown helper", "999", join(asm.Instructions{asm.BuiltinFunc(999).Call()}, ret)},
		{"a helper for the kernel", "55", join(asm.Instructions{asm.BuiltinFunc(55).Call()}, ret)},
		{"beyond the value", "", join(lookup("arr"), asm.Instructions{{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R0, Offset: 1}, asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord)}, ret)},
		{"keys of a ring", "ring", join(lookup("ring"), ret)},
		{"a type that is not there", "stacks has type stack_trace", join(lookup("stacks"), ret)},
		{"a tail call without a map", "which map bpf_tail_call takes a program from is not known: it is stored", join(asm.Instructions{asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 0), asm.BuiltinFunc(12).Call()}, ret)},
		{"a loop without a function", "which function bpf_loop calls is not known: it is stored", join(asm.Instructions{asm.Mov.Imm(asm.R2, 0), asm.BuiltinFunc(181).Call()}, ret)},
		{"beyond the stack", "of the stack", join(asm.Instructions{asm.StoreImm(asm.RFP, -520, 1, asm.Word)}, ret)},
		{"beyond the context", "", join(asm.Instructions{asm.LoadMem(asm.R1, asm.R1, 4096, asm.Word)}, ret)},
		{"a made-up address", "", join(asm.Instructions{asm.LoadImm(asm.R1, 0x1000, asm.DWord), asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord)}, ret)},
		{"a store to .rodata", "", join(asm.Instructions{asm.LoadMapValue(asm.R1, 0, 0).WithReference(".rodata"), asm.StoreImm(asm.R1, 0, 1, asm.Word)}, ret)},
		{"no end", "", asm.Instructions{asm.Mov.Imm(asm.R0, 0)}},
		{"a jump nowhere", "", join(asm.Instructions{{OpCode: asm.Ja.Op(asm.ImmSource), Offset: math.MaxInt16}}, ret)},
		{"a record that is not given back", "", join(asm.Instructions{
			asm.LoadMapPtr(asm.R1, 0).WithReference("ring"), asm.Mov.Imm(asm.R2, 8), asm.Mov.Imm(asm.R3, 0), asm.BuiltinFunc(131).Call(),
		}, ret)},
		{"a record that is too large", "", join(asm.Instructions{
			asm.LoadMapPtr(asm.R1, 0).WithReference("ring"), asm.Mov.Imm(asm.R2, 1<<20), asm.Mov.Imm(asm.R3, 0), asm.BuiltinFunc(131).Call(),
			{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R0, Offset: 3},
			asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Imm(asm.R2, 0), asm.BuiltinFunc(132).Call(),
		}, ret)},
		{"1 MB of program", "", join(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, long, ret)},
	} {
		o := &object.Object{Name: "hostile.o", Maps: maps}
		o.Programs = []*object.Program{{Name: "prog", Section: "cuda.entry/*", Point: object.Point{Kind: object.KindEntry, Kernel: "*"}, Insns: tt.prog, Object: o}}
		_, err := NewPlan([]*object.Object{o}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "hostile.o: program prog") || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %.300v", tt.name, err)
		}
	}
}

// TestEndlessLoop: a loop without a known end is ended, and that is counted; the
// kernel computes what it should.
func TestEndlessLoop(t *testing.T) {
	o := &object.Object{Name: "loop.o"}
	o.Programs = []*object.Program{{Name: "forever", Section: "cuda.entry/*", Point: object.Point{Kind: object.KindEntry, Kernel: "*"}, Object: o, Insns: asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), asm.Add.Imm(asm.R0, 1), {OpCode: asm.JNE.Op(asm.ImmSource), Dst: asm.R0, Offset: -2}, asm.Return(),
	}}}
	r := newRig(t, &PlanOptions{Fuel: 100}, o)
	r.runAdd(r.weave(vectorAdd).Text, 2, 16)
	if n, err := r.plan.endedEarly(r.maps, r.machine, r.plan.Programs[0]); n != 32 || err != nil {
		t.Errorf("%d runs were ended, %v; want 32", n, err)
	}
}

// TestEndsAreNamed: a test that ends a program says which it was, and in which kernel.
func TestEndsAreNamed(t *testing.T) {
	null := slices.Concat(
		asm.Instructions{asm.StoreImm(asm.R10, -4, 7, asm.Word)},
		asm.Instructions{asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.FnMapLookupElem.Call()},
		asm.Instructions{asm.StoreImm(asm.R0, 0, 1, asm.Word).WithSource(sourceLine("*v = 1")), asm.Mov.Imm(asm.R0, 0), asm.Return()},
	)
	endless := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Add.Imm(asm.R0, 1).WithSource(sourceLine("for (;;)")), {OpCode: asm.JNE.Op(asm.ImmSource), Dst: asm.R0, Offset: -2}, asm.Return()}
	o := &object.Object{Name: "ends.o", Maps: []*object.MapDef{{Name: "m", Type: object.MapHash, KeySize: 4, ValueSize: 8, MaxEntries: 4}}}
	for name, ins := range map[string]asm.Instructions{"null": null, "endless": endless} {
		o.Programs = append(o.Programs, &object.Program{Name: name, Section: "cuda.entry/*", Point: object.Point{Kind: object.KindEntry, Kernel: "*"}, Object: o, Insns: ins})
	}
	r := newRig(t, &PlanOptions{Fuel: 100}, o)
	text := r.weave(vectorAdd).Text
	assemble(t, text, "sm_90")
	r.runAdd(text, 2, 16)
	want := map[string]string{
		"null":    "32 runs of null were ended: NULL dereference at ends.bpf.c:4 (*v = 1), in ",
		"endless": "32 runs of endless were ended: loop bound reached at ends.bpf.c:4 (for (;;)), in ",
	}
	for _, q := range r.plan.Programs {
		list, err := r.plan.Ended(r.maps, r.machine, q)
		if err != nil || len(list) != 1 || !strings.HasPrefix(list[0].String(), want[q.Name]) || list[0].Site.Kernel != r.plan.Sites()[0].Kernel {
			t.Errorf("%s: %v, %v; want %s", q.Name, list, err, want[q.Name])
		}
	}
}

// sourceLine is a line of a source file, as BTF has it.
type sourceLine string

func (l sourceLine) String() string   { return string(l) }
func (sourceLine) FileName() string   { return "/src/ends.bpf.c" }
func (sourceLine) LineNumber() uint32 { return 4 }
