package ptrace

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
)

// TestStopWorld: nobody runs while the world is stopped, and everything goes on
// afterwards.
func TestStopWorld(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_load")
		n, most := 0, 0
		b.fn = func(task *Task, bp *Breakpoint) {
			if n++; n%40 != 0 {
				return
			}
			tasks, resume, err := task.StopWorld()
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, len(tasks))
			var before []uint64
			for _, o := range tasks {
				pc, err := o.PC()
				if err != nil && !errors.Is(err, ErrGone) {
					t.Error(err)
				}
				if s := task.Proc.space; len(s.pages) > 0 && pc-s.pages[0].addr < pageSize {
					t.Errorf("%d is in a copy", o.TID)
				}
				before = append(before, pc)
			}
			for i := range 10 * len(tasks) { // long enough for one that runs to get on
				i %= len(tasks)
				o := tasks[i]
				if pc, err := o.PC(); pc != before[i] || err != nil && !errors.Is(err, ErrGone) {
					t.Errorf("%d went from %#x to %#x, %v", o.TID, before[i], pc, err)
				}
			}
			if n%80 != 0 { // otherwise it is implied
				resume()
				resume()
			}
		}
		got, _ := b.run(t, o, "hammer", "8", "400", "f_load")
		if !strings.HasSuffix(got.output, " 0 bad\n") || b.hits["f_load"] != 3200 || most < 4 {
			t.Errorf("%+v, %v, %d stopped", got, b.hits, most)
		}
	})
}

// TestStopWorldAsleep: with threads that sleep, share the memory as processes, or
// wait for their vfork child.
func TestStopWorldAsleep(t *testing.T) {
	for mode, output := range map[string]string{"sleepers": "0 bad\n", "vforks": "vfork ok=10\n", "clones": "clone ok=4\n", "storm": "0 bad\n", "places": "0 bad\n"} {
		ways(t, func(t *testing.T, o *Options) {
			b := newBreaker(t, "f_push")
			most := 0
			stop := func(task *Task) {
				for range 3 {
					tasks, resume, err := task.StopWorld()
					if err != nil {
						t.Error(err)
						return
					}
					most = max(most, len(tasks))
					for _, o := range tasks {
						if o.Proc.space != task.Proc.space || o == task {
							t.Errorf("%d is of another world", o.TID)
						}
						if _, err := o.PC(); err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
							t.Error(err)
						}
					}
					resume()
				}
			}
			b.fn = func(task *Task, _ *Breakpoint) { stop(task) }
			b.onEnter = func(task *Task, _ *Syscall) { stop(task) }
			b.onExit = b.onEnter
			place := b.onTask
			b.onTask = func(task *Task, e *TaskEvent) {
				if e.Kind == TaskNew || e.Kind == TaskSignal || e.Kind == TaskExec {
					stop(task)
				}
				place(task, e)
			}
			if got, _ := b.run(t, o, mode); got.output != output || got.status != 0 {
				t.Errorf("%s: %+v", mode, got)
			}
			if most == 0 {
				t.Errorf("%s: there never was another task", mode)
			}
		})
	}
}

// TestHold: tasks are held in all kinds of stops, and released by another
// goroutine, which does something in each.
func TestHold(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_push")
		work := make(chan *Task, 100)
		done := make(chan bool)
		held, released := 0, 0
		go func() {
			defer close(done)
			for task := range work {
				task.Release(func(task *Task) {
					released++
					if tid, err := task.Syscall(unix.SYS_GETTID); err != nil || int(tid) != task.TID {
						t.Errorf("%d, %v", tid, err)
					}
					if released%3 == 0 { // once more
						held++
						task.Hold()
						work <- task
					}
				})
			}
		}()
		hold := func(task *Task) {
			held++
			task.Hold()
			work <- task
		}
		b.fn = func(task *Task, _ *Breakpoint) { hold(task) }
		b.onEnter = func(task *Task, _ *Syscall) { hold(task) }
		b.onExit = b.onEnter
		place := b.onTask
		b.onTask = func(task *Task, e *TaskEvent) {
			place(task, e)
			if e.Kind == TaskNew && e.Parent != nil || e.Kind == TaskExec {
				hold(task)
			}
		}
		for _, mode := range []string{"places", "storm"} {
			if got, _ := b.run(t, o, mode); got.output != "0 bad\n" {
				t.Errorf("%s: %+v", mode, got)
			}
			b.tape.calls, b.tape.enters, b.tape.events, b.tape.live, b.tape.over = nil, 0, nil, nil, nil
		}
		close(work)
		<-done
		if held != released || released < 320+22+40 {
			t.Errorf("held %d, released %d", held, released)
		}
	})
}

// TestHoldKilled: the process is killed while a task is held, and a release comes
// too late.
func TestHoldKilled(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_push")
		var one *Task
		b.fn = func(task *Task, _ *Breakpoint) {
			if one == nil {
				one = task
				task.Hold()
				time.AfterFunc(20*time.Millisecond, func() {
					unix.Kill(task.PID, unix.SIGKILL)
					task.Release(func(*Task) {})
				})
			}
		}
		got, _ := b.run(t, o, "hammer", "4", "100000000", "f_push")
		if got.status != unix.WaitStatus(unix.SIGKILL) {
			t.Errorf("%#x", uint32(got.status))
		}
		one.Release(func(*Task) { t.Error("released after the end") })
	})
}

