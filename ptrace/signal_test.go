package ptrace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"nvtrace/internal/need"
	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// startHelper runs a helper that traces argv, whose first output is a pid.
func startHelper(t *testing.T, name string, argv ...string) *running {
	t.Helper()
	t.Setenv("PTRACE_HELPER", name)
	return start(t, append([]string{os.Args[0]}, argv...)...)
}

// gone waits until a process does not exist any more.
func gone(t *testing.T, pid int) bool {
	t.Helper()
	return need.Until(t, func() bool { return isZombie(pid, pid) })
}

// TestForward: signals sent to the tracer reach the program, and its end is
// reported.
func TestForward(t *testing.T) {
	victim := build(t, "victim")
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGSEGV} {
		v := startHelper(t, "run", victim, "forever")
		v.cmd.Process.Signal(sig)
		v.cmd.Wait()
		if code := v.cmd.ProcessState.ExitCode(); code != 128+int(sig) {
			t.Errorf("%v: tracer ended with %d", sig, code)
		}
		if !gone(t, v.pid) {
			t.Errorf("%v: the program goes on", sig)
		}
	}
	// A program that ignores it makes its tracer go on, too.
	v := startHelper(t, "run", "bash", "-c", `trap '' INT TERM; echo $$; read; echo done`)
	for range 3 {
		v.cmd.Process.Signal(unix.SIGINT)
		v.cmd.Process.Signal(unix.SIGTERM)
	}
	io.WriteString(v.stdin, "\n")
	if s, err := v.out.ReadString('\n'); s != "done\n" {
		t.Errorf("%q, %v", s, err)
	}
	if err := v.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestForwardToOrphans: when the program has ended and its tracer waits for what
// it left behind, that gets the signals.
func TestForwardToOrphans(t *testing.T) {
	victim := build(t, "victim")
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT} {
		v := startHelper(t, "run", victim, "orphan_forever", "x")
		v.cmd.Process.Signal(sig)
		v.cmd.Wait()
		if code := v.cmd.ProcessState.ExitCode(); code != 4 {
			t.Errorf("%v: tracer ended with %d", sig, code)
		}
		if !gone(t, v.pid) {
			t.Errorf("%v: the orphan goes on", sig)
		}
	}
}

// TestTracerKilled: with the tracer dies what it traces, unless it was told not
// to.
func TestTracerKilled(t *testing.T) {
	victim := build(t, "victim")
	for _, name := range []string{"run", "run-nofilter"} {
		v := startHelper(t, name, victim, "forever")
		v.cmd.Process.Kill()
		v.cmd.Wait()
		if !gone(t, v.pid) {
			t.Errorf("%s: the program outlived its tracer", name)
			unix.Kill(v.pid, unix.SIGKILL)
		}
	}
	v := startHelper(t, "run-survive", victim, "forever")
	v.cmd.Process.Kill()
	v.cmd.Wait()
	if p, ok := proc.StatusNumber(v.pid, "TracerPid"); !ok || p != 0 || isZombie(v.pid, v.pid) {
		t.Errorf("the program died with its tracer: tracer %d, %t", p, ok)
	}
	unix.Kill(v.pid, unix.SIGKILL)
	// One that was attached to goes on.
	s := start(t, victim, "forever")
	a := startHelper(t, "attach", strconv.Itoa(s.pid))
	a.cmd.Process.Kill()
	a.cmd.Wait()
	if p, ok := proc.StatusNumber(s.pid, "TracerPid"); !ok || p != 0 {
		t.Errorf("attached program: tracer %d, %t", p, ok)
	}
}

