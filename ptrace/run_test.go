package ptrace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// TestMemory reads what calls point to, good and bad.
func TestMemory(t *testing.T) {
	victim := build(t, "victim")
	modes(t, func(t *testing.T, mode SeccompMode) {
		n := 0
		h := &tape{verdict: WantExit}
		h.onEnter = func(task *Task, c *Syscall) {
			buf := make([]byte, 32)
			got, err := task.ReadMem(c.Args[2], buf)
			r := []Range{{Addr: task.call.SP, Buf: make([]byte, 8)}, {Addr: c.Args[2], Buf: make([]byte, 32)}, {Addr: c.Args[2]}}
			verr := task.ReadMemV(r)
			if r[0].N != 8 || r[1].N != got || r[2].N != 0 || (verr == nil) != (err == nil) {
				t.Errorf("call %d: vector read %d, %d (%v), single read %d (%v)", n, r[0].N, r[1].N, verr, got, err)
			}
			if !bytes.Equal(r[1].Buf[:got], buf[:got]) {
				t.Errorf("call %d: vector and single read differ", n)
			}
			want := []int{0, 8, 32, 0, 32}[n]
			if got != want || (err == nil) != (want == 32) {
				t.Errorf("call %d: read %d bytes (%v), want %d", n, got, err, want)
			}
			if err != nil && !errors.Is(err, unix.EFAULT) {
				t.Errorf("call %d: %v", n, err)
			}
			switch n {
			case 1, 2:
				if !bytes.Equal(buf[:got], bytes.Repeat([]byte{0x5a}, got)) {
					t.Errorf("call %d: %x", n, buf[:got])
				}
			case 4:
				le := binary.LittleEndian
				if le.Uint32(buf[12:]) != 4 || le.Uint64(buf[16:]) != 0xdeadbeef000 || le.Uint32(buf[24:]) != 0xffffffff {
					t.Errorf("call 4: %x", buf)
				}
				task.changeBack(t, c.Args[2])
			}
			n++
		}
		got, _ := runTraced(t, &Options{Seccomp: mode}, h, victim, "bad_pointer")
		if want := runPlain(t, victim, "bad_pointer"); got != want {
			t.Errorf("%+v, untraced %+v", got, want)
		}
		if n != 5 {
			t.Errorf("%d calls", n)
		}
	})
}

// changeBack writes and restores a byte.
func (task *Task) changeBack(t *testing.T, addr uint64) {
	for _, b := range []byte{77, 1} {
		if n, err := task.WriteMem(addr, []byte{b}); n != 1 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		var r [1]byte
		if _, err := task.ReadMem(addr, r[:]); err != nil || r[0] != b {
			t.Errorf("read back %d, %v; wrote %d", r[0], err, b)
		}
	}
	if n, err := task.WriteMem(8, []byte{1}); n != 0 || !errors.Is(err, unix.EFAULT) {
		t.Errorf("write to address 8: %d, %v", n, err)
	}
}

// TestReadString reads the path of an open.
func TestReadString(t *testing.T) {
	dir := t.TempDir()
	long := dir + strings.Repeat("/.", 700) + "/file"
	var got []string
	h := &tape{}
	h.onEnter = func(task *Task, c *Syscall) {
		s, err := task.ReadString(c.Args[1], 4096)
		if err != nil {
			t.Error(err)
		}
		cut, err := task.ReadString(c.Args[1], 5)
		if cut != s[:5] || err == nil {
			t.Errorf("cut string %q, %v", cut, err)
		}
		got = append(got, s)
	}
	if _, err := (&Task{TID: os.Getpid()}).ReadString(8, 10); !errors.Is(err, unix.EFAULT) {
		t.Errorf("string at 8: %v", err)
	}
	rules := []Rule{{Names: []string{"openat"}}}
	runTraced(t, &Options{Rules: rules}, h, "/bin/sh", "-c", "echo x >"+long)
	if !slices.Contains(got, long) {
		t.Errorf("path of %d bytes was not among the %d opened", len(long), len(got))
	}
}