// TestInterrupt: sleeping threads are stopped, used, and sleep on.
func TestInterrupt(t *testing.T) {
	modes(t, func(t *testing.T, mode SeccompMode) {
		b := newBreaker(t)
		var tasks []*Task
		ran := map[int]int{}
		b.onTask = func(task *Task, e *TaskEvent) {
			if e.Kind == TaskNew && e.Thread {
				tasks = append(tasks, task)
			}
		}
		b.onEnter = func(main *Task, _ *Syscall) {
			all := slices.Clone(tasks)
			go func() {
				for range 10 {
					done := make(chan bool, len(all))
					for _, task := range all {
						task.Interrupt(func(task *Task) {
							ran[task.TID]++
							probe(t, task)
							done <- true
						})
					}
					for range all {
						<-done
					}
				}
				_ = unix.Kill(main.PID, unix.SIGUSR1)
			}()
		}
		if got, _ := b.run(t, &Options{Seccomp: mode}, "told_sleepers"); got.output != "0 bad\n" {
			t.Errorf("%+v", got)
		}
		for _, task := range tasks {
			if ran[task.TID] != 10 {
				t.Errorf("%d interruptions of %d", ran[task.TID], task.TID)
			}
		}
		if len(tasks) != 2 {
			t.Errorf("%d threads", len(tasks))
		}
	})
}

// TestInterruptStopped: a process that job control has stopped stays so.
func TestInterruptStopped(t *testing.T) {
	v := start(t, build(t, "victim"), "forever")
	unix.Kill(v.pid, unix.SIGSTOP)
	h := &tape{}
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	var more func(task *Task)
	more = func(task *Task) {
		probe(t, task)
		if n++; n == 10 {
			cancel()
			return
		}
		task.Interrupt(more)
	}
	h.onTask = func(task *Task, e *TaskEvent) {
		if e.Kind == TaskNew {
			if _, err := task.Syscall(unix.SYS_GETPID); !errors.Is(err, ErrState) {
				t.Errorf("in a task that is not stopped: %v", err)
			}
			if _, _, err := task.StopWorld(); !errors.Is(err, ErrState) {
				t.Errorf("in a task that is not stopped: %v", err)
			}
			task.Interrupt(more)
		}
	}
	if _, err := Attach(ctx, v.pid, &Options{}, h); err != nil {
		t.Fatal(err)
	}
	h.check(t)
	need.Until(t, func() bool { return threadState(v.pid, v.pid) == 'T' })
	if s := threadState(v.pid, v.pid); n != 10 || s != 'T' {
		t.Errorf("%d interruptions, state %c", n, s)
	}
}

// TestHoldCancelled: tracing is cancelled while tasks are held.
func TestHoldCancelled(t *testing.T) {
	b := newBreaker(t, "f_push")
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	b.fn = func(task *Task, _ *Breakpoint) {
		task.Hold()
		if b.hits["f_push"] == 4 {
			cancel(why)
		}
	}
	_, err := Run(ctx, &Options{Argv: []string{b.path, "hammer", "4", "1000", "f_push"}}, b)
	if !errors.Is(err, why) || b.hits["f_push"] != 4 {
		t.Errorf("%v, %v", err, b.hits)
	}
	b.check(t)
}

// TestHoldStopped: tasks are held where job control stopped them, and at signals.
func TestHoldStopped(t *testing.T) {
	victim := build(t, "victim")
	for _, mode := range []string{"stop_cont", "tstp", "stop_threads", "sig_queue"} {
		want := runPlain(t, victim, mode)
		modes(t, func(t *testing.T, m SeccompMode) {
			h := &tape{verdict: WantExit}
			held, released := 0, 0
			h.onTask = func(task *Task, e *TaskEvent) {
				if e.Kind == TaskStop || e.Kind == TaskSignal {
					held++
					task.Hold()
					stopped := e.Kind == TaskStop
					go task.Release(func(task *Task) {
						released++
						switch {
						case !stopped:
						case mode == "stop_threads": // it ends by SIGKILL, maybe now
							if pid, err := task.Syscall(unix.SYS_GETPID); !errors.Is(err, ErrGone) && (err != nil || int(pid) != task.PID) {
								t.Errorf("getpid: %d, %v, in process %d", pid, err, task.PID)
							}
						default:
							probe(t, task)
						}
					})
				}
			}
			got, _ := runTraced(t, &Options{Seccomp: m}, h, victim, mode)
			h.check(t)
			if got != want || held == 0 || released == 0 || released > held {
				t.Errorf("%s: %+v, untraced %+v; held %d, released %d", mode, got, want, held, released)
			}
		})
	}
}

// TestHoldAttached: Attach holds the threads that it finds, which are released
// one by one, before and after they have stopped.
func TestHoldAttached(t *testing.T) {
	v := start(t, build(t, "breaker"), "attachee")
	for round := range 6 {
		h := &tape{}
		ctx, cancel := context.WithCancel(context.Background())
		n := 0
		h.onTask = func(task *Task, e *TaskEvent) {
			if e.Kind != TaskNew {
				return
			}
			task.Hold()
			time.AfterFunc(time.Duration(round)*time.Millisecond, func() {
				task.Release(func(task *Task) {
					probe(t, task)
					if n++; n == 5 {
						cancel()
					}
				})
			})
		}
		if _, err := Attach(ctx, v.pid, &Options{}, h); err != nil {
			t.Fatal(err)
		}
		cancel()
		h.check(t)
		if n != 5 {
			t.Errorf("%d released", n)
		}
	}
	v.stdin.Close()
	if out, _ := v.out.ReadString('\n'); out != "0 bad\n" {
		t.Errorf("%q", out)
	}
}
