package capture_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/nvattach/capture"
	"nvtrace/ptrace"
	"nvtrace/traces"
)

// programs are the compiled test programs.
type programs struct {
	dir     string // of libcuda.so.1, a driver that logs what it is given
	log     string
	routes  string
	linked  string // linked with the driver
	static  string // "": a static program can't be built here
	tiny    string // a driver that needs no relocations
	self    string // a program that has the driver in itself
	problem string
}

// programDir is the folder of the programs, once there is one.
var programDir atomic.Pointer[string]

var buildOnce = sync.OnceValues(compilePrograms)

// compilePrograms builds them in a folder that TestMain removes.
func compilePrograms() (*programs, error) {
	if _, err := exec.LookPath("gcc"); err != nil {
		return &programs{problem: "no gcc"}, nil
	}
	dir, err := os.MkdirTemp("", "nvtrace-capture-")
	if err != nil {
		return nil, err
	}
	programDir.Store(&dir)
	p := &programs{dir: dir, log: filepath.Join(dir, "log"), routes: filepath.Join(dir, "routes"), linked: filepath.Join(dir, "linked")}
	const src = "../../examples/cuda/routes/"
	lib := filepath.Join(dir, "libcuda.so.1")
	p.tiny, p.self = filepath.Join(dir, "tiny.so"), filepath.Join(dir, "self")
	steps := [][]string{
		{"-shared", "-fPIC", "-nostdlib", "-o", p.tiny, "testdata/tiny.c"},
		{"-shared", "-fPIC", "-Wl,--build-id", "-Wl,-soname,libcuda.so.1", "-DLOG=\"" + p.log + "\"", "-o", lib, "testdata/fakecuda.c"},
		{"-rdynamic", "-fno-inline", "-DSELF", "-DLOG=\"" + p.log + "\"", "-o", p.self, "testdata/fakecuda.c"},
		{"-shared", "-fPIC", "-o", filepath.Join(dir, "libneed.so"), src + "need.c", lib},
		{"-o", p.routes, src + "routes.c", "-ldl", "-lpthread"},
		{"-DLINKED", "-o", p.linked, src + "routes.c", lib, "-ldl", "-lpthread"},
	}
	for _, args := range steps {
		if b, err := exec.Command("gcc", append([]string{"-O1", "-w"}, args...)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("gcc %q: %w\n%s", args, err, b)
		}
	}
	static := filepath.Join(dir, "static")
	if exec.Command("gcc", "-O1", "-w", "-static", "-o", static, src+"routes.c", "-ldl", "-lpthread").Run() == nil {
		p.static = static
	}
	return p, nil
}

func TestMain(m *testing.M) {
	status := m.Run()
	if dir := programDir.Load(); dir != nil {
		os.RemoveAll(*dir)
	}
	os.Exit(status)
}

func needPrograms(t *testing.T) *programs {
	t.Helper()
	p, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	if p.problem != "" {
		need.Missing(t, "gcc", p.problem)
	}
	return p
}

// outcome is what a traced run came to.
type outcome struct {
	status  unix.WaitStatus
	events  []*traces.Event
	stats   capture.Stats
	driver  map[string]int // what the driver logged: SHA-256, how often
	lines   []string       // its log
	elapsed time.Duration
}

// images counts the captured images that a successful loader was given.
func (o *outcome) images() map[string]int {
	got := make(map[string]int)
	for _, ev := range o.events {
		if ev.Kind == traces.KindImage && ev.Ret == 0 && ev.Name != "cuLinkComplete" {
			got[ev.Image.SHA256]++
		}
	}
	return got
}

func (o *outcome) texts(kind traces.Kind) []string {
	var list []string
	for _, ev := range o.events {
		if ev.Kind == kind {
			list = append(list, ev.Text)
		}
	}
	return list
}

// trace runs a program under a Capture alone.
func trace(t *testing.T, p *programs, o *capture.Options, argv ...string) *outcome {
	t.Helper()
	return traceWith(t, p, o, func(*capture.Capture) {}, func(*traces.Event) {}, argv...)
}

// traceWith gives the Capture and each event away, too.
func traceWith(t *testing.T, p *programs, o *capture.Options, made func(*capture.Capture), each func(*traces.Event), argv ...string) *outcome {
	t.Helper()
	_ = os.Remove(p.log)
	out := new(outcome)
	opts := *o
	opts.Emit = func(ev *traces.Event) {
		each(ev)
		out.events = append(out.events, ev.Clone())
	}
	began := time.Now()
	opts.Now = func() int64 { return time.Since(began).Nanoseconds() }
	c := capture.New(&opts, 1)
	defer c.Close()
	made(c)
	env := append(os.Environ(), "LD_LIBRARY_PATH="+p.dir)
	res, err := ptrace.Run(need.Limit(t), &ptrace.Options{Argv: argv, Env: env, Dir: p.dir, Rules: c.Rules(), NoSignals: true}, c)
	if err != nil {
		t.Fatal(err)
	}
	c.Finish()
	out.status, out.stats, out.elapsed = res.Status, c.Stats(), time.Since(began)
	out.driver, out.lines = readLog(t, p.log)
	return out
}

