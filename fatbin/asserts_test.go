package fatbin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// A kernel that only asserts calls nothing else outside of its section; one that prints does.
func TestOnlyAsserts(t *testing.T) {
	ptxas := need.Tool(t, "ptxas", "NVTRACE_PTXAS")
	const (
		head    = ".version 8.0\n.target sm_90\n.address_size 64\n"
		asserts = ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
		prints  = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
		// Recursive, or it would be inlined.
		other   = ".func (.param .b32 r) other (.param .b32 x)\n{\n .reg .pred %q;\n .reg .b32 %a;\n ld.param.u32 %a, [x];\n setp.lt.s32 %q, %a, 2;\n @%q bra D;\n add.s32 %a, %a, -1;\n { .param .b32 y; .param .b32 s;\n st.param.b32 [y], %a;\n call.uni (s), other, (y);\n ld.param.b32 %a, [s]; }\n mul.lo.s32 %a, %a, %a;\nD:\n st.param.b32 [r], %a;\n ret;\n}\n"
		begin   = ".visible .entry k (.param .u64 p)\n{\n .reg .pred %q;\n .reg .b32 %x<3>;\n .reg .b64 %p;\n ld.param.u64 %p, [p];\n ld.global.u32 %x1, [%p];\n setp.eq.s32 %q, %x1, 0;\n @%q bra L;\n"
		end     = "L:\n st.global.u32 [%p+4], %x1;\n ret;\n}\n"
		assert  = " { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;\n st.param.b64 [a], %p; st.param.b64 [b], %p; st.param.b32 [c], %x1; st.param.b64 [d], %p; st.param.b64 [e], 1;\n call.uni __assertfail, (a, b, c, d, e); }\n"
		print   = " { .param .b64 a; .param .b64 b; .param .b32 r;\n st.param.b64 [a], %p; st.param.b64 [b], %p;\n call.uni (r), vprintf, (a, b); }\n"
		address = " { .reg .b64 %f; .param .b32 x; .param .b32 r;\n st.param.b32 [x], %x1;\n mov.u64 %f, other;\n  proto: .callprototype (.param .b32 _) _ (.param .b32 _);\n call (r), %f, (x), proto;\n ld.param.b32 %x1, [r]; }\n"
		call    = " { .param .b32 x; .param .b32 r;\n st.param.b32 [x], %x1;\n call.uni (r), other, (x);\n ld.param.b32 %x1, [r]; }\n"
	)
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"asserts":    {head + asserts + begin + assert + end, true},
		"calls none": {head + begin + end, false},
		"prints":     {head + prints + begin + print + end, false},
		"both":       {head + asserts + prints + begin + assert + print + end, false},
		// Functions in the kernel's own section.
		"calls": {head + asserts + other + begin + assert + call + end, true},
		// Of another kernel beside it.
		"beside":           {head + asserts + prints + other + begin + assert + end + strings.Replace(begin, "entry k", "entry k2", 1) + call + end, true},
		"calls by address": {head + asserts + other + begin + assert + address + end, true},
	} {
		dir := t.TempDir()
		in, out := filepath.Join(dir, "k.ptx"), filepath.Join(dir, "k.cubin")
		if err := os.WriteFile(in, []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.Command(ptxas, "-arch=sm_90", "-o", out, in).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		e, err := NewCubinEditor(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.OnlyAsserts("k"); got != c.want {
			t.Errorf("%s: %v, want %v; it refers to %q", name, got, c.want, e.Externs("k"))
		}
	}
}
