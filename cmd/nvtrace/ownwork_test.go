package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestOwnWork: what the driver does for functions that nvtrace calls in a program is recorded as nvtrace's
// own work, and no view shows it as the program's.
func TestOwnWork(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("functions are hooked on amd64")
	}
	dir := t.TempDir()
	lib, prog := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "prog")
	if !compileVictim(t, "testdata/ownwork.c", lib, "-DDRIVER", "-shared", "-fPIC") {
		t.Skip("no gcc")
	}
	if !compileVictim(t, "testdata/ownwork.c", prog, lib, "-Wl,-rpath,"+dir) {
		t.Fatal("the program can't be compiled")
	}
	const launches = 10
	for _, flags := range [][]string{{"--api", "--gpu-times=events"}, {"--fast=off", "--api", "--gpu-times=events"}, {"--api"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "run.nvt")
			cmd := exec.Command("nvtrace", append(append([]string{"-o", file}, flags...), "--", prog)...)
			cmd.Env = append(os.Environ(), "TEST_DEVICES=agent")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var own, theirs, ownOthers, theirOthers int
			for _, ev := range eventsOf(t, file) {
				mine := ev.Flags&traces.FlagOwn != 0
				switch {
				case ev.Kind == traces.KindIoctl && mine:
					if own++; ev.Request()&0xff != 0x29 {
						t.Errorf("request %#x is nvtrace's own", ev.Request())
					}
				case ev.Kind == traces.KindIoctl:
					if theirs++; ev.Request()&0xff != 0x2a {
						t.Errorf("request %#x is the program's", ev.Request())
					}
				case ev.Kind == traces.KindDup || ev.Kind == traces.KindClose:
					if mine {
						ownOthers++
					} else {
						theirOthers++
					}
				}
			}
			if timed := len(flags) > 1; theirs != launches+2 || (own > 0) != timed || (ownOthers > 0) != timed || theirOthers > 1 { // one closes with the process
				t.Errorf("%d ioctls of the program, %d own; other calls %d, %d own\n%s", theirs, own, theirOthers, ownOthers, out)
			}
			line := fmt.Sprintf("%d ioctls", launches+2)
			if own > 0 && !strings.Contains(string(out), fmt.Sprintf("; %d more were nvtrace's own", own)) || !strings.Contains(string(out), line) {
				t.Errorf("the summary lacks %q, or %d that are own:\n%s", line, own, out)
			}
			log, err := exec.Command("nvtrace", "log", file).CombinedOutput()
			if n := strings.Count(string(log), "NV_ESC_RM_FREE"); err != nil || n != 0 {
				t.Errorf("log has %d ioctls of nvtrace's own, %v\n%s", n, err, log)
			}
		})
	}
}
