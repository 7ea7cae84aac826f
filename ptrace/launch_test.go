package ptrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notifications answers a listener until nobody is left who could ask: ioctls
// with 42, other calls by letting them go on. It returns how many were asked.
func notifications(l *os.File) (map[string]int, error) {
	asked := map[string]int{}
	fd := l.Fd()
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			return asked, err
		}
		if p[0].Revents&unix.POLLIN == 0 {
			if p[0].Revents&unix.POLLHUP != 0 {
				return asked, nil
			}
			continue
		}
		var n [80]byte // struct seccomp_notif
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); e != 0 {
			if e == unix.ENOENT || e == unix.EINTR {
				continue
			}
			return asked, e
		}
		le := binary.LittleEndian
		name := SyscallName(le.Uint32(n[20:]), uint64(le.Uint32(n[16:])))
		asked[name]++
		var r [24]byte // struct seccomp_notif_resp
		copy(r[:8], n[:8])
		if name == "ioctl" {
			le.PutUint64(r[8:], 42)
		} else {
			le.PutUint32(r[20:], unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
		}
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r))); e != 0 && e != unix.ENOENT {
			return asked, e
		}
	}
}

// TestLaunch answers a program's calls. The rules select also what the child
// could have reported itself with.
func TestLaunch(t *testing.T) {
	victim := build(t, "victim")
	rules := append(victimRules(), Rule{Names: []string{"openat", "read", "write", "close", "fcntl", "futex", "sched_yield"}})
	for _, c := range []struct {
		name string
		want outcome
		n    int
	}{
		{"hello", outcome{3 << 8, "hello F=42\n"}, 1},
		{"fork", outcome{0, "status=800\n"}, 1},
		{"threads", outcome{0, "ok\n"}, 2560},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		before := openFiles(t)
		child, err := Launch(&Options{Argv: []string{victim, c.name}, Rules: rules, Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		// A reader of its own, since the program waits for our answers.
		out := make(chan string)
		go func() {
			b, _ := io.ReadAll(r)
			out <- string(b)
		}()
		asked, err := notifications(child.Listener)
		if err != nil {
			t.Error(err)
		}
		var st unix.WaitStatus
		if _, err := unix.Wait4(child.PID, &st, 0, nil); err != nil {
			t.Error(err)
		}
		if got := (outcome{st, <-out}); got != c.want || asked["ioctl"] != c.n || asked["write"] == 0 {
			t.Errorf("%s: %+v, want %+v; asked %v", c.name, got, c.want, asked)
		}
		child.Listener.Close()
		child.Pidfd.Close()
		r.Close()
		if after := openFiles(t); len(after) != len(before)-2 { // the pipe is closed
			t.Errorf("%s: files before %v, after %v", c.name, before, after)
		}
	}
}

// TestLaunchUnprivileged fetches the listener as a user who needs no_new_privs.
func TestLaunchUnprivileged(t *testing.T) {
	out, err := asNobody(t, "launch", build(t, "victim"), "hello")
	if want := "hello F=42\nnnp=true asked=1 status=0x300\n"; err != nil || out != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}

// launchAndAnswer is the helper for it.
func launchAndAnswer(o *Options) int {
	child, err := Launch(o)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	asked, err := notifications(child.Listener)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var st unix.WaitStatus
	if _, err := unix.Wait4(child.PID, &st, 0, nil); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf("nnp=%t asked=%d status=%#x\n", child.NoNewPrivs, asked["ioctl"], uint32(st))
	return 0
}

func TestLaunchErrors(t *testing.T) {
	for _, c := range []struct {
		rules []Rule
		want  string
	}{
		{[]Rule{{Names: []string{"execve"}}}, "execve can't be answered"},
		{[]Rule{{Names: []string{"exit_group"}}}, "exit_group can't be answered"},
		{[]Rule{{Names: []string{"nonsense"}}}, "nonsense"},
	} {
		if _, err := Launch(&Options{Argv: []string{"/bin/true"}, Rules: c.rules}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if _, err := Launch(&Options{Argv: []string{"no-such-command-here"}, Rules: victimRules()}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// forbid installs a filter in this whole process.
func forbid(rules []Rule) error {
	runtime.LockOSThread()
	p, err := Compile(rules, ActionErrno)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(p.fprog())))
	runtime.KeepAlive(p)
	if e != 0 {
		return e
	}
	return nil
}

// TestRefused runs where a container's filter forbids what the tracer wants.
func TestRefused(t *testing.T) {
	victim := build(t, "victim")
	for what, want := range map[string]string{
		"seccomp":           "hello F=-25\nstatus=0x300 calls=1 syscalls nnp=false reason=seccomp: operation not permitted\n",
		"process_vm_readv":  "hello F=-25\nstatus=0x300 calls=1 seccomp nnp=false reason=\n", // through /proc/PID/mem
		"process_vm_writev": "hello F=-25\nstatus=0x300 calls=1 seccomp nnp=false reason=\n",
		"ptrace":            "run: trace own child: not permitted to trace: operation not permitted (the sandbox or container that this runs in forbids ptrace; nvtrace doctor says what to do)\n",
	} {
		t.Setenv("PTRACE_FORBID", what)
		t.Setenv("PTRACE_HELPER", "report")
		got := runPlain(t, os.Args[0], victim, "hello")
		got.output = strings.ReplaceAll(got.output, "nnp=true", "nnp=false") // depends on the user
		if got.output != want || (got.status == 0) == (what == "ptrace") {
			t.Errorf("without %s: %#x %q, want %q", what, uint32(got.status), got.output, want)
		}
	}
}

// TestOldKernel uses the registers, as on kernels without
// PTRACE_GET_SYSCALL_INFO.
func TestOldKernel(t *testing.T) {
	victim := build(t, "victim")
	for _, name := range []string{"hello", "fork", "vfork", "thread_exec", "hammer", "sig_queue", "threads", "untraced", "fork_tree"} {
		modes(t, func(t *testing.T, mode SeccompMode) {
			h := &tape{verdict: WantExit}
			var out bytes.Buffer
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan bool)
			go func() {
				io.Copy(&out, r)
				close(done)
			}()
			tr, err := newTracer(&Options{Argv: []string{victim, name}, Rules: victimRules(), Seccomp: mode, Stdout: w}, h)
			if err != nil {
				t.Fatal(err)
			}
			tr.noInfo = true
			onFreeThread(func() { err = tr.run(t.Context(), newSignals(tr.o, false)) })
			w.Close()
			<-done
			r.Close()
			if err != nil {
				t.Fatal(err)
			}
			h.check(t)
			checkCalls(t, h)
			want := runPlain(t, victim, name)
			if name != "hammer" && (outcome{tr.res.Status, out.String()}) != want {
				t.Errorf("%s: %#x %q, untraced %+v", name, uint32(tr.res.Status), out.String(), want)
			}
			if n := map[string]int{"hello": 1, "hammer": 8000, "threads": 2560, "fork_tree": 64}[name]; n != 0 && h.enters != n {
				t.Errorf("%s: %d calls", name, h.enters)
			}
		})
	}
}

// quiet counts without allocating.
type quiet struct {
	verdict       Verdict
	read          bool
	enters, exits int
	mallocs       [2]uint64 // at call 1000 and at the last
	last          int
	buf           [132]byte
	ranges        [2]Range
}

func (q *quiet) Enter(t *Task, c *Syscall) Verdict {
	if q.enters++; q.enters == 1000 || q.enters == q.last {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		q.mallocs[min(q.enters/1001, 1)] = m.Mallocs
	}
	if q.read {
		t.ReadMem(c.Args[2], q.buf[:32])
		t.ReadMem(c.Args[2], q.buf[32:])
	}
	return q.verdict
}

func (q *quiet) Exit(t *Task, c *Syscall) {
	q.exits++
	if q.read {
		q.ranges = [2]Range{{Addr: c.Args[2], Buf: q.buf[:32]}, {Addr: c.Args[2], Buf: q.buf[32:]}}
		t.ReadMemV(q.ranges[:])
	}
}

func (q *quiet) Task(*Task, *TaskEvent) {}

// TestAllocs: a stop allocates nothing.
func TestAllocs(t *testing.T) {
	victim := build(t, "victim")
	modes(t, func(t *testing.T, mode SeccompMode) {
		const n = 11000
		q := &quiet{verdict: WantExit, read: true, last: n}
		runTraced(t, &Options{Seccomp: mode}, q, victim, "calls", fmt.Sprint(n))
		if q.enters != n || q.exits != n {
			t.Fatalf("%d entries, %d exits", q.enters, q.exits)
		}
		// The runtime's own goroutines may allocate a little.
		if d := q.mallocs[1] - q.mallocs[0]; d > n/100 {
			t.Errorf("%d allocations in %d calls", d, n-1000)
		}
	})
}

// TestRelease: a child goes on when it is released, whether it still looks or has gone to
// sleep, and ends if it is not.
func TestRelease(t *testing.T) {
	for _, c := range []struct {
		spins   int
		asleep  bool // it is waited for
		release bool
		want    int
	}{
		{0, false, true, 0},
		{0, true, true, 0},
		{releaseSpins, false, true, 0},
		{releaseSpins, true, true, 0},
		{math.MaxInt, false, true, 0},
		{0, false, false, 127},
		{releaseSpins, false, false, 127},
	} {
		s, err := newSpawned(&Options{Argv: []string{"/bin/true"}}, nil, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		s.plan.spins = c.spins
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		for c.asleep && threadState(s.pid, s.pid) != 'S' {
			yield()
		}
		if c.release {
			err = s.release()
		} else {
			err = s.goW.Close()
		}
		if err != nil {
			t.Error(err)
		}
		var st unix.WaitStatus
		if _, err := unix.Wait4(s.pid, &st, 0, nil); err != nil {
			t.Error(err)
		}
		if !st.Exited() || st.ExitStatus() != c.want {
			t.Errorf("%+v: ended %#x", c, uint32(st))
		}
		s.close()
	}
}
