package gpu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
)

// verified is what is said about a kernel.
type verified struct {
	Launches, Runs                   int
	Equal                            bool
	Buffers, Bytes, Unstable, Differ int
	Reason, Buffer                   string
	Offset                           int
	ProbedNS                         float64 `json:"probed_ns"`
	UnprobedNS                       float64 `json:"unprobed_ns"`
}

func (r *result) verified(t *testing.T, kernel string) verified {
	t.Helper()
	for line := range strings.Lines(r.shown) {
		var o struct {
			Kernel string
			Verify verified
		}
		if json.Unmarshal([]byte(line), &o) == nil && o.Kernel == kernel {
			return o.Verify
		}
	}
	t.Fatalf("kernel %s is not in\n%s", kernel, r.shown)
	return verified{}
}

// fewProcessors is a GPU of few multiprocessors, whose shared memory is cleared soon.
func fewProcessors(t *testing.T) sim.GPU {
	t.Helper()
	model, err := sim.FindGPU("")
	if err != nil {
		t.Fatal(err)
	}
	model.SMs = 2
	return model
}

// TestVerify: launches are run several times, have effect once, and so have their
// probes.
func TestVerify(t *testing.T) {
	t.Parallel()
	prog := buildFrom(t, "verify")
	for i, c := range []struct {
		mode, kernel string
		every        int
		entries      uint64
		want         verified
		reason       string
	}{
		{mode: "inplace", kernel: "scale", every: session.VerifyFirst, entries: 768, want: verified{Launches: 3, Runs: 1, Equal: true, Buffers: 3, Bytes: 1024 + 1028 + 4}},
		{mode: "inplace", kernel: "scale", every: 2, entries: 768, want: verified{Launches: 3, Runs: 2, Equal: true, Buffers: 3, Bytes: 2056}},
		{mode: "factor", kernel: "factor", every: 1, entries: 512, want: verified{Launches: 2, Runs: 2, Equal: true, Buffers: 3, Bytes: 1024 + 8 + 4}},
		{mode: "chase", kernel: "chase", every: 1, entries: 256, want: verified{Launches: 1, Runs: 1, Equal: true, Buffers: 3, Bytes: 1024 + 8 + 8}},
		{mode: "clock", kernel: "clock", every: 1, entries: 1, want: verified{Launches: 1, Runs: 1, Equal: true, Buffers: 2, Bytes: 1016 + 8, Unstable: 8}},
		{mode: "tail", kernel: "tail", every: 1, entries: 512, want: verified{Launches: 2, Runs: 2, Equal: true, Buffers: 3, Bytes: 2056}},
		{mode: "pinned", kernel: "scale", every: 1, entries: 256, want: verified{Launches: 1}, reason: `^it is given page-locked memory`},
		{mode: "capture", kernel: "scale", every: 1, entries: 256, want: verified{Launches: 1}, reason: `^it was launched while a stream was captured`},
		{mode: "threads", kernel: "scale", every: 1, entries: 18 * 256, want: verified{Launches: 18, Runs: 18, Equal: true}},
		{mode: "atexit", kernel: "scale", every: 1, entries: 512, want: verified{Launches: 2, Runs: 2, Equal: true, Buffers: 3, Bytes: 2052}},
		{mode: "released", kernel: "vectorAdd", every: 1, entries: 256, want: verified{}, reason: `^not launched, or in graphs only`},
	} {
		for _, within := range []bool{false, true} {
			if testing.Short() && within == (i%2 == 1) {
				continue
			}
			t.Run(fmt.Sprintf("%s,within=%v", c.mode, within), func(t *testing.T) {
				t.Parallel()
				argv := []string{prog, c.mode}
				if !within {
					argv = append(argv, "alone")
				}
				r := run(t, &setup{objects: []string{"example_count"}, verify: c.every, within: within, model: fewProcessors(t)}, argv...)
				if r.err != nil || r.stdout != "PASSED\n" || len(r.reports) > 0 {
					t.Fatalf("error %v, stdout %q, reports %q, shown:\n%s", r.err, r.stdout, r.reports, r.shown)
				}
				if in, out := r.entries(t, false); in != c.entries || out != c.entries {
					t.Errorf("%d entries, %d exits, want %d", in, out, c.entries)
				}
				got := r.verified(t, c.kernel)
				if !regexp.MustCompile(c.reason).MatchString(got.Reason) || c.reason == "" && got.Reason != "" {
					t.Errorf("reason %q, want %s", got.Reason, c.reason)
				}
				if got.Runs > 0 && got.UnprobedNS > 0 != (got.ProbedNS > 0) {
					t.Errorf("times %v, %v", got.ProbedNS, got.UnprobedNS)
				}
				if c.mode == "threads" { // the memory that there is differs from time to time
					got.Buffers, got.Bytes = 0, 0
				}
				got.Reason, got.ProbedNS, got.UnprobedNS = "", 0, 0
				if got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
			})
		}
	}
}

