package live

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/prom"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// sampleEvery is how often the metrics of looks are made.
const sampleEvery = time.Second

// maxSampledProcesses bounds the processes that have metrics.
const maxSampledProcesses = 256

// sampleMetrics gives what looks have found to Prometheus. It implements record.Sink.
type sampleMetrics struct {
	header *traces.Header
	names  bool // of kernels are searched; else collectives are among the kernels
	to     *prom.Target
	notice func(format string, args ...any)
	stop   chan struct{}
	ended  sync.WaitGroup

	mu sync.Mutex
	of map[int]*sampledProcess
}

// sampledProcess is what is known of one.
type sampledProcess struct {
	place  ranks.Place
	latest *traces.Sampled
	most   map[string]float64 // of counters, by name and labels: estimates may shrink
}

// newSampleMetrics begins to give metrics.
func newSampleMetrics(e *cli.Env, h *traces.Header, to *prom.Target, names bool) *sampleMetrics {
	m := &sampleMetrics{header: h, names: names, to: to, notice: e.Notice, stop: make(chan struct{}), of: make(map[int]*sampledProcess)}
	m.ended.Go(func() {
		clock := time.NewTicker(sampleEvery)
		defer clock.Stop()
		for {
			m.put(time.Now())
			select {
			case <-m.stop:
				return
			case <-clock.C:
			}
		}
	})
	return m
}

// Event implements record.Sink.
func (m *sampleMetrics) Event(ev *traces.Event) {
	if ev.Kind != traces.KindSampled {
		return
	}
	r := ev.Sampled()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.of[int(ev.PID)]
	switch {
	case r == nil, p == nil && len(m.of) >= maxSampledProcesses:
		return
	case p == nil:
		p = &sampledProcess{place: ranks.Of(ranks.Pick(proc.Environ(int(ev.PID)))), most: make(map[string]float64)}
		m.of[int(ev.PID)] = p
	}
	p.latest = r
}

// Idle implements record.Sink.
func (m *sampleMetrics) Idle() {}

// end gives what was found last.
func (m *sampleMetrics) end() {
	close(m.stop)
	m.ended.Wait()
	m.put(time.Now())
	_ = m.to.Close()
}

func (m *sampleMetrics) put(now time.Time) {
	if err := m.to.Put(m.measure(now).Text()); err != nil {
		m.notice("--prom: %v", err)
	}
}

// measure returns the metrics of all processes.
func (m *sampleMetrics) measure(now time.Time) *prom.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := prom.NewMetrics("hostname", m.header.Host)
	t.Begin("nvtrace_run_info", "A process that nvtrace looks at; always 1.")
	pids := view.SortedKeys(m.of)
	for _, pid := range pids {
		t.Value(1, m.of[pid].labels(pid, "version", m.header.Tool, "driver", m.header.Driver)...)
	}
	t.One("nvtrace_run_start_timestamp_seconds", "When looking began.", float64(m.header.Start/1e6)/1e3)
	t.One("nvtrace_run_timestamp_seconds", "When these metrics were made.", float64(now.UnixMilli())/1e3)
	if len(pids) == 0 {
		return t
	}
	each := func(name, help string, values func(p *sampledProcess, value func(v float64, labels ...string))) {
		t.Begin(name, help)
		for _, pid := range pids {
			p := m.of[pid]
			values(p, func(v float64, labels ...string) {
				if strings.HasSuffix(name, "_total") {
					k := name + strings.Join(labels, ",")
					v = max(v, p.most[k])
					p.most[k] = v
				}
				t.Value(v, p.labels(pid, labels...)...)
			})
		}
		if last := len(t.List) - 1; len(t.List[last].Values) == 0 {
			t.List = t.List[:last]
		}
	}
	each("nvtrace_sample_looks_total", "Looks at a process's channels.", func(p *sampledProcess, value func(float64, ...string)) {
		value(float64(p.latest.Looks))
	})
	each("nvtrace_gpu_busy_seconds_total", "Time in which a GPU did at least one thing for a process, by looks.", func(p *sampledProcess, value func(float64, ...string)) {
		for _, d := range p.latest.Devices {
			value(float64(d.Busy)/1e9, m.gpu(d.Device)...)
		}
	})
	each("nvtrace_gpu_submissions_total", "What channels of a process have passed.", func(p *sampledProcess, value func(float64, ...string)) {
		for _, d := range p.latest.Devices {
			done := uint64(0)
			for _, c := range p.latest.Channels {
				if c.Device == d.Device {
					done += c.Done
				}
			}
			value(float64(done), m.gpu(d.Device)...)
		}
	})
	each("nvtrace_gpu_seconds_total", "Time in which GPUs worked, by at what, as far as it was seen; works at a time count each, and kernels from when their names are known.", func(p *sampledProcess, value func(float64, ...string)) {
		for _, d := range p.latest.Devices {
			spent := map[string]int64{}
			for _, w := range p.latest.Works {
				switch {
				case w.Device != d.Device:
				case !w.Kernel:
					spent["copy"] += w.Time
				case !m.names:
					spent["kernel"] += w.Time
				case w.Name == "" || strings.HasPrefix(w.Name, "program "):
					// It counts once it has a name: counters can't give back what they have.
				case strings.HasPrefix(w.Name, "nccl"):
					spent["collective"] += w.Time
				default:
					spent["kernel"] += w.Time
				}
			}
			works := []string{"kernel", "copy", "collective"}
			if !m.names {
				works = works[:2]
			}
			for _, what := range works {
				value(float64(spent[what])/1e9, append(m.gpu(d.Device), "work", what)...)
			}
		}
	})
	each("nvtrace_gpu_memory_used_bytes", "Memory of a GPU that all processes use.", func(p *sampledProcess, value func(float64, ...string)) {
		for _, d := range p.latest.Devices {
			if d.Memory > 0 {
				value(float64(d.MemoryUsed), m.gpu(d.Device)...)
			}
		}
	})
	return t
}

// gpu is the labels of a GPU: its UUID where there is no other that it could be of.
func (m *sampleMetrics) gpu(device int32) []string {
	return []string{"gpu", strconv.Itoa(int(device)), "UUID", m.header.OnlyGPU()}
}

// labels are those of a process, and others.
func (p *sampledProcess) labels(pid int, others ...string) []string {
	return slices.Concat([]string{"pid", strconv.Itoa(pid), "job_id", p.place.Job, "rank", p.place.Label()}, others)
}
