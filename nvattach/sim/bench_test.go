package sim_test

import (
	"strconv"
	"strings"
	"testing"
)

// BenchmarkCall measures calls from a program: one that does nothing, one that
// writes to the program's memory, a launch of 32 threads, and one that is waited for.
func BenchmarkCall(b *testing.B) {
	prog := buildC(b, "bench")
	for _, mode := range []string{"call", "out", "launch", "launch+sync"} {
		b.Run(mode, func(b *testing.B) {
			n := max(b.N, 100)
			r := run(b, nil, nil, prog, mode, strconv.Itoa(n))
			ns, err := strconv.ParseFloat(strings.TrimSpace(r.stdout), 64)
			if err != nil || r.code != 0 {
				b.Fatalf("exit status %d: %s", r.code, r.stdout)
			}
			b.ReportMetric(ns, "ns/call")
			b.ReportMetric(0, "ns/op")
		})
	}
}
