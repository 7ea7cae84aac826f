package bpf

import (
	"strings"
	"testing"
)

// BenchmarkVerify: an atomic counter and a random program of a few hundred
// instructions, from instructions to code that only needs a site.
func BenchmarkVerify(b *testing.B) {
	random := newGenerator(7).program()
	for name, p := range map[string]*Program{"counter": {Name: "counter", Insns: typical()["atomic counter"]}, "random": random} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(0)
			for b.Loop() {
				if _, err := Verify(p, w.env); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(p.Insns)), "ns/insn")
		})
	}
}

// BenchmarkEmit: the same at one site, as it happens at each of the thousands
// that a memory probe has.
func BenchmarkEmit(b *testing.B) {
	w := newWorld(0)
	v, err := Verify(&Program{Name: "counter", Insns: typical()["atomic counter"]}, w.env)
	if err != nil {
		b.Fatal(err)
	}
	site := w.site()
	for b.Loop() {
		code, err := v.Emit(site)
		if err != nil || !strings.Contains(code, "red.") {
			b.Fatal(err)
		}
	}
}
