package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestQuitBefore: a signal that comes before there is a program ends nvtrace as it ends any other, without a word.
func TestQuitBefore(t *testing.T) {
	dir := t.TempDir()
	bin, fifo := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "script.nt")
	buildNvtrace(t, bin)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []unix.Signal{unix.SIGQUIT, unix.SIGINT, unix.SIGTERM} {
		var said strings.Builder
		cmd := exec.Command(bin, "--script", fifo, "--", "echo", "begun")
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0) // when nvtrace has begun to read it
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
		err = cmd.Wait()
		f.Close()
		if st := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); st.Signal() != sig || said.Len() > 0 {
			t.Errorf("%v: %v; it says %.300q", sig, err, said.String())
		}
	}
}
