package ptrace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"nvtrace/internal/need"

	"golang.org/x/sys/unix"
)

// probe makes system calls in a task, and checks that nothing else changes.
func probe(t *testing.T, task *Task) {
	t.Helper()
	before, err := task.Regs()
	if err != nil {
		t.Error(err)
		return
	}
	if task.at == placeExec {
		before.Rax = 0 // execve ends
	}
	for range 2 {
		if pid, err := task.Syscall(unix.SYS_GETPID); err != nil || int(pid) != task.PID {
			t.Errorf("getpid: %d, %v, in process %d", pid, err, task.PID)
		}
	}
	if tid, err := task.Syscall(unix.SYS_GETTID); err != nil || int(tid) != task.TID {
		t.Errorf("gettid: %d, %v, in task %d", tid, err, task.TID)
	}
	// A call that the filter stops, of the handler's own kind.
	if r, err := task.Syscall(unix.SYS_IOCTL, 2, victimRequest, 0); !errors.Is(err, unix.ENOTTY) || r != -int64(unix.ENOTTY) {
		t.Errorf("ioctl: %d, %v", r, err)
	}
	const rw, anon = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	page, err := task.Syscall(unix.SYS_MMAP, 0, 4096, rw, anon, ^uint64(0), 0)
	if err != nil {
		t.Errorf("mmap: %v", err)
		return
	}
	if _, err := task.WriteMem(uint64(page), []byte("hello")); err != nil {
		t.Error(err)
	}
	if s, err := task.ReadString(uint64(page), 10); s != "hello" || err != nil {
		t.Errorf("%q, %v", s, err)
	}
	if _, err := task.Syscall(unix.SYS_MUNMAP, uint64(page), 4096); err != nil {
		t.Error(err)
	}
	after, err := task.Regs()
	if err != nil {
		t.Error(err)
		return
	}
	if task.at == placeExit || task.at == placeEntry {
		after.Orig_rax = before.Orig_rax // both are the call's
	}
	if *after != *before {
		t.Errorf("registers were %+v, are %+v", *before, *after)
	}
}

// TestSyscall makes system calls at all stops at which that is possible.
func TestSyscall(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		for _, args := range [][]string{{"places"}, {"places", "again"}} {
			b := newBreaker(t, "f_push")
			want := runPlain(t, append([]string{b.path}, args...)...)
			counts := map[string]int{}
			do := func(where string, task *Task) {
				counts[where]++
				probe(t, task)
			}
			b.onEnter = func(task *Task, c *Syscall) {
				before := *c
				do("entry", task)
				if *c != before {
					t.Errorf("the call was changed: %+v, %+v", before, *c)
				}
			}
			b.onExit = func(task *Task, c *Syscall) { do("exit", task) }
			b.fn = func(task *Task, bp *Breakpoint) {
				do("break", task)
				if err := task.OnReturn(func(task *Task, _ uint64) { do("return", task) }); err != nil {
					t.Error(err)
				}
			}
			place := b.onTask
			b.onTask = func(task *Task, e *TaskEvent) {
				switch e.Kind {
				case TaskNew:
					do("new", task)
				case TaskExec:
					do("exec", task)
				case TaskExit:
					if _, err := task.Syscall(unix.SYS_GETPID); err == nil {
						t.Error("a system call in a dead task")
					}
				}
				place(task, e)
			}
			o := *o
			got, _ := b.run(t, &o, args...)
			if got != want {
				t.Errorf("%+v, untraced %+v", got, want)
			}
			n := len(args) // programs
			for where, min := range map[string]int{"entry": 20 * n, "exit": 20 * n, "break": 22 * n, "return": 22 * n, "new": 1 + 2*n, "exec": n} {
				if counts[where] != min {
					t.Errorf("%v: %d at %s, want %d", args, counts[where], where, min)
				}
			}
		}
	})
}