// TestSignalInStop: the tracee is killed by SIGKILL while the handler holds it
// in each kind of stop.
func TestSignalInStop(t *testing.T) {
	victim := build(t, "victim")
	kill := func(task *Task) {
		unix.Kill(task.PID, unix.SIGKILL)
		for threadState(task.PID, task.TID) == 't' { // until it has left the stop
			yield()
		}
		var b [8]byte
		if _, err := task.ReadMem(task.call.SP, b[:]); err == nil {
			_, _ = task.WriteMem(task.call.SP, b[:])
		}
		if err := task.InjectFilter(dupRules()); err == nil {
			panic("injected into the dead")
		}
		_ = task.TraceAll(dupRules())
	}
	modes(t, func(t *testing.T, mode SeccompMode) {
		if mode == SeccompOff {
			t.Skip("without a filter there is nothing to inject")
		}
		for _, where := range []string{"enter", "exit", "new", "signal", "exec"} {
			h := &tape{verdict: WantExit}
			n := 0
			switch where {
			case "enter":
				h.onEnter = func(task *Task, _ *Syscall) { kill(task) }
			case "exit":
				h.onExit = func(task *Task, _ *Syscall) { kill(task) }
			default:
				h.onTask = func(task *Task, e *TaskEvent) {
					if e.Kind.String() == where {
						if n++; n == 2 || where == "signal" {
							kill(task)
						}
					}
				}
			}
			name := map[string]string{"signal": "sig_queue", "new": "threads", "exec": "thread_exec"}[where]
			if name == "" {
				name = "hammer"
			}
			o := &Options{Argv: []string{victim, name}, Rules: victimRules(), Seccomp: mode, Stdout: devNull(t)}
			res, err := Run(need.Limit(t), o, h)
			if err != nil || !res.Status.Signaled() || res.Status.Signal() != unix.SIGKILL {
				t.Errorf("%s: %+v, %v", where, res, err)
			}
			h.check(t)
		}
	})
}

// openPty returns a terminal and its other side.
func openPty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	m, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		need.Missing(t, "pty", "no terminals: "+err.Error())
	}
	t.Cleanup(func() { m.Close() })
	if err := unix.IoctlSetPointerInt(int(m.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(m.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		need.Missing(t, "pty", "no terminals: "+err.Error())
	}
	return m, s
}

// onTerminal runs argv in the foreground of a terminal of its own.
func onTerminal(t *testing.T, helper string, argv ...string) (*exec.Cmd, *os.File, *bufio.Reader) {
	t.Helper()
	m, s := openPty(t)
	defer s.Close()
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = os.Environ()
	if helper != "" {
		c.Env = append(c.Env, "PTRACE_HELPER="+helper)
		c.Path = os.Args[0]
		c.Args = append([]string{os.Args[0]}, argv...)
	}
	c.Stdin, c.Stdout, c.Stderr = s, s, s
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return c, m, bufio.NewReader(m)
}

// TestTerminal types at a program that has a terminal.
func TestTerminal(t *testing.T) {
	victim := build(t, "victim")
	say := func(r *bufio.Reader) string {
		t.Helper()
		s, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%q, %v", s, err)
		}
		return strings.TrimSpace(s)
	}
	t.Run("inherits it", func(t *testing.T) {
		_, _, r := onTerminal(t, "run", victim, "environment")
		if s := say(r); !strings.Contains(s, "group=1 tty=1") {
			t.Error(s)
		}
	})
	for key, sig := range map[string]syscall.Signal{"\x03": unix.SIGINT, "\x1c": unix.SIGQUIT} {
		t.Run(sig.String()+" kills", func(t *testing.T) {
			c, m, r := onTerminal(t, "run", victim, "forever")
			say(r)
			io.WriteString(m, key)
			c.Wait()
			if code := c.ProcessState.ExitCode(); code != 128+int(sig) {
				t.Errorf("tracer ended with %d", code)
			}
		})
		t.Run(sig.String()+" comes once", func(t *testing.T) {
			c, m, r := onTerminal(t, "run", victim, "count_keys", strconv.Itoa(int(sig)))
			if s := say(r); s != "ready" {
				t.Error(s)
			}
			for n := range 2 {
				io.WriteString(m, key)
				for want := fmt.Sprint("trap ", n+1); !strings.HasSuffix(say(r), want); {
				}
			}
			io.WriteString(m, "a\n")
			for {
				if s := say(r); strings.HasPrefix(s, "got") {
					if s != "got 2" {
						t.Error(s)
					}
					break
				}
			}
			c.Wait()
		})
	}
	t.Run("suspend and resume", func(t *testing.T) {
		// A shell with job control runs the tracer, as a user would.
		m, s := openPty(t)
		script := `set -m; "$0" "$@"; echo "shell sees $?"; fg >/dev/null; echo "end $?"`
		c := exec.Command("bash", "-c", script, os.Args[0], "bash", "-c", "echo ready; read x; exit 9")
		c.Env = append(os.Environ(), "PTRACE_HELPER=run")
		c.Stdin, c.Stdout, c.Stderr = s, s, s
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		defer c.Wait()
		defer c.Process.Kill()
		defer context.AfterFunc(need.Limit(t), func() { c.Process.Kill() })()
		r := bufio.NewReader(m)
		var log []string
		for {
			line, err := r.ReadString('\n')
			line = strings.TrimSpace(line)
			log = append(log, line)
			if err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(log, "\n"))
			}
			switch line = strings.TrimPrefix(line, "^Z"); { // the key's echo, behind which some shells begin a line
			case line == "ready":
				io.WriteString(m, "\x1a")
			case line == "shell sees 148": // 128 + SIGTSTP
				io.WriteString(m, "go\n")
			case strings.HasPrefix(line, "shell sees"):
				t.Error(line)
			case strings.HasPrefix(line, "end"):
				if line != "end 9" {
					t.Errorf("%s\n%s", line, strings.Join(log, "\n"))
				}
				return
			}
		}
	})
}