// stream is a run's events without what varies.
func stream(h *tape) []string {
	ids := map[int]int{} // tids in the order of their appearance
	id := func(tid int) int {
		if tid == 0 {
			return 0
		}
		if _, ok := ids[tid]; !ok {
			ids[tid] = len(ids) + 1
		}
		return ids[tid]
	}
	var s []string
	for _, e := range h.events {
		s = append(s, fmt.Sprint(e.kind, " ", id(e.tid), " ", id(e.pid), " ", id(e.parent), " ", id(e.old), " ", e.thread, " ", uint32(e.status), " ", e.sig))
	}
	for i, c := range h.calls {
		if c.Name() != "ioctl" {
			c.Args[1] = 0 // addresses vary
		}
		s = append(s, fmt.Sprint("call ", id(h.tids[i]), " ", c.Name(), " ", c.Arch, " ", c.Class, " ", uint32(c.Args[1]), " ", c.Compat, " ", c.Restarted))
	}
	return s
}

// TestModesAgree compares all that the handler is told with and without a
// filter, where the order of events does not depend on chance.
func TestModesAgree(t *testing.T) {
	victim := build(t, "victim")
	rules := append(victimRules(), Rule{Names: []string{"openat", "open"}, Class: 2}, Rule{
		Names: []string{"mmap"}, Class: 3,
		Args: []ArgMatch{{Arg: 4, Op: NotEqual, Value: 0xffffffff, Low: true}},
	},
		Rule{Names: []string{"execve"}, Class: 4})
	for _, name := range []string{
		"hello", "fork", "vfork", "segv_handler", "thread_exec", "leader_exec", "leader_exit",
		"untraced", "int80", "sig_queue", "many_forks", "own_filter", "undumpable",
	} {
		t.Run(name, func(t *testing.T) {
			var s [2][]string
			for i, mode := range []SeccompMode{SeccompAuto, SeccompOff} {
				h := &tape{verdict: WantExit}
				runTraced(t, &Options{Seccomp: mode, Rules: rules}, h, victim, name)
				h.check(t)
				s[i] = stream(h)
			}
			slices.Sort(s[0]) // ends of threads come in any order
			slices.Sort(s[1])
			if !reflect.DeepEqual(s[0], s[1]) {
				t.Errorf("with a filter:\n%s\nwithout:\n%s", strings.Join(s[0], "\n"), strings.Join(s[1], "\n"))
			}
			if len(s[0]) < 5 {
				t.Errorf("only %d events", len(s[0]))
			}
		})
	}
}

// TestCompat sees a 32-bit call of a 64-bit program.
func TestCompat(t *testing.T) {
	victim := build(t, "victim")
	if out := runPlain(t, victim, "int80", "probe"); !strings.Contains(out.output, fmt.Sprint("int80=", -int(unix.ENOTTY))) {
		need.Missing(t, "int80", "this kernel runs no i386 calls: "+out.output)
	}
	modes(t, func(t *testing.T, mode SeccompMode) {
		h := &tape{verdict: WantExit}
		runTraced(t, &Options{Seccomp: mode}, h, victim, "int80")
		if len(h.calls) != 1 || !h.calls[0].Compat || h.calls[0].Nr != 54 || h.calls[0].Arch != unix.AUDIT_ARCH_I386 ||
			h.calls[0].Args[2] != 0x10000000 || h.calls[0].Name() != "ioctl" {
			t.Errorf("%+v", h.calls)
		}
	})
}

// TestRestarted: a call that a signal handler interrupts returns the kernel's
// restart code, and is made again.
func TestRestarted(t *testing.T) {
	victim := build(t, "victim")
	modes(t, func(t *testing.T, mode SeccompMode) {
		h := &tape{verdict: WantExit}
		rules := []Rule{{Names: []string{"read"}}}
		runTraced(t, &Options{Seccomp: mode, Rules: rules}, h, victim, "restart")
		h.check(t)
		restarted := 0
		for i, c := range h.calls {
			if !c.Restarted {
				continue
			}
			restarted++
			if next := h.calls[i+1]; next.Args != c.Args || next.Ret != 1 {
				t.Errorf("after %+v came %+v", c, next)
			}
		}
		if restarted != 1 {
			t.Errorf("%d restarts, want 1", restarted)
		}
	})
}

