package agent

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"nvtrace/ptrace"
)

// TestKilled: one supervisor after another is killed in a program, each at another step;
// each but the first takes over what the one before has left.
func TestKilled(t *testing.T) {
	u := startUnharmed(t, compile(t, "../testdata/unharmed.c", "-ldl"), "attach")
	for i := range 25 {
		step := 1 + (i*i*13+i*29)%400
		if _, ok := u.kill(t, step); !ok {
			t.Fatalf("killed at step %d, after %d others", step, i)
		}
	}
	u.end(t)
}

// early asks for the agent when it is told of a process that has not stopped yet, and
// again when that has.
type early struct {
	a            *Agent
	end          context.CancelFunc
	before, then error
}

func (e *early) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }
func (e *early) Exit(*ptrace.Task, *ptrace.Syscall)                 {}
func (e *early) Task(t *ptrace.Task, ev *ptrace.TaskEvent) {
	e.a.Task(t, ev)
	if !ev.Attached || ev.Thread {
		return
	}
	_, e.before = e.a.Process(t)
	t.Interrupt(func(t *ptrace.Task) {
		_, e.then = e.a.Process(t)
		e.end()
	})
}

// TestEarly: that a process can't be given the agent before it has stopped says nothing
// about it.
func TestEarly(t *testing.T) {
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = victim.Process.Kill()
		_ = victim.Wait()
	}()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	a := New(nil)
	e := &early{a: a, end: end}
	_, err := ptrace.Attach(ctx, victim.Process.Pid, &ptrace.Options{Rules: a.Rules(), Injector: a}, e)
	if !errors.Is(e.before, ptrace.ErrState) || e.then != nil {
		t.Errorf("ended: %v; before it stopped: %v; then: %v", err, e.before, e.then)
	}
}
