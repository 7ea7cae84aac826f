package nvattach

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
)

// manyKernels is a module with that many kernels, and what else is given.
func manyKernels(n int, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".version 8.0\n.target sm_90\n.address_size 64\n%s\n", more)
	for i := range n {
		fmt.Fprintf(&b, ".visible .entry kernel%d(.param .u64 p)\n{\n.reg .b64 %%a;\nld.param.u64 %%a, [p];\nred.global.add.u32 [%%a], %d;\nret;\n}\n", i, i+1)
	}
	return b.String()
}

// calledText is a function, and a kernel that calls it.
const calledText = ".func (.param .b32 r) callee(.param .b32 a)\n{\n.reg .b32 %r;\nld.param.u32 %r, [a];\nmul.lo.u32 %r, %r, %r;\nst.param.u32 [r], %r;\nret;\n}\n" +
	".visible .entry caller(.param .u64 p, .param .u32 n)\n{\n.reg .b64 %p;\n.reg .b32 %r;\nld.param.u64 %p, [p];\nld.param.u32 %r, [n];\n{\n.param .b32 a;\n.param .b32 r;\nst.param.b32 [a], %r;\ncall.uni (r), callee, (a);\nld.param.b32 %r, [r];\n}\nst.global.u32 [%p], %r;\nret;\n}"

