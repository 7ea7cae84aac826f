package gpu_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nvtrace/fatbin"
	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
	ioctls "nvtrace/ioctl/record"
	"nvtrace/nvattach"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
	"nvtrace/traces/record"
)

// running is a program that launches kernels while it is attached to.
type running struct {
	t    *testing.T
	hold time.Duration // gpu.Options.Hold
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said *output
}

// vectorAddPTX is the module of testdata/live.c.
func vectorAddPTX(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/live.ptx")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func startRunning(t *testing.T, text string, args ...string) *running {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("calls of functions need amd64")
	}
	dir := t.TempDir()
	e, err := fatbin.NewEntry(fatbin.KindPTX, fatbin.Arch{SM: 75}, []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	image, bin := filepath.Join(dir, "image.fatbin"), filepath.Join(dir, "live")
	if err := os.WriteFile(image, (&fatbin.Container{Entries: []fatbin.Entry{e}}).Append(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("gcc", "-O1", "-w", "-DFATBIN=\""+image+"\"", "-o", bin, "testdata/live.c", "-ldl", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	sm, err := sim.New(&sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sm.Close() })
	go sm.Serve(context.Background()) //nolint:errcheck // ended by Close
	r := &running{t: t, cmd: exec.Command(bin, args...), said: new(output)}
	r.cmd.Env, r.cmd.Stderr = sm.Env(os.Environ()), r.said
	r.in, r.out = testprog.Start(t, r.cmd)
	if line, err := r.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return r
}

// visited is what came of attaching.
type visited struct {
	kernels        []session.Kernel
	entries, exits uint64
	shown          string
	reports        []string
}

// attach attaches to the program until enough has come of it.
func (r *running) attach(enough func(tr *gpu.Tracer, kernels []session.Kernel) bool, others ...*running) *visited {
	r.t.Helper()
	v := r.attachObject("example_count", enough, others...)
	v.entries, v.exits = (&result{shown: v.shown}).entries(r.t, false)
	return v
}

// attachObject is attach with an object's programs.
func (r *running) attachObject(name string, enough func(tr *gpu.Tracer, kernels []session.Kernel) bool, others ...*running) *visited {
	t := r.t
	t.Helper()
	o, err := object.Open(filepath.Join("..", "testdata", "obj", name+".bpf.o"))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := nvattach.NewPlan([]*object.Object{o}, nil)
	if err != nil {
		t.Fatal(err)
	}
	shown := new(output)
	ses := session.New(&session.Options{Plan: plan, Out: shown, Format: session.FormatJSON})
	v := new(visited)
	var mu sync.Mutex
	tr := gpu.New(&gpu.Options{
		Session: ses, JIT: &jit.Options{Cache: "off"}, Running: true, Hold: r.hold, KeepEvery: time.Hour,
		Report: func(text string) {
			mu.Lock()
			v.reports = append(v.reports, text)
			mu.Unlock()
		},
	}, record.ExtensionClass)
	ro := &record.Options{Ptrace: ptrace.Options{NoSignals: true, Leave: tr.Leave}}
	for _, o := range others {
		ro.Ptrace.Others = append(ro.Ptrace.Others, o.cmd.Process.Pid)
	}
	var g *agent.Programs
	ro.Extend = func(rec *record.Recorder) ([]record.Extension, error) {
		var err error
		if g, err = agent.NewPrograms(mapmem.HostBase, gpu.LiveMemory, nil); err != nil {
			return nil, err
		}
		if err := g.SetTexts(new(agent.MapLayout)); err != nil {
			return nil, err
		}
		rec.Agent().SetPrograms(g)
		tr.Live(rec.Agent(), g.Data(), mapmem.HostBase)
		loads := capture.New(&capture.Options{Replace: tr.Collect}, record.ExtensionClass)
		return []record.Extension{
			ioctls.New(rec, nil).Extension(),
			{Rules: tr.Rules(), Handler: tr},
			{Rules: loads.Rules(), Handler: loads, Finish: loads.Finish},
		}, nil
	}
	ctx, cancel := context.WithCancel(need.Limit(t))
	var look sync.WaitGroup
	look.Go(func() {
		defer cancel()
		for ctx.Err() == nil && !enough(tr, ses.Kernels()) {
			time.Sleep(time.Millisecond)
		}
	})
	if _, err := record.Attach(ctx, r.cmd.Process.Pid, ro); err != nil {
		t.Errorf("attach: %v", err)
	}
	cancel()
	look.Wait()
	tr.Close()
	g.Close()
	if err := ses.Close(); err != nil {
		t.Errorf("session: %v", err)
	}
	v.kernels, v.shown = ses.Kernels(), objects(t, shown.String())
	return v
}

// end has the program end, and says how often it has launched.
func (r *running) end() (launches uint64) {
	r.t.Helper()
	r.in.Close()
	line, err := r.out.ReadString('\n')
	if _, serr := fmt.Sscanf(line, "%d launches", &launches); serr != nil {
		rest, _ := io.ReadAll(r.out)
		r.t.Fatalf("%q%q, %v; %s", line, rest, err, r.said)
	}
	if err := r.cmd.Wait(); err != nil {
		r.t.Errorf("%v; %s", err, r.said)
	}
	return launches
}

// probed reports whether a launch has gone on with programs.
func probed(tr *gpu.Tracer, _ []session.Kernel) bool {
	_, n := tr.Redirected()
	return n > 0
}

// TestRunning: programs get into kernels of a program that runs, count all threads of the
// launches that they are in, and leave no trace.
func TestRunning(t *testing.T) {
	for _, mode := range []string{"", "library", "threads", "graph", "cooperative", "patched"} {
		t.Run("mode "+mode, func(t *testing.T) {
			r := startRunning(t, vectorAddPTX(t), mode)
			var with uint64
			for range 3 {
				v := r.attach(probed)
				v.reports = slices.DeleteFunc(v.reports, func(r string) bool {
					return mode == "graph" && strings.Contains(r, " graphs, ") || mode == "patched" && strings.Contains(r, "cuLaunchCooperativeKernel")
				})
				if len(v.kernels) != 1 || v.kernels[0].Images != 1 || v.kernels[0].Reason != "" || len(v.reports) > 0 {
					t.Fatalf("%+v\n%q\n%s", v.kernels, v.reports, v.shown)
				}
				k := &v.kernels[0]
				n := k.Launches - uint64(k.Unprobed)
				if n == 0 || v.entries != n*8*128 || v.exits != v.entries {
					t.Errorf("%d entries, %d exits in %d launches of %d\n%s", v.entries, v.exits, n, k.Launches, v.shown)
				}
				with += n
			}
			if all := r.end(); all <= with && !strings.Contains(mode, "graph") {
				t.Errorf("%d launches of %d had programs", with, all)
			}
		})
	}
}

// TestRunningSlowly: where threads may hardly be held, programs get into kernels a piece at a time, and out again.
func TestRunningSlowly(t *testing.T) {
	for _, mode := range []string{"library", "threads"} {
		r := startRunning(t, vectorAddPTX(t), mode)
		r.hold = time.Nanosecond
		v := r.attach(probed)
		if len(v.kernels) != 1 || v.kernels[0].Images != 1 || len(v.reports) > 0 {
			t.Fatalf("%+v\n%q\n%s", v.kernels, v.reports, v.shown)
		}
		if n := v.kernels[0].Launches - uint64(v.kernels[0].Unprobed); n == 0 || v.entries != n*8*128 {
			t.Errorf("%d entries in %d launches\n%s", v.entries, n, v.shown)
		}
		r.end()
	}
}

// TestRunningAgain: a program is attached to again and again, and computes the same; what was
// put into it is taken out each time.
func TestRunningAgain(t *testing.T) {
	r := startRunning(t, vectorAddPTX(t), "threads")
	cycles := 10
	if need.Required("live") {
		cycles = 100
	}
	var mapped []int
	for range cycles {
		v := r.attach(probed)
		if n := v.kernels[0].Launches - uint64(v.kernels[0].Unprobed); n == 0 || v.entries != n*8*128 || len(v.reports) > 0 {
			t.Fatalf("%d entries in %d launches, %q\n%s", v.entries, n, v.reports, v.shown)
		}
		list, err := proc.Maps(r.cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		mapped = append(mapped, len(list))
	}
	// The first attaching leaves code of the agent's and what it needs.
	if first, last := mapped[1], mapped[len(mapped)-1]; last > first+2 {
		t.Errorf("mappings after each: %v", mapped)
	}
	r.end()
}

// TestRunningWithout: kernels that can't have programs run as they are, and it is said why.
func TestRunningWithout(t *testing.T) {
	text := vectorAddPTX(t)
	for _, c := range []struct{ mode, text, why string }{
		{"memory", strings.ReplaceAll(text, "vectorAdd", "another"), "was loaded from memory before nvtrace attached"},
		{"", strings.Replace(strings.Replace(text, ".visible .global .align 4 .u32 threads", ".const .align 4 .u32 few;\n.visible .global .align 4 .u32 threads", 1), "done:\n", "\tld.const.u32 %r1, [few];\ndone:\n", 1), "the kernel reads constants of its module, of which a copy with programs would have others: few"},
	} {
		r := startRunning(t, c.text, c.mode)
		v := r.attach(func(_ *gpu.Tracer, kernels []session.Kernel) bool { return len(kernels) > 0 && kernels[0].Reason != "" })
		if len(v.kernels) != 1 || v.kernels[0].Images != 0 || !strings.Contains(v.kernels[0].Reason, c.why) || v.entries != 0 {
			t.Errorf("%+v\n%s", v.kernels, v.shown)
		}
		r.end()
	}
}

// TestRunningTwo: two programs are attached to at a time.
func TestRunningTwo(t *testing.T) {
	a, b := startRunning(t, vectorAddPTX(t), ""), startRunning(t, vectorAddPTX(t), "library")
	v := a.attach(func(tr *gpu.Tracer, kernels []session.Kernel) bool {
		return tr.Stats().Copies > 1 && probed(tr, kernels)
	}, b)
	if len(v.kernels) != 1 || v.kernels[0].Images != 2 || len(v.reports) > 0 {
		t.Fatalf("%+v\n%q\n%s", v.kernels, v.reports, v.shown)
	}
	k := &v.kernels[0]
	if n := k.Launches - uint64(k.Unprobed); n == 0 || v.entries != n*8*128 {
		t.Errorf("%d entries in %d launches of %d\n%s", v.entries, n, k.Launches, v.shown)
	}
	a.end()
	b.end()
}

// TestRunningLater: what is loaded from memory while nvtrace is there gets programs, too.
func TestRunningLater(t *testing.T) {
	text := vectorAddPTX(t)
	r := startRunning(t, strings.ReplaceAll(text, "vectorAdd", "another"), "later")
	told := false
	v := r.attach(func(tr *gpu.Tracer, kernels []session.Kernel) bool {
		if n, _ := tr.Redirected(); !told && n > 0 {
			told = true
			if _, err := r.in.Write([]byte{'\n'}); err != nil {
				t.Error(err)
			}
		}
		return probed(tr, kernels)
	})
	if len(v.kernels) != 1 || v.kernels[0].Images != 1 || len(v.reports) > 0 {
		t.Fatalf("%+v\n%q\n%s", v.kernels, v.reports, v.shown)
	}
	if n := v.kernels[0].Launches - uint64(v.kernels[0].Unprobed); n == 0 || v.entries != n*8*128 {
		t.Errorf("%d entries in %d launches\n%s", v.entries, n, v.shown)
	}
	r.end()
}
