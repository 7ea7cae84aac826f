package ptrace

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// caller stops a victim at scaled, and has it call other functions.
type caller struct {
	tape
	t    testing.TB
	path string
	fn   func(task *Task) // with the task held
	at   map[string]uint64
}

func newCaller(t testing.TB, fn func(c *caller, task *Task)) *caller {
	t.Helper()
	c := &caller{t: t, path: build(t, "callee"), at: map[string]uint64{}}
	c.fn = func(task *Task) { fn(c, task) }
	c.onTask = func(task *Task, e *TaskEvent) {
		if e.Kind != TaskExec {
			return
		}
		for _, name := range []string{"scaled", "nine", "slow", "dies", "never"} {
			c.at[name] = address(t, task.PID, c.path, name)
		}
		_, err := task.SetBreakpoint(c.at["scaled"], func(task *Task, _ *Breakpoint) { c.hold(task) })
		if err != nil {
			t.Error(err)
		}
	}
	return c
}

func (c *caller) hold(task *Task) {
	task.Hold()
	go task.Interrupt(c.fn)
}

func (c *caller) call(task *Task, name string, fn func(task *Task, ret uint64, err error), args ...uint64) {
	if err := task.Call(c.at[name], 0, args, fn); err != nil {
		c.t.Errorf("%s: %v", name, err)
		task.Release(nil)
	}
}

var nineArgs = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}

const nineWant = 1 + 4 + 9 + 16 + 25 + 36 + 49 + 64 + 81

// TestCall: the functions get their arguments and return, chains of them too, and
// the program finds all its registers as they were.
func TestCall(t *testing.T) {
	for _, noCopies := range []bool{false, true} {
		chains := 0
		c := newCaller(t, func(c *caller, task *Task) {
			before, err := task.Regs()
			if err != nil {
				c.t.Error(err)
			}
			left := 5
			var next func(task *Task, ret uint64, err error)
			next = func(task *Task, ret uint64, err error) {
				if err != nil || ret != nineWant {
					c.t.Errorf("nine: %d, %v", int64(ret), err)
				}
				if after, err := task.Regs(); err != nil || *after != *before {
					c.t.Errorf("registers %+v, before %+v, %v", after, before, err)
				}
				if tid, err := task.Syscall(unix.SYS_GETTID); err != nil || int(tid) != task.TID {
					c.t.Errorf("gettid: %d, %v", tid, err)
				}
				if left--; left > 0 {
					c.call(task, "nine", next, nineArgs...)
					return
				}
				chains++
				task.Release(nil)
			}
			c.call(task, "nine", next, nineArgs...)
		})
		for _, mode := range []string{"", "threads"} {
			want := "ticks 0, during calls 0\n"
			argv := []string{c.path}
			if mode != "" {
				want, argv = "0 bad\n", append(argv, mode)
			}
			if got, _ := runTraced(t, &Options{noCopies: noCopies}, c, argv...); got.output != want {
				t.Errorf("%q, want %q", got.output, want)
			}
		}
		if chains != 20+300 {
			t.Errorf("%d chains", chains)
		}
	}
}

// TestCallSignals: signals that come during a call are delivered after it, each.
func TestCallSignals(t *testing.T) {
	c := newCaller(t, func(c *caller, task *Task) {
		pid, tid := task.PID, task.TID
		c.call(task, "slow", func(task *Task, ret uint64, err error) {
			if ret != 0 || err != nil {
				c.t.Errorf("slow: %d, %v", int64(ret), err)
			}
			task.Release(nil)
		}, 10)
		_ = unix.Tgkill(pid, tid, unix.SIGUSR1) // it runs, or sleeps, in the function
	})
	got, _ := runTraced(t, &Options{}, c, c.path)
	if got.output != "ticks 20, during calls 0\n" {
		t.Errorf("%q", got.output)
	}
}

// TestCallAtExit: a function is called at the entry of exit_group, on a stack
// of the tracer's, and the program exits afterwards.
func TestCallAtExit(t *testing.T) {
	var c *caller
	calls := 0
	c = newCaller(t, func(_ *caller, task *Task) {
		size := uint64(1 << 16)
		base, err := task.Syscall(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0), 0)
		if err != nil {
			t.Error(err)
		}
		err = task.Call(c.at["nine"], uint64(base)+size, nineArgs, func(task *Task, ret uint64, err error) {
			if err != nil || ret != nineWant {
				t.Errorf("nine: %d, %v", int64(ret), err)
			}
			if calls++; calls < 2 {
				task.Interrupt(c.fn)
				return
			}
			task.Release(nil)
		})
		if err != nil {
			t.Error(err)
			task.Release(nil)
		}
	})
	c.onEnter = func(task *Task, s *Syscall) {
		if s.Name() == "exit_group" {
			c.hold(task)
		}
	}
	got, _ := runTraced(t, &Options{Rules: []Rule{{Names: []string{"exit_group"}, Class: 3}}}, c, c.path, "exit")
	if got.output != "leaving\n" || got.status.ExitStatus() != 7 || calls != 2 {
		t.Errorf("%q, status %#x, %d calls", got.output, got.status, calls)
	}
}

