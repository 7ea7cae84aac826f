package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/internal/stepkill"
	"nvtrace/internal/testprog"
)

// TestKilled: nvtrace is killed at each of its steps in a program that it has attached to
// and that loads a driver meanwhile: the program's threads have their registers, results
// of system calls, signals and signal masks as if nothing had been.
func TestKilled(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("is written for amd64")
	}
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	buildNvtrace(t, filepath.Join(dir, "nvtrace"))
	for out, args := range map[string][]string{
		"libcuda.so.1": {"-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", `-DLOG="/dev/null"`, "../../nvattach/capture/testdata/fakecuda.c"},
		"unharmed":     {"-O1", "-pthread", "../../ptrace/testdata/unharmed.c", "-ldl"},
	} {
		if b, err := exec.Command("gcc", append([]string{"-o", filepath.Join(dir, out)}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, b)
		}
	}
	step, stride, most := 1, 97, 2000 // it goes on loading for ever
	if need.Required("stepkill") {
		stride = 1
	}
	for ; step < most; step += stride {
		killNvtrace(t, dir, step)
		if t.Failed() {
			t.Fatalf("killed at step %d", step)
		}
	}
}

// killNvtrace attaches to a program, and is killed at a step.
func killNvtrace(t *testing.T, dir string, step int) {
	t.Helper()
	victim := exec.Command(filepath.Join(dir, "unharmed"), "load")
	victim.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir)
	var said strings.Builder
	victim.Stderr = &said
	in, lines := testprog.Start(t, victim)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, _, _ := strings.Cut(line, " ")
	stderr, err := os.Create(filepath.Join(dir, "stderr"+strconv.Itoa(step)))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd := exec.Command(filepath.Join(dir, "nvtrace"), "-q", "--modules", "--api", "-o", filepath.Join(dir, "run.nvt"), "-p", pid)
	cmd.Stderr = stderr
	killed, err := stepkill.Run(cmd, step)
	if err != nil || !killed {
		text, _ := os.ReadFile(stderr.Name())
		t.Errorf("nvtrace was killed: %v, %v\n%s", killed, err, text)
	}
	defer context.AfterFunc(need.Limit(t), func() { panic("the program hangs") })()
	_, _ = io.WriteString(in, "\n") // it may be dead
	last, err := lines.ReadString('\n')
	end := victim.Wait()
	if last != "bad 0\n" || end != nil {
		t.Errorf("%q, %v, %v\n%s", last, err, end, said.String())
	}
}
