package gpu_test

import (
	"strings"
	"testing"
)

// TestRunningVariable: a kernel that gets programs goes on to use its module's variable, which
// the program changes before each launch.
func TestRunningVariable(t *testing.T) {
	text := strings.Replace(vectorAddPTX(t), ".visible .global", ".global .align 4 .f32 bias = 0f42C80000;\n.visible .global", 1)
	text = strings.Replace(text, "\tst.global.f32 [%rd7], %f3;", "\tmov.u64 %rd4, bias;\n\tld.global.f32 %f1, [%rd4];\n\tld.global.f32 %f2, [bias+0];\n"+
		"\tsub.f32 %f2, %f2, %f1;\n\tadd.f32 %f3, %f3, %f2;\n\tadd.f32 %f3, %f3, %f1;\n\tst.global.f32 [%rd7], %f3;", 1)
	for _, mode := range []string{"variable", "library variable"} {
		r := startRunning(t, text, mode)
		for range 2 {
			v := r.attach(probed)
			if len(v.kernels) != 1 || v.kernels[0].Images != 1 || v.kernels[0].Reason != "" || len(v.reports) > 0 {
				t.Fatalf("%s: %+v\n%q\n%s", mode, v.kernels, v.reports, v.shown)
			}
			k := &v.kernels[0]
			if n := k.Launches - uint64(k.Unprobed); n == 0 || v.entries != n*8*128 {
				t.Errorf("%s: %d entries in %d launches of %d\n%s", mode, v.entries, n, k.Launches, v.shown)
			}
		}
		r.end()
	}
}
