package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
)

// liveApp is testdata/live/app.c, which runs.
type liveApp struct {
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Scanner
	calls int // that it has made so far
}

func startLiveApp(t *testing.T, dir string) *liveApp {
	t.Helper()
	lib, bin := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "app")
	for _, args := range [][]string{
		{"-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", lib, "testdata/live/libcuda.c"},
		{"-O1", "-o", bin, "testdata/live/app.c", lib, "-Wl,-rpath," + dir},
	} {
		if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, b)
		}
	}
	a := &liveApp{cmd: exec.Command(bin)}
	in, out := testprog.Start(t, a.cmd)
	a.in, a.out = in, bufio.NewScanner(out)
	t.Cleanup(func() {
		_ = in.Close() // it ends
		if err := a.cmd.Wait(); err != nil {
			t.Errorf("the program: %v", err)
		}
	})
	return a
}

// rounds has the program make its calls, and waits until it has.
func (a *liveApp) rounds(t *testing.T, n int) {
	t.Helper()
	for range n {
		if _, err := a.in.Write([]byte{'x'}); err != nil {
			t.Fatal(err)
		}
		if !a.out.Scan() {
			t.Fatal("the program has ended")
		}
		const callsOfRound = 10 + 9 + 2
		if a.calls += callsOfRound; a.out.Text() != fmt.Sprint(a.calls) {
			t.Fatalf("the program counts %s calls, want %d", a.out.Text(), a.calls)
		}
	}
}

// TestLiveProbes attaches programs of one line and tools to a program that runs, again and again.
// They count exactly what it does meanwhile, and it
// computes what it does alone; a hundred times.
func TestLiveProbes(t *testing.T) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	nvtrace := filepath.Join(dir, "nvtrace")
	buildNvtrace(t, nvtrace)
	app := startLiveApp(t, dir)
	pid := fmt.Sprint(app.cmd.Process.Pid)
	app.rounds(t, 3)
	for cycle := range 20 {
		rounds := 1 + cycle%4
		for _, tt := range []struct {
			args []string
			want []string
		}{
			{
				[]string{"-q", "-e", "api:cuMemAlloc_v2 { @size[args.bytesize] = count(); } apiret:cu* { @status[name, status] = count(); }"},
				[]string{
					fmt.Sprintf("@size[4096]: %d", rounds), fmt.Sprintf("@size[256]: %d", 9*rounds), fmt.Sprintf("@size[1073741824]: %d", rounds),
					fmt.Sprintf("@status[cuMemFree_v2, CUDA_SUCCESS]: %d", 9*rounds), fmt.Sprintf("@status[cuMemAlloc_v2, CUDA_ERROR_OUT_OF_MEMORY]: %d", rounds),
				},
			},
			{[]string{"-q", "-e", "api:cuMemAlloc_v2 /comm == \"app\"/ { @[comm] = count(); }"}, []string{fmt.Sprintf("@[app]: %d", 11*rounds)}},
			{[]string{"tool", "leaks"}, []string{fmt.Sprintf("%d bytes in %d allocations", 4096*rounds, rounds), fmt.Sprintf("@not_freed[4096]: %d", rounds)}},
			{
				[]string{"-q", "-e", "uprobe:libcuda.so.1:cuCtxSynchronize { @waits = count(); } uretprobe:libcuda.so.1:cuMemAlloc_v2 { @[retval] = count(); }"},
				[]string{fmt.Sprintf("@waits: %d", rounds), fmt.Sprintf("@[0]: %d", 10*rounds), fmt.Sprintf("@[2]: %d", rounds)},
			},
			{[]string{"stat"}, []string{"waits for the GPU", fmt.Sprintf("%d      allocations", 10*rounds), fmt.Sprintf("%d      frees", 9*rounds), fmt.Sprintf("%d      failed calls", rounds)}},
			{[]string{"top", "--api"}, []string{fmt.Sprintf("FAILED %d\n", rounds)}},
		} {
			cmd := exec.Command(nvtrace, append(tt.args, "-p", pid)...)
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stop := context.AfterFunc(need.Limit(t), func() { _ = cmd.Process.Kill() })
			lines := bufio.NewReader(stderr)
			var said strings.Builder
			for !strings.Contains(said.String(), "attached to process") {
				line, err := lines.ReadString('\n')
				said.WriteString(line)
				if err != nil {
					t.Fatalf("%v: %s", tt.args, &said)
				}
			}
			app.rounds(t, rounds)
			if err := cmd.Process.Signal(unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(lines)
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %v", tt.args, err)
			}
			stop()
			for _, w := range tt.want {
				if !strings.Contains(string(rest), w) {
					t.Errorf("cycle %d: nvtrace %v: no %q in\n%s", cycle, tt.args, w, rest)
				}
			}
			app.rounds(t, 1) // alone again
		}
	}
	if b, err := os.ReadFile("/proc/" + pid + "/status"); err != nil || !strings.Contains(string(b), "TracerPid:\t0\n") {
		t.Errorf("it is still traced: %v", err)
	}
}
