package interpose

import (
	"strconv"
	"strings"
	"testing"
)

// BenchmarkCalls compares a program's calls without the shim, and with it in its
// modes: ns a launch of a known kernel, a load of a small image that was sent
// before, and a dlsym of a name that is not wrapped.
func BenchmarkCalls(b *testing.B) {
	w := getWorld(b)
	for _, c := range []struct {
		name string
		env  func(b *testing.B) []string
	}{
		{"none", func(*testing.B) []string { return w.env() }},
		{"silent", func(b *testing.B) []string {
			s, _ := listen(b, &log{}, ModeObserve)
			return append(w.env(), "LD_PRELOAD="+s.Path())
		}},
		{"observe", func(b *testing.B) []string {
			s, _ := listen(b, &log{}, ModeObserve)
			return s.Env(w.env())
		}},
		{"capture", func(b *testing.B) []string {
			s, _ := listen(b, &log{}, ModeCapture)
			return s.Env(w.env())
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			env := c.env(b)
			sums := make(map[string]float64)
			for b.Loop() {
				r := w.run(b, env, "prog", "bench")
				if !strings.Contains(r.status, "exit status 0") {
					b.Fatalf("%+v", r)
				}
				for line := range strings.Lines(r.out) {
					f := strings.Fields(line)
					ns, err := strconv.ParseFloat(f[1], 64)
					if err != nil {
						b.Fatal(err)
					}
					sums[f[0]] += ns
				}
			}
			for name, ns := range sums {
				b.ReportMetric(ns/float64(b.N), "ns/"+name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkHash(b *testing.B) {
	data := make([]byte, 1<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if quickHash(data) == [2]uint64{} {
			b.Fatal("no hash")
		}
	}
}
