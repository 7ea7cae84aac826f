package gpu_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	ioctls "nvtrace/ioctl/record"
	"nvtrace/nvattach"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// sync buffer
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// result of a program that ran with probes on the simulated GPU, to which they get
// as on a real one: by its driver in the program.
type result struct {
	stdout, shown string
	reports       []string
	status        unix.WaitStatus
	refused       error
	replaced      uint64
	err           error
}

// launchedNames counts launches by what the calls that were recorded say of the kernels.
type launchedNames struct {
	tracker *api.Tracker
	of      map[string]int
}

// Event implements record.Sink.
func (l *launchedNames) Event(ev *traces.Event) {
	f := l.tracker.Add(ev)
	if ev.Kind != traces.KindCall || f == nil {
		return
	}
	if name, _, ok := f.Launch(ev, &l.tracker.Names); ok {
		l.of[name]++
	}
}

// Idle implements record.Sink.
func (l *launchedNames) Idle() {}

type setup struct {
	objects  []string
	interval time.Duration
	required bool
	kernels  []string
	verify   int
	within   bool           // compare with copies in the module
	exits    bool           // programs may end threads
	names    *launchedNames // of the kernels that the program launches; nil: they are not asked for
	later    bool           // kernels get programs when they are looked up
	model    sim.GPU        // the zero value is the default
	keep     time.Duration
	until    func(s gpu.Stats, shown string) bool // the program is killed then; nil: never
}

func build(t *testing.T) string { return buildFrom(t, "modes") }

func buildFrom(t *testing.T, name string) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("calls of functions need amd64")
	}
	out := filepath.Join(t.TempDir(), name)
	if text, err := exec.Command("gcc", "-O1", "-w", "-o", out, "testdata/"+name+".c", "-ldl", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

func run(t *testing.T, s *setup, argv ...string) *result {
	t.Helper()
	var objs []*object.Object
	for _, name := range s.objects {
		o, err := object.Open(filepath.Join("..", "testdata", "obj", name+".bpf.o"))
		if err != nil {
			t.Fatal(err)
		}
		objs = append(objs, o)
	}
	plan, err := nvattach.NewPlan(objs, &nvattach.PlanOptions{Kernels: s.kernels, AllowExit: s.exits})
	if err != nil {
		t.Fatal(err)
	}
	sm, err := sim.New(&sim.Options{GPU: s.model})
	if err != nil {
		t.Fatal(err)
	}
	defer sm.Close()
	go sm.Serve(context.Background()) //nolint:errcheck // ended by Close
	shown := new(output)
	ses := session.New(&session.Options{Plan: plan, Out: shown, Format: session.FormatJSON, Interval: s.interval, Required: s.required, Verify: s.verify, Within: s.within})
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	res := new(result)
	var mu sync.Mutex
	tr := gpu.New(&gpu.Options{
		Session: ses, JIT: &jit.Options{Cache: "off"}, KeepEvery: cmp.Or(s.keep, time.Hour),
		Refuse: func(err error) {
			mu.Lock()
			res.refused = err
			mu.Unlock()
			cancel(err)
		},
		Report: func(text string) {
			mu.Lock()
			res.reports = append(res.reports, text)
			mu.Unlock()
		},
	}, record.ExtensionClass)
	stdout, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	var loads *capture.Capture
	o := &record.Options{Ptrace: ptrace.Options{Argv: argv, Env: sm.Env(os.Environ()), Stdout: stdout, NoSignals: true}}
	o.Extend = func(r *record.Recorder) ([]record.Extension, error) {
		loads = capture.New(&capture.Options{Emit: r.Emit, Now: r.Now, Replace: tr.Replace, Refused: tr.Refused, Mapped: tr.Mapped}, record.ExtensionClass)
		list := []record.Extension{ioctls.New(r, nil).Extension(), {Rules: tr.Rules(), Handler: tr}, {Rules: loads.Rules(), Handler: loads, Finish: loads.Finish}}
		if s.names != nil {
			driver, err := api.ParseSelection("driver")
			if err != nil {
				return nil, err
			}
			hooked := calls.New(&calls.Options{Libraries: driver, Agent: r.Agent()}, record.ExtensionClass)
			list = append(list, record.Extension{Rules: hooked.Rules(), Handler: hooked})
		}
		return list, nil
	}
	if s.names != nil {
		o.Sinks = []record.Sink{s.names}
	}
	if s.until != nil {
		go func() {
			for ctx.Err() == nil && !s.until(tr.Stats(), shown.String()) {
				time.Sleep(time.Millisecond)
			}
			cancel(nil)
		}()
	}
	defer context.AfterFunc(need.Limit(t), func() { cancel(context.DeadlineExceeded) })()
	r, err := record.Run(ctx, o)
	res.err = err
	if r.Result != nil {
		res.status = r.Status
	}
	tr.Close()
	loads.Close()
	res.replaced = loads.Stats().Replaced
	if st := tr.Stats(); !s.later && uint64(st.Images) != res.replaced || res.replaced > 0 && st.DriverCalls < 10 || st.Cached != 0 {
		t.Errorf("%d replaced, %+v", res.replaced, st)
	}
	if err := ses.Close(); err != nil {
		t.Errorf("session: %v", err)
	}
	text, err := os.ReadFile(stdout.Name())
	if err != nil {
		t.Fatal(err)
	}
	res.stdout, res.shown = string(text), objects(t, shown.String())
	return res
}

// objects returns the objects of a JSON array, a line each.
func objects(t *testing.T, document string) string {
	t.Helper()
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(document), &list); err != nil && document != "" {
		t.Errorf("%v in\n%s", err, document)
	}
	var b strings.Builder
	for _, o := range list {
		b.Write(append(o, '\n'))
	}
	return b.String()
}

