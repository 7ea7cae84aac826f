package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// detours makes marks set breakpoints, which count hits and returns in d, and also
// hooks, before or after them.
type detours struct {
	hits, returns int
	sum           uint64
	hook          int // 0: none; 1: before; 2: after; 3: after, with its code below that of the breakpoint
}

func (d *detours) set(tr *tracer) {
	tr.live = true
	tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
		if int64(c.Args[2]) < 0 {
			return
		}
		hook := func(when int) {
			if d.hook != when {
				return
			}
			p, err := tr.a.Process(tk)
			if err == nil && when == 3 {
				err = p.lower(tk, c.Args[3])
			}
			if err == nil {
				err = p.Hook(tk, c.Args[3], &Hook{Name: "f"})
			}
			if err != nil {
				tr.t.Error(err)
			}
		}
		hook(1)
		b, err := tk.SetBreakpoint(c.Args[3], func(tk *ptrace.Task, b *ptrace.Breakpoint) {
			d.hits++
			r, err := tk.Regs()
			if err != nil || r.IP() != b.Addr {
				tr.t.Errorf("at %#x, breakpoint at %#x, %v", r.IP(), b.Addr, err)
			}
			if err := tk.OnReturn(func(_ *ptrace.Task, ret uint64) {
				d.returns++
				d.sum += ret
			}); err != nil {
				tr.t.Error(err)
			}
		})
		if err != nil {
			tr.t.Error(err)
			return
		}
		if code := make([]byte, 1); !b.Intact() {
			tr.t.Error("not intact")
		} else if _, _ = tk.ReadMem(c.Args[3], code); code[0] == 0xcc {
			tr.t.Error("there is a breakpoint instruction")
		}
		hook(2)
		hook(3)
	}
}

// lower has what comes next go into an arena below the last hook's code.
func (p *Process) lower(t *ptrace.Task, addr uint64) error {
	for range 64 {
		a, err := p.newArena(t, addr)
		if err != nil {
			return err
		}
		if a.base < p.hooks[len(p.hooks)-1].back {
			p.arenas = []*arena{a}
			return nil
		}
	}
	return errors.New("no memory below")
}

// TestDetour: breakpoints at functions of all kinds, in programs that would live on, with
// hooks at the same functions and without. The programs do what they do without them.
func TestDetour(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, c := range []struct {
		how, want     string
		hits, returns int
	}{
		{"plain", "six 204\ngive 3 21\ndbl 6.25\nva 10\nmem 5 8\nmem 299\n", 6, 6},
		{"fib", "fib 987\n", 3193, 3193},
		{"longjmp", "back 200 jumped 100\n", 300, 200},
		{"fibers", "fibers 3\n", 2, 0}, // each returns in another context
		{"fork", "fork 102\n", 5, 6},
		{"vfork", "vfork 43\nvfork 43\nvfork 43\nadd 3\n", 10, 10},
		{"exit", "exit 1\nexit 2\nexit 3\nadd 3\n", 4, 1},
	} {
		for how := range 8 {
			t.Run(fmt.Sprint(c.how, how), func(t *testing.T) {
				tr := newTracer(t)
				d := &detours{hook: how % 4}
				tr.all = how >= 4
				d.set(tr)
				if out := tr.run(bin, c.how); out != c.want {
					t.Errorf("printed %q, want %q", out, c.want)
				}
				if c.how == "fibers" {
					d.returns = 0
				}
				if d.hits != c.hits || d.returns != c.returns {
					t.Errorf("%d hits, %d returns, want %d, %d", d.hits, d.returns, c.hits, c.returns)
				}
				if how%4 != 0 {
					if calls, _, _ := tr.nesting(); calls != d.hits {
						t.Errorf("%d calls were recorded, %d hits", calls, d.hits)
					}
				}
			})
		}
	}
}

