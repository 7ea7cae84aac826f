package nvattach

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/ptx"
)

// TestContractions: it is told where programs come between a product and its sum, of which ptxas makes one
// instruction without them, and only there.
func TestContractions(t *testing.T) {
	const head = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n" +
		".reg .f32 %f<5>;\n.reg .b64 %d<3>;\nld.param.u64 %d1, [p];\nld.global.f32 %f1, [%d1];\n"
	for _, c := range []struct {
		body string
		want bool
	}{
		{"mul.f32 %f2, %f1, %f1;\nst.global.f32 [%d1+8], %f1;\nadd.f32 %f3, %f2, %f1;\n", true},
		{"mul.ftz.f32 %f2, %f1, %f1;\nst.global.f32 [%d1+8], %f1;\nsub.ftz.f32 %f3, %f1, %f2;\n", true},
		{"mul.f32 %f2, %f1, %f1;\nadd.f32 %f3, %f2, %f1;\nst.global.f32 [%d1+8], %f3;\n", false},
		{"mul.rn.f32 %f2, %f1, %f1;\nst.global.f32 [%d1+8], %f1;\nadd.f32 %f3, %f2, %f1;\n", false},
		{"mul.f32 %f2, %f1, %f1;\nst.global.f32 [%d1+8], %f1;\nadd.rn.f32 %f3, %f2, %f1;\n", false},
		{"mul.f32 %f2, %f1, %f1;\nmov.f32 %f2, %f1;\nst.global.f32 [%d1+8], %f1;\nadd.f32 %f3, %f2, %f1;\n", false},
		{"fma.rn.f32 %f2, %f1, %f1, %f1;\nst.global.f32 [%d1+8], %f1;\nadd.f32 %f3, %f2, %f1;\n", false},
	} {
		for _, section := range []string{"example_memory", "example_count"} {
			r := newRig(t, nil, testObject(t, section))
			f, err := ptx.Parse("k", head+c.body+"st.global.f32 [%d1], %f3;\nret;\n}\n", nil)
			if err != nil {
				t.Fatal(err)
			}
			w, err := r.plan.Weave(f, r.maps, nil)
			if err != nil || len(w.Kernels) != 1 {
				t.Fatalf("%v, %v", w, err)
			}
			told := strings.Contains(strings.Join(w.Kernels[0].Notes, "\n"), "sum of a product with a program between")
			alone, woven := fused(t, f.Src), fused(t, w.Text)
			if alone+woven > 0 && told != (alone != woven) {
				t.Errorf("%s with %s: told %v, but ptxas makes %d fma alone, and %d with programs", c.body, section, told, alone, woven)
			}
			if want := c.want && section != "example_count"; told != want {
				t.Errorf("%s with %s: told %v, want %v: %q", c.body, section, told, want, w.Kernels[0].Notes)
			}
		}
	}
}

// fused counts the instructions that ptxas makes which multiply and add floats; 0 without it.
func fused(t *testing.T, text string) (n int) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "k.cubin")
	if out, ok := tryAssemble(t, text, "sm_90", "-o", image); !ok {
		t.Fatalf("ptxas: %s", out)
	}
	b, err := os.ReadFile(image)
	if err != nil {
		return 0
	}
	c, err := fatbin.ParseCubin(b)
	if err != nil {
		t.Fatal(err)
	}
	k := kernelNamed(t, c, "k")
	for _, w := range sass.Words(b[c.Sections[k.Section].Offset+k.Offset:][:k.Size]) {
		if in, ok := sass.Decode(90, w); ok && strings.HasPrefix(in.Name(), "FFMA") {
			n++
		}
	}
	return n
}
