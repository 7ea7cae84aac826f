package ptrace

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
)

// endingRule selects the calls by which threads and processes end.
var endingRule = Rule{Names: []string{"exit_group"}, Nrs: []uint32{unix.SYS_EXIT}, Class: 3}

// TestEndings: a program that outlives its tracer ends as it would without one, and so does one whose tracer
// is there, which sees the calls that it ends by.
func TestEndings(t *testing.T) {
	defer context.AfterFunc(need.Limit(t), func() { panic("the program hangs") })()
	ending := build(t, "ending")
	v := startHelper(t, "run-ends", "sh", "-c", ending+"; echo status $?")
	v.cmd.Process.Kill()
	_, _ = v.cmd.Process.Wait() // its output goes on
	io.WriteString(v.stdin, "\n")
	if out, err := io.ReadAll(v.out); string(out) != "status 7\n" {
		t.Errorf("without its tracer: %q, %v", out, err)
	}

	for _, live := range []bool{false, true} {
		h := &tape{}
		var seen []string
		h.onEnter = func(_ *Task, c *Syscall) {
			if c.Class == endingRule.Class {
				seen = append(seen, SyscallName(c.Arch, c.Nr)+" "+string('0'+rune(c.Args[0])))
			}
		}
		stdin, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		got, res := runTraced(t, &Options{NoExitKill: live, Rules: []Rule{endingRule}, Stdin: stdin}, h, ending)
		stdin.Close()
		if want := []string{"exit 9", "exit_group 7"}; res.Status.ExitStatus() != 7 || strings.Contains(got.output, "returned") || !slices.Equal(seen, want) {
			t.Errorf("outlives its tracer: %t: %+v, saw %q; want %q", live, got, seen, want)
		}
	}
}

// TestEndingsRefused: where a call must not fail, and can't be seen in another way, no program begins.
func TestEndingsRefused(t *testing.T) {
	o := &Options{NoExitKill: true, Argv: []string{"true"}, Rules: []Rule{{Names: []string{"rt_sigreturn"}, Class: 1}}}
	if res, err := Run(context.Background(), o, &tape{}); res != nil || !errors.Is(err, errReturning) {
		t.Errorf("%+v, %v", res, err)
	}
}
