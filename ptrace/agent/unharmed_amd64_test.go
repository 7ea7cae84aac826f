package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/internal/stepkill"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// meddler is a supervisor that does all that it can do to the tasks of a program, a few
// times.
type meddler struct {
	a      *Agent
	probe  uint64 // programs at that function and its return
	addr   uint64 // of a function of the program's; 0: it is not known
	ready  bool   // what is done once is done
	left   int
	first  int  // which of the first tasks to begin with
	execed bool // begin when the program has executed another
	cancel context.CancelFunc
}

func (m *meddler) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	if c.Class == Class {
		m.a.Trap(t, c, func() {})
		return ptrace.Skip
	}
	m.meddle(t)
	return ptrace.WantExit
}

func (m *meddler) Exit(t *ptrace.Task, _ *ptrace.Syscall) { m.meddle(t) }

func (m *meddler) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	m.a.Task(t, e)
	switch {
	case e.Kind == ptrace.TaskNew && e.Attached:
		t.Interrupt(m.meddle)
	case e.Kind == ptrace.TaskExec:
		m.execed, m.ready = false, false
		m.meddle(t)
	case e.Kind == ptrace.TaskNew:
		m.meddle(t)
	}
}

// meddle makes the task make system calls.
func (m *meddler) meddle(t *ptrace.Task) {
	if m.first--; m.first >= 0 || m.execed || m.left == 0 {
		return
	}
	if m.left--; m.left == 0 {
		stepkill.Done()
		m.cancel()
		return
	}
	check := func(what string, err error) {
		if err != nil && !strings.Contains(err.Error(), "gone") {
			fmt.Fprintln(os.Stderr, "meddler:", what, err)
			os.Exit(1)
		}
	}
	if !m.ready {
		m.ready = true
		p, err := m.a.Process(t)
		check("agent:", err)
		if m.addr != 0 && err == nil {
			check("hook:", p.Hook(t, m.addr, &Hook{Name: "call"}))
			check("programs:", p.Runs(t))
			m.leave(t, check)
			check("probe:", p.Hook(t, m.addr, &Hook{Name: "call", Probe: m.probe, Returns: true}))
			_, err = t.SetBreakpoint(m.addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
				check("return:", t.OnReturn(func(t *ptrace.Task, _ uint64) { m.meddle(t) }))
				m.meddle(t)
				m.callArgument(t, check)
			})
			check("breakpoint:", err)
		}
		return
	}
	for range 2 {
		pid, err := t.Syscall(unix.SYS_GETPID)
		check("getpid:", err)
		if err == nil && pid != int64(t.PID) {
			check("getpid:", fmt.Errorf("%d", pid))
		}
	}
}

// leave ends it as if it had been killed when it had mapped the first so many pieces of the memory of
// programs, of which the environment has the number.
func (m *meddler) leave(t *ptrace.Task, check func(what string, err error)) {
	n, err := strconv.Atoi(os.Getenv("TEST_LEAVE"))
	if err != nil {
		return
	}
	for _, addr := range []uint64{programAddr, dataAddr, retsAddr, filesAddr}[n:] {
		maps, err := proc.Maps(t.PID)
		check("maps:", err)
		if m := proc.At(maps, addr); m != nil {
			_, err = t.Syscall(unix.SYS_MUNMAP, addr, m.End-m.Start)
			check("munmap:", err)
		}
	}
	stepkill.Done()
}

// callArgument has the task call the function that it is about to call itself, where it has
// been attached to.
func (m *meddler) callArgument(t *ptrace.Task, check func(what string, err error)) {
	if !t.StopsAtAll() {
		return
	}
	r, err := t.Regs()
	if err != nil {
		return
	}
	f, x := r.Arg(0), r.Arg(1)+1000
	t.Hold()
	t.Interrupt(func(t *ptrace.Task) {
		err := t.Call(f, 0, []uint64{x, 2, 3, 4, 5, 6, 7, 8}, func(t *ptrace.Task, ret uint64, err error) {
			if err == nil && ret != x {
				err = fmt.Errorf("%d, want %d", ret, x)
			}
			check("call:", err)
			t.Release(nil)
		})
		check("call:", err)
	})
}

// dataAddr is where the data of programs is.
const dataAddr = 0x550800000000