// TestCallDies: the process dies in the function.
func TestCallDies(t *testing.T) {
	var lost error
	c := newCaller(t, func(c *caller, task *Task) {
		c.call(task, "dies", func(_ *Task, _ uint64, err error) { lost = err })
	})
	got, _ := runTraced(t, &Options{}, c, c.path)
	if !got.status.Signaled() || got.status.Signal() != unix.SIGABRT || !errors.Is(lost, ErrGone) {
		t.Errorf("status %#x, %v", got.status, lost)
	}
	lost = nil
	c = newCaller(t, func(c *caller, task *Task) {
		pid := task.PID
		c.call(task, "never", func(_ *Task, _ uint64, err error) { lost = err })
		_ = unix.Kill(pid, unix.SIGKILL)
	})
	got, _ = runTraced(t, &Options{}, c, c.path)
	if !got.status.Signaled() || got.status.Signal() != unix.SIGKILL || !errors.Is(lost, ErrGone) {
		t.Errorf("status %#x, %v", got.status, lost)
	}
}

// TestCallCancelled: a function that does not return is left.
func TestCallCancelled(t *testing.T) {
	n := 0
	c := newCaller(t, func(c *caller, task *Task) {
		c.call(task, "never", func(task *Task, _ uint64, err error) {
			if n++; !errors.Is(err, ErrCanceled) {
				c.t.Errorf("never: %v", err)
			}
			task.Release(nil)
		})
		task.Interrupt(func(task *Task) {
			if err := task.CancelCall(); err != nil {
				c.t.Error(err)
			}
		})
	})
	got, _ := runTraced(t, &Options{}, c, c.path)
	if got.output != "ticks 0, during calls 0\n" || n != 20 {
		t.Errorf("%q, %d", got.output, n)
	}
}

// TestCallState: where no function can be called, that is an error and nothing
// happens.
func TestCallState(t *testing.T) {
	var errs []error
	c := newCaller(t, func(c *caller, task *Task) {
		c.call(task, "nine", func(task *Task, _ uint64, _ error) {
			errs = append(errs, task.Call(c.at["nine"], 8, nineArgs, nil)) // no stack there
			task.Release(func(task *Task) {
				errs = append(errs, task.Call(c.at["nine"], 0, nil, nil)) // not held any more
			})
		}, nineArgs...)
		errs = append(errs, task.Call(c.at["nine"], 0, nil, nil), task.CancelCall())
	})
	got, _ := runTraced(t, &Options{}, c, c.path)
	if !strings.HasPrefix(got.output, "ticks 0") || len(errs) != 4*20 {
		t.Errorf("%q, %d errors", got.output, len(errs))
	}
	for i, err := range errs {
		if err == nil || i%4 != 2 && !errors.Is(err, ErrState) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestCallOutlived: no function is called in a program that would have to return from it
// without this process.
func TestCallOutlived(t *testing.T) {
	var errs []error
	c := newCaller(t, func(c *caller, task *Task) {
		errs = append(errs, task.Call(c.at["nine"], 0, nineArgs, func(*Task, uint64, error) {}))
		task.Release(nil)
	})
	got, _ := runTraced(t, &Options{NoExitKill: true}, c, c.path)
	if !strings.HasPrefix(got.output, "ticks 0") || len(errs) != 20 {
		t.Errorf("%q, %d errors", got.output, len(errs))
	}
	for _, err := range errs {
		if !errors.Is(err, ErrState) {
			t.Error(err)
		}
	}
}

// BenchmarkFunctionCall: one call of a function in a chain of them.
func BenchmarkFunctionCall(b *testing.B) {
	c := newCaller(b, func(c *caller, task *Task) {
		left := 2000
		var next func(task *Task, ret uint64, err error)
		next = func(task *Task, ret uint64, err error) {
			if err != nil || ret != nineWant {
				c.t.Errorf("nine: %d, %v", int64(ret), err)
			}
			if left--; left > 0 {
				c.call(task, "nine", next, nineArgs...)
				return
			}
			task.Release(nil)
		}
		c.call(task, "nine", next, nineArgs...)
	})
	devnull, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer devnull.Close()
	for b.Loop() {
		if _, err := Run(context.Background(), &Options{Argv: []string{c.path}, Stdout: devnull, Rules: victimRules()}, c); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/(20*2000), "µs/call")
}