// TestVerifyNoEnd: a launch that waits for something of the program's is made once,
// without probes.
func TestVerifyNoEnd(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a kernel that does not end")
	}
	r := run(t, &setup{objects: []string{"example_count"}, verify: 1}, buildFrom(t, "verify"), "spin")
	if got := r.verified(t, "spin"); r.err != nil || r.stdout != "PASSED\n" || !strings.Contains(got.Reason, "this launch ran without probes") {
		t.Errorf("error %v, stdout %q, %+v", r.err, r.stdout, got)
	}
	if in, _ := r.entries(t, false); in != 0 {
		t.Errorf("%d entries", in)
	}
}

// TestVerifyDiffers: a probe that ends threads changes what the kernel does, and that
// is found.
func TestVerifyDiffers(t *testing.T) {
	t.Parallel()
	prog := buildFrom(t, "verify")
	for _, within := range []bool{false, true} {
		if testing.Short() && within {
			continue
		}
		r := run(t, &setup{objects: []string{"leave"}, exits: true, verify: session.VerifyFirst, within: within}, prog, "inplace")
		got := r.verified(t, "scale")
		if got.Equal || got.Differ < 100 || !strings.HasPrefix(got.Buffer, "allocation, 1028 bytes at 0x") {
			t.Errorf("within %v: %+v", within, got)
		}
	}
}

// TestTooManyRegisters: a launch that is refused with probes is made without.
func TestTooManyRegisters(t *testing.T) {
	t.Parallel()
	model, err := sim.FindGPU("")
	if err != nil {
		t.Fatal(err)
	}
	model.RegistersPerBlock = 16 << 10
	prog := buildFrom(t, "verify")
	r := run(t, &setup{objects: []string{"example_count"}, model: model}, prog, "wide", "alone")
	if in, _ := r.entries(t, false); r.stdout != "PASSED\n" || in != 0 {
		t.Errorf("stdout %q, %d entries", r.stdout, in)
	}
	if !strings.Contains(r.shown, `"launches_unprobed":2`) || !strings.Contains(r.shown, "take more registers than a block") {
		t.Errorf("shown:\n%s", r.shown)
	}
	r = run(t, &setup{objects: []string{"example_count"}, model: model}, prog, "inplace")
	if in, _ := r.entries(t, false); r.stdout != "PASSED\n" || in != 768 || strings.Contains(r.shown, "launches_unprobed") {
		t.Errorf("stdout %q, %d entries\n%s", r.stdout, in, r.shown)
	}
}

// TestTooMuchShared: a kernel has as much shared memory as without probes, which have some of it where
// there is enough.
func TestTooMuchShared(t *testing.T) {
	t.Parallel()
	prog := buildFrom(t, "shared")
	for _, kind := range []string{"module", "library"} {
		for _, how := range []setup{{}, {verify: session.VerifyFirst}, {verify: session.VerifyFirst, within: true}} {
			how.objects, how.model = []string{"blocks"}, fewProcessors(t)
			r := run(t, &how, prog, kind)
			if r.err != nil || r.stdout != "PASSED\n" {
				t.Fatalf("%s: %v, stdout %q", kind, r.err, r.stdout)
			}
			if !strings.Contains(r.shown, `"launches_unprobed":2`) || !strings.Contains(r.shown, session.TooMuchShared) {
				t.Errorf("%s: shown:\n%s", kind, r.shown)
			}
			if how.verify != 0 {
				if got := r.verified(t, "around"); got.Differ > 0 || !got.Equal {
					t.Errorf("%s: %+v", kind, got)
				}
			}
		}
	}
}

// TestRunDirect: programs are kernels themselves, in a process that is there for that.
func TestRunDirect(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("calls of functions need amd64")
	}
	o, err := object.Open(filepath.Join("..", "testdata", "obj", "bpftime.bpf.o"))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := nvattach.NewPlan([]*object.Object{o}, nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := object.ParseMapSetting("vec[0..9]=3")
	if err != nil {
		t.Fatal(err)
	}
	sm, err := sim.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sm.Close()
	go sm.Serve(context.Background()) //nolint:errcheck // ended by Close
	ctx := need.Limit(t)
	direct := func(program string) (string, error) {
		var shown bytes.Buffer
		s := session.New(&session.Options{Plan: plan, Settings: []object.Setting{set}, Out: &shown, Format: session.FormatJSON, Direct: true})
		err := gpu.RunDirect(ctx, []gpu.Direct{{Program: program, Count: 2, Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{4, 1, 1}}},
			&gpu.DirectOptions{Options: gpu.Options{Session: s, JIT: &jit.Options{Cache: "off"}}, Env: sm.Env(os.Environ())})
		if cerr := s.Close(); cerr != nil {
			t.Error(cerr)
		}
		return shown.String(), err
	}
	shown, err := direct("cuda__square")
	if err != nil || !strings.Contains(shown, `{"key": 7, "value": 81}, {"key": 8, "value": 3}`) {
		t.Errorf("%v\n%s", err, shown)
	}
	if _, err := direct("none"); err == nil || !strings.Contains(err.Error(), "there are: cuda__square") {
		t.Errorf("error %v", err)
	}
}
