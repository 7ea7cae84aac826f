package sim_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/sim"
)

// toolkit finds nvcc: in CUDA_HOME, in .cache/cuda of the repository (make
// deps-cuda), or on the path.
func toolkit(t testing.TB) string {
	t.Helper()
	dirs := []string{os.Getenv("CUDA_HOME"), filepath.Join("..", "..", ".cache", "cuda")}
	if nvcc, err := exec.LookPath("nvcc"); err == nil {
		dirs = append(dirs, filepath.Dir(filepath.Dir(nvcc)))
	}
	for _, d := range dirs {
		if d == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(d, "bin", "nvcc")); err == nil {
			d, err := filepath.Abs(d)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	need.Missing(t, "nvcc", "no nvcc: make deps-cuda, or set CUDA_HOME")
	return ""
}

func mustRun(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// buildC builds testdata/NAME.c.
func buildC(t testing.TB, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	mustRun(t, "gcc", "-O1", "-Wall", "-Werror", "-Wno-unused-variable", "-Wno-unused-function", "-o", out, filepath.Join("testdata", name+".c"), "-ldl", "-lpthread")
	return out
}

// compile compiles testdata/NAME.cu to an object file.
func compile(t testing.TB, cuda, name string, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name+".o")
	if len(args) == 0 { // PTX that everything runs, and machine code that is no use here
		args = []string{"-gencode", "arch=compute_75,code=compute_75", "-gencode", "arch=compute_90,code=sm_90"}
	}
	mustRun(t, filepath.Join(cuda, "bin", "nvcc"), append(args, "-cudart", "none", "-c", "-o", out, filepath.Join("testdata", name+".cu"))...)
	return out
}

// link links an object file with a shared runtime, by its file's name, or the
// static one.
func link(t testing.TB, cuda, obj, runtime string) string {
	t.Helper()
	out := strings.TrimSuffix(obj, ".o") + "-" + runtime
	lib := []string{filepath.Join(cuda, "lib", runtime)}
	if strings.HasSuffix(runtime, ".a") {
		lib = append(lib, "-ldl", "-lrt")
	}
	mustRun(t, "g++", slices.Concat([]string{"-o", out, obj}, lib, []string{"-lpthread"})...)
	return out
}

// good fails the test unless the program verified its result.
func (r *ran) good(t testing.TB) {
	t.Helper()
	if r.code != 0 || !strings.HasSuffix(r.stdout, "PASSED\n") {
		t.Errorf("exit status %d, stdout:\n%s\nstderr:\n%s\nreport: %+v", r.code, r.stdout, r.stderr, r.report)
	}
	if strings.Contains(r.stderr, "version information") {
		t.Errorf("the dynamic loader complains: %s", r.stderr)
	}
}

// launches returns how often a kernel was launched.
func (r *ran) kernel(t testing.TB, name string) sim.KernelStat {
	t.Helper()
	for _, k := range r.report.Kernels {
		if strings.Contains(k.Name, name) {
			return k
		}
	}
	t.Errorf("the report has no kernel %s: %+v", name, r.report.Kernels)
	return sim.KernelStat{}
}

func TestDriverPrograms(t *testing.T) {
	for _, name := range []string{"drv_vectoradd", "drv_library", "drv_graph", "drv_link", "drv_fork", "drv_errors", "drv_times", "mapped", "arrays"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, nil, nil, buildC(t, name))
			r.good(t)
			if len(r.report.Missing) != 0 {
				t.Errorf("missing: %v", r.report.Missing)
			}
		})
	}
}

// cudaPrograms are the programs in testdata for the runtime API.
func cudaPrograms() []string {
	return []string{
		"vectoradd", "reduction", "scan", "matmul", "histogram", "transpose", "stencil", "sort", "dynshared", "globals", "streams",
		"callbacks", "graphs", "cooperative", "managed", "arrays", "occupancy", "copies", "fork", "threads", "fail_launch", "samples",
	}
}