// TestSyscallSignals makes system calls at breakpoints and calls while signals
// come in: each is handled once.
func TestSyscallSignals(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_push")
		n := 0
		b.fn = func(task *Task, bp *Breakpoint) {
			if n++; n%8 == 0 {
				probe(t, task)
			}
		}
		got, _ := b.run(t, o, "signals", "f_push")
		var fired, in, wrong int
		if _, err := fmt.Sscanf(got.output, "fired %d, in handler %d, wrong %d", &fired, &in, &wrong); err != nil || fired != in || wrong != 0 || b.hits["f_push"] != 4000+fired {
			t.Errorf("%+v, %d hits", got, n)
		}
	})
	victim := build(t, "victim")
	want := runPlain(t, victim, "itimer")
	modes(t, func(t *testing.T, mode SeccompMode) {
		h := &tape{verdict: WantExit}
		h.onEnter = func(task *Task, c *Syscall) {
			if h.enters%10 == 0 {
				probe(t, task)
			}
		}
		h.onExit = h.onEnter
		if got, _ := runTraced(t, &Options{Seccomp: mode}, h, victim, "itimer"); got != want {
			t.Errorf("%+v, untraced %+v", got, want)
		}
		h.check(t)
	})
}

// TestSyscallRefused: calls and stops at which it can't be.
func TestSyscallRefused(t *testing.T) {
	b := newBreaker(t, "f_push")
	b.fn = func(task *Task, _ *Breakpoint) {
		for _, nr := range []uint64{unix.SYS_CLONE, unix.SYS_EXECVE, unix.SYS_EXIT_GROUP, unix.SYS_RT_SIGRETURN} {
			if _, err := task.Syscall(nr); err == nil {
				t.Errorf("%s was made", callName(nr))
			}
		}
		if _, err := task.Syscall(unix.SYS_GETPID, 1, 2, 3, 4, 5, 6, 7); err == nil {
			t.Error("7 arguments")
		}
		if r, err := task.Syscall(1 << 20); !errors.Is(err, unix.ENOSYS) || r != -int64(unix.ENOSYS) {
			t.Errorf("%d, %v", r, err)
		}
	}
	signals := 0
	place := b.onTask
	b.onTask = func(task *Task, e *TaskEvent) {
		if e.Kind == TaskSignal {
			signals++
			if _, err := task.Syscall(unix.SYS_GETPID); !errors.Is(err, ErrState) {
				t.Errorf("at a signal: %v", err)
			}
		}
		place(task, e)
	}
	b.run(t, &Options{}, "own")
	if signals != 15 || b.hits["f_push"] != 5 {
		t.Errorf("%d signals, %v", signals, b.hits)
	}
}

// TestPokeText: code is changed with and without a breakpoint on it.
func TestPokeText(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_lea", "f_sub")
		plain := runPlain(t, b.path, "hammer", "1", "1", "f_lea")
		_ = plain
		b.fn = func(task *Task, bp *Breakpoint) {
			if b.addrs[bp.Addr] != "f_lea" || bp.Hits != 1 {
				return
			}
			code := make([]byte, 5)
			if _, err := task.ReadText(bp.Addr, code); err != nil || !bytes.Equal(code, []byte{0x48, 0x8d, 0x47, 3, 0xc3}) { // lea 3(%rdi),%rax; ret
				t.Errorf("% x, %v", code, err)
			}
			if n, _ := task.ReadMem(bp.Addr, code); n != 5 || code[0] != breakInsn {
				t.Errorf("% x", code)
			}
			// push %rdi; pop %rax; ret, and back
			for _, c := range [][]byte{{0x57, 0x58, 0xc3, 0x90, 0x90}, {0x48, 0x8d, 0x47, 3, 0xc3}, {0x57, 0x58, 0xc3, 0x90, 0x90}} {
				if err := task.PokeText(bp.Addr, c); err != nil {
					t.Error(err)
				}
				if _, err := task.ReadText(bp.Addr, code); err != nil || !bytes.Equal(code, c) {
					t.Errorf("% x, %v", code, err)
				}
				if !bp.Intact() {
					t.Error("the breakpoint is gone")
				}
			}
			if err := task.PokeText(8, code); err == nil {
				t.Error("written to nowhere")
			}
		}
		got, _ := b.run(t, o, "hammer", "4", "100", "f_lea")
		if !strings.HasSuffix(got.output, " 0 bad\n") && !strings.HasSuffix(got.output, " 99 bad\n") || b.hits["f_lea"] != 400 {
			t.Errorf("%+v, %v", got, b.hits)
		}
	})
}