// last returns the values of the map "threads" as they were shown last, summed up
// over the contexts.
func (r *result) entries(t *testing.T, last bool) (entries, exits uint64) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(r.shown))
	for {
		var o struct {
			Map     string
			Time    string
			Entries []struct{ Key, Value uint64 }
		}
		if err := dec.Decode(&o); err != nil {
			break
		}
		if o.Time != "" && last {
			entries, exits = 0, 0
		}
		if o.Map != "threads" {
			continue
		}
		for _, e := range o.Entries {
			if e.Key == 0 {
				entries += e.Value
			} else {
				exits += e.Value
			}
		}
	}
	return entries, exits
}

// aged matches what is said of maps that were not read at the end.
var aged = regexp.MustCompile(`the maps of process \d+, device 0, are those of (\d+ ms|\d+\.\d s|\d+ s) before its end: `)

func TestModes(t *testing.T) {
	t.Parallel()
	prog := build(t)
	const block = 8 * 128
	for _, c := range []struct {
		mode    string
		threads uint64
		code    int
		killed  bool
		lost    bool
		aged    bool
	}{
		{mode: "return", threads: block},
		{mode: "exit", threads: block, code: 4},
		{mode: "_exit", threads: block, code: 5},
		{mode: "thread", threads: block, code: 3},
		{mode: "exec", threads: block},
		{mode: "destroyed", threads: 2 * block},
		{mode: "fork", threads: 2 * block},
		{mode: "signals", threads: block},
		{mode: "threads", threads: 2 * block},
		{mode: "killed", killed: true, lost: true},
		// What is done when exit was reached: the driver has ended before, or not yet.
		{mode: "late release", threads: block},
		{mode: "late launches", threads: 3 * block},
		{mode: "unwaited", threads: block + 2000*128},
		{mode: "release", threads: block},
		{mode: "reset", threads: block},
		{mode: "reset, killed", threads: block, killed: true, aged: true}, // its maps are the device's: they were read at the reset, and could have changed
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			r := run(t, &setup{objects: []string{"example_count"}}, prog, c.mode)
			if r.err != nil || r.stdout != "PASSED\n" {
				t.Fatalf("error %v, stdout %q, shown:\n%s", r.err, r.stdout, r.shown)
			}
			if c.killed != r.status.Signaled() || !c.killed && r.status.ExitStatus() != c.code {
				t.Errorf("status %#x, want %d", r.status, c.code)
			}
			if in, out := r.entries(t, false); in != c.threads || out != c.threads {
				t.Errorf("%d entries, %d exits, want %d\n%s", in, out, c.threads, r.shown)
			}
			if lost := strings.Contains(r.shown, "are lost: the process was killed by SIGKILL"); lost != c.lost {
				t.Errorf("lost: %v, want %v\n%s", lost, c.lost, r.shown)
			}
			if aged := aged.MatchString(r.shown); aged != c.aged {
				t.Errorf("of an earlier moment: %v, want %v\n%s", aged, c.aged, r.shown)
			}
			if len(r.reports) > 0 {
				t.Errorf("reports: %q", r.reports)
			}
			if r.replaced == 0 {
				t.Error("nothing was replaced")
			}
		})
	}
}