// TestUnfinished: tasks that die in a call.
func TestUnfinished(t *testing.T) {
	victim := build(t, "victim")
	modes(t, func(t *testing.T, mode SeccompMode) {
		h := &tape{verdict: WantExit}
		var call Syscall
		h.onTask = func(_ *Task, e *TaskEvent) {
			if e.Kind == TaskUnfinished {
				call = *e.Call
			}
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		why := errors.New("enough")
		h.onEnter = func(*Task, *Syscall) { cancel(why) }
		res, err := Run(ctx, &Options{
			Argv: []string{victim, "sleeper"}, Seccomp: mode, Stdout: devNull(t),
			Rules: []Rule{{Names: []string{"pause", "ppoll"}}},
		}, h)
		if !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
		if res == nil || !res.Status.Signaled() || res.Status.Signal() != unix.SIGKILL {
			t.Errorf("%+v", res)
		}
		h.check(t)
		if h.unfinished != 1 || call.Enter == 0 || call.Exit != 0 {
			t.Errorf("%d unfinished calls, %+v", h.unfinished, call)
		}
	})
}

func devNull(t testing.TB) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestExecErrors tells the ways apart in which a program can't be started.
func TestExecErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	plain := write("plain", "text", 0o644)
	garbage := write("garbage", "\x7fELFnonsense", 0o755)
	badInterp := write("script", "#!/no/such/interpreter\n", 0o755)
	for _, c := range []struct {
		name  string
		o     Options
		want  error
		errno unix.Errno
		stage string
	}{
		{"no such name", Options{Argv: []string{"no-such-command-here"}}, ErrNotFound, unix.ENOENT, "find"},
		{"empty name", Options{Argv: []string{""}}, ErrNotFound, unix.ENOENT, "find"},
		{"no such path", Options{Argv: []string{dir + "/none"}}, ErrNotFound, unix.ENOENT, "exec"},
		{"below a file", Options{Argv: []string{plain + "/x"}}, ErrNotFound, unix.ENOTDIR, "exec"},
		{"not executable", Options{Argv: []string{plain}}, ErrNotExecutable, unix.EACCES, "exec"},
		{"a directory", Options{Argv: []string{dir}}, ErrNotExecutable, unix.EACCES, "exec"},
		{"garbage", Options{Argv: []string{garbage}}, ErrNotExecutable, unix.ENOEXEC, "exec"},
		{"no interpreter", Options{Argv: []string{badInterp}}, ErrNotExecutable, unix.ENOENT, "exec"},
		{"no interpreter, relative", Options{Argv: []string{"./script"}, Dir: dir}, ErrNotExecutable, unix.ENOENT, "exec"},
		{"no directory", Options{Argv: []string{"/bin/true"}, Dir: dir + "/none"}, nil, unix.ENOENT, "chdir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, start := range []func() error{
				func() error {
					res, err := Run(context.Background(), &c.o, &tape{})
					if res != nil {
						t.Errorf("result %+v", res)
					}
					return err
				},
				func() error {
					c.o.Rules = []Rule{{Names: []string{"getppid"}}}
					_, err := Launch(&c.o)
					return err
				},
			} {
				err := start()
				var ee *ExecError
				if !errors.As(err, &ee) || ee.Errno != c.errno || ee.Stage != c.stage || c.want != nil && !errors.Is(err, c.want) ||
					!errors.Is(err, c.errno) || errors.Is(err, ErrNotFound) && !errors.Is(c.want, ErrNotFound) {
					t.Errorf("%v (%+v)", err, ee)
				}
			}
		})
	}
	if _, err := Run(context.Background(), nil, &tape{}); err == nil {
		t.Error("nothing to run: no error")
	}
	t.Setenv("PATH", dir)
	if _, err := Run(context.Background(), &Options{Argv: []string{"plain"}}, &tape{}); !errors.Is(err, ErrNotExecutable) {
		t.Errorf("not executable in PATH: %v", err)
	}
}

