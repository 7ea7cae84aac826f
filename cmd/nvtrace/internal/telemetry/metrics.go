package telemetry

import (
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/prom"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// Metrics counts what a run does, for Prometheus and OpenTelemetry. It is an observer. The number of series does not depend on the program.
type Metrics struct {
	header  *traces.Header
	place   ranks.Place
	process *nccl.Process
	meter   *view.Meter
	last    int64 // time of the latest event
	seen    seen

	ioctls          [2]uint64 // that succeeded, that failed
	ioctlTime       int64
	calls, failed   uint64
	work            [3]worked // by workNames
	copied          uint64
	collectives     uint64
	collectiveTime  int64
	collectiveBytes uint64
	lost            int64
	exited          bool

	// Took, if not nil, gets each operation of NCCL's that is over.
	Took func(*nccl.Done)
}

// seen is what was recorded of a kind at all: what was not has no metrics.
type seen struct{ ioctls, calls, gpu, nccl bool }

type worked struct {
	n    uint64
	time int64
}

// workNames are what GPUs do.
var workNames = [3]string{"kernel", "copy", "collective"}

// NewMetrics has the sink count for who asks.
func NewMetrics(s *view.Sink, h *traces.Header) *Metrics {
	if s.Meter == nil {
		s.Count()
	}
	m := &Metrics{header: h, place: ranks.Of(h.Rank), process: nccl.NewProcess(), meter: s.Meter}
	s.Follow()
	s.Show(m)
	return m
}

// Observe implements observe.Observer.
func (m *Metrics) Observe(e *observe.Event) {
	ev := e.Event
	m.process.Observe(ev, e.Frame, e.Tracker)
	if ev.Kind != traces.KindEnd {
		m.last = max(m.last, ev.Time)
	}
	switch ev.Kind {
	case traces.KindIoctl:
		m.seen.ioctls = true
		failed := 0
		if e.Call.Failed() {
			failed = 1
		}
		m.ioctls[failed]++
		m.ioctlTime += max(ev.Dur, 0)
	case traces.KindCall:
		m.seen.calls = true
		m.calls++
		if e.Frame != nil && e.Frame.Module.Library == api.NCCL {
			m.seen.nccl = true
		}
	case traces.KindReturn:
		if e.Call.Returned.Known && e.Call.Returned.Failed {
			m.failed++
		}
	case traces.KindGPU:
		if ev.Flags&traces.FlagUnfinished != 0 {
			break
		}
		m.seen.gpu = true
		w, kind := ev.Work(), 0
		switch name, kernel := e.Tracker.Describe(ev); {
		case !kernel:
			kind = 1
			m.copied += w.Subject
		case strings.HasPrefix(name, "nccl"):
			kind = 2
		}
		m.work[kind].n++
		m.work[kind].time += w.Dur
	case traces.KindLost:
		m.lost += ev.Ret
	case traces.KindExit:
		m.exited = m.exited || ev.PID == m.header.PID && ev.TID == ev.PID
	}
}

// Measure returns the metrics at a time of day.
func (m *Metrics) Measure(now time.Time) *prom.Metrics {
	list := m.process.Take(false)
	for i := range list {
		o := &list[i]
		if m.Took != nil {
			m.Took(o)
		}
		m.collectives++
		if m.collectiveBytes += o.Bytes(); !o.Repeated {
			m.collectiveTime += max(o.Dur, 0)
		}
	}
	t := prom.NewMetrics("job_id", m.place.Job, "rank", m.place.Label(), "hostname", m.header.Host, "UUID", m.header.OnlyGPU(), "pid", strconv.Itoa(int(m.header.PID)))
	t.Begin("nvtrace_run_info", "A program that nvtrace traces; always 1.")
	t.Value(1, "version", m.header.Tool, "driver", m.header.Driver)
	t.One("nvtrace_run_start_timestamp_seconds", "When tracing began.", float64(m.header.Start/1e6)/1e3)
	t.One("nvtrace_run_last_event_timestamp_seconds", "When the latest event was recorded.", float64((m.header.Start+m.last)/1e6)/1e3)
	t.One("nvtrace_run_timestamp_seconds", "When these metrics were written.", float64(now.UnixMilli())/1e3)
	t.One("nvtrace_lost_events_total", "Events that were not recorded.", float64(m.lost))
	if m.seen.ioctls {
		t.Begin("nvtrace_ioctls_total", "Device calls that are ioctls, by whether they failed.")
		t.Value(float64(m.ioctls[0]), "failed", "false")
		t.Value(float64(m.ioctls[1]), "failed", "true")
		t.One("nvtrace_ioctl_seconds_total", "Time that threads spent in them.", float64(m.ioctlTime)/1e9)
	}
	if m.seen.calls {
		t.One("nvtrace_api_calls_total", "Calls of CUDA's libraries that were recorded.", float64(m.calls))
		t.One("nvtrace_api_failures_total", "Those that failed.", float64(m.failed))
		t.One("nvtrace_kernel_launches_total", "Launches of kernels and graphs.", float64(m.meter.All.Launches))
		held := uint64(0)
		for _, n := range m.meter.Held {
			held += n
		}
		t.One("nvtrace_gpu_memory_allocated_bytes", "Memory of GPUs that recorded calls have allocated and not freed.", float64(held))
	}
	if m.seen.gpu {
		t.Begin("nvtrace_gpu_seconds_total", "Time in which GPUs worked, by at what; works at a time count each.")
		for i, w := range m.work {
			t.Value(float64(w.time)/1e9, "work", workNames[i])
		}
		t.Begin("nvtrace_gpu_works_total", "Kernels, copies and sets that GPUs were through with.")
		for i, w := range m.work {
			t.Value(float64(w.n), "work", workNames[i])
		}
		t.One("nvtrace_gpu_copied_bytes_total", "What they copied and set.", float64(m.copied))
	}
	if m.seen.nccl {
		open := int64(0)
		for _, p := range m.process.Progress() {
			if p.First > 0 && !m.exited {
				open = max(open, now.UnixNano()-m.header.Start-p.Since)
			}
		}
		t.One("nvtrace_collectives_total", "Operations of NCCL's that are over.", float64(m.collectives))
		t.One("nvtrace_collective_bytes_total", "What the rank gave to them, or got from them where it gave nothing.", float64(m.collectiveBytes))
		t.One("nvtrace_collective_open_seconds", "For how long the oldest collective that is not over has lasted; 0: none is open.", float64(open)/1e9)
		if m.process.GPU {
			t.One("nvtrace_collective_seconds_total", "Time that the rank was in them, waiting included.", float64(m.collectiveTime)/1e9)
		}
	}
	return t
}

// PromOffset is what is added to a port, so that each rank of a host has its own.
func PromOffset(h *traces.Header) int { return max(ranks.Of(h.Rank).Local, 0) }
