package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
)

// TestJSONAlone: JSON and CSV on stderr have nothing behind them, also where there is no driver.
func TestJSONAlone(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "nvtrace")
	buildNvtrace(t, bin)
	for _, flags := range []string{"--json", "stat --json", "stat --json --repeat 2"} {
		var said strings.Builder
		cmd := exec.Command(bin, append(strings.Fields(flags), "--", "true")...)
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v", flags, err)
		}
		if !json.Valid([]byte(said.String())) {
			t.Errorf("%s: no JSON document: %s", flags, said.String())
		}
	}
	for _, flags := range []string{"stat --csv", "stat --csv --repeat 2", "-q --stat=csv"} {
		var said strings.Builder
		cmd := exec.Command(bin, append(strings.Fields(flags), "--", "true")...)
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil || said.Len() == 0 || strings.Contains(said.String(), "nvtrace:") {
			t.Errorf("%s: %v: %s", flags, err, said.String())
		}
	}
}

// TestStatStopped: a signal ends repeated runs; what was counted is printed, and nothing is left behind.
func TestStatStopped(t *testing.T) {
	need.Signals()
	dir := t.TempDir()
	bin, fifo := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "begun")
	buildNvtrace(t, bin)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	begun, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer begun.Close()
	for _, c := range []struct {
		sig   unix.Signal
		group int    // -1: all get it, as from a terminal
		flag  string // of stat
	}{{unix.SIGINT, -1, "-q"}, {unix.SIGTERM, -1, "-q"}, {unix.SIGTERM, 1, "-q"}, {unix.SIGINT, -1, "--json"}, {unix.SIGTERM, 1, "--csv"}} {
		var said strings.Builder
		temp := t.TempDir()
		cmd := exec.Command(bin, "stat", "--repeat", "3", c.flag, "--", "sh", "-c", "echo >"+fifo+"; exec sleep 600")
		cmd.Env = append(os.Environ(), "TMPDIR="+temp)
		cmd.Stderr = &said
		cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := begun.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := begun.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if err := unix.Kill(c.group*cmd.Process.Pid, c.sig); err != nil {
			t.Error(err)
		}
		err := cmd.Wait()
		if st := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); st.Signal() != c.sig {
			t.Errorf("%v: ended with %v", c.sig, err)
		}
		wants := []string{"1 of 3 runs were counted", "GPU counter stats for"}
		switch c.flag {
		case "--json": // and nothing else
			wants = []string{`"runs": 1,`, `"asked": 3,`}
			if !json.Valid([]byte(said.String())) {
				t.Errorf("no JSON: %s", said.String())
			}
		case "--csv":
			wants = []string{"runs,1,,,"}
			if !strings.HasPrefix(said.String(), "counter,mean,") {
				t.Errorf("no CSV: %s", said.String())
			}
		}
		for _, want := range wants {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%v: no %q in %s", c.sig, want, said.String())
			}
		}
		left, err := os.ReadDir(temp)
		if err != nil {
			t.Error(err)
		}
		for _, f := range left {
			if strings.HasPrefix(f.Name(), "nvtrace-stat-") {
				t.Errorf("%v: %s is left", c.sig, f.Name())
			}
		}
	}
}