// readLog reads the driver's log.
func readLog(t *testing.T, name string) (map[string]int, []string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	got := make(map[string]int)
	var lines []string
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		lines = append(lines, sc.Text())
		if f := strings.Fields(sc.Text()); f[0] == "load" {
			got[f[2]]++
		}
	}
	return got, lines
}

const ptxText = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n"

// TestRoutes: whatever way the program takes to the driver, what the driver is
// given is what was captured, and each launch has its image.
func TestRoutes(t *testing.T) {
	p := needPrograms(t)
	file := filepath.Join(p.dir, "image.ptx")
	if err := os.WriteFile(file, []byte(ptxText), 0o666); err != nil {
		t.Fatal(err)
	}
	if p.static == "" {
		t.Log("no static C library: the route of a static executable is not tested")
	}
	tests := routeTests(p, file)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store, err := capture.CreateStore(filepath.Join(t.TempDir(), "run.nvt"), 0)
			if err != nil {
				t.Fatal(err)
			}
			out := trace(t, p, &capture.Options{Store: store, Files: true, Audit: capture.AuditBreakpoints}, test.argv...)
			checkComplete(t, out, store)
			test.check(t, out)
		})
	}
}

// routeTest is a program that takes one route.
type routeTest struct {
	name string
	argv []string
	// What the driver is given, and the launches that have an image, at least.
	loads, kernels int
}

// check holds what came of a route against what should have.
func (r *routeTest) check(t *testing.T, out *outcome) {
	t.Helper()
	n := 0
	for _, k := range out.driver {
		n += k
	}
	if n != r.loads {
		t.Errorf("the driver was given %d images, want %d:\n%s", n, r.loads, strings.Join(out.lines, "\n"))
	}
	kernels := 0
	for _, ev := range out.events {
		if ev.Kind == traces.KindKernel {
			kernels++
			if ev.Name != "nothing" || ev.Image == nil {
				t.Errorf("kernel %q of image %v", ev.Name, ev.Image)
			}
		}
	}
	if kernels < r.kernels {
		t.Errorf("%d launches were traced to an image, want %d", kernels, r.kernels)
	}
}

// routeTests lists the routes; file holds PTX.
func routeTests(p *programs, file string) []routeTest {
	shell := func(argv ...string) []string { return append([]string{"sh", "-c", `"$@"; exit $?`, "sh"}, argv...) }
	tests := []routeTest{
		{"linked", []string{p.linked, "linked"}, 1, 1},
		{"RTLD_NEXT", []string{p.linked, "next"}, 1, 1},
		{"needed by a library", []string{p.routes, "needed"}, 1, 1},
		{"RTLD_DEEPBIND", []string{p.routes, "deepbind"}, 1, 1},
		{"dlsym", []string{p.routes, "dlsym"}, 1, 1},
		{"dlmopen", []string{p.routes, "dlmopen"}, 1, 1},
		{"cuGetProcAddress_v2", []string{p.routes, "gpa"}, 1, 1},
		{"symbol table by hand", []string{p.routes, "hand"}, 1, 1},
		{"CUDART_INTERFACE[1]", []string{p.routes, "slot1"}, 1, 1},
		{"CUDART_INTERFACE[6]", []string{p.routes, "slot6"}, 1, 1},
		{"CUDART_INTERFACE[8]", []string{p.routes, "slot8"}, 1, 1},
		{"fork, then load", []string{p.routes, "fork"}, 1, 1},
		{"a shell's child", shell(p.routes, "dlsym"), 1, 1},
		{"exec without environment", []string{p.routes, "execscrub"}, 1, 1},
		{"cuModuleLoadDataEx", []string{p.routes, "ex"}, 1, 1},
		{"one loader calls another", []string{p.routes, "fatbin"}, 1, 1},
		{"a wrapper with a list", []string{p.routes, "wrapper2"}, 2, 1},
		{"cuLibraryLoadData", []string{p.routes, "libdata"}, 1, 1},
		{"cuLibraryLoadData of text", []string{p.routes, "libdata", file}, 1, 1},
		{"cuModuleLoad", []string{p.routes, "file", file}, 1, 1},
		{"cuModuleLoad, relative", []string{p.routes, "file", "image.ptx"}, 1, 1},
		{"cuLibraryLoadFromFile", []string{p.routes, "libfile", file}, 1, 1},
		{"cuLinkAddData", []string{p.routes, "link"}, 2, 1},
		{"cuLinkAddFile", []string{p.routes, "link", file}, 2, 1},
		{"handles that mean something else later", []string{p.routes, "many"}, 20, 20},
		{"a driver within the program", []string{p.self}, 1, 1},
		{"cuLaunchKernelEx", []string{p.routes, "launch-ex"}, 1, 1},
		{"cuGraphAddKernelNode_v2", []string{p.routes, "launch-graph"}, 1, 1},
		{"the driver is closed and opened again", []string{p.routes, "reopen"}, 4, 4},
		{"another thread writes the image", []string{p.routes, "race"}, 50, 1},
	}
	if p.static != "" {
		tests = append(tests, tests[4])
		last := &tests[len(tests)-1]
		last.name, last.argv = "static executable", []string{p.static, "dlsym"}
	}
	return tests
}

