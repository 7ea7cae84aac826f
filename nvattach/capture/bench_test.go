package capture_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"nvtrace/nvattach/capture"
	"nvtrace/ptrace"
	"nvtrace/traces"
)

// BenchmarkLoad is what a load of a small image costs, with four threads that load
// at the same time: traced, and by how much more than untraced.
func BenchmarkLoad(b *testing.B) {
	p, err := buildOnce()
	if err != nil || p.problem != "" {
		b.Skip(err, p)
	}
	const loops, threads = 200, 4
	b.Setenv("ROUTES_LOOPS", strconv.Itoa(loops))
	env := append(os.Environ(), "LD_LIBRARY_PATH="+p.dir)
	var plain, traced time.Duration
	loads := 0
	for b.Loop() {
		began := time.Now()
		cmd := exec.Command(p.routes, "threads"+strconv.Itoa(threads))
		cmd.Env = env
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		plain += time.Since(began)

		n := 0
		c := capture.New(&capture.Options{Emit: func(ev *traces.Event) {
			if ev.Kind == traces.KindImage {
				n++
			}
		}}, 1)
		began = time.Now()
		_, err := ptrace.Run(context.Background(), &ptrace.Options{Argv: cmd.Args, Env: env, Rules: c.Rules(), NoSignals: true}, c)
		if err != nil || n != loops*threads {
			b.Fatalf("%d of %d loads were captured: %v", n, loops*threads, err)
		}
		traced += time.Since(began)
		loads += n
		c.Close()
	}
	b.ReportMetric(float64(traced.Microseconds())/float64(loads), "µs/load")
	b.ReportMetric(float64((traced-plain).Microseconds())/float64(loads), "µs-more/load")
	b.ReportMetric(0, "ns/op")
}
