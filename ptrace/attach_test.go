package ptrace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// byShell makes a shell the parent of a program, because the exit of one's own
// child goes to the tracer alone if both are the same process.
func byShell(argv ...string) []string {
	return append([]string{"sh", "-c", `"$@"; exit $?`, "sh"}, argv...)
}

// running is a victim that runs by itself.
type running struct {
	cmd   *exec.Cmd
	pid   int
	stdin io.WriteCloser
	out   *bufio.Reader
}

// start runs a victim that prints its pid.
func start(t *testing.T, argv ...string) *running {
	t.Helper()
	r := &running{cmd: exec.Command(argv[0], argv[1:]...)}
	r.stdin, r.out = testprog.Start(t, r.cmd)
	if _, err := fmt.Fscanln(r.out, &r.pid); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAttach attaches to a program whose threads sleep in every way, and lets
// it go; it must not notice. Then again, until its end.
func TestAttach(t *testing.T) {
	v := start(t, byShell(build(t, "victim"), "attachee")...)
	for round := range 5 {
		h := &tape{verdict: WantExit}
		ctx, cancel := context.WithCancel(context.Background())
		h.onExit = func(*Task, *Syscall) {
			if len(h.calls) == 50 {
				cancel()
			}
		}
		threads, err := proc.Threads(v.pid)
		if err != nil {
			t.Fatal(err)
		}
		pid := v.pid
		if round == 1 {
			pid = threads[2] // a thread stands for its process
		}
		res, err := Attach(ctx, pid, &Options{Rules: victimRules()}, h)
		if err != nil || res.PID != v.pid || res.Ended || res.Mode != ModeSyscalls {
			t.Fatalf("%+v, %v", res, err)
		}
		h.check(t)
		checkCalls(t, h)
		if h.enters < 50 || h.count(TaskNew) != 5 || h.count(TaskDetach) != 5 || h.events[0].tid != v.pid || !h.events[1].thread {
			t.Errorf("round %d: %d calls, %d tasks found, %d let go", round, h.enters, h.count(TaskNew), h.count(TaskDetach))
		}
		for _, tid := range threads {
			if tracer, ok := proc.StatusNumber(tid, "TracerPid"); !ok || tracer != 0 {
				t.Errorf("round %d: thread %d is traced by %d (%v)", round, tid, tracer, err)
			}
		}
	}
	h := &tape{verdict: WantExit}
	var end Result
	o := &Options{Rules: victimRules(), Started: func(int) { v.stdin.Close() }, Ended: func(res *Result) { end = *res }}
	res, err := Attach(context.Background(), v.pid, o, h)
	if err != nil || !res.Ended || res.Status.ExitStatus() != 6 || end != *res {
		t.Fatalf("%+v, %v", res, err)
	}
	h.check(t)
	out, _ := io.ReadAll(v.out)
	for _, want := range []string{"stdin 0\n", "read 1\n", "locked\n", "calls bad=0\ncalls bad=0\n", "traced=1\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	if err := v.cmd.Wait(); v.cmd.ProcessState.ExitCode() != 6 {
		t.Errorf("its parent sees %v", err)
	}
}

// TestAttachStopped attaches to a stopped process, and leaves it stopped.
func TestAttachStopped(t *testing.T) {
	v := start(t, build(t, "victim"), "forever")
	unix.Kill(v.pid, unix.SIGSTOP)
	state := func(want byte) {
		t.Helper()
		if !need.Until(t, func() bool { return threadState(v.pid, v.pid) == want }) {
			t.Errorf("state is not %c", want)
		}
	}
	state('T')
	for range 3 {
		h := &tape{}
		ctx, cancel := context.WithCancel(context.Background())
		h.onTask = func(_ *Task, e *TaskEvent) {
			if e.Kind == TaskStop {
				time.AfterFunc(20*time.Millisecond, cancel) // time for calls, if there were any
			}
		}
		if _, err := Attach(ctx, v.pid, &Options{Rules: victimRules()}, h); err != nil {
			t.Fatal(err)
		}
		cancel()
		h.check(t)
		if h.enters != 0 || h.count(TaskStop) == 0 {
			t.Errorf("%d calls of a stopped process, %d stops", h.enters, h.count(TaskStop))
		}
		state('T')
	}
	unix.Kill(v.pid, unix.SIGCONT)
	state('S')
	// Stopped and continued while it is being traced.
	h := &tape{verdict: WantExit}
	ctx, cancel := context.WithCancel(context.Background())
	h.onExit = func(*Task, *Syscall) {
		if h.enters == 10 || h.enters == 20 {
			unix.Kill(v.pid, unix.SIGSTOP)
		}
	}
	h.onTask = func(_ *Task, e *TaskEvent) {
		switch {
		case e.Kind != TaskStop:
		case h.enters == 10:
			time.AfterFunc(20*time.Millisecond, func() { unix.Kill(v.pid, unix.SIGCONT) })
		case h.enters == 20:
			time.AfterFunc(20*time.Millisecond, cancel)
		}
	}
	if _, err := Attach(ctx, v.pid, &Options{Rules: victimRules()}, h); err != nil {
		t.Fatal(err)
	}
	h.check(t)
	if h.enters != 20 || h.count(TaskStop) < 2 {
		t.Errorf("%d calls, %d stops", h.enters, h.count(TaskStop))
	}
	state('T')
}

// TestAttachForks follows what an attached program starts, and lets all go.
func TestAttachForks(t *testing.T) {
	argv := byShell("bash", "-c", `echo $$; read; for ((i = 0; i < 300; i++)); do (exit $((i & 7))); [ $? = $((i & 7)) ] || exit 1; done; echo good`)
	c := exec.Command(argv[0], argv[1:]...)
	in, r := testprog.Start(t, c)
	var pid int
	if _, err := fmt.Fscanln(r, &pid); err != nil {
		t.Fatal(err)
	}
	forks := 0
	for range 20 {
		h := &tape{}
		ctx, cancel := context.WithCancel(context.Background())
		born := 0
		h.onTask = func(_ *Task, e *TaskEvent) {
			if e.Kind == TaskNew && !e.Attached {
				if born++; born == 5 {
					cancel()
				}
			}
		}
		// It begins when it is being traced.
		_, err := Attach(ctx, pid, &Options{Started: func(int) { in.Close() }}, h)
		cancel()
		if errors.Is(err, ErrNoProcess) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		h.check(t)
		forks += h.count(TaskNew) - 1
	}
	rest, _ := io.ReadAll(r)
	if err := c.Wait(); err != nil || string(rest) != "good\n" {
		t.Errorf("%v, %q", err, rest)
	}
	if forks < 5 {
		t.Errorf("only %d forks seen", forks)
	}
}

// TestAttachBusy attaches while threads come and go.
func TestAttachBusy(t *testing.T) {
	victim := build(t, "victim")
	for range 10 {
		c := exec.Command("sh", "-c", `"$0" threads >/dev/null & echo $!; wait $!`, victim)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Fscan(out, &pid); err != nil {
			t.Fatal(err)
		}
		for tids, err := proc.Threads(pid); len(tids) < 2 && err == nil; tids, err = proc.Threads(pid) { // until they come and go
			yield()
		}
		h := &tape{verdict: WantExit}
		_, err = Attach(context.Background(), pid, &Options{Rules: victimRules()}, h)
		if err != nil && !errors.Is(err, ErrNoProcess) && !errors.Is(err, ErrPermission) {
			t.Error(err)
		}
		h.check(t)
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestAttachErrors: why a process can't be traced.
func TestAttachErrors(t *testing.T) {
	v := start(t, build(t, "victim"), "sleeper")
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pid  int
		want error
		text string
	}{
		{gone.Process.Pid, ErrNoProcess, "no such process"},
		{0, ErrNoProcess, "no such process"},
		{-1, ErrNoProcess, "no such process"},
		{os.Getpid(), ErrPermission, "it is this process"},
	} {
		if _, err := Attach(context.Background(), c.pid, nil, &tape{}); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%d: %v", c.pid, err)
		}
	}
	tracer := exec.Command(os.Args[0], fmt.Sprint(v.pid))
	tracer.Env = append(os.Environ(), "PTRACE_HELPER=attach")
	out, err := tracer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	defer tracer.Wait()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("it is traced by process %d, %.15s", tracer.Process.Pid, filepath.Base(os.Args[0]))
	if _, err := Attach(context.Background(), v.pid, nil, &tape{}); !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), want) {
		t.Errorf("traced already: %v", err)
	}
	// SIGINT detaches, and what comes with it does no more. They are sent while it can't run, so
	// that it gets them together.
	tracer.Process.Signal(unix.SIGSTOP)
	need.Until(t, func() bool { return threadState(tracer.Process.Pid, tracer.Process.Pid) == 'T' })
	tracer.Process.Signal(os.Interrupt)
	tracer.Process.Signal(unix.SIGTERM)
	tracer.Process.Signal(unix.SIGCONT)
	if err := tracer.Wait(); err != nil {
		t.Errorf("tracer after SIGINT: %v", err)
	}
	if p, ok := proc.StatusNumber(v.pid, "TracerPid"); !ok || p != 0 {
		t.Errorf("still traced by %d (%v)", p, err)
	}
	if os.Getuid() == 0 {
		out, err := asNobody(t, "attach", fmt.Sprint(v.pid))
		if err == nil || !strings.Contains(out, "it belongs to user 0") {
			t.Errorf("as another user: %v, %q", err, out)
		}
	}
}

