package sim_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"nvtrace/fatbin"
	"nvtrace/internal/need"
	"nvtrace/nvattach/sim"
	"nvtrace/ptx"
)

// TestTimeout stops a kernel that never ends, and says where it was.
func TestTimeout(t *testing.T) {
	r := run(t, &sim.Options{Timeout: 100 * time.Millisecond}, nil, buildC(t, "endless"))
	if r.code != 0 || r.stdout != "launched\nCUDA_ERROR_LAUNCH_TIMEOUT\n" {
		t.Errorf("exit status %d, stdout %q", r.code, r.stdout)
	}
	if len(r.report.Faults) != 1 || r.report.Faults[0].At == nil || r.report.Faults[0].At.Pos.Line == 0 {
		t.Errorf("faults: %v", r.report.Faults)
	}
}

// TestCancel ends the service while a kernel runs: nothing hangs, and the program's
// calls fail.
func TestCancel(t *testing.T) {
	prog := buildC(t, "endless")
	s, err := sim.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	cmd := exec.Command(prog)
	cmd.Env = s.Env(os.Environ())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, err := out.Read(b)
	if err != nil || string(b[:n]) != "launched\n" {
		t.Fatalf("%q, %v", b[:n], err)
	}
	cancel()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-need.Limit(t).Done():
		t.Fatal("Serve does not end")
	}
	n, _ = out.Read(b)
	if !strings.HasPrefix(string(b[:n]), "?") && !strings.HasPrefix(string(b[:n]), "CUDA_ERROR") {
		t.Errorf("after the end: %q", b[:n])
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestKilled kills a program while its kernel runs: its memory is given back.
func TestKilled(t *testing.T) {
	prog := buildC(t, "endless")
	s, err := sim.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() { _ = s.Serve(t.Context()) }()
	cmd := exec.Command(prog)
	cmd.Env = s.Env(os.Environ())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Processes()); n != 1 {
		t.Errorf("%d processes", n)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !need.Until(t, func() bool { return len(s.Processes()) == 0 }) {
		t.Fatal("the process is still served")
	}
}

// TestEnv checks what programs are given.
func TestEnv(t *testing.T) {
	s, err := sim.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	env := s.Env([]string{"A=1", "LD_PRELOAD=/lib/mine.so", "NVTRACE_SIM=old", "LD_LIBRARY_PATH=/lib/a"})
	text := strings.Join(env, "\n")
	if !strings.Contains(text, "A=1") || !strings.Contains(text, "libcudart.so.13:/lib/mine.so") || !strings.Contains(text, ":/lib/a") || strings.Contains(text, "=old") {
		t.Errorf("environment: %q", env)
	}
	var dir string
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "NVTRACE_SIM="); ok {
			dir = filepath.Dir(p)
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("folder %q: %v, %v", dir, st, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
}

// TestOtherPrograms checks that programs without CUDA are left alone, also those
// started by programs.
func TestOtherPrograms(t *testing.T) {
	r := run(t, nil, nil, "sh", "-c", "echo hello; exec cat /dev/null")
	if r.code != 0 || r.stdout != "hello\n" || r.stderr != "" || r.report.Processes != 0 {
		t.Errorf("%+v", r)
	}
	if err := sim.Check("/bin/sh"); err != nil {
		t.Error(err)
	}
}

// TestHooks runs programs with a counter woven into each kernel: the results are the
// same, and the counts are those of the launches.
func TestHooks(t *testing.T) {
	t.Run("driver", func(t *testing.T) { testHooks(t, buildC(t, "drv_vectoradd"), 2*79*128) })
	cuda := toolkit(t)
	for _, c := range []struct {
		name  string
		count uint64
	}{{"vectoradd", 196 * 256}, {"reduction", 32 * 256}, {"matmul", 36 * 256}, {"sort", 78 * 4096}, {"streams", 7*20*256 + 1}, {"graphs", 9*256 + 5*256}, {"cooperative", 12 * 64}, {"managed", 1}, {"threads", 6 * 20 * 64}} {
		switch c.name {
		case "vectoradd", "reduction", "matmul", "sort": // they have one stream
			if testing.Short() {
				continue
			}
		}
		t.Run(c.name, func(t *testing.T) {
			testHooks(t, link(t, cuda, compile(t, cuda, c.name), "libcudart.so.13"), c.count)
		})
	}
}

func testHooks(t *testing.T, prog string, want uint64) {
	t.Helper()
	var launches atomic.Uint64
	var images sync.Map
	var mu sync.Mutex
	var counters [][]byte
	o := &sim.Options{Hooks: &sim.Hooks{
		Image: func(p *sim.Process, im *sim.Image) ([]byte, error) {
			images.Store(im.Hash, true)
			addr, b, err := p.Alloc(8, "counter")
			if err != nil {
				return nil, err
			}
			mu.Lock()
			counters = append(counters, b)
			mu.Unlock()
			return countThreads(im.Data, addr)
		},
		Launch: func(_ *sim.Process, l *sim.Launch) {
			launches.Add(1)
			if _, known := images.Load(l.Image); !known {
				t.Errorf("%s is from an image that was not loaded", l.Kernel)
			}
		},
		Exit: func(*sim.Process) {
			mu.Lock()
			defer mu.Unlock()
			for i, b := range counters {
				counters[i] = bytes.Clone(b) // the arena goes away
			}
		},
	}}
	r := run(t, o, nil, prog)
	r.good(t)
	var got uint64
	for _, b := range counters {
		for i := range 8 {
			got += uint64(b[i]) << (8 * i)
		}
	}
	var total uint64
	for _, k := range r.report.Kernels {
		total += k.Launches
	}
	if got != want || launches.Load() != total {
		t.Errorf("%d threads counted, want %d; %d launches, the report has %d", got, want, launches.Load(), total)
	}
}

// countThreads puts a counter at the entry of every kernel of an image, in the manner
// of a probe: each thread adds 1 to the word at addr.
func countThreads(image []byte, addr uint64) ([]byte, error) {
	if fatbin.Sniff(image) == fatbin.FormatPTX {
		s, err := countPTX(string(image), addr)
		return []byte(s), err
	}
	c, _, err := fatbin.ParseContainer(image)
	if err != nil {
		return nil, err
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.Kind() != fatbin.KindPTX {
			continue
		}
		text, err := e.Data(nil)
		if err != nil {
			return nil, err
		}
		s, err := countPTX(string(text), addr)
		if err != nil {
			return nil, err
		}
		if *e, err = fatbin.NewEntry(fatbin.KindPTX, e.Arch(), []byte(s), nil); err != nil {
			return nil, err
		}
	}
	return c.Append(nil), nil
}

func countPTX(src string, addr uint64) (string, error) {
	f, err := ptx.Parse("image", src, nil)
	if err != nil {
		return "", err
	}
	w := ptx.NewWeaver(f)
	for _, st := range f.AllSites() {
		if st.Func.Kind != ptx.FuncEntry {
			continue
		}
		code := fmt.Sprintf(".reg .b64 %%cnt;\nmov.u64 %%cnt, %#x;\nred.global.add.u64 [%%cnt], 1;\n", addr)
		if err := w.Entry(st, code); err != nil {
			return "", err
		}
	}
	return w.Source()
}

// TestRebuilt runs programs with libraries that this machine's gcc makes from the
// sources.
func TestRebuilt(t *testing.T) {
	dir := t.TempDir()
	mustRun(t, "go", "run", "./internal/mklib", "-raw", dir)
	for _, name := range []string{"drv_vectoradd", "drv_fork"} {
		run(t, &sim.Options{LibDir: dir}, nil, buildC(t, name)).good(t)
	}
}

// TestLinkerName opens the driver by the name without a version.
func TestLinkerName(t *testing.T) {
	src := filepath.Join(t.TempDir(), "open.c")
	if err := os.WriteFile(src, []byte(`#include <dlfcn.h>
int main(void) { void *a = dlopen("libcuda.so", RTLD_NOW), *b = dlopen("libcuda.so.1", RTLD_NOW); return a == 0 || a != b; }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	prog := strings.TrimSuffix(src, ".c")
	mustRun(t, "gcc", "-o", prog, src, "-ldl")
	if r := run(t, nil, nil, prog); r.code != 0 {
		t.Errorf("exit status %d", r.code)
	}
}

// TestReport checks the text at the end of a run.
func TestReport(t *testing.T) {
	r := run(t, nil, nil, buildC(t, "drv_errors"))
	text := string(r.report.AppendText(nil))
	for _, want := range []string{
		"CUDA_ERROR_ILLEGAL_ADDRESS: kernel vectorAdd: ", "st.global.f32 [%rd7], %f3;: thread (0,0,0) of block (0,0,0): illegal address: 0x8",
		"1 × NVIDIA H200, processes: 1, kernels: 1", "2 launches         64 threads", "PTX that can't be parsed: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// TestDevices runs a program on each described GPU, and on four of them.
func TestDevices(t *testing.T) {
	prog := buildC(t, "drv_vectoradd")
	for _, g := range sim.GPUs() {
		run(t, &sim.Options{GPU: g, Count: 4}, nil, prog).good(t)
	}
}
