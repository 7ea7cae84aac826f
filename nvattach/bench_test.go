package nvattach

import (
	"fmt"
	"strings"
	"testing"

	"nvtrace/ptx"
)

// BenchmarkWeave weaves programs into a module of 128 kernels, parsing and checking
// included; bytes are those of the module.
func BenchmarkWeave(b *testing.B) {
	src := vectorAdd
	for i := range 127 {
		src += fmt.Sprintf("\n.visible .entry k%d%s", i, vectorAdd[strings.IndexByte(vectorAdd, '('):])
	}
	for _, name := range []string{"example_count", "example_memory"} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, nil, object(b, name))
			b.SetBytes(int64(len(src)))
			sites := 0
			for b.Loop() {
				f, err := ptx.Parse("bench.ptx", src, nil)
				if err != nil {
					b.Fatal(err)
				}
				w, err := r.plan.Weave(f, r.maps, nil)
				if err != nil || len(w.Kernels) != 128 {
					b.Fatal(len(w.Kernels), err)
				}
				sites = 0
				for i := range w.Kernels {
					sites += w.Kernels[i].Sites()
				}
				r.plan.sites = nil
			}
			b.ReportMetric(float64(sites), "places")
		})
	}
}
