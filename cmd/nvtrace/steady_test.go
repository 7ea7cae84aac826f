package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"nvtrace/internal/need"
)

// stopLine is a line of debug output about the stops for one reason.
var stopLine = regexp.MustCompile(`msg=stops n=(\d+) .* what=(.*)`)

// TestSteadyStops: what a program does again and again stops it no oftener the longer it does so: launches, with
// look-ups of the kernel before each, copies, allocations, calls that fail, many threads that take turns. A thread
// that does nothing else comes to wait for room in its ring.
func TestSteadyStops(t *testing.T) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	nvtrace, lib, app := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "app")
	buildNvtrace(t, nvtrace)
	for _, args := range [][]string{
		{"-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", lib, "testdata/steady/libcuda.c"},
		{"-O1", "-pthread", "-o", app, "testdata/steady/app.c", lib, "-Wl,-rpath," + dir},
	} {
		if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, b)
		}
	}
	stops := func(t *testing.T, kind string, n int, flags ...string) map[string]int {
		args := append([]string{"-q", "-o", filepath.Join(t.TempDir(), "run.nvt")}, flags...)
		cmd := exec.CommandContext(need.Limit(t), nvtrace, append(args, "--", app, kind, strconv.Itoa(n))...)
		cmd.Env = append(os.Environ(), "NVTRACE_DEBUG=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(`(?m)^0 wrong$`).Match(out) {
			t.Fatalf("%s %d: %v\n%s", kind, n, err, out)
		}
		found := make(map[string]int)
		for _, m := range stopLine.FindAllStringSubmatch(string(out), -1) {
			found[m[2]], _ = strconv.Atoi(m[1])
		}
		if len(found) == 0 {
			t.Fatalf("%s %d: no stop is told of\n%s", kind, n, out)
		}
		maps.DeleteFunc(found, func(why string, _ int) bool { return why == `"agent: a full ring"` || why == "other" })
		return found
	}
	for _, c := range []struct {
		kind  string
		flags []string
	}{
		{"look-ups", []string{"--api", "--modules"}},
		{"look-ups", []string{"--modules"}},
		{"copies", []string{"--api", "--modules"}},
		{"allocations", []string{"--api"}},
		{"fails", []string{"--api"}},
		{"threads", []string{"--api", "--modules"}},
	} {
		t.Run(c.kind+fmt.Sprint(c.flags), func(t *testing.T) {
			t.Parallel()
			const few, many = 400, 1200 // the first 256 launches are looked at one by one
			short, long := stops(t, c.kind, few, c.flags...), stops(t, c.kind, many, c.flags...)
			for why, n := range long {
				if n > short[why]+20 {
					t.Errorf("%s: %d stops of %d rounds, %d of %d", why, short[why], few, n, many)
				}
			}
		})
	}
}