// programs has the agent run a program at a function and at its return, which counts.
func (m *meddler) programs() error {
	const size, at = 4096, dataAddr
	g, err := NewPrograms(at, size, nil)
	if err != nil {
		return err
	}
	m.a.SetPrograms(g)
	code := binary.LittleEndian.AppendUint64([]byte{0x48, 0xb8}, at)          // mov $at, %rax
	code = append(code, 0xf0, 0x48, 0xff, 0x00, 0x31, 0xc0, 0x31, 0xd2, 0xc3) // lock incq (%rax); xor %eax, %eax; xor %edx, %edx; ret
	r, err := g.Add(&Code{Code: code, Counts: at + 8})
	if err != nil {
		return err
	}
	m.probe, err = g.Probe([]ProgramRef{r}, []ProgramRef{r})
	return err
}

// TestMeddler is, with a scenario in the environment, the supervisor that TestUnharmed
// kills.
func TestMeddler(t *testing.T) {
	what := os.Getenv("TEST_MEDDLE")
	if what == "" {
		t.Skip("is for TestUnharmed")
	}
	runtime.LockOSThread()
	m := &meddler{a: New(nil), left: 16}
	if err := m.programs(); err != nil {
		fmt.Fprintln(os.Stderr, "meddler:", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.addr, _ = strconv.ParseUint(os.Getenv("TEST_FUNCTION"), 0, 64)
	m.first, _ = strconv.Atoi(os.Getenv("TEST_FIRST"))
	o := &ptrace.Options{
		Rules: append(m.a.Rules(), ptrace.Rule{Names: []string{"ioctl", "lseek"}, Class: 1}), ExtraRules: []ptrace.Rule{{Names: []string{"munmap"}, Class: 2}},
		Injector: m.a, NoSignals: true,
	}
	var err error
	if what == "run" {
		m.cancel = func() {} // the program goes on as it was
		m.left, m.execed = 24, true
		o.NoExitKill, o.Argv = true, []string{os.Getenv("TEST_VICTIM")}
		o.Rules[len(o.Rules)-1].Names = []string{"ioctl"} // what fails afterwards
		_, err = ptrace.Run(ctx, o, m)
	} else {
		m.execed = what == "exec"
		pid, _ := strconv.Atoi(os.Getenv("TEST_SUPERVISE"))
		_, err = ptrace.Attach(ctx, pid, o, m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "meddler:", err)
		os.Exit(1)
	}
}

// unharmed is a program that finds out whether it was harmed.
type unharmed struct {
	bin, what string
	in, inR   *os.File
	out       *bufio.Reader
	outW      *os.File
	err       *os.File
	cmd       *exec.Cmd // nil: it is its tracer's child
	pid, addr string
}

// startUnharmed starts it for a scenario, but where its tracer does that.
func startUnharmed(t *testing.T, bin, what string) *unharmed {
	t.Helper()
	u := &unharmed{bin: bin, what: what}
	var err error
	if u.err, err = os.Create(t.TempDir() + "/stderr"); err != nil {
		t.Fatal(err)
	}
	if u.inR, u.in, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	u.out, u.outW = bufio.NewReader(outR), outW
	t.Cleanup(func() {
		for _, f := range []*os.File{u.err, u.inR, u.in, outR, outW} {
			_ = f.Close() // a second time, perhaps
		}
		if u.cmd != nil {
			_ = u.cmd.Process.Kill()
			_ = u.cmd.Wait()
		}
	})
	if what == "run" {
		return u
	}
	u.cmd = exec.Command(bin)
	if what == "exec" {
		u.cmd.Args = []string{bin, "exec", "0", "0", "0"}
	}
	u.cmd.Stdin, u.cmd.Stdout, u.cmd.Stderr = u.inR, outW, u.err
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	outW.Close()
	u.begun(t)
	return u
}

// begun waits until it has begun, and says whether it has.
func (u *unharmed) begun(t *testing.T) bool {
	t.Helper()
	line, err := u.out.ReadString('\n')
	u.pid, u.addr, _ = strings.Cut(strings.TrimSpace(line), " ")
	return err == nil
}

// kill has the program supervised, and the supervisor killed at a step. ok is false if
// something went wrong.
func (u *unharmed) kill(t *testing.T, step int) (killed, ok bool) {
	t.Helper()
	s := exec.Command(os.Args[0], "-test.run=^TestMeddler$")
	s.Env = append(os.Environ(), "TEST_MEDDLE="+u.what, "TEST_VICTIM="+u.bin, "TEST_FIRST="+strconv.Itoa(step%12),
		"TEST_SUPERVISE="+u.pid, "TEST_FUNCTION="+u.addr)
	said, err := os.Create(t.TempDir() + "/meddler")
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	s.Stderr = said
	if u.what == "run" {
		s.Stdin, s.Stdout, s.Stderr = u.inR, u.outW, u.err
	}
	if killed, err = stepkill.Run(s, step); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(said.Name())
	if strings.Contains(string(text), "meddler:") {
		t.Errorf("%s", text)
		return killed, false
	}
	return killed, true
}

// end has the program say whether it was harmed.
func (u *unharmed) end(t *testing.T) bool {
	t.Helper()
	defer context.AfterFunc(need.Limit(t), func() { panic("the program hangs") })()
	_, _ = io.WriteString(u.in, "\n") // it may be dead
	said, err := u.out.ReadString('\n')
	if said == "bad 0\n" {
		return true
	}
	text, _ := os.ReadFile(u.err.Name())
	how := "still there"
	if u.cmd != nil && err != nil {
		how = fmt.Sprint(u.cmd.Wait())
	}
	t.Errorf("%q, %v; %s\n%s", said, err, how, text)
	return false
}

// TestUnharmed: a supervisor is killed at each of its steps, from the first one on, in a
// program that outlives it. All threads have their registers, results of system calls,
// signals and signal masks, as if nothing had been.
func TestUnharmed(t *testing.T) {
	bin := compile(t, "../testdata/unharmed.c", "-ldl")
	for _, what := range []string{"attach", "exec", "run"} {
		t.Run(what, func(t *testing.T) {
			step, stride := 1, 1
			if n, err := strconv.Atoi(os.Getenv("TEST_STEP")); err == nil { // to look for a cause
				step = n
			}
			switch {
			case need.Required("stepkill"): // all of them take minutes
			case testing.Short():
				stride = 41
			default:
				stride = 7
			}
			for ; ; step += stride {
				killed, ok := killOne(t, bin, what, step)
				if !ok {
					t.Fatalf("killed at step %d", step)
				}
				if !killed {
					break
				}
			}
			t.Logf("killed at each %d. of %d steps", stride, step)
			if step < 100 {
				t.Error("these are too few")
			}
		})
	}
}

// TestUnharmedAgain: a supervisor is killed at each of its steps, and the next one, which takes over
// what that one has left, at some step of its own, or when it has done everything.
func TestUnharmedAgain(t *testing.T) {
	bin := compile(t, "../testdata/unharmed.c", "-ldl")
	stride := 13
	if need.Required("stepkill") {
		stride = 1
	}
	const most = 800 // steps, about
	for step := 1; step < most; step += stride {
		second := most + 1
		if step/stride%3 == 0 {
			second = 1 + step*101%most
		}
		u := startUnharmed(t, bin, "attach")
		for _, n := range []int{step, second} {
			if _, ok := u.kill(t, n); !ok {
				t.Fatalf("killed at steps %d and %d", step, second)
			}
		}
		if !u.end(t) {
			t.Fatalf("killed at steps %d and %d", step, second)
		}
	}
}

// TestPiecesLeft: a supervisor was killed when it had mapped some of the memory of programs; the next one
// runs programs.
func TestPiecesLeft(t *testing.T) {
	bin := compile(t, "../testdata/unharmed.c", "-ldl")
	for n := range 5 {
		u := startUnharmed(t, bin, "attach")
		for _, leave := range []string{strconv.Itoa(n), ""} {
			t.Setenv("TEST_LEAVE", leave)
			if _, ok := u.kill(t, 1<<20); !ok {
				t.Fatalf("%d pieces left", n)
			}
		}
		if !u.end(t) {
			t.Fatalf("%d pieces left", n)
		}
	}
}

// killOne has a program supervised, and the supervisor killed at one step.
func killOne(t *testing.T, bin, what string, step int) (killed, ok bool) {
	t.Helper()
	u := startUnharmed(t, bin, what)
	if killed, ok = u.kill(t, step); !ok {
		return killed, false
	}
	if what == "run" {
		u.outW.Close()
		const beforeExec = 40
		if !u.begun(t) && step < beforeExec {
			return killed, true // the program never began
		}
	}
	return killed, u.end(t)
}