// checkComplete holds the capture and the driver's own log together.
func checkComplete(t *testing.T, out *outcome, store *capture.Store) {
	t.Helper()
	if !out.status.Exited() || out.status.ExitStatus() != 0 {
		t.Fatalf("the program ended with %#x", out.status)
	}
	if len(out.driver) == 0 {
		t.Fatal("the driver was given nothing: the test is blind")
	}
	if got := out.images(); !maps.Equal(got, out.driver) {
		t.Errorf("captured %v, the driver was given %v", got, out.driver)
	}
	if gaps := out.texts(traces.KindGap); len(gaps) > 0 {
		t.Errorf("gaps: %q", gaps)
	}
	for sum := range out.driver {
		if _, err := readImage(store, sum); err != nil {
			t.Error(err)
		}
	}
}

// TestManyThreads: no load is lost among threads that load at the same time.
func TestManyThreads(t *testing.T) {
	p := needPrograms(t)
	loops := "100"
	if os.Getenv("NVTRACE_LONG") != "" {
		loops = "2000"
	}
	t.Setenv("ROUTES_LOOPS", loops)
	store, err := capture.CreateStore(filepath.Join(t.TempDir(), "run.nvt"), 0)
	if err != nil {
		t.Fatal(err)
	}
	out := trace(t, p, &capture.Options{Store: store}, p.routes, "threads8")
	checkComplete(t, out, store)
	n := 0
	for _, k := range out.images() {
		n += k
	}
	if want := map[string]int{"100": 800, "2000": 16000}[loops]; n != want {
		t.Errorf("%d of %d loads were captured", n, want)
	}
	t.Logf("%d loads in %v", n, out.elapsed)
}

// TestBypass: code that comes in by a way that nobody knows is a gap when it is
// launched.
func TestBypass(t *testing.T) {
	p := needPrograms(t)
	out := trace(t, p, &capture.Options{Audit: capture.AuditBreakpoints}, p.routes, "bypass")
	if len(out.driver) != 1 || len(out.images()) != 0 {
		t.Fatalf("the bypass is none: captured %v of %v", out.images(), out.driver)
	}
	want := "launched the kernel nothing by cuLaunchKernel, of a module that was not captured"
	if gaps := out.texts(traces.KindGap); len(gaps) != 1 || !strings.Contains(gaps[0], want) {
		t.Errorf("gaps: %q, want one with %q", gaps, want)
	}
	if notes := out.texts(traces.KindNote); !slices.ContainsFunc(notes, func(s string) bool {
		return strings.Contains(s, "EEEE0000-0000-0000-0000-000000000000")
	}) {
		t.Errorf("the unknown table was not noted: %q", notes)
	}
}

// TestHostile: images that are none harm nobody, and the program sees what it sees
// untraced.
func TestHostile(t *testing.T) {
	p := needPrograms(t)
	for _, what := range []string{"bad-null", "bad-unmapped", "bad-edge", "bad-size", "bad-list", "missing"} {
		t.Run(what, func(t *testing.T) {
			cmd := exec.Command(p.routes, what)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+p.dir)
			_ = cmd.Run()
			want := cmd.ProcessState.Sys().(interface {
				Exited() bool
				Signaled() bool
			})
			out := trace(t, p, &capture.Options{}, p.routes, what)
			if out.status.Exited() != want.Exited() || out.status.Exited() && out.status.ExitStatus() != cmd.ProcessState.ExitCode() {
				t.Errorf("ended with %#x, untraced with %v", out.status, cmd.ProcessState)
			}
			gaps := out.texts(traces.KindGap)
			// Where the driver crashed on it, nobody knows what it had read.
			if out.status.Signaled() != (len(gaps) > 0) {
				t.Errorf("gaps: %q", gaps)
			}
		})
	}
}