// TestSetRegs: a function is answered without being called, and an argument
// changed.
func TestSetRegs(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_push", "f_load")
		b.fn = func(task *Task, bp *Breakpoint) {
			r, err := task.Regs()
			if err != nil {
				t.Error(err)
				return
			}
			var ret [8]byte
			switch b.addrs[bp.Addr] {
			case "f_push": // return the argument
				if _, err := task.ReadMem(r.SP(), ret[:]); err != nil {
					t.Error(err)
				}
				var to uint64
				for i, c := range ret {
					to |= uint64(c) << (8 * i)
				}
				r.SetRet(r.Arg(0) + 5)
				r.SetIP(to)
				r.SetSP(r.SP() + 8)
			case "f_load":
				r.SetArg(0, r.Arg(0)+1)
			}
			if r.FSBase() == 0 || r.Arg(6) != 0 || r.Arg(-1) != 0 {
				t.Errorf("%+v", r)
			}
			if err := task.SetRegs(r); err != nil {
				t.Error(err)
			}
		}
		for _, fn := range b.names {
			if got, _ := b.run(t, o, "hammer", "2", "50", fn); !strings.HasSuffix(got.output, " 0 bad\n") || b.hits[fn] != 100 {
				t.Errorf("%+v, %v", got, b.hits) // it takes what it gets for 0 as the difference
			}
		}
	})
}

// TestBreakAttach attaches to a busy program, sets breakpoints, and lets it go
// again and again, at any moment: its code is then as it was, in its children,
// too.
func TestBreakAttach(t *testing.T) {
	for _, noCopies := range []bool{false, true} {
		t.Run(map[bool]string{false: "copy", true: "allstop"}[noCopies], func(t *testing.T) { testBreakAttach(t, noCopies) })
	}
}

func testBreakAttach(t *testing.T, noCopies bool) {
	path := build(t, "breaker")
	v := start(t, byShell(path, "attachee")...)
	for round := range 12 {
		b := newBreaker(t, "f_push", "f_load")
		ctx, cancel := context.WithCancel(context.Background())
		hits := 0
		b.fn = func(task *Task, _ *Breakpoint) {
			hits++
			if round%2 == 1 {
				if err := task.OnReturn(func(*Task, uint64) {}); err != nil {
					t.Error(err)
				}
			}
			if round%3 == 1 && hits%7 == 0 {
				task.Hold()
				if hits%2 == 0 {
					go task.Release(nil)
				}
			}
			if hits == 10+round*13 {
				cancel()
			}
		}
		b.onTask = func(task *Task, e *TaskEvent) {
			switch {
			case e.Kind == TaskNew && task.TID == v.pid:
				b.place(task)
			case e.Kind == TaskNew && e.Parent == nil && task.TID != task.PID && round == 2:
				if _, err := task.Syscall(unix.SYS_GETPID); err == nil {
					t.Error("a system call in a task that is not stopped")
				}
			case e.Kind == TaskNew && e.Parent != nil:
				if n := len(task.Breakpoints()); n != 2 {
					t.Errorf("%d breakpoints in a child", n)
				}
			}
		}
		if round%4 == 3 {
			io.WriteString(v.stdin, "f") // a fork, at any time
		}
		if round%3 == 1 { // all may be held: it does not end by itself
			time.AfterFunc(200*time.Millisecond, cancel)
		}
		if res, err := Attach(ctx, v.pid, &Options{Rules: victimRules(), noCopies: noCopies}, b); err != nil || res.Ended {
			t.Fatalf("%+v, %v", res, err)
		}
		cancel()
		b.check(t)
		if hits < 10 && round%3 != 1 {
			t.Errorf("round %d: %d hits", round, hits)
		}
		if round%4 == 3 {
			if line, err := v.out.ReadString('\n'); line != "child 0\n" {
				t.Errorf("round %d: %q, %v", round, line, err)
			}
		}
		io.WriteString(v.stdin, "s")
		if line, err := v.out.ReadString('\n'); line != "same 1\n" {
			t.Fatalf("round %d: %q, %v", round, line, err)
		}
	}
	v.stdin.Close()
	if out, err := io.ReadAll(v.out); string(out) != "0 bad\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestBreakPanic: a panic in a breakpoint's function ends the breakpoints, not the
// program.
func TestBreakPanic(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		for _, how := range []string{"hit", "world", "return", "release", "interrupt"} {
			b := newBreaker(t, "f_load")
			b.verdict = Skip
			n := 0
			b.fn = func(task *Task, _ *Breakpoint) {
				if n++; n%5 == 1 {
					task.Hold() // for ever
				}
				if n != 40 && n%5 != 1 {
					return
				}
				switch how {
				case "world":
					if n == 40 {
						task.StopWorld()
						panic("on purpose")
					}
				case "return":
					task.OnReturn(func(*Task, uint64) {
						if n >= 3 {
							panic("on purpose")
						}
					})
					task.Release(nil)
				case "release":
					task.Release(func(*Task) { panic("on purpose") })
				case "interrupt":
					task.Interrupt(func(*Task) { panic("on purpose") })
				default:
					if n >= 6 {
						panic("on purpose")
					}
				}
				if how == "world" {
					task.Release(nil)
				}
			}
			var buf bytes.Buffer
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan bool)
			go func() { io.Copy(&buf, r); close(done) }()
			o := *o
			o.Argv, o.Stdout = []string{b.path, "hammer", "8", "300", "f_load"}, w
			res, err := Run(need.Limit(t), &o, b)
			w.Close()
			<-done
			r.Close()
			var he *HandlerError
			if !errors.As(err, &he) || he.Value != "on purpose" || res.Status != 0 || !strings.HasSuffix(buf.String(), " 0 bad\n") {
				t.Errorf("%s: %+v, %v, %q", how, res, err, buf.String())
			}
		}
	})
}

