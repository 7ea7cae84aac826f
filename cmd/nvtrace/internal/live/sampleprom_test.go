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
	m := newSampleMetrics(&cli.Env{Stderr: os.Stderr}, h, to, true)
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

// TestSampleMetricsOfNameless: a kernel counts once it has a name, so that its time is not of two works; where names are
// not searched, all are kernels.
func TestSampleMetricsOfNameless(t *testing.T) {
	to, err := prom.Open("x.prom", 0, func(string, []byte) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range []bool{true, false} {
		m := newSampleMetrics(&cli.Env{Stderr: os.Stderr}, &traces.Header{}, to, names)
		close(m.stop)
		m.ended.Wait()
		text := ""
		for _, name := range []string{"program 0x7f80", "ncclDevKernel_AllReduce"} {
			ev := traces.Event{PID: int32(os.Getpid())}
			ev.SetSampled(&traces.Sampled{
				Devices: []traces.SampledDevice{{}},
				Works:   []traces.SampledWork{{Name: name, Kernel: true, Time: 3e9}, {Name: "add", Kernel: true, Time: 1e9}},
			})
			m.Event(&ev)
			text = string(m.measure(time.Now()).Text())
			if kernels := map[bool]string{true: "1", false: "4"}[names]; !strings.Contains(text, `work="kernel"} `+kernels+"\n") {
				t.Errorf("names %t, %s: kernels are not %s s:\n%s", names, name, kernels, text)
			}
		}
		if got := strings.Contains(text, `work="collective"} 3`+"\n"); got != names || !names && strings.Contains(text, "collective") {
			t.Errorf("names %t:\n%s", names, text)
		}
	}
}
