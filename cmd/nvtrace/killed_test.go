package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	dir := killable(t)
	step, stride, most := 1, 331, 2000 // it goes on loading for ever
	if need.Required("stepkill") {
		stride = 1
	}
	for ; step < most; step += stride {
		killNvtraces(t, dir, []string{"--modules", "--api"}, step)
		if t.Failed() {
			t.Fatalf("killed at step %d", step)
		}
	}
}

// TestKilledAgain: another nvtrace follows, which takes over what the first has left, and is killed in turn.
// It has programs run at functions and system calls, whose memory it may find in any state.
func TestKilledAgain(t *testing.T) {
	dir := killable(t)
	probes := []string{
		"--modules", "-e",
		"uprobe:" + dir + "/unharmed:call { @ = count(); } uretprobe:" + dir + "/unharmed:call { @r = hist(retval); } syscall:lseek { @s = count(); }",
	}
	const most = 1000 // steps, in which it gets to run programs
	victims := 8
	if need.Required("stepkill") {
		victims = 1000
	}
	for i := range victims {
		first, second := 1+i*most/victims, 1+i*7919%most // each step of the first; with any of the second
		killNvtraces(t, dir, probes, first, second)
		if t.Failed() {
			t.Fatalf("killed at step %d, and at step %d the next one", first, second)
		}
	}
	t.Logf("%d victims of two", victims)
}

// killable makes a folder with nvtrace, a program that finds out whether it was harmed, and a driver for it.
func killable(t *testing.T) string {
	t.Helper()
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
	return dir
}

// killNvtraces has one nvtrace after the other attach to a program, each of which is killed at a step.
func killNvtraces(t *testing.T, dir string, flags []string, steps ...int) {
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
	for _, step := range steps {
		stderr, err := os.Create(filepath.Join(dir, "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(dir, "nvtrace"), append(append([]string{"-q", "-o", filepath.Join(dir, "run.nvt")}, flags...), "-p", pid)...)
		cmd.Stderr = stderr
		killed, err := stepkill.Run(cmd, step)
		stderr.Close()
		if err != nil || !killed {
			text, _ := os.ReadFile(stderr.Name())
			t.Errorf("nvtrace was killed at step %d: %v, %v\n%s", step, killed, err, text)
		}
	}
	defer context.AfterFunc(need.Limit(t), func() { panic("the program hangs") })()
	_, _ = io.WriteString(in, "\n") // it may be dead
	last, err := lines.ReadString('\n')
	end := victim.Wait()
	if last != "bad 0\n" || end != nil {
		t.Errorf("%q, %v, %v\n%s", last, err, end, said.String())
	}
}