// TestBreakStopped: job control stops and continues a process at breakpoints.
func TestBreakStopped(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_load")
		n := 0
		b.fn = func(task *Task, _ *Breakpoint) {
			if b.hits["f_load"]%200 == 0 {
				unix.Kill(task.PID, unix.SIGSTOP)
			}
		}
		place := b.onTask
		b.onTask = func(task *Task, e *TaskEvent) {
			place(task, e)
			if e.Kind == TaskStop {
				n++
				unix.Kill(task.PID, unix.SIGCONT)
			}
		}
		got, _ := b.run(t, o, "hammer", "4", "1000", "f_load")
		if !strings.HasSuffix(got.output, " 0 bad\n") || b.hits["f_load"] != 4000 || n < 3 {
			t.Errorf("%+v, %v, %d stops", got, b.hits, n)
		}
	})
}

// idleInjector has code in programs, and nothing to say of it.
type idleInjector struct{}

func (idleInjector) Fault(*Task, unix.Signal) bool               { return false }
func (idleInjector) Uninterrupted(*Task) bool                    { return false }
func (idleInjector) Detour(*Task, uint64) (Detour, error)        { return Detour{}, errors.ErrUnsupported }
func (idleInjector) Covers(*Task, uint64) bool                   { return false }
func (idleInjector) Confine(*Task, func(uint64, ...uint64) bool) {}
func (idleInjector) Room() []Span                                { return nil }
func (idleInjector) Holds(*Task, uint64, uint64) bool            { return false }
func (idleInjector) Stubs() ReturnStubs                          { return ReturnStubs{} }

// TestExemptPage: calls from the page are not seen, those beside it are.
func TestExemptPage(t *testing.T) {
	path := build(t, "breaker")
	modes(t, func(t *testing.T, mode SeccompMode) {
		for _, exempt := range []bool{false, true} {
			h := &tape{verdict: WantExit}
			pages := map[uint64]int{}
			h.onEnter = func(task *Task, c *Syscall) { pages[c.Args[2]]++ }
			o := &Options{Seccomp: mode}
			if exempt {
				o.Injector = idleInjector{}
			}
			got, _ := runTraced(t, o, h, path, "exempt")
			h.check(t)
			want := map[uint64]int{0: 2, 1: 2, 2: 2}
			if exempt {
				delete(want, 1)
			}
			if got.output != "0 bad\n" || fmt.Sprint(pages) != fmt.Sprint(want) {
				t.Errorf("exempt %t: %+v, %v", exempt, got, pages)
			}
		}
		// Also in a filter that is injected.
		h := &tape{verdict: WantExit}
		n := 0
		h.onTask = func(task *Task, e *TaskEvent) {
			if e.Kind == TaskExec {
				if err := task.InjectFilter(nil); err != nil {
					t.Error(err)
				}
			}
		}
		h.onEnter = func(task *Task, c *Syscall) { n++ }
		runTraced(t, &Options{Seccomp: mode, Injector: idleInjector{}, Rules: dupRules(), ExtraRules: victimRules()}, h, path, "exempt")
		if n < 4 {
			t.Errorf("%d calls", n)
		}
	})
}