// TestUnprivileged runs behaviours as a user who needs no_new_privs.
func TestUnprivileged(t *testing.T) {
	victim := build(t, "victim")
	for _, name := range []string{"hello", "fork", "thread_exec", "undumpable", "untraced", "sig_queue"} {
		for _, helper := range []string{"report", "report-nofilter"} {
			out, err := asNobody(t, helper, victim, name, "x")
			if err != nil {
				t.Errorf("%s %s: %v\n%s", helper, name, err, out)
				continue
			}
			want := "seccomp nnp=true"
			if helper == "report-nofilter" {
				want = "syscalls nnp=false"
			}
			if !strings.Contains(out, want) {
				t.Errorf("%s %s: %q, want %q", helper, name, out, want)
			}
			plain := runPlain(t, victim, name, "x")
			if !strings.HasPrefix(out, plain.output) || !strings.Contains(out, fmt.Sprintf("status=%#x ", uint32(plain.status))) {
				t.Errorf("%s %s: %q, untraced %q %#x", helper, name, out, plain.output, uint32(plain.status))
			}
		}
	}
}

// TestEndedSignals: when no tracee is left, a signal has its own effect again, whatever the
// tracer still waits for.
func TestEndedSignals(t *testing.T) {
	v := startHelper(t, "run-lingers", "/bin/true")
	over := make(chan error, 1)
	go func() { over <- v.cmd.Wait() }()
	for limit := need.Limit(t); limit.Err() == nil; {
		_ = v.cmd.Process.Signal(unix.SIGTERM) // the first may come too early
		select {
		case <-over:
			if st := v.cmd.ProcessState.Sys().(syscall.WaitStatus); !st.Signaled() || st.Signal() != unix.SIGTERM {
				t.Errorf("ended with %#x", st)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("signals have no effect")
}

// TestLateSignal: a signal that is there when the last tracee ends, and that no thread of the
// tracer has taken yet, is caught: it does not get to Go's handler, which may end the tracer.
func TestLateSignal(t *testing.T) {
	c := exec.Command(build(t, "victim"), "usr1_blocked", os.Args[0], "/bin/true")
	c.Env = append(os.Environ(), "PTRACE_HELPER=run-gets")
	if out, err := c.CombinedOutput(); err != nil || string(out) != "waits true caught true\n" {
		t.Errorf("%v, %q", err, out)
	}
}

// inGroup starts a helper, or argv itself, in a process group of its own.
func inGroup(t *testing.T, helper string, argv ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	if helper != "" {
		c = exec.Command(os.Args[0], argv...)
		c.Env = append(os.Environ(), "PTRACE_HELPER="+helper)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c, bufio.NewReader(out)
}

// sentSignals are those that are passed on.
var sentSignals = append([]unix.Signal{unix.SIGUSR1, unix.SIGUSR2}, fatal...)

// TestGroupSignals: a signal that is sent to the process group of the tracer and its
// program reaches the program once, and one that is sent to the tracer alone, too.
func TestGroupSignals(t *testing.T) {
	victim := build(t, "victim")
	for _, sig := range sentSignals {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			c, r := inGroup(t, "run", victim, "tally", strconv.Itoa(int(sig)))
			expect := func(want string) {
				t.Helper()
				if line, err := r.ReadString('\n'); line != want+"\n" {
					t.Fatalf("%q, %v; want %q", line, err, want)
				}
			}
			expect("ready")
			const times = 30
			for i := range times {
				if err := unix.Kill(-c.Process.Pid, sig); err != nil {
					t.Fatal(err)
				}
				expect(fmt.Sprint("got ", i+1))
			}
			// What was passed on before, though it should not, would have come before this.
			if err := unix.Kill(c.Process.Pid, sig); err != nil {
				t.Fatal(err)
			}
			expect(fmt.Sprintf("others %d parent 1", times))
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTellGroup: a program sends a signal to its group, which is the tracer's.
func TestTellGroup(t *testing.T) {
	victim := build(t, "victim")
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for _, sig := range sentSignals {
		for range rounds {
			c, r := inGroup(t, "run", victim, "tell_group", strconv.Itoa(int(sig)))
			if line, err := r.ReadString('\n'); line != "traps 1\n" {
				t.Errorf("%v: %q, %v", sig, line, err)
			}
			if err := c.Wait(); err != nil {
				t.Errorf("%v: %v", sig, err)
			}
		}
	}
}

// TestUserSignals: SIGUSR1 and SIGUSR2 that are sent to the tracer alone don't end a
// program that knows nothing of them.
func TestUserSignals(t *testing.T) {
	v := startHelper(t, "run", build(t, "victim"), "forever")
	for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGTERM} {
		_ = v.cmd.Process.Signal(sig)
	}
	_ = v.cmd.Wait()
	if code := v.cmd.ProcessState.ExitCode(); code != 128+int(unix.SIGTERM) {
		t.Errorf("tracer ended with %d", code)
	}
}

// TestAttachSignals: a signal lets go what was attached to, also one by which a Go program
// would say where it crashed.
func TestAttachSignals(t *testing.T) {
	v := start(t, build(t, "victim"), "forever")
	for _, sig := range fatal {
		a := startHelper(t, "attach", strconv.Itoa(v.pid))
		_ = a.cmd.Process.Signal(sig)
		if err := a.cmd.Wait(); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
		if p, ok := proc.StatusNumber(v.pid, "TracerPid"); !ok || p != 0 {
			t.Errorf("%v: still traced by %d (%t)", sig, p, ok)
		}
	}
}

// TestEarlySignal: a signal that comes between the fork and the program's start ends the child,
// and the error says by which it ended. It is none that dumps core, for which kernels before
// 5.16 end this process too.
func TestEarlySignal(t *testing.T) {
	modes(t, func(t *testing.T, mode SeccompMode) {
		for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
			child := 0
			o := &Options{Argv: []string{"/bin/true"}, Rules: victimRules(), Seccomp: mode, onFork: func(pid int) {
				child = pid
				if err := unix.Kill(pid, sig); err != nil {
					t.Error(err)
				}
			}}
			_, err := Run(t.Context(), o, &tape{})
			if e, ok := errors.AsType[*EndedError](err); !ok || !e.Status.Signaled() || e.Status.Signal() != sig {
				t.Errorf("%v: %v", sig, err)
			}
			if _, err := unix.Wait4(child, nil, unix.WNOHANG, nil); child == 0 || err != unix.ECHILD {
				t.Errorf("%v: child %d is left: %v", sig, child, err)
			}
		}
	})
}

// TestStartApart: signals have no effect on the program, also those that the child gets before
// it is in a group of its own.
func TestStartApart(t *testing.T) {
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer stdin.Close()
	sendAll := func(pid int) {
		for sig := unix.Signal(1); sig <= lastSignal; sig++ {
			if sig == unix.SIGKILL || sig == unix.SIGSTOP {
				continue
			}
			if err := unix.Kill(pid, sig); err != nil {
				t.Errorf("%v: %v", sig, err)
			}
		}
	}
	p, err := StartApart(&Options{Argv: []string{"sh", "-c", "read word; exit $word"}, Stdin: in, onFork: sendAll})
	if err != nil {
		t.Fatal(err)
	}
	if group, err := unix.Getpgid(p.Pid); group != p.Pid {
		t.Errorf("group %d of process %d, %v", group, p.Pid, err)
	}
	sendAll(p.Pid)
	io.WriteString(stdin, "7\n")
	if st, err := p.Wait(); err != nil || st.ExitCode() != 7 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := StartApart(&Options{Argv: []string{"/no/such/program"}}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