// TestFiles gives the program its standard files, further ones, environment and
// directory.
func TestFiles(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var f [5]*os.File
	for i := range f {
		name := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(name, []byte("from "+strconv.Itoa(i)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if f[i], err = os.OpenFile(name, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
		defer f[i].Close()
	}
	before := openFiles(t)
	o := &Options{
		Argv: []string{"sh", "-c", "cat; cat <&3; cat <&4; pwd; echo $X$HOME >&2; [ ! -e /proc/self/fd/9 ]"},
		Env:  []string{"X=env", "PATH=" + os.Getenv("PATH")}, Dir: dir,
		Stdin: f[0], Stdout: f[1], Stderr: f[2], ExtraFiles: f[3:],
	}
	res, err := Run(context.Background(), o, &tape{})
	if err != nil || res.Status != 0 {
		t.Fatalf("%v, %v", res, err)
	}
	for i, want := range map[int]string{1: "from 0\nfrom 3\nfrom 4\n" + dir + "\n", 2: "env\n 2\n"} {
		b, err := os.ReadFile(f[i].Name())
		if err != nil || string(b) != want {
			t.Errorf("file %d: %q (%v), want %q", i, b, err, want)
		}
	}
	if after := openFiles(t); !reflect.DeepEqual(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
}

// openFiles says what this process has open, by descriptor.
func openFiles(t *testing.T) map[int32]string {
	t.Helper()
	files := map[int32]string{}
	for _, fd := range proc.FDs(os.Getpid()) {
		target, err := os.Readlink(proc.FD(os.Getpid(), fd))
		if err == nil && !strings.HasPrefix(target, "/proc/") { // what lists them is closed again
			files[fd] = target
		}
	}
	return files
}

// TestSwap gives the program its files in each other's places. A process of its
// own does it, since its standard files get mixed up.
func TestSwap(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "PTRACE_HELPER=swap")
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader("in"), &out, &errs
	if err := c.Run(); err != nil || out.String() != "in err" || errs.String() != "out" {
		t.Errorf("%v, %q, %q", err, out.String(), errs.String())
	}
}

// swap starts a program whose input, output and errors are the descriptors 1, 2
// and 0.
func swap(o *Options, h *tape) int {
	in, err := unix.Dup(0)
	if err != nil {
		return 1
	}
	if unix.Dup3(1, 0, 0) != nil || unix.Dup3(in, 1, 0) != nil {
		return 2
	}
	o.Argv = []string{"sh", "-c", "cat >&2; echo -n out; echo -n ' err' >&2"}
	o.Stdin, o.Stdout, o.Stderr = os.NewFile(1, "in"), os.NewFile(2, "out"), os.NewFile(0, "err")
	res, err := Run(context.Background(), o, h)
	if err != nil || res.Status != 0 {
		return 3
	}
	return 0
}

// TestStarted: Forked is called before the program executes, Started before its first
// instruction, and Ended when all is reported.
func TestStarted(t *testing.T) {
	pid, exe := 0, ""
	var ends []Result
	h := &tape{}
	o := &Options{Forked: func() {
		if pid != 0 {
			t.Error("forked after the start")
		}
		pid = -1
	}, Ended: func(res *Result) {
		ends = append(ends, *res)
		if h.count(TaskExit) != 1 {
			t.Error("ended before the last task")
		}
	}, Started: func(p int) {
		if pid != -1 {
			t.Error("not forked before")
		}
		pid = p
		exe = proc.Exe(p)
		if args := proc.Cmdline(p); !slices.Equal(args, []string{"/bin/sh", "-c", "", ""}) {
			t.Errorf("arguments %q", args)
		}
		if len(h.events) != 0 {
			t.Error("something was reported before")
		}
	}}
	_, res := runTraced(t, o, h, "/bin/sh", "-c", "", "")
	if want, _ := filepath.EvalSymlinks("/bin/sh"); pid != res.PID || exe != want {
		t.Errorf("started %d %s, result %d %s", pid, exe, res.PID, want)
	}
	if len(ends) != 1 || ends[0] != *res {
		t.Errorf("ended with %+v, result %+v", ends, *res)
	}
}

// TestPanic: a handler that panics does not hurt the program, wherever it is.
func TestPanic(t *testing.T) {
	victim := build(t, "victim")
	at := map[string]func(*tape, func()){
		"enter": func(h *tape, f func()) { h.onEnter = func(*Task, *Syscall) { f() } },
		"exit":  func(h *tape, f func()) { h.onExit = func(*Task, *Syscall) { f() } },
	}
	for _, k := range []TaskKind{TaskNew, TaskExec, TaskExit, TaskSignal} {
		at[k.String()] = func(h *tape, f func()) {
			first := true
			h.onTask = func(_ *Task, e *TaskEvent) {
				if e.Kind == k && (k != TaskNew || !first) { // of a child
					f()
				}
				first = false
			}
		}
	}
	for where, set := range at {
		t.Run(where, func(t *testing.T) {
			modes(t, func(t *testing.T, mode SeccompMode) {
				for _, name := range []string{"fork", "threads", "sig_queue", "vfork"} {
					h := &tape{verdict: WantExit}
					fired := 0
					set(h, func() { fired++; panic("planted") })
					o := &Options{Argv: []string{victim, name}, Rules: victimRules(), Seccomp: mode, Stdout: devNull(t)}
					res, err := Run(need.Limit(t), o, h)
					var he *HandlerError
					if fired > 1 || (fired == 1) != errors.As(err, &he) || he != nil && (he.Value != "planted" || len(he.Stack) == 0) {
						t.Errorf("%s: %v, %d panics", name, err, fired)
					}
					if res == nil || res.Status != 0 {
						t.Errorf("%s: %+v", name, res)
					}
				}
			})
		})
	}
}

// TestOrphans applies each policy to a process that outlives the program.
func TestOrphans(t *testing.T) {
	victim := build(t, "victim")
	const said = "orphan F=-25\n"
	for _, c := range []struct {
		name   string
		o      Options
		victim string
		output string // of the orphan
		by     bool   // all of it comes while Run runs
	}{
		{"wait", Options{}, "orphan", said, true},
		{"wait, no filter", Options{Seccomp: SeccompOff}, "orphan", said, true},
		{"kill", Options{Orphans: OrphansKill}, "orphan_forever", "", true},
		{"detach", Options{Orphans: OrphansDetach, Seccomp: SeccompOff}, "orphan", said, false},
		{"auto", Options{Orphans: OrphansAuto}, "orphan", said, true},
		{"auto, no filter", Options{Orphans: OrphansAuto, Seccomp: SeccompOff}, "orphan", said, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			h := &tape{verdict: WantExit}
			c.o.Argv, c.o.Rules, c.o.Stdout = []string{victim, c.victim}, victimRules(), w
			told := 0
			c.o.Waiting = func(pids []int) { told += len(pids) }
			res, err := Run(context.Background(), &c.o, h)
			if wants := c.o.Orphans == OrphansWait || c.o.Orphans == OrphansAuto && c.o.Seccomp == SeccompAuto; wants != (told > 0) {
				t.Errorf("it waited for %d processes", told)
			}
			w.Close()
			if err != nil || res.Status.ExitStatus() != 4 {
				t.Errorf("%v, %v", res, err)
			}
			now := make([]byte, 100)
			var k int
			fd := int(r.Fd()) // once: it makes the file blocking
			if err := unix.SetNonblock(fd, true); err == nil {
				k, _ = unix.Read(fd, now)
				unix.SetNonblock(fd, false)
			}
			got := string(now[:max(k, 0)])
			if c.by && got != c.output {
				t.Errorf("said %q when Run returned", got)
			}
			later, _ := io.ReadAll(r) // ends when the orphan has
			if got += string(later); got != c.output {
				t.Errorf("said %q", got)
			}
			h.check(t)
		})
	}
	if _, err := Run(context.Background(), &Options{Argv: []string{"true"}, Orphans: OrphansDetach}, &tape{}); err == nil {
		t.Error("detaching from a filter was not refused")
	}
}

// TestBadRules are refused before anything runs.
func TestBadRules(t *testing.T) {
	bad := []Rule{{Names: []string{"no such call"}}}
	for _, o := range []*Options{{Rules: bad}, {ExtraRules: bad}} {
		o.Argv = []string{"true"}
		if res, err := Run(context.Background(), o, &tape{}); err == nil || res != nil {
			t.Errorf("%+v, %v", res, err)
		}
	}
}

// TestOtherChildren: children of other threads are left to who made them.
func TestOtherChildren(t *testing.T) {
	stop := make(chan bool)
	done := make(chan error)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				if n == 0 {
					done <- errors.New("no child was run")
				}
				done <- nil
				return
			default:
			}
			p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "exit 7"}, &os.ProcAttr{})
			if err == nil {
				var st *os.ProcessState
				if st, err = p.Wait(); err == nil && st.ExitCode() != 7 {
					err = fmt.Errorf("exit status %d", st.ExitCode())
				}
			}
			if err != nil {
				done <- err
				return
			}
			n++
		}
	}()
	for range 5 {
		runTraced(t, &Options{}, &tape{}, build(t, "victim"), "many_forks")
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestParallel traces several programs at once, and cancels one.
func TestParallel(t *testing.T) {
	victim := build(t, "victim")
	sleeper := make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, err := Run(ctx, &Options{Argv: []string{victim, "sleeper"}, Stdout: devNull(t)}, &tape{})
		sleeper <- err
	}()
	t.Run("group", func(t *testing.T) {
		for _, name := range []string{"hammer", "many_forks", "threads", "sig_queue"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := &tape{verdict: WantExit}
				got, _ := runTraced(t, &Options{}, h, victim, name)
				h.check(t)
				if n := map[string]int{"hammer": 8000, "many_forks": 100, "threads": 2560, "sig_queue": 20}[name]; got.status != 0 || h.enters != n {
					t.Errorf("status %#x, %d calls of %d", uint32(got.status), h.enters, n)
				}
			})
		}
	})
	cancel() // the others have ended, and have put the signals back
	select {
	case err := <-sleeper:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-need.Limit(t).Done():
		t.Error("not cancelled")
	}
}