// TestByKernel: which machine code gets programs kernel by kernel, and that each kernel gets what it gets
// among the others.
func TestByKernel(t *testing.T) {
	plain := compiler(t, "sm_90")
	plan, maps := placedPlan(t, testObject(t, "example_count"))
	o := &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, CompileBody: compileBody(t, "sm_90")}
	compiled := func(text string) []byte {
		cubin, err := plain(text)
		if err != nil {
			t.Fatal(err)
		}
		return cubin
	}
	entry := func(kind fatbin.Kind, data []byte) fatbin.Entry {
		e, err := fatbin.NewEntry(kind, fatbin.Arch{SM: 90}, data, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	container := func(entries ...fatbin.Entry) []byte {
		return (&fatbin.Container{Entries: entries}).Append(nil)
	}
	text := manyKernels(leastByKernel, "")
	many := compiled(text)
	for _, c := range []struct {
		name  string
		image []byte
		o     *RewriteOptions
		want  bool
	}{
		{"cubin", many, o, true},
		{"container", container(entry(fatbin.KindELF, many)), o, true},
		{"beside PTX", container(entry(fatbin.KindELF, many), entry(fatbin.KindPTX, []byte(text))), o, false},
		{"PTX", []byte(text), o, true},
		{"PTX in a container", container(entry(fatbin.KindPTX, []byte(text))), o, true},
		{"PTX without a compiler of bodies", []byte(text), &RewriteOptions{Arch: o.Arch}, true},
		{"PTX that the driver does not compile", []byte(text), &RewriteOptions{Arch: o.Arch, JIT: JIT{Forbidden: "CUDA_DISABLE_PTX_JIT"}}, false},
		{"few in PTX", []byte(manyKernels(leastByKernel-1, "")), o, false},
		{"a variable in PTX", []byte(manyKernels(leastByKernel, ".visible .global .u32 counter;")), o, false},
		{"a constant in PTX", []byte(manyKernels(leastByKernel, ".visible .const .u32 factor = 3;")), o, false},
		{"a compiler's table in PTX", []byte(manyKernels(leastByKernel, ".visible .const .u32 __cudart_i2opi_f[2] = {1, 2};")), o, true},
		{"a texture in PTX", []byte(manyKernels(leastByKernel, ".global .texref image;")), o, false},
		{"a function in PTX", []byte(manyKernels(leastByKernel, calledText)), o, true},
		{"a function's address in PTX", []byte(manyKernels(leastByKernel, calledText+"\n.visible .entry taker(.param .u64 p)\n{\n.reg .b64 %p;\nmov.u64 %p, callee;\nret;\n}")), o, false},
		{"PTX with a debugger's table", []byte(manyKernels(leastByKernel, "") + ".section .debug_info\n{\n.b64 kernel0\n}\n"), o, false},
		{"few", compiled(manyKernels(leastByKernel-1, "")), o, false},
		{"a variable", compiled(manyKernels(leastByKernel, ".visible .global .u32 counter;")), o, false},
		{"a constant", compiled(manyKernels(leastByKernel, ".visible .const .u32 factor = 3;")), o, false},
		{"a compiler's table", compiled(manyKernels(leastByKernel, ".visible .const .u32 __cudart_i2opi_f[2] = {1, 2};")), o, true},
		{"a texture", compiled(manyKernels(leastByKernel, ".global .texref image;")), o, false},
		{"a function", compiled(manyKernels(leastByKernel, calledText)), o, true},
		{"to be verified", many, &RewriteOptions{Arch: o.Arch, CompileBody: o.CompileBody, Twins: TwinsAside}, false},
		{"no programs in machine code", many, &RewriteOptions{Arch: o.Arch}, false},
		{"another GPU's", container(entry(fatbin.KindELF, many)), &RewriteOptions{Arch: fatbin.Arch{SM: 80}, CompileBody: o.CompileBody}, false},
		{"nothing", nil, o, false},
	} {
		alone, size := plan.ByKernel(c.image, c.o)
		if (alone != nil) != c.want || c.want && size == 0 {
			t.Errorf("%s: by kernel: %v (%d bytes), want %v", c.name, alone != nil, size, c.want)
		}
	}

	testTextByKernel(t, plan, maps, text)
	whole, err := plan.Rewrite(many, maps, o)
	if err != nil || !whole.Changed {
		t.Fatal(err)
	}
	all, err := fatbin.NewCubinEditor(whole.Image, nil)
	if err != nil {
		t.Fatal(err)
	}
	alone, _ := plan.ByKernel(many, o)
	for i := range leastByKernel {
		only := *o
		only.Only = fmt.Sprintf("kernel%d", i)
		code, err := alone(only.Only)
		if err != nil {
			t.Fatal(err)
		}
		r, err := plan.Rewrite(code, maps, &only)
		if err != nil || !r.Changed || len(r.Kernels) != 1 || len(r.Unprobed) > 0 {
			t.Fatalf("%s: %+v, error %v", only.Only, r, err)
		}
		one, err := fatbin.NewCubinEditor(r.Image, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := one.Code(only.Only)
		if err != nil {
			t.Fatal(err)
		}
		want, err := all.Code(only.Only)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Code, want.Code) || got.Registers != want.Registers {
			t.Errorf("%s is another alone", only.Only)
		}
	}
}

// testTextByKernel: a kernel of PTX gets what it gets among the others, and is woven and compiled without them.
func testTextByKernel(t *testing.T, plan *Plan, maps *mapmem.Maps, text string) {
	t.Helper()
	o := &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}}
	whole, err := plan.Rewrite([]byte(text), maps, o)
	if err != nil || !whole.Changed {
		t.Fatal(err)
	}
	alone, _ := plan.ByKernel([]byte(text), o)
	for i := range leastByKernel {
		only := *o
		only.Only = fmt.Sprintf("kernel%d", i)
		code, err := alone(only.Only)
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range [][]byte{code, []byte(text)} { // the second as where nvtrace attaches
			r, err := plan.Rewrite(image, maps, &only)
			if err != nil || !r.Changed || len(r.Kernels) != 1 || len(r.Unprobed) > 0 {
				t.Fatalf("%s: %+v, error %v", only.Only, r, err)
			}
			if got, want := entryText(t, r.Text, only.Only), entryText(t, whole.Text, only.Only); got != want {
				t.Errorf("%s is another alone:\n%s\n%s", only.Only, got, want)
			}
			if n := strings.Count(r.Text, ".entry"); n != 1 {
				t.Errorf("%s: %d kernels in its module", only.Only, n)
			}
		}
	}
}

// entryText is a kernel in PTX.
func entryText(t *testing.T, text, kernel string) string {
	t.Helper()
	f, err := ptx.Parse("woven", strings.TrimRight(text, "\x00"), nil)
	if err != nil {
		t.Fatal(err)
	}
	fn := f.Lookup(kernel)
	if fn == nil || !fn.HasBody() {
		t.Fatalf("no %s in\n%s", kernel, text)
	}
	return f.Src[fn.Pos:f.Stmts[fn.Close].End]
}
