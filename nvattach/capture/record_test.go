package capture_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nvtrace/internal/need"
	ioctls "nvtrace/ioctl/record"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/nvattach/capture"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// sink keeps the events of a recording.
type sink struct {
	mu     sync.Mutex
	events []*traces.Event
}

func (s *sink) Event(ev *traces.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, ev.Clone())
}

func (s *sink) Idle() {}

// traceRecorded runs a program under the recorder with a Capture as an extension,
// as nvtrace does.
func traceRecorded(t *testing.T, p *programs, o *capture.Options, argv ...string) *outcome {
	t.Helper()
	_ = os.Remove(p.log)
	events := new(sink)
	var c *capture.Capture
	began := time.Now()
	res, err := record.Run(need.Limit(t), &record.Options{
		Ptrace: ptrace.Options{Argv: argv, Env: append(os.Environ(), "LD_LIBRARY_PATH="+p.dir), Dir: p.dir, NoSignals: true},
		Sinks:  []record.Sink{events},
		Extend: func(r *record.Recorder) ([]record.Extension, error) {
			opts := *o
			opts.Emit, opts.Now, opts.Agent, opts.Flush = r.Emit, r.Now, r.Agent(), r.Flush
			c = capture.New(&opts, record.ExtensionClass)
			list := []record.Extension{ioctls.New(r, nil).Extension(), {Rules: c.Rules(), Handler: c, Finish: c.Finish}}
			if opts.LookupsShared {
				others := calls.New(&calls.Options{
					Libraries: api.Selection(0).With(api.Driver), Agent: r.Agent(), Launched: c.LaunchRecord,
					Report: func(text string) { t.Error(text) },
				}, record.ExtensionClass)
				list = append(list, record.Extension{Rules: others.Rules(), Handler: others})
			}
			return list, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	out := &outcome{status: res.Status, events: events.events, stats: c.Stats(), elapsed: time.Since(began)}
	out.driver, out.lines = readLog(t, p.log)
	return out
}

// TestRoutesHooked takes all routes beside the recorder, with launches that are
// seen by code in the program.
func TestRoutesHooked(t *testing.T) {
	p := needPrograms(t)
	file := filepath.Join(p.dir, "hooked.ptx")
	if err := os.WriteFile(file, []byte(ptxText), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "image.ptx"), []byte(ptxText), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, test := range routeTests(p, file) {
		t.Run(test.name, func(t *testing.T) {
			store, err := capture.CreateStore(filepath.Join(t.TempDir(), "run.nvt"), 0)
			if err != nil {
				t.Fatal(err)
			}
			out := traceRecorded(t, p, &capture.Options{Store: store, Files: true, Audit: capture.AuditHooks}, test.argv...)
			checkComplete(t, out, store)
			test.check(t, out)
			last := out.events[len(out.events)-1]
			if last.Kind != traces.KindEnd {
				t.Errorf("the recording ends with %v", last.Kind)
			}
			i := slices.IndexFunc(out.events, func(ev *traces.Event) bool { return ev.Kind == traces.KindCaptured })
			if i < 0 || !out.events[i].Captured.Complete() {
				t.Error("nothing says that capturing came to its end, and that all was captured")
			}
		})
	}
}

// TestBypassHooked: the audit by hooks finds the planted bypass.
func TestBypassHooked(t *testing.T) {
	p := needPrograms(t)
	out := traceRecorded(t, p, &capture.Options{Audit: capture.AuditHooks}, p.routes, "bypass")
	want := "launched the kernel nothing by cuLaunchKernel, of a module that was not captured"
	if gaps := out.texts(traces.KindGap); len(gaps) != 1 || !strings.Contains(gaps[0], want) {
		t.Errorf("gaps: %q, want one with %q", gaps, want)
	}
}

// TestLaunchRecord takes launches from records of hooks that are somebody else's.
func TestLaunchRecord(t *testing.T) {
	p := needPrograms(t)
	var c *capture.Capture
	pid := 0
	o := capture.Options{Audit: capture.AuditHooks, LaunchesShared: true, Settle: func() {
		for _, h := range []*agent.Hook{{Name: "cuLaunchKernelEx"}, {Name: "cuMemAlloc_v2"}, nil} {
			r := &agent.Record{Kind: agent.KindCall, PID: pid, TID: pid, Hook: h}
			r.Args[1] = 0x1234 // the kernel
			c.LaunchRecord(r)
		}
	}}
	out := traceWith(t, p, &o, func(made *capture.Capture) { c = made }, func(ev *traces.Event) {
		if ev.PID != 0 {
			pid = int(ev.PID)
		}
	}, p.routes, "dlsym")
	if gaps := out.texts(traces.KindGap); len(gaps) != 1 || !strings.Contains(gaps[0], "by cuLaunchKernelEx, with handle 0x1234") {
		t.Errorf("gaps: %q", gaps)
	}
}
