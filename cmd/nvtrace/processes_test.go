package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestManyProcesses: processes that come one after the other, at once, or by fork have all their
// ioctls and launches recorded, whatever else is, and in whatever order a process loads the
// driver and opens a device.
func TestManyProcesses(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	dir := t.TempDir()
	client := filepath.Join(dir, "client")
	if !compileVictim(t, "testdata/client.c", client) {
		t.Skip("no gcc")
	}
	ways := map[string]string{
		"one after the other": "for i in 1 2 3; do client ORDER || exit 1; done",
		"at once":             "for i in 1 2 3; do client ORDER & p=\"$p $!\"; done; for i in $p; do wait $i || exit 1; done",
		"by fork":             "client fORDER",
	}
	kinds := [][]string{
		{"--api"},
		{"--api", "--stacks=launch"},
		{"--api", "--stacks=sync", "--gpu-times=events"},
		{"--gpu-times=probe"},
		{"--modules"},
		{"-e", "kernel:* { @ = count(); }"},
		{"-e", "uprobe:libcuda.so.1:cuLaunchKernel { @ = count(); }"},
		{"-e", "syscall:ioctl { @ = count(); }"},
	}
	for way, script := range ways {
		for _, order := range []string{"ld", "dl", "pld", "lpd", "pdld"} {
			for _, kind := range kinds {
				t.Run(fmt.Sprint(way, "/", order, "/", kind), func(t *testing.T) {
					t.Parallel()
					file := filepath.Join(t.TempDir(), "run.nvt")
					args := slices.Concat([]string{"-q", "--sim", "-o", file}, kind, []string{"--", "sh", "-c", strings.ReplaceAll(script, "ORDER", order)})
					cmd := exec.Command("nvtrace", args...)
					cmd.Env = append(os.Environ(), "TEST_DEVICES=agent", "PATH="+dir+":"+os.Getenv("PATH"))
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Fatalf("%v\n%s", err, out)
					}
					want := []int{7, 7, 7}
					if order == "pdld" {
						want = []int{14, 14, 14}
					}
					if got := ioctlsByProcess(t, file); !slices.Equal(got, want) {
						t.Errorf("ioctls by process: %v, want %v", got, want)
					}
				})
			}
		}
	}
}

// ioctlsByProcess counts those of a recording.
func ioctlsByProcess(t *testing.T, file string) (list []int) {
	t.Helper()
	of := map[int32]int{}
	for _, ev := range eventsOf(t, file) {
		if ev.Kind == traces.KindIoctl && ev.Dev == "nvidiactl" {
			of[ev.PID]++
		}
	}
	for _, n := range of {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

// eventsOf reads a recording.
func eventsOf(t *testing.T, file string) (list []*traces.Event) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := traces.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for ev, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, ev.Clone())
	}
	return list
}
