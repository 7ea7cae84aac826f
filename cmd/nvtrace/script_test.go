package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/script"
	"nvtrace/traces"
)

// TestScriptForgets: what a program knows of threads and processes goes with them, as their ids do,
// and is bounded where ends are not seen.
func TestScriptForgets(t *testing.T) {
	p, err := script.Compile("-e", "apiret:cuInit { @[comm, rank] = count(); }")
	if err != nil {
		t.Fatal(err)
	}
	sink := &logSink{}
	sink.onHost(p, nil, func(string) {})
	h := sink.script
	add := func(ev *traces.Event) { h.event(ev, nil, nil, new(apiTrace)) }
	const pid, tid, child = 1<<22 + 1, 1<<22 + 2, 1<<22 + 3 // no process has so high an id
	check := func(when string, programs, ranks, stacks int) {
		t.Helper()
		if len(h.programs) != programs || len(h.ranks) != ranks || len(h.stacks) != stacks {
			t.Errorf("%s: %d programs, %d ranks and %d stacks are known, want %d, %d and %d", when, len(h.programs), len(h.ranks), len(h.stacks), programs, ranks, stacks)
		}
	}
	add(&traces.Event{Kind: traces.KindExec, PID: pid, TID: pid, Path: "/bin/app"})
	add(&traces.Event{Kind: traces.KindFork, PID: pid, TID: pid, Child: tid, Flags: traces.FlagThread})
	add(&traces.Event{Kind: traces.KindStack, PID: pid, TID: pid, Name: "cuInit"})
	add(&traces.Event{Kind: traces.KindStack, PID: pid, TID: tid, Name: "cuInit"})
	check("a process of two threads", 1, 1, 2)
	add(&traces.Event{Kind: traces.KindExit, PID: pid, TID: tid, Flags: traces.FlagThread})
	check("a thread has ended", 1, 1, 1)
	add(&traces.Event{Kind: traces.KindExit, PID: pid, TID: pid})
	check("the process has ended", 0, 0, 0)
	h.ranks[child], h.stacks[child] = 3, calledFrom{}
	add(&traces.Event{Kind: traces.KindExec, PID: pid, TID: pid, Path: "/bin/app"})
	add(&traces.Event{Kind: traces.KindFork, PID: pid, TID: pid, Child: child})
	if _, stale := h.ranks[child]; stale || len(h.stacks) != 0 || h.programs[child] != "app" {
		t.Errorf("a new process has an earlier one's rank or stack, or not its parent's program: %v, %v, %v", h.ranks, h.stacks, h.programs)
	}
	for i := range int32(maxKept + 10) {
		add(&traces.Event{Kind: traces.KindExec, PID: pid + i, TID: pid + i, Path: "/bin/app"})
		add(&traces.Event{Kind: traces.KindStack, PID: pid + i, TID: pid + i})
	}
	check("no ends are seen", maxKept, maxKept, maxKept)
}