// TestDetourThreads: threads at full speed.
func TestDetourThreads(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	tr := newTracer(t)
	d := &detours{hook: 2}
	d.set(tr)
	out := tr.run(bin, "storm")
	want := 0
	for line := range strings.Lines(out) {
		var tid, n int
		if _, err := fmt.Sscanf(line, "tid %d calls %d", &tid, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		want += n
	}
	if d.hits != want || d.returns != want {
		t.Errorf("%d hits, %d returns, want %d", d.hits, d.returns, want)
	}
	if calls, returns, _ := tr.nesting(); calls != want || returns != want {
		t.Errorf("%d calls, %d returns were recorded, want %d", calls, returns, want)
	}
}

// TestDetourRegs: a function of a breakpoint changes arguments, has a call made
// again, and makes a call not happen.
func TestDetourRegs(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	tr := newTracer(t)
	tr.live = true
	again := 0
	tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
		if c.Args[2] != 1 { // add
			return
		}
		_, err := tk.SetBreakpoint(c.Args[3], func(tk *ptrace.Task, _ *ptrace.Breakpoint) {
			r, err := tk.Regs()
			if err != nil {
				t.Error(err)
				return
			}
			entry := *r
			if again++; again%2 == 0 {
				return // made again
			}
			err = tk.OnReturn(func(tk *ptrace.Task, ret uint64) {
				if ret != 3 {
					t.Errorf("returned %d", ret)
				}
				entry.SetArg(0, 40)
				if err := tk.SetRegs(&entry); err != nil {
					t.Error(err)
				}
			})
			r.SetArg(0, 1)
			if err != nil || tk.SetRegs(r) != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	if out := tr.run(bin, "exit"); !strings.HasSuffix(out, "add 42\n") || again != 2 {
		t.Errorf("%d hits: %s", again, out)
	}
}

// TestDetourCall: a task that is held at a detour makes system calls and goes on as before. It
// calls functions only where all stops are seen: in a program that outlives its supervisor,
// nobody would be there otherwise to put it back.
func TestDetourCall(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, all := range []bool{false, true} {
		tr := newTracer(t)
		tr.live, tr.all = true, all
		called := 0
		tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
			if c.Args[2] != 1 { // add
				return
			}
			add, own := c.Args[3], false
			_, err := tk.SetBreakpoint(add, func(tk *ptrace.Task, _ *ptrace.Breakpoint) {
				if own {
					return
				}
				own = true
				tk.Hold()
				tk.Interrupt(func(tk *ptrace.Task) {
					if _, err := tk.Syscall(unix.SYS_GETPID); err != nil {
						t.Error(err)
					}
					err := tk.Call(add, 0, []uint64{20, 22}, func(tk *ptrace.Task, ret uint64, err error) {
						if ret != 42 || err != nil {
							t.Errorf("the function returned %d, %v", ret, err)
						}
						called++
						if _, err := tk.Syscall(unix.SYS_GETPID); err != nil {
							t.Error(err)
						}
						tk.Release(nil)
					})
					if all != (err == nil) || !all && !errors.Is(err, ptrace.ErrState) {
						t.Error(err)
					}
					if err != nil {
						tk.Release(nil)
					}
				})
			})
			if err != nil {
				t.Error(err)
			}
		}
		if out := tr.run(bin, "exit"); !strings.HasSuffix(out, "add 3\n") {
			t.Error(out)
		}
		if all != (called == 1) {
			t.Errorf("%d calls were made", called)
		}
	}
}

// TestDetourShapes: a function at which no jump is possible gets no breakpoint.
func TestDetourShapes(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	tr := newTracer(t)
	tr.live = true
	var refused int
	tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
		if _, err := tk.SetBreakpoint(c.Args[3], func(*ptrace.Task, *ptrace.Breakpoint) {}); err != nil {
			t.Log(err)
			refused++
		}
	}
	if out := tr.run(bin, "shapes"); out != "same 1\n" {
		t.Error(out)
	}
	if refused != 3 { // one of them has a symbol where it ends
		t.Errorf("%d functions were refused, want 3", refused)
	}
}
