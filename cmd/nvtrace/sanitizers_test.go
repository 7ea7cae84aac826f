package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/internal/need"
)

// TestSanitizers: what nvtrace maps into programs is not where sanitizers have their shadows and
// heaps, nor where programs that are not position-independent, or static, lie.
func TestSanitizers(t *testing.T) {
	need.OneThread(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("programs at functions are for x86-64")
	}
	dir := t.TempDir()
	nvtrace := filepath.Join(dir, "nvtrace")
	buildNvtrace(t, nvtrace)
	for _, tt := range []struct {
		name, compiler string
		args           []string
	}{
		{"thread", "gcc", []string{"-fsanitize=thread"}},
		{"address", "gcc", []string{"-fsanitize=address"}},
		{"thread with clang", "clang", []string{"-fsanitize=thread"}},
		{"address with clang", "clang", []string{"-fsanitize=address"}},
		{"memory with clang", "clang", []string{"-fsanitize=memory", "-fsanitize-recover=memory"}},
		{"not position-independent", "gcc", []string{"-no-pie"}},
		{"static", "gcc", []string{"-static-pie"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			compiler, dir := need.Tool(t, tt.compiler, ""), t.TempDir()
			build := func(name, source string) string {
				bin := filepath.Join(dir, name)
				if b, err := exec.CommandContext(need.Limit(t), compiler, append(tt.args, "-O1", "-w", "-o", bin, source, "-ldl", "-lpthread")...).CombinedOutput(); err != nil {
					need.Missing(t, "sanitizers", tt.compiler+" has no library for it: "+string(b))
				}
				return bin
			}
			run := func(argv ...string) (stdout, stderr string, err error) {
				cmd := exec.CommandContext(need.Limit(t), argv[0], argv[1:]...)
				// LeakSanitizer traces the program, which has a tracer; libraries without MemorySanitizer write what it takes for unwritten.
				cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "MSAN_OPTIONS=exit_code=0")
				var out, errs bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &errs
				err = cmd.Run()
				return out.String(), errs.String(), err
			}

			bin := build("threads", "testdata/sanitized.c")
			if out, errs, err := run(bin); err != nil || out != "400\n" {
				need.Missing(t, "sanitizers", "it does not run alone here: "+out+errs)
			}
			if out, errs, err := run(nvtrace, "-q", "-e", "uprobe:"+bin+":hit { @hits = count(); } syscall:getpid { @calls[pid] = count(); }", "--", bin); err != nil || out != "400\n" || !strings.Contains(errs, "@hits: 400\n") {
				t.Errorf("%v: the program printed %q\n%s", err, out, errs)
			}
			if tt.name == "static" {
				return // no libcuda comes into it
			}
			bin = build("mapped", "../../nvattach/sim/testdata/mapped.c")
			recording := filepath.Join(dir, "run.nvt")
			if out, errs, err := run(nvtrace, "-q", "--sim", "--api", "-o", recording, "--", bin); err != nil || out != "PASSED\n" {
				t.Errorf("%v: the program printed %q\n%s", err, out, errs)
			}
			if status, out, errs := clitest.Run(t, view.LogVerb, recording); status != cli.ExitOK || !strings.Contains(out, "cuMemAllocManaged(") {
				t.Errorf("status %d, no calls in the recording: %s\n%s", status, errs, out)
			}
		})
	}
}