// Where a process is killed, what was shown at intervals remains.
func TestLive(t *testing.T) {
	t.Parallel()
	const times, lines = 3, 50
	enough := func(_ gpu.Stats, shown string) bool {
		return strings.Count(shown, `"time":`) >= times && strings.Count(shown, "starts on SM") >= lines
	}
	r := run(t, &setup{objects: []string{"example_count", "example_trace"}, interval: 50 * time.Millisecond, until: enough}, build(t), "endless")
	if r.stdout != "PASSED\n" || !r.status.Signaled() {
		t.Fatalf("status %#x, error %v, stdout %q", r.status, r.err, r.stdout)
	}
	if n := strings.Count(r.shown, `"time":`); n < times {
		t.Errorf("shown %d times, want several\n%s", n, r.shown)
	}
	in, out := r.entries(t, true)
	if in < 8*128 || in%128 != 0 || out > in {
		t.Errorf("%d entries, %d exits", in, out)
	}
	if n := strings.Count(r.shown, "starts on SM"); n < lines {
		t.Errorf("%d lines were printed by the probe", n)
	}
}

// TestKept: of a program that is killed, what its maps held a while before is shown, with
// its age.
func TestKept(t *testing.T) {
	t.Parallel()
	r := run(t, &setup{objects: []string{"example_count"}, keep: time.Millisecond, until: func(s gpu.Stats, _ string) bool { return s.Kept >= 3 }}, build(t), "endless")
	if r.stdout != "PASSED\n" || !r.status.Signaled() {
		t.Fatalf("status %#x, error %v, stdout %q", r.status, r.err, r.stdout)
	}
	if in, out := r.entries(t, false); in < 8*128 || in%128 != 0 || out > in {
		t.Errorf("%d entries, %d exits", in, out)
	}
	if !aged.MatchString(r.shown) || !strings.Contains(r.shown, "before its end: the process was killed by SIGKILL") {
		t.Errorf("shown:\n%s", r.shown)
	}
}

// compilerLibrary makes a compiler library that programs' drivers seem to have.
func compilerLibrary(t *testing.T, flags ...string) {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{"-w", "-shared", "-fPIC", "-o", filepath.Join(dir, jit.LibraryName), "testdata/jit.c"}, flags...)
	if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
}

// What the compiler library makes is loaded.
func TestCompiled(t *testing.T) {
	prog := build(t)
	compilerLibrary(t)
	r := run(t, &setup{objects: []string{"example_count"}}, prog, "return")
	if in, out := r.entries(t, false); in != 1024 || out != 1024 || r.stdout != "PASSED\n" || strings.Contains(r.shown, "compiling:") {
		t.Errorf("%d entries, %d exits, stdout %q\n%s", in, out, r.stdout, r.shown)
	}
}

// Where the driver refuses it, the program runs with the original, and that is
// told, or ends before it can launch anything, if that is wanted.
func TestRefused(t *testing.T) {
	prog := build(t)
	compilerLibrary(t, "-DREFUSED")
	r := run(t, &setup{objects: []string{"example_count"}}, prog, "return")
	if in, _ := r.entries(t, false); in != 0 || r.stdout != "PASSED\n" || r.replaced == 0 {
		t.Errorf("%d entries, stdout %q, replaced %d", in, r.stdout, r.replaced)
	}
	if !strings.Contains(r.shown, `"images":0`) || !strings.Contains(r.shown, `"unprobed":"the driver refuses the rewritten image with CUDA error 200"`) {
		t.Errorf("shown:\n%s", r.shown)
	}
	r = run(t, &setup{objects: []string{"example_count"}, required: true}, prog, "return")
	if r.refused == nil || !strings.Contains(r.refused.Error(), "can't be probed: the driver refuses") || r.stdout != "" || !r.status.Signaled() {
		t.Errorf("refused: %v, stdout %q, status %#x", r.refused, r.stdout, r.status)
	}
}

// A kernel that can't be probed ends the run before it is launched, if that is
// wanted.
func TestRequired(t *testing.T) {
	t.Parallel()
	prog := build(t)
	r := run(t, &setup{objects: []string{"example_count"}, required: true}, prog, "return")
	if r.refused != nil || r.stdout != "PASSED\n" {
		t.Errorf("refused: %v, stdout %q", r.refused, r.stdout)
	}
}
