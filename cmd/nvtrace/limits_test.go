package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/internal/need"
)

// checkRefused runs a shell command whose limits are too low for nvtrace, which must
// say so in a line.
func checkRefused(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() != cli.ExitFailed || !strings.Contains(string(out), want) || strings.Count(string(out), "\n") != 1 {
		t.Errorf("status %d, want %d and a line with %q:\n%.500s", cmd.ProcessState.ExitCode(), cli.ExitFailed, want, out)
	}
}

// TestFewThreads: where nvtrace could not start the threads that it needs, it says so,
// and starts no program.
func TestFewThreads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become a user that has no other processes")
	}
	nvtrace, as := nvtraceOfOther(t)
	cmd := exec.Command("/bin/bash", "-c", "ulimit -u 16; exec "+nvtrace+" -- /bin/echo started")
	as(cmd)
	checkRefused(t, cmd, "ulimit -u 16")
}

// nvtraceOfOther returns an nvtrace that another user may execute, and what has a command be that
// user's. Only root can.
func nvtraceOfOther(t *testing.T) (nvtrace string, as func(*exec.Cmd)) {
	t.Helper()
	// The test binary is nvtrace where it is called so; its folder is not for others.
	dir, err := os.MkdirTemp("", "nvtrace-limits") //nolint:usetesting // above t.TempDir() no other user may look
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const other = 23456                  // a user
	cover := filepath.Join(dir, "cover") // where the user may write what -cover has counted
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(cover, 0o755), os.Chown(cover, other, other)); err != nil {
		t.Fatal(err)
	}
	nvtrace = filepath.Join(dir, "nvtrace")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(nvtrace, self, 0o755); err != nil {
		t.Fatal(err)
	}
	return nvtrace, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
		cmd.Env = append(os.Environ(), "GOCOVERDIR="+cover)
		cmd.Dir = "/"
	}
}

// TestSaysRights: a program that lacks the rights of its file is told of once, with and without -q,
// and recordings have it.
func TestSaysRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a program with rights of another user's")
	}
	nvtrace, as := nvtraceOfOther(t)
	dir := filepath.Dir(nvtrace)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Flags&0x2 != 0 { // ST_NOSUID
		t.Skipf("files in %s give no rights: %v", dir, err)
	}
	echo, err := os.ReadFile("/bin/echo")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := errors.Join(os.WriteFile(program, echo, 0o755), os.Chmod(program, 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	for _, quiet := range []string{"-q=false", "-q"} {
		recording := filepath.Join(dir, "cover", "run"+quiet+".nvt")
		run := exec.Command(nvtrace, quiet, "-o", recording, "--", program, "ran")
		as(run)
		var out, said strings.Builder
		run.Stdout, run.Stderr = &out, &said
		if err := run.Run(); err != nil || out.String() != "ran\n" || strings.Count(said.String(), program+", which is setuid") != 1 {
			t.Errorf("%q: %v; %q; it says %q", quiet, err, out.String(), said.String())
		}
		report := exec.Command(nvtrace, "report", recording)
		as(report)
		if got, err := report.CombinedOutput(); err != nil || strings.Count(string(got), program+", which is setuid") != 1 {
			t.Errorf("%q: %v; the report: %s", quiet, err, got)
		}
	}
}

// TestFewDescriptors: where nvtrace may not open what it needs, the program runs as it is, and a line says
// why. Verbs that run none say so and fail.
func TestFewDescriptors(t *testing.T) {
	need.Tool(t, "bash", "")
	bin := filepath.Join(t.TempDir(), "nvtrace")
	buildNvtrace(t, bin)
	for _, x := range []struct {
		limit, words, want string
		status             int
	}{
		{"4", "-- /bin/sh -c 'echo started; ulimit -n; exit 3'", "started\n4\n", 3},
		{"16", "-e 'uprobe:libc:malloc { @ = count(); }' -- /bin/sh -c 'ulimit -n; kill -9 $$'", "16\n", -1},
		{"16", "stat -- echo started", "started\n", 0},
		{"16", "-- no-such-program", "", cli.ExitNotFound},
		{"16", "report no-such-file", "", cli.ExitFailed},
	} {
		without := ""
		if os.Geteuid() == 0 { // it may raise its limit again
			without = "setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource "
		}
		// What ran the test may have left descriptors open.
		cmd := exec.Command("bash", "-c", "for fd in {3..15}; do eval exec $fd'>&-'; done; ulimit -n "+x.limit+"; exec "+without+bin+" "+x.words)
		var out, said strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &said
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if cmd.ProcessState.ExitCode() != x.status || out.String() != x.want || !strings.Contains(said.String(), "only "+x.limit+" files") {
			t.Errorf("ulimit -n %s; nvtrace %s: status %d, want %d; %q, want %q; it says %q",
				x.limit, x.words, cmd.ProcessState.ExitCode(), x.status, out.String(), x.want, said.String())
		}
	}
}

// TestLittleAddressSpace: Go's runtime needs some; before it begins, nvtrace says so.
func TestLittleAddressSpace(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the entry is for amd64")
	}
	if need.Race {
		t.Skip("runs nvtrace without the race detector")
	}
	bin := filepath.Join(t.TempDir(), "nvtrace")
	build := exec.Command("go", "build", "-ldflags", "-E main.entry", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// With less than the file itself takes, the kernel ends the process before its first instruction.
	for _, kib := range []string{"80000", "400000", "1000000"} {
		checkRefused(t, exec.Command("/bin/bash", "-c", "ulimit -v "+kib+"; exec "+bin+" version"), "ulimit -v")
	}
	if out, err := exec.Command("/bin/bash", "-c", "ulimit -v 4000000; exec "+bin+" version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "nvtrace ") {
		t.Errorf("%v: %s", err, out)
	}
}
