package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
)

// TestDispatched: a program that has the kernel send it a signal for each system call, when a byte of its memory
// says so, gets none for calls that nvtrace makes in it, and probes count exactly.
func TestDispatched(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("there is no agent here")
	}
	dir := t.TempDir()
	bin, nvtrace := filepath.Join(dir, "dispatched"), filepath.Join(dir, "nvtrace")
	if !compileVictim(t, "testdata/dispatched.c", bin) {
		t.Skip("no gcc")
	}
	buildNvtrace(t, nvtrace)
	const want = "500, 0 wrong, 500 answered, 0 others\n"
	status := func(err error) int {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		return -1
	}
	if out, err := exec.CommandContext(need.Limit(t), bin).Output(); string(out) != want || status(err) != 5 {
		need.Missing(t, "syscall user dispatch", string(out))
	}
	for script, shown := range map[string]string{
		"uprobe:dispatched:hit { @n = count(); } uretprobe:dispatched:hit { @r = sum(retval); }": `@n: 1000\s+@r: 251000`,
		"uprobe:dispatched:tiny { @[tid > 0, comm] = count(); }":                                 `@\[1, dispatched\]: 500`,
		"uprobe:dispatched:hit { @[ustack] = count(); }":                                         `hit < main`,
	} {
		var errs bytes.Buffer
		cmd := exec.CommandContext(need.Limit(t), nvtrace, "-q", "-e", script, "--", bin)
		cmd.Stderr = &errs
		if out, err := cmd.Output(); string(out) != want || status(err) != 5 || !regexp.MustCompile(shown).Match(errs.Bytes()) {
			t.Errorf("%s: %q, %v\n%s", script, out, err, &errs)
		}
	}

	app := exec.CommandContext(need.Limit(t), bin, "wait")
	in, out := testprog.Start(t, app)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	cmd := exec.CommandContext(need.Limit(t), nvtrace, "-q", "-e", "uprobe:"+bin+":hit { @n = count(); }", "-p", fmt.Sprint(app.Process.Pid))
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines, said := bufio.NewReader(stderr), ""
	for err == nil && !strings.Contains(said, "attached to process") {
		var line string
		line, err = lines.ReadString('\n')
		said += line
	}
	if _, err := io.WriteString(in, "x"); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(out)
	if werr := app.Wait(); err != nil || string(text) != want || status(werr) != 5 {
		t.Errorf("attached: %q, %v, %v", text, err, werr)
	}
	rest, _ := io.ReadAll(lines)
	said += string(rest)
	if err := cmd.Wait(); status(err) != 5 || !strings.Contains(said, "syscall user dispatch") {
		t.Errorf("%v\n%s", err, said)
	}
}
