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

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/internal/need"
)

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
		status, lines, stderr := clitest.Run(t, view.ExportVerb, "--format", "jsonl", name)
		if status != cli.ExitOK {
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
		status, out, stderr := clitest.Run(t, view.LogVerb, "-e", program, name)
		if status != cli.ExitOK {
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
		status, out, stderr := clitest.Run(t, view.LogVerb, "-e", `ioctl:* { @n = count(); @total = count(); } interval:20ms { printf("part %d\n", @n); clear(@n); } END { printf("part %d\n", @n); clear(@n); }`, name)
		if status != cli.ExitOK {
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