// asNobody runs a helper as an unprivileged user.
func asNobody(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	if os.Getuid() != 0 {
		need.Missing(t, "root", "needs root to become another user")
	}
	const nobody = 65534
	dir, err := buildDir()
	if err != nil {
		t.Fatal(err)
	}
	self := dir + "/ptrace.test" // the test binary itself may lie in a private directory
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(self, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cover := dir + "/cover" // where that user may write what -cover has counted
	if err := errors.Join(os.MkdirAll(cover, 0o755), os.Chown(cover, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, args...)
	c.Dir = "/"
	c.Env = append(os.Environ(), "PTRACE_HELPER="+name, "GOCOVERDIR="+cover)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestAttachExec attaches to a program in which a thread beside many others
// calls execve, again and again: seizing a thread must not wait for the execve,
// which waits for threads that are seized already.
func TestAttachExec(t *testing.T) {
	v := start(t, build(t, "victim"), "exec_forever", "x")
	for range 40 {
		h := &tape{}
		ctx, cancel := context.WithCancel(context.Background())
		_, err := Attach(ctx, v.pid, &Options{Rules: victimRules(), Started: func(int) { time.AfterFunc(2*time.Millisecond, cancel) }}, h)
		if err != nil && !errors.Is(err, ErrPermission) { // a thread that ends can't be seized
			t.Fatal(err)
		}
		cancel()
	}
}

// TestAttachOthers: several processes are traced at a time, and let go; one that is not there
// is an error, and nothing is left behind.
func TestAttachOthers(t *testing.T) {
	var pids []int
	for range 3 {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		pids = append(pids, cmd.Process.Pid)
	}
	untraced := func() {
		t.Helper()
		for _, pid := range pids {
			if tracer, _ := proc.StatusNumber(pid, "TracerPid"); tracer != 0 {
				t.Errorf("%d is traced by %d", pid, tracer)
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var seen []int
	h := &tape{onTask: func(task *Task, e *TaskEvent) {
		if e.Kind == TaskNew && e.Attached {
			if seen = append(seen, task.PID); len(seen) == len(pids) {
				cancel()
			}
		}
	}}
	defer context.AfterFunc(need.Limit(t), cancel)()
	res, err := Attach(ctx, pids[0], &Options{Others: append(pids[1:], pids[0])}, h)
	slices.Sort(seen)
	if err != nil || res.Ended || !slices.Equal(seen, pids) {
		t.Errorf("%v, %+v, traced %v of %v", err, res, seen, pids)
	}
	untraced()
	const none = 1 << 30
	if _, err := Attach(context.Background(), pids[0], &Options{Others: []int{pids[1], none}}, &tape{}); !errors.Is(err, ErrNoProcess) {
		t.Errorf("attach to a process that is not there: %v", err)
	}
	untraced()
}
