package nvattach

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/object"
)

// leaving are kernels, with whether all their threads are sure to leave.
var leaving = []struct {
	name, body string
	all        bool
}{
	{"straight", "atom.global.add.u32 %r, [%a], 1;", true},
	{"early", "mov.u32 %r, %tid.x;\nsetp.gt.u32 %p, %r, 9;\n@%p exit;\natom.global.add.u32 %r, [%a], 1;", true},
	{"choice", "ld.global.u32 %r, [%a];\nsetp.gt.u32 %p, %r, 9;\n@%p bra other;\nst.global.u32 [%a+4], %r;\nbra.uni done;\nother: st.global.f32 [%a+8], 0f3F800000;\natom.global.add.u32 %r, [%a+12], %r;\ndone:\nst.global.u32 [%a+16], %r;", true},
	{"loop", "back: ld.volatile.global.u32 %r, [%a];\nsetp.gt.u32 %p, %r, 9;\n@%p bra back;", false},
	{"barrier", "bar.sync 0;\nst.global.u32 [%a], 1;", false},
	{"trap", "ld.global.u32 %r, [%a];\nsetp.gt.u32 %p, %r, 9;\n@%p trap;\nst.global.u32 [%a], 1;", false},
	{"calls", "{\n.param .b32 r;\n.param .b32 x;\nst.param.b32 [x], 3;\ncall.uni (r), callee, (x);\nld.param.b32 %r, [r];\n}\nst.global.u32 [%a], %r;", false},
}

// TestCodeLeaves: of which machine code it is known that all threads leave, and that one counts for all there.
func TestCodeLeaves(t *testing.T) {
	text := ".version 8.0\n.target sm_90\n.address_size 64\n" +
		".func (.param .b32 r) callee(.param .b32 x)\n{\n.reg .b32 %r;\n.reg .pred %p;\nld.param.u32 %r, [x];\nback: mul.lo.u32 %r, %r, %r;\nsetp.lt.u32 %p, %r, 99;\n@%p bra back;\nst.param.u32 [r], %r;\nret;\n}\n"
	for _, k := range leaving {
		text += fmt.Sprintf(".visible .entry %s(.param .u64 p)\n{\n.reg .b64 %%a;\n.reg .b32 %%r;\n.reg .pred %%p;\nld.param.u64 %%a, [p];\n%s\nret;\n}\n", k.name, k.body)
	}
	image, err := compiler(t, "sm_90")(text)
	if err != nil {
		t.Fatal(err)
	}
	o, err := object.New("test", &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{"p": {SectionName: "cuda.exit/*", Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return(),
		}}},
		Maps: map[string]*ebpf.MapSpec{"m": {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	plan, maps := placedPlan(t, o)
	r, err := plan.Rewrite(image, maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, CompileBody: compileBody(t, "sm_90")})
	if err != nil || len(r.Unprobed) > 0 {
		t.Fatal(err, r.Unprobed)
	}
	was, err := fatbin.NewCubinEditor(image, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range leaving {
		m := &machine{editor: was, arch: fatbin.Arch{SM: 90}, name: k.name}
		if m.analyze(); m.err != nil {
			t.Fatal(m.err)
		}
		if all := codeLeaves(m.weaver.Analysis()); all != k.all {
			t.Errorf("%s: all leave: %v, want %v", k.name, all, k.all)
		}
		m.weaver.Free()
		once := false // the others leave before they add
		for _, in := range codeOf(t, r.Image, k.name)[len(codeOf(t, image, k.name)):] {
			once = once || (in.Name() == "BRA" || in.Name() == "EXIT") && guarded(&in)
		}
		if once != k.all {
			t.Errorf("%s: one thread for all: %v, want %v", k.name, once, k.all)
		}
	}
}

func guarded(in *sass.Inst) bool {
	_, _, is := in.Guard()
	return is
}
