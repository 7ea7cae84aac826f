package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
)

const directObject = "../../nvattach/testdata/obj/bpftime.bpf.o"

// TestDirectRun: a program of kprobe/__directly_run has the grid that it is given,
// and runs as often as it is asked to.
func TestDirectRun(t *testing.T) {
	status, out, errs := attach(t, "--run", "cuda__square:2:2:4", "--map", "vec[0..9]=3", "--maps", "json", directObject)
	if status != cli.ExitOK || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	if !json.Valid([]byte(out)) {
		t.Errorf("no JSON document:\n%s", out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line[1:], `{"map": "vec"`) {
			continue
		}
		// 8 threads, each twice: 3, 9, 81; the others are as they were.
		holds(t, line, `{"key": 0, "value": 81}`, `{"key": 7, "value": 81}`, `{"key": 8, "value": 3}`)
		return
	}
	t.Errorf("no map vec:\n%s", out)
}

// TestDirectRunPrints: what is printed is shown between the runs, and not held until there
// is no room; constants of the object are no maps to show.
func TestDirectRunPrints(t *testing.T) {
	const object = "../../nvattach/testdata/obj/prints.bpf.o"
	status, out, errs := attach(t, "--sim", "--run", "cuda__print:10000", object)
	if status != cli.ExitOK || errs != "" || strings.Contains(out, "no room") || strings.Contains(out, "rodata") {
		t.Fatalf("status %d, %s\n%.300s", status, errs, out)
	}
	if n := strings.Count(out, "run "); n != 10_000 {
		t.Errorf("%d lines", n)
	}
	holds(t, out, "run 0\nrun 1\n", "run 9999\n", "  runs = 10000\n")
	status, out, errs = attach(t, "--sim", "--maps", "json", "--run", "cuda__print:2", object)
	if status != cli.ExitOK || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	holds(t, out, `{"printk":"run 1","sm":0}`, `"runs": 2`)
}

// TestDirectRunByDriver: the same through a driver, as on a machine with a GPU.
func TestDirectRunByDriver(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("calls of functions need amd64")
	}
	status, out, errs := attach(t, "--sim-probes=driver", "--run", "cuda__square:2:2:4", "--map", "vec[0..9]=3", "--maps", "json", directObject)
	if status != cli.ExitOK || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	holds(t, out, `{"map": "vec"`, `{"key": 7, "value": 81}, {"key": 8, "value": 3}`)
	status, out, errs = attach(t, "--sim-probes=driver", "--run", "none", directObject)
	if status != cli.ExitFailed || out != "" {
		t.Errorf("status %d, %q", status, out)
	}
	holds(t, errs, "--run none: no program of that name", "there are: cuda__square")
}

// TestAttachList: what is in an object, and what is known of its programs.
func TestAttachList(t *testing.T) {
	status, out, errs := attach(t, "--list", "--set", "print=0", "../../nvattach/testdata/obj/example_trace.bpf.o", countObject)
	if status != cli.ExitOK || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	holds(t, out, "  program  on_entry                 cuda.entry/*, ", "  map      events                   ringbuf\n",
		"  variable print                    .rodata: 0\n", "on_exit (cuda.exit/*): ", "  array threads: only added to: a copy for each multiprocessor\n")
}

// TestIdleFlags: flags that would do nothing are refused.
func TestIdleFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--ptxas", "true"}, "--ptxas wants --dry-run"},
		{[]string{"-o", "x"}, ": -o wants --dry-run"},
		{[]string{"--require"}, "--require wants --dry-run"},
		{[]string{"--sim"}, "--sim wants --run"},
		{[]string{"--maps", "json"}, "--maps wants --run"},
		{[]string{"--verify"}, "--verify wants a program: nvtrace --verify --attach probe.o -- command [args]"},
		{[]string{"--run", "cuda__square", "--interval", "1s"}, "--interval wants a program"},
	} {
		status, out, errs := attach(t, append(tt.args, directObject)...)
		if status != cli.ExitUsage || out != "" {
			t.Errorf("%v: status %d, %q", tt.args, status, out)
		}
		holds(t, errs, tt.want)
	}
}

func TestDirectRunRefusals(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--run", "none"}, cli.ExitFailed, "there are: cuda__square"},
		{[]string{"--run", "cuda__counts"}, cli.ExitFailed, "no program of that name is in a section kprobe/__directly_run"},
		{[]string{"--run", ""}, cli.ExitUsage, "want PROG"},
		{[]string{"--run", "cuda__square:0"}, cli.ExitUsage, "the count is 1 to"},
		{[]string{"--run", "cuda__square:1:2"}, cli.ExitUsage, "want PROG"},
		{[]string{"--run", "cuda__square:1:x:1"}, cli.ExitUsage, "GRID and BLOCK are X"},
		{[]string{"--run", "cuda__square", "--map", "none[0]=1"}, cli.ExitFailed, "there is no map none"},
	} {
		status, out, errs := attach(t, append(tt.args, directObject)...)
		if status != tt.status || out != "" {
			t.Errorf("%v: status %d, %q", tt.args, status, out)
		}
		holds(t, errs, tt.want)
	}
}