// TestScriptOnRecordings asks the recordings of the corpus questions, and holds the
// answers to what the same recordings come to as JSON lines.
func TestScriptOnRecordings(t *testing.T) {
	names, err := filepath.Glob("../../traces/corpus/*.nvt")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	const program = `ioctl:* { @calls[node, name, sub] = count(); @ns[name] = sum(duration); @longest = max(duration); @shortest = min(duration); }
		ioctl:NV2080_CTRL_* /status != "NV_OK"/ { @bad[sub, status] = count(); }`
	failures := 0
	for _, name := range names {
		status, lines, stderr := runVerbFunc(t, exportVerb, "--format", "jsonl", name)
		if status != exitOK {
			t.Fatal(stderr)
		}
		calls, ns, bad := map[string]int64{}, map[string]int64{}, map[string]int64{}
		longest, shortest := int64(0), int64(1)<<62
		for line := range strings.Lines(lines) {
			var c struct {
				Call, Device, Name, Sub, Number, Status string
				D                                       int64
			}
			if err := json.Unmarshal([]byte(line), &c); err != nil {
				t.Fatal(err)
			}
			if c.Call != "ioctl" {
				continue
			}
			calls[fmt.Sprintf("@calls[%s, %s, %s]", c.Device, c.Name, c.Sub)]++
			ns[fmt.Sprintf("@ns[%s]", c.Name)] += c.D
			longest, shortest = max(longest, c.D), min(shortest, c.D)
			if strings.HasPrefix(c.Sub, "NV2080_CTRL_") && c.Status != "" && c.Status != "NV_OK" {
				bad[fmt.Sprintf("@bad[%s, %s]", c.Sub, c.Status)]++
				failures++
			}
		}
		var want []string
		for _, m := range []map[string]int64{calls, ns, bad} {
			for k, n := range m {
				want = append(want, fmt.Sprintf("%s: %d", k, n))
			}
		}
		want = append(want, fmt.Sprintf("@longest: %d", longest), fmt.Sprintf("@shortest: %d", shortest))
		status, out, stderr := runVerbFunc(t, logVerb, "-e", program, name)
		if status != exitOK {
			t.Fatal(stderr)
		}
		got := slices.DeleteFunc(strings.Split(out, "\n"), func(s string) bool { return s == "" })
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s\ngot  %s\nwant %s", name, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	if failures == 0 {
		t.Error("no recording has a call that failed")
	}
}

// TestIntervalsOfRecording: what intervals and the end show of a recording is all of it.
func TestIntervalsOfRecording(t *testing.T) {
	names, err := filepath.Glob("../../traces/corpus/*.nvt")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	most := 0
	for _, name := range names {
		status, out, stderr := runVerbFunc(t, logVerb, "-e", `ioctl:* { @n = count(); @total = count(); } interval:20ms { printf("part %d\n", @n); clear(@n); } END { printf("part %d\n", @n); clear(@n); }`, name)
		if status != exitOK {
			t.Fatal(stderr)
		}
		sum, total, parts := 0, 0, 0
		for line := range strings.Lines(out) {
			var n int
			if _, err := fmt.Sscanf(line, "part %d", &n); err == nil {
				sum, parts = sum+n, parts+1
			} else if _, err := fmt.Sscanf(line, "@total: %d", &n); err == nil {
				total = n
			}
		}
		if sum != total || total == 0 {
			t.Errorf("%s: %d in %d parts, %d in all", name, sum, parts, total)
		}
		most = max(most, parts)
	}
	if most < 5 {
		t.Errorf("at most %d parts", most)
	}
}

// TestWhere: programs of one line know the rank of a process, and the lines of Python that calls
// are made from.
func TestWhere(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("stacks of Python need amd64")
	}
	python := need.Tool(t, "python3", "")
	nvtrace := filepath.Join(t.TempDir(), "nvtrace")
	buildNvtrace(t, nvtrace)
	const program = `apiret:cuMemAlloc_v2 { @bytes[rank, pystack] = sum(args.bytesize); } apiret:cuCtxSynchronize { @waits[pystack] = count(); }`
	cmd := exec.Command(nvtrace, "--sim", "-q", "-e", program, "--", python, "testdata/where.py")
	cmd.Env = append(os.Environ(), "RANK=3", "SLURM_PROCID=5")
	b, err := cmd.CombinedOutput()
	const want = "@bytes[3, testdata/where.py:24 gives_back < testdata/where.py:31 <module>]: 20480\n" +
		"@bytes[3, testdata/where.py:19 keeps < testdata/where.py:30 <module>]: 40960\n\n" +
		"@waits[testdata/where.py:26 gives_back < testdata/where.py:31 <module>]: 5\n"
	here, werr := os.Getwd()
	if err = errors.Join(err, werr); err != nil || strings.ReplaceAll(string(b), here+"/", "") != want {
		t.Errorf("%v\n%s", err, b)
	}
}
