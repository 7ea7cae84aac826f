package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/fatbin"
	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
	"nvtrace/nvattach/sim"
)

// TestLiveKernels attaches programs of one line, an object and a tool to a program on the
// simulated GPU that runs already: they count whole launches of a kernel that was loaded before.
func TestLiveKernels(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("calls of functions need amd64")
	}
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	nvtrace, image, bin := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "image"), filepath.Join(dir, "live")
	buildNvtrace(t, nvtrace)
	const data = "../../nvattach/gpu/testdata/"
	e, err := fatbin.NewEntry(fatbin.KindPTX, fatbin.Arch{SM: 75}, []byte(clitest.ReadText(t, data+"live.ptx")), nil)
	if err != nil {
		t.Fatal(err)
	}
	clitest.WriteText(t, image, string((&fatbin.Container{Entries: []fatbin.Entry{e}}).Append(nil)), 0o600)
	if b, err := exec.Command("gcc", "-O1", "-w", "-DFATBIN=\""+image+"\"", "-o", bin, data+"live.c", "-ldl", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	sm, err := sim.New(&sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer sm.Close()
	go sm.Serve(context.Background()) //nolint:errcheck // ended by Close
	app := exec.Command(bin)
	app.Env = sm.Env(os.Environ())
	in, out := testprog.Start(t, app)
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("%q", lines.Text())
	}
	for _, tt := range []struct {
		args []string
		want string // with the number of threads
	}{
		{[]string{"-q", "-e", "kernel:vector* { @[kernel] = count(); }"}, `@\[vectorAdd\]: ([1-9]\d*)\n`},
		{[]string{"-q", "--attach", "../../nvattach/testdata/obj/example_count.bpf.o"}, `\[0\] = ([1-9]\d*)\n`},
		{[]string{"tool", "kernels"}, ` (\d+) +\d+ +\d+  vectorAdd\n`},
		{[]string{"-q", "-e", "kernel:* { @[kernel] = count(); } api:cuLaunchKernel { @calls = count(); }"}, `@\[vectorAdd\]: ([1-9]\d*)\n`},
	} {
		var b []byte
		var m []string
		var err error
		// On a busy machine no launch may come after the kernel's copy was loaded.
		for d, limit := time.Second, need.Limit(t); err == nil && m == nil && limit.Err() == nil; d *= 2 {
			b, err = exec.Command(nvtrace, append(tt.args, "--duration", d.String(), "-p", strconv.Itoa(app.Process.Pid))...).CombinedOutput()
			m = regexp.MustCompile(tt.want).FindStringSubmatch(string(b))
		}
		if err != nil || m == nil || !strings.Contains(string(b), "probed vectorAdd") {
			t.Errorf("%v: %v\n%s", tt.args, err, b)
			continue
		}
		const launch = 8 * 128
		if n, _ := strconv.Atoi(m[1]); n == 0 || n%launch != 0 {
			t.Errorf("%v: %d threads are no launches of %d\n%s", tt.args, n, launch, b)
		}
	}
	in.Close()
	if !lines.Scan() || !strings.HasSuffix(lines.Text(), " launches") {
		t.Errorf("%q", lines.Text())
	}
	if err := app.Wait(); err != nil {
		t.Errorf("the program: %v", err)
	}
}
