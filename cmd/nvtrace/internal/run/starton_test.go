package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// TestStartOn: what a recording of calls can begin with.
func TestStartOn(t *testing.T) {
	begin := time.Date(2026, 3, 4, 10, 20, 33, 5e8, time.UTC)
	for _, c := range []struct {
		text  string
		call  bool
		after time.Duration
		bad   string
	}{
		{text: "NVTX:a:b", call: true},
		{text: "cudaProfilerStart", call: true},
		{text: "step:550", call: true},
		{text: "/10s", after: 6500 * time.Millisecond},
		{text: "/1m", after: 26500 * time.Millisecond},
		{text: "file:/tmp/go"},
		{text: "signal:USR2"},
		{text: "@2126-03-04T10:20:43Z", after: 100*365*24*time.Hour + 24*24*time.Hour + 9500*time.Millisecond},
		{text: "NVTX:", bad: "want NVTX:NAME"},
		{text: "step:x", bad: "number of a step"},
		{text: "/0s", bad: "/10s"},
		{text: "/x", bad: "invalid duration"},
		{text: "@12", bad: "has passed"},
		{text: "@noon", bad: "want @15:04:05"},
		{text: "signal:KILL", bad: "want signal:USR1"},
		{text: "run", bad: "want NVTX:NAME"},
	} {
		var f startFlag
		err := f.Set(c.text)
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%s: %v, want %q", c.text, err, c.bad)
			}
			continue
		}
		if err != nil || f.call() != c.call || f.after(begin) != c.after {
			t.Errorf("%s: %v, call %v, after %v, want %v, %v", c.text, err, f.call(), f.after(begin), c.call, c.after)
		}
	}
	now := time.Date(2026, 3, 4, 10, 20, 0, 0, time.Local)
	if at, err := parseMoment("10:21:05", now); err != nil || at.Sub(now) != 65*time.Second {
		t.Error(at, err)
	}
}

// TestStep: ranges that name a step.
func TestStep(t *testing.T) {
	for _, c := range []struct {
		names string // the last one is the step
		n     string
	}{
		{"step 1,step 21,step 2", "2"},
		{"ProfilerStep#3,ProfilerStep#30", "30"},
		{"load,Iteration_007", "7"},
		{"iter=4 (warm-up)", "4"},
		{"step,forward,step,step", "3"},
		{"train_step,train_step", "2"},
		{"2 steps,stepper 3,step:0", "0"},
	} {
		var f startFlag
		if err := f.Set("step:" + c.n); err != nil {
			t.Fatal(err)
		}
		names := strings.Split(c.names, ",")
		for i, name := range names {
			if got := f.named([]byte(name)); got != (i == len(names)-1) {
				t.Errorf("step %s: %q: %v", c.n, name, got)
			}
		}
	}
}

// TestStartFile: a file that comes begins the recording.
func TestStartFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "go")
	f, recorder := startFlag{file: name}, (*record.Recorder)(nil)
	o := record.Options{Ptrace: ptrace.Options{Argv: []string{"x"}}, Await: true, Extend: func(r *record.Recorder) ([]record.Extension, error) {
		recorder = r
		return nil, nil
	}}
	if _, err := record.Handler(&o, func(*traces.Event) {}); err != nil {
		t.Fatal(err)
	}
	if f.begins(recorder) {
		t.Fatal("there is no file yet")
	}
	ended := make(chan struct{})
	go func() { f.await(recorder); close(ended) }()
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the file is not seen")
	}
}
