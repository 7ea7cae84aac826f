package need

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recorder notes how a test would end.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.end = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) {
	r.end = "skipped: " + fmt.Sprint(args...)
	runtime.Goexit()
}

// ending runs f as a test would.
func ending(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.end
}

func TestTool(t *testing.T) {
	dir := t.TempDir()
	here := filepath.Join(dir, "here")
	if err := os.WriteFile(here, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("OTHER", "/opt/other")
	t.Setenv("NVTRACE_REQUIRE", "gcc,absent")
	for _, r := range []struct{ name, env, path, end string }{
		{"here", "", here, ""},
		{"here", "UNSET", here, ""},
		{"here", "OTHER", "/opt/other", ""},
		{"nowhere", "", "", "skipped: nowhere is not installed"},
		{"nowhere", "UNSET", "", "skipped: nowhere is not installed, and UNSET names none"},
		{"absent", "", "", "failed: absent is required (NVTRACE_REQUIRE): absent is not installed"},
	} {
		var path string
		end := ending(t, func(tb testing.TB) { path = Tool(tb, r.name, r.env) })
		if path != r.path || end != r.end {
			t.Errorf("%s: %q, %q, want %q, %q", r.name, path, end, r.path, r.end)
		}
	}
	if got := ending(t, func(tb testing.TB) { Missing(tb, "kernel", "too old") }); got != "skipped: too old" {
		t.Error(got)
	}
	if !Required("gcc") || Required("g") || Required("") != strings.Contains(",gcc,absent,", ",,") {
		t.Error("Required is wrong")
	}
}

// limited is a test that has a limit.
type limited struct {
	testing.TB
	end time.Time
}

func (l *limited) Deadline() (time.Time, bool) { return l.end, !l.end.IsZero() }

func TestLimit(t *testing.T) {
	now := time.Now()
	for _, end := range []time.Time{{}, now.Add(time.Minute), now.Add(time.Hour)} {
		got, ok := Limit(&limited{t, end}).Deadline()
		if !ok || !end.IsZero() && !got.Before(end) || got.After(time.Now().Add(hang)) || end.IsZero() && got.Before(now.Add(hang)) {
			t.Errorf("limit %v: %v, %v", end, got, ok)
		}
	}
	var ctx context.Context
	t.Run("ended", func(t *testing.T) { ctx = Limit(t) })
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("after the test: %v", ctx.Err())
	}
}

// TestUntil: it waits for what comes, and says what did not.
func TestUntil(t *testing.T) {
	n := 0
	if !Until(t, func() bool { n++; return n == 3 }) || n != 3 {
		t.Errorf("asked %d times", n)
	}
	if Until(&limited{t, time.Now().Add(10*time.Second + 20*time.Millisecond)}, func() bool { return false }) {
		t.Error("what never comes came")
	}
}

// TestSignals: what this process ignores, the programs of tests do not.
func TestSignals(t *testing.T) {
	sh := Tool(t, "sh", "")
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ended := func() (by syscall.Signal) {
		t.Helper()
		cmd := exec.Command(sh, "-c", "kill -HUP $$")
		if err := cmd.Run(); err != nil {
			by = cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
		}
		return by
	}
	if by := ended(); by != 0 {
		t.Errorf("a signal that is ignored ended the program: %v", by)
	}
	Signals()
	if by := ended(); by != syscall.SIGHUP {
		t.Errorf("the program was ended by %v, want SIGHUP", by)
	}
}
