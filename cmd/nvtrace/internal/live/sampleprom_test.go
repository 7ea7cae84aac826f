package live

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/prom"
	"nvtrace/traces"
)

// TestSampleMetrics: what looks have found as metrics. Counters do not shrink, and what is not known is not there.
func TestSampleMetrics(t *testing.T) {
	var wrote string
	to, err := prom.Open("x.prom", 0, func(_ string, b []byte) error { wrote = string(b); return nil })
	if err != nil {
		t.Fatal(err)
	}
	h := &traces.Header{Host: "node", Tool: "v1", GPUs: []string{"GPU-1"}}
	m := newSampleMetrics(&cli.Env{Stderr: os.Stderr}, h, to)
	pid := int32(os.Getpid())
	see := func(busy int64, memory uint64) {
		ev := traces.Event{PID: pid}
		ev.SetSampled(&traces.Sampled{
			Looks: 100, Devices: []traces.SampledDevice{{Device: 0, Busy: busy, Memory: memory, MemoryUsed: memory / 2}},
			Channels: []traces.SampledChannel{{Channel: 1, Done: 40}, {Channel: 2, Done: 2}, {Device: 1, Done: 9}},
			Works: []traces.SampledWork{
				{Name: "scale", Kernel: true, Time: 2e9}, {Name: "ncclDevKernel_AllReduce", Kernel: true, Time: 3e9}, {Name: "copy", Time: 5e8}, {Name: "add", Kernel: true, Time: 1e9},
			},
		})
		m.Event(&ev)
	}
	see(7e9, 0)
	if text := string(m.measure(time.Now()).Text()); strings.Contains(text, "memory") {
		t.Errorf("memory that is not known: %s", text)
	}
	see(6e9, 1<<20)
	m.end()
	for _, want := range []string{
		`nvtrace_sample_looks_total{hostname="node",pid="PID"} 100`,
		`nvtrace_gpu_busy_seconds_total{hostname="node",pid="PID",gpu="0",UUID="GPU-1"} 7`,
		`nvtrace_gpu_submissions_total{hostname="node",pid="PID",gpu="0",UUID="GPU-1"} 42`,
		`nvtrace_gpu_seconds_total{hostname="node",pid="PID",gpu="0",UUID="GPU-1",work="kernel"} 3`,
		`nvtrace_gpu_seconds_total{hostname="node",pid="PID",gpu="0",UUID="GPU-1",work="collective"} 3`,
		`nvtrace_gpu_seconds_total{hostname="node",pid="PID",gpu="0",UUID="GPU-1",work="copy"} 0.5`,
		`nvtrace_gpu_memory_used_bytes{hostname="node",pid="PID",gpu="0",UUID="GPU-1"} 524288`,
	} {
		if want = strings.Replace(want, "PID", strconv.Itoa(int(pid)), 1); !strings.Contains(wrote, want+"\n") {
			t.Errorf("lacks %s:\n%s", want, wrote)
		}
	}
}