func TestPrograms(t *testing.T) {
	cuda := toolkit(t)
	for _, name := range cudaPrograms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, nil, nil, link(t, cuda, compile(t, cuda, name), "libcudart.so.13"))
			r.good(t)
			if len(r.report.Missing) != 0 || len(r.report.Faults) != 0 {
				t.Errorf("missing: %v, faults: %v", r.report.Missing, r.report.Faults)
			}
			if name == "vectoradd" {
				if k := r.kernel(t, "vectorAdd"); k.Launches != 1 || k.Blocks != 196 || k.Threads != 196*256 {
					t.Errorf("vectorAdd: %+v", k)
				}
			}
		})
	}
}

// TestRuntimes runs a program with each kind of runtime that can be served, and
// one that can't.
func TestRuntimes(t *testing.T) {
	cuda := toolkit(t)
	obj := compile(t, cuda, "globals")
	t.Run("static", func(t *testing.T) {
		prog := link(t, cuda, obj, "libcudart_static.a")
		if err := sim.Check(prog); err != nil {
			t.Error(err)
		}
		if names := sim.Replaced(prog); !slices.Contains(names, "cudaMalloc") {
			t.Errorf("of the functions in it, %q are replaced", names)
		}
		if names := sim.Replaced(link(t, cuda, obj, "libcudart.so.13")); names != nil {
			t.Errorf("with a shared runtime, %q are replaced", names)
		}
		run(t, nil, nil, prog).good(t)
	})
	t.Run("stripped", func(t *testing.T) {
		prog := link(t, cuda, obj, "libcudart_static.a")
		mustRun(t, "strip", prog)
		err := sim.Check(prog)
		if err == nil || !strings.Contains(err.Error(), "-cudart shared") {
			t.Errorf("Check says %v", err)
		}
		r := run(t, nil, nil, prog)
		if r.code != 127 || !strings.Contains(r.stderr, "-cudart shared") || r.stdout != "" {
			t.Errorf("exit status %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
		}
	})
	t.Run("static-fork", func(t *testing.T) {
		run(t, nil, nil, link(t, cuda, compile(t, cuda, "fork"), "libcudart_static.a")).good(t)
	})
	t.Run("12", func(t *testing.T) {
		home := os.Getenv("CUDA12_HOME")
		if home == "" {
			home = filepath.Join("..", "..", ".cache", "cuda12")
		}
		lib := filepath.Join(home, "lib", "libcudart.so.12")
		if _, err := os.Stat(lib); err != nil {
			if need.Required("nvcc") {
				t.Fatal("no libcudart.so.12: make deps-cuda, or set CUDA12_HOME")
			}
			t.Skip("no libcudart.so.12: make deps-cuda, or set CUDA12_HOME")
		}
		for _, name := range []string{"vectoradd", "globals", "streams", "managed", "samples"} {
			prog := compile(t, cuda, name, "-I", filepath.Join(home, "include"), "-gencode", "arch=compute_75,code=compute_75")
			out := prog + "-12"
			mustRun(t, "g++", "-o", out, prog, lib, "-lpthread")
			run(t, nil, nil, out).good(t)
		}
	})
}

func TestPrintf(t *testing.T) {
	cuda := toolkit(t)
	r := run(t, nil, nil, link(t, cuda, compile(t, cuda, "printf"), "libcudart.so.13"))
	want := "before\n" +
		"hello 0 of block 0:  0.00 str 123456789ab%\n" +
		"hello 1 of block 0:  0.25 str 123456789ab%\n" +
		"hello 2 of block 0:  0.50 str 123456789ab%\n" +
		"between\n" +
		"hello 0 of block 0:  0.00 str 123456789ab%\n" +
		"PASSED\n"
	if r.stdout != want || r.code != 0 {
		t.Errorf("exit status %d, stdout:\n%s", r.code, r.stdout)
	}
}

// TestLinked runs a program of two files whose device code is linked (-rdc=true):
// the runtime gets the parts and links them.
func TestLinked(t *testing.T) {
	cuda := toolkit(t)
	args := []string{"-gencode", "arch=compute_75,code=compute_75"}
	a := compile(t, cuda, "rdc_a", append(args, "-rdc=true")...)
	b := compile(t, cuda, "rdc_b", append(args, "-rdc=true")...)
	l, prog := a+"-link.o", a+"-prog"
	mustRun(t, filepath.Join(cuda, "bin", "nvcc"), append(args, "-dlink", "-L", filepath.Join(cuda, "lib"), "-o", l, a, b, "-lcudadevrt")...)
	mustRun(t, "g++", "-o", prog, a, b, l, filepath.Join(cuda, "lib", "libcudart.so.13"), filepath.Join(cuda, "lib", "libcudadevrt.a"), "-lpthread")
	run(t, nil, nil, prog).good(t)
}

// TestAssert checks that a failed assertion of device code is said as it stands in
// the source.
func TestAssert(t *testing.T) {
	cuda := toolkit(t)
	r := run(t, nil, nil, link(t, cuda, compile(t, cuda, "fail_assert"), "libcudart.so.13"))
	if r.code != 0 || r.stdout != "FAILED AS EXPECTED: cudaErrorAssert\n" {
		t.Errorf("exit status %d, stdout %q", r.code, r.stdout)
	}
	if text := string(r.report.AppendText(nil)); !strings.Contains(text, "threadIdx.x < n at ") || !strings.Contains(text, "fail_assert.cu:4") {
		t.Errorf("report:\n%s", text)
	}
}

// TestIllegalAddress checks that the report names kernel, thread and instruction.
func TestIllegalAddress(t *testing.T) {
	cuda := toolkit(t)
	r := run(t, nil, nil, link(t, cuda, compile(t, cuda, "fail_illegal"), "libcudart.so.13"))
	if r.code != 0 || r.stdout != "FAILED AS EXPECTED: cudaErrorIllegalAddress\n" {
		t.Errorf("exit status %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
	if len(r.report.Faults) != 1 || r.report.Faults[0].At == nil {
		t.Fatalf("faults: %v", r.report.Faults)
	}
	f := r.report.Faults[0]
	if f.Result != "CUDA_ERROR_ILLEGAL_ADDRESS" || f.At.Thread.X != 37 || f.At.Block.X != 2 || !strings.HasPrefix(f.At.Text, "st.global") || f.At.Pos.Line == 0 || !strings.Contains(f.Kernel, "stray") {
		t.Errorf("fault: %v", &f)
	}
}

// TestNoPTX checks what is said about a program without code that can be run.
func TestNoPTX(t *testing.T) {
	cuda := toolkit(t)
	for _, args := range [][]string{{"-gencode", "arch=compute_90,code=sm_90"}, {"-gencode", "arch=compute_90,code=compute_90"}} {
		a100, err := sim.FindGPU("a100")
		if err != nil {
			t.Fatal(err)
		}
		r := run(t, &sim.Options{GPU: a100}, nil, link(t, cuda, compile(t, cuda, "vectoradd", args...), "libcudart.so.13"))
		if r.code != 1 || !strings.Contains(r.stdout, "cudaErrorNoKernelImageForDevice") {
			t.Errorf("exit status %d, stdout %q", r.code, r.stdout)
		}
		if len(r.report.Hints) != 1 || !strings.Contains(r.report.Hints[0], "arch=compute_80,code=compute_80") {
			t.Errorf("hints: %q", r.report.Hints)
		}
	}
}

// TestGone: without anybody who answers, calls fail as those of a driver that can't be
// initialised, also those that return a text.
func TestGone(t *testing.T) {
	cuda := toolkit(t)
	prog := link(t, cuda, compile(t, cuda, "vectoradd"), "libcudart.so.13")
	s, err := sim.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Serve(ctx); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(prog) // the libraries are there until Close
	cmd.Env = s.Env(os.Environ())
	out, err := cmd.CombinedOutput()
	if !strings.Contains(string(out), "cudaMalloc(&a, size): initialization error") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