// TestBornDead: a thread that is killed before its first instruction is a thread
// nevertheless, and a process a process, though /proc can't tell any more.
func TestBornDead(t *testing.T) {
	for kind, thread := range map[stopKind]bool{stopClone: true, stopFork: false, stopVfork: false} {
		h := &tape{}
		tr, err := newTracer(&Options{}, h)
		if err != nil {
			t.Fatal(err)
		}
		const noPID = 1 << 30 // beyond what Linux gives out
		parent := &Task{TID: noPID, PID: noPID, tr: tr, Proc: &Process{PID: noPID, mem: -1, tasks: 1}}
		new(space).join(parent.Proc)
		child := &Task{TID: noPID + 1, tr: tr, first: stop{kind: stopKilled, sig: unix.SIGKILL}, held: true}
		h.live, h.over = map[*Task]bool{parent: true}, map[int]bool{}
		tr.held = 1
		tr.adopt(child, parent, kind)
		if n := h.events[0]; n.kind != TaskNew || n.thread != thread || (child.PID == noPID) != thread {
			t.Errorf("%v: %+v, process %d", kind, n, child.PID)
		}
	}
}

// TestStartedCancels: a program whose start is called off executes nothing.
func TestStartedCancels(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // nobody else looks at the context before the program goes on
	why := errors.New("not wanted")
	for range 100 {
		ctx, cancel := context.WithCancelCause(context.Background())
		h := &tape{}
		res, err := Run(ctx, &Options{
			Argv: []string{"/bin/true"}, Seccomp: SeccompOff, Rules: victimRules(), Started: func(int) { cancel(why) },
		}, h)
		if !errors.Is(err, why) || res == nil || !res.Status.Signaled() || res.Stops > 2 {
			t.Fatalf("%v, %+v", err, res)
		}
	}
}

// TestFair: a thread gets its turn also where others stop all the time.
func TestFair(t *testing.T) {
	victim := build(t, "victim")
	modes(t, func(t *testing.T, m SeccompMode) {
		h := &tape{verdict: WantExit}
		got, _ := runTraced(t, &Options{Seccomp: m}, h, victim, "crowd")
		if want := (outcome{3 << 8, "bad=0\n"}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}
