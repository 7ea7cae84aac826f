package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/verbs"
)

// terminal returns a terminal that nobody looks at.
func terminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skipf("no terminal can be made: %v", err)
	}
	fd, err := unix.IoctlRetInt(int(master.Fd()), unix.TIOCGPTPEER)
	if err != nil {
		t.Skipf("no terminal can be made: %v", err)
	}
	f := os.NewFile(uintptr(fd), "terminal")
	t.Cleanup(func() { f.Close() })
	return f
}

// TestExportTerminal exports to a terminal: text may go there, what is binary not.
func TestExportTerminal(t *testing.T) {
	const file = "../../traces/corpus/rminfo.nvt"
	for format, wants := range map[string][]string{
		"pprof":    {"-o run.pb.gz", "go tool pprof"},
		"perfetto": {"-o run.perfetto-trace", "ui.perfetto.dev"},
	} {
		tty := terminal(t)
		if !cli.IsTerminal(tty) {
			t.Fatal("the terminal is none")
		}
		var stderr bytes.Buffer
		e := &cli.Env{Stdout: tty, Stderr: &stderr, Getenv: func(string) string { return "" }}
		if status := verbs.Main(e, []string{"export", "--format", format, file}); status != cli.ExitUsage {
			t.Errorf("%s: status %d", format, status)
		}
		for _, want := range append(wants, "terminal") {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("no %q in %s", want, &stderr)
			}
		}
		out := t.TempDir() + "/run." + format
		if status := verbs.Main(e, []string{"export", "--format", format, "-o", out, file}); status != cli.ExitOK {
			t.Errorf("%s to a file: status %d: %s", format, status, &stderr)
		}
	}
}
