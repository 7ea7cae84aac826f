package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// restless is a supervisor that makes the threads of a process make system calls,
// without end.
type restless struct {
	a    *Agent
	n    int
	addr uint64 // of a function that it hooks, and has a breakpoint at
	h    *Hook
}

func (r *restless) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	if c.Class == Class {
		r.a.Trap(t, c, func() {})
	}
	return ptrace.Skip
}

func (r *restless) Exit(*ptrace.Task, *ptrace.Syscall) {}

func (r *restless) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	r.a.Task(t, e)
	if e.Kind == ptrace.TaskNew {
		t.Interrupt(r.rush)
	}
}

func (r *restless) rush(t *ptrace.Task) {
	if r.h == nil {
		// Its second argument is a small number: there is no memory to copy, and nobody who
		// repairs the fault of that when this process has been killed.
		r.h = &Hook{Name: "call", Derefs: []Deref{{Arg: 1, Len: 8, In: true, Out: true}}}
		p, err := r.a.Process(t)
		if err == nil {
			err = p.Hook(t, r.addr, 0, r.h)
		}
		if err == nil {
			_, err = t.SetBreakpoint(r.addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
				if err := t.OnReturn(func(*ptrace.Task, uint64) {}); err != nil {
					fmt.Println("return:", err)
					os.Exit(1)
				}
			})
		}
		if err != nil {
			fmt.Println("hook:", err)
			os.Exit(1)
		}
	}
	r.a.Collect()
	for {
		if _, ok := r.a.Peek(); !ok {
			break
		}
		r.a.Deliver()
	}
	for range 20 {
		if pid, err := t.Syscall(unix.SYS_GETPPID); err != nil || pid <= 0 {
			fmt.Println("system call:", pid, err)
			os.Exit(1)
		}
	}
	if r.n++; r.n == 10 {
		fmt.Println("at work")
	}
	t.Interrupt(r.rush)
}

// TestKilledSupervisor is, with a process id in the environment, the supervisor that
// TestKilled kills.
func TestKilledSupervisor(t *testing.T) {
	pid, err := strconv.Atoi(os.Getenv("TEST_SUPERVISE"))
	if err != nil {
		t.Skip("is for TestKilled")
	}
	addr, err := strconv.ParseUint(os.Getenv("TEST_FUNCTION"), 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	a := New(nil)
	_, err = ptrace.Attach(context.Background(), pid, &ptrace.Options{
		Rules: a.Rules(), ExemptPage: true, Fault: a.Fault, Detour: a.Detour, Stubs: a.Stubs(),
	}, &restless{a: a, addr: addr})
	fmt.Println("ended:", err)
}

// TestKilled: a supervisor is killed while it makes threads make system calls,
// wherever they are, and while calls of a hooked function are open: they go on as if
// nothing had been. So with the next one, which takes over what that has left.
func TestKilled(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	victim := exec.Command(bin, "steady", "4")
	var said strings.Builder
	victim.Stderr = &said
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	addr := lines.Text()
	kills := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		s := exec.Command(os.Args[0], "-test.run=^TestKilledSupervisor$")
		s.Env = append(os.Environ(), "TEST_SUPERVISE="+strconv.Itoa(victim.Process.Pid), "TEST_FUNCTION="+addr)
		p, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		if kills == 0 || rand.IntN(2) == 0 { // the first one: the calls that map the agent are not protected
			if sc := bufio.NewScanner(p); !sc.Scan() || sc.Text() != "at work" {
				t.Errorf("the supervisor: %q", sc.Text())
			}
		}
		time.Sleep(time.Duration(rand.IntN(20000)) * time.Microsecond)
		_ = s.Process.Kill()
		_ = s.Wait()
		kills++
	}
	lines.Scan()
	if s := lines.Text(); s != "bad 0 alarms 1" {
		t.Errorf("%d supervisors were killed: %s\n%s", kills, s, said.String())
	}
	if err := victim.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d supervisors were killed", kills)
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
	_, err := ptrace.Attach(ctx, victim.Process.Pid, &ptrace.Options{Rules: a.Rules(), ExemptPage: true, Fault: a.Fault, Detour: a.Detour, Stubs: a.Stubs()}, e)
	if !errors.Is(e.before, ptrace.ErrState) || e.then != nil {
		t.Errorf("ended: %v; before it stopped: %v; then: %v", err, e.before, e.then)
	}
}