// holder is an injector with a page that no program may change.
type holder struct{ idleInjector }

func (holder) Room() []Span { return []Span{{0x70000000, 0x71400000}} }
func (holder) Holds(_ *Task, addr, size uint64) bool {
	return addr < 0x70401000 && 0x70400000 < addr+size
}

// TestReservedInjected: rules that came into force later select calls that would change an injector's memory, too.
// These are refused all the same, and others keep the class that the rules give them.
func TestReservedInjected(t *testing.T) {
	victim := build(t, "victim")
	rules := []Rule{
		{Names: []string{"mmap"}, Class: 20, Args: []ArgMatch{{Arg: 4, Op: NotEqual, Value: 0xffffffff, Low: true}}},
		{Names: []string{"munmap"}, Class: 21},
	}
	modes(t, func(t *testing.T, mode SeccompMode) {
		h := &tape{verdict: WantExit}
		h.onEnter = func(task *Task, c *Syscall) {
			if c.Class == 1 {
				if err := task.InjectFilter(nil); err != nil {
					t.Error(err)
				}
			}
		}
		got, _ := runTraced(t, &Options{Seccomp: mode, Injector: holder{}, ExtraRules: rules}, h, victim, "fixed")
		h.check(t)
		if got.output != "map 12 unmap 12\nmap 0 unmap 0\nmap 0 unmap 0\n" {
			t.Errorf("%+v", got)
		}
		var seen []string
		for _, c := range h.calls {
			if c.Class != 1 {
				seen = append(seen, fmt.Sprintf("%d %#x", c.Class, c.Args[0]))
			}
		}
		if fmt.Sprint(seen) != "[20 0x70500000 21 0x70500000 20 0x60000000 21 0x60000000]" {
			t.Errorf("seen: %q", seen)
		}
	})
}

// mapRules select what makes code of a file executable.
func mapRules() []Rule {
	exec := ArgMatch{Arg: 2, Mask: unix.PROT_EXEC, Value: unix.PROT_EXEC, Low: true}
	return []Rule{
		{Names: []string{"mmap"}, Class: 1, Args: []ArgMatch{exec, {Arg: 4, Op: NotEqual, Value: 0xffffffff, Low: true}}},
		{Names: []string{"mprotect", "pkey_mprotect"}, Class: 2, Args: []ArgMatch{exec}},
	}
}

// TestMapRules: the rules can express it, and breakpoints can be set at the very
// mapping that makes a library executable, before any of it runs.
func TestMapRules(t *testing.T) {
	modes(t, func(t *testing.T, mode SeccompMode) {
		b := newBreaker(t)
		b.onTask = nil
		counts := map[uint16]int{}
		var set []*Breakpoint
		b.onExit = func(task *Task, c *Syscall) {
			counts[c.Class]++
			if c.Class != 1 || c.Ret < 0 {
				return
			}
			probe(t, task)
			bp, err := task.SetBreakpoint(uint64(c.Ret), func(*Task, *Breakpoint) {})
			if err != nil {
				return // its first byte is no instruction
			}
			set = append(set, bp)
			if !bp.Intact() {
				t.Error("not intact")
			}
			if err := bp.Remove(); err != nil || bp.Intact() {
				t.Errorf("removed: %v", err)
			}
		}
		plain := &tape{verdict: WantExit}
		runTraced(t, &Options{Seccomp: mode, Rules: mapRules()}, plain, b.path, "one")
		b.run(t, &Options{Seccomp: mode, Rules: mapRules()}, "maps")
		if n := len(plain.calls) + 2; len(b.calls) != n || counts[2] < 1 || len(set) < 1 {
			t.Errorf("%d calls, want %d; %v; %d breakpoints", len(b.calls), n, counts, len(set))
		}
	})
}
