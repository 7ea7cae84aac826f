package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"nvtrace/internal/need"
)

// FuzzScribbled: a program writes whatever it likes into all memory that it shares with nvtrace, while it is
// traced with each kind of output. It ends as it would alone, and nvtrace neither panics nor takes much memory.
func FuzzScribbled(f *testing.F) {
	need.Tool(f, "gcc", "")
	dir := f.TempDir()
	victim, nvtrace := filepath.Join(dir, "scribble"), filepath.Join(dir, "nvtrace")
	if out, err := exec.Command("gcc", "-O1", "-pthread", "-w", "-o", victim, "testdata/scribble.c").CombinedOutput(); err != nil {
		f.Fatalf("gcc: %v\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	if err := os.Symlink(self, nvtrace); err != nil { // the test binary is nvtrace where it is called so
		f.Fatal(err)
	}
	function := fmt.Sprintf("probe:%s:hit ", victim)
	counts := "u" + function + `{ @c = count(); @k[tid, arg0] = count(); @h[tid] = hist(arg0); @l = lhist(arg0, 0, 1000, 10); @u[ustack] = count(); }
		uret` + function + "{ @r = hist(retval); @rk[retval] = lhist(retval, 0, 100, 1); @t = stats(retval); @m = min(retval); }"
	prints := "u" + function + `{ printf("%d %d\n", arg0, tid); @x[arg0] = nsecs; } interval:ms:20 { print(@x, 5); } END { for ($k : @x) { printf("%d\n", $k.1 / $k.0); } }`
	for seed := range uint64(3) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		dir := t.TempDir()
		recording := filepath.Join(dir, "run.nvt")
		for _, flags := range [][]string{
			{"-q", "-e", counts},
			{"--json", "-e", counts},
			{"-q", "--interval=20ms", "--maps=" + filepath.Join(dir, "maps"), "-e", counts},
			{"-q", "--fast=off", "-e", counts},
			{"-q", "-e", prints},
			{"-q", "--api", "--gpu-times=events", "-o", recording, "-e", counts},
			{"top"},
			{"stat"},
		} {
			unharmed(t, exec.Command(nvtrace, append(flags, "--", victim, fmt.Sprint(seed), "4")...), 3)
		}
		for _, words := range [][]string{
			{"report"},
			{"log"},
			{"maps"},
			{"failures"},
			{"export", "--format=jsonl"},
			{"export", "--format=perfetto", "-o", filepath.Join(dir, "timeline")},
			{"export", "--format=pprof", "-o", filepath.Join(dir, "profile")},
			{"export", "--format=parquet", "-o", filepath.Join(dir, "tables")},
		} {
			unharmed(t, exec.Command(nvtrace, append(words, recording)...), 0)
		}
	})
}

// unharmed runs a command that must end with a status, without a panic and in little memory.
func unharmed(t *testing.T, cmd *exec.Cmd, status int) {
	t.Helper()
	var said strings.Builder
	cmd.Stderr = &said
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	} else if ok && exit.ExitCode() != status || !ok && status != 0 || strings.Contains(said.String(), "goroutine ") {
		t.Errorf("%q: %v, want status %d; it says %.2000s", cmd.Args, err, status, said.String())
	}
	// The kernel counts what this process has taken as the child's, which shared its memory until execve.
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		t.Fatal(err)
	}
	most := max(1<<20, own.Maxrss) // KiB
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && u.Maxrss > most {
		t.Errorf("%q took %d KiB", cmd.Args, u.Maxrss)
	}
}
