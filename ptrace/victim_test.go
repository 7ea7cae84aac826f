package ptrace

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"nvtrace/internal/need"

	"golang.org/x/sys/unix"
)

// buildDir is where victims are built, once for all tests.
var buildDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ptrace-victims")
	if err == nil {
		err = os.Chmod(dir, 0o755) // for tests as another user
	}
	return dir, err
})

var (
	buildMu sync.Mutex
	built   = map[string]string{}
)

// build compiles testdata/NAME.c.
func build(t testing.TB, name string, flags ...string) string {
	t.Helper()
	need.Tool(t, "gcc", "")
	dir, err := buildDir()
	if err != nil {
		t.Fatal(err)
	}
	key := name + strings.Join(flags, "")
	buildMu.Lock()
	defer buildMu.Unlock()
	if out, ok := built[key]; ok {
		return out
	}
	out := filepath.Join(dir, key)
	args := append([]string{"-O1", "-pthread", "-Wall", "-Wno-unused-result", "-o", out, filepath.Join("testdata", name+".c")}, flags...)
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	built[key] = out
	return out
}

// TestMain removes what the tests built, and is the entrance for the test's own
// helper processes.
func TestMain(m *testing.M) {
	if name := os.Getenv("PTRACE_HELPER"); name != "" {
		os.Exit(helper(name, os.Args[1:]))
	}
	need.Signals()
	code := m.Run()
	if dir, err := buildDir(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// The request that all victims make: _IOWR('F', 0x2a, 32 bytes).
const victimRequest = 0xc020462a

// victimRules select it, as the rules of a GPU tracer would.
func victimRules() []Rule {
	return []Rule{{
		Names: []string{"ioctl"}, Class: 1, Compat: true,
		Args: []ArgMatch{{Arg: 1, Mask: 0xff00, Value: 'F' << 8, Low: true}},
	}}
}

// tape is a handler that notes everything.
type tape struct {
	verdict Verdict
	onEnter func(*Task, *Syscall)
	onExit  func(*Task, *Syscall)
	onTask  func(*Task, *TaskEvent)

	calls      []Syscall // with their exit, in the order of exits; at entry where that isn't wanted
	tids       []int     // of calls
	enters     int
	events     []note
	unfinished int
	live       map[*Task]bool
	over       map[int]bool // processes that have ended
	problems   []string
}

type note struct {
	kind        TaskKind
	tid, pid    int
	parent, old int
	thread      bool
	status      unix.WaitStatus
	sig         unix.Signal
}

func (p *tape) problem(s string) { p.problems = append(p.problems, s) }

func (p *tape) Enter(t *Task, c *Syscall) Verdict {
	p.enters++
	if !p.live[t] {
		p.problem("call of an unknown task")
	}
	if p.onEnter != nil {
		p.onEnter(t, c)
	}
	if p.verdict == Skip {
		p.calls, p.tids = append(p.calls, *c), append(p.tids, t.TID)
	}
	return p.verdict
}

func (p *tape) Exit(t *Task, c *Syscall) {
	if c.Exit < c.Enter || c.Enter == 0 {
		p.problem("exit before entry")
	}
	if p.onExit != nil {
		p.onExit(t, c)
	}
	p.calls, p.tids = append(p.calls, *c), append(p.tids, t.TID)
}

func (p *tape) Task(t *Task, e *TaskEvent) {
	n := note{kind: e.Kind, tid: t.TID, pid: t.PID, old: e.OldTID, thread: e.Thread, status: e.Status, sig: e.Signal}
	if e.Parent != nil {
		n.parent = e.Parent.TID
		if !p.live[e.Parent] {
			p.problem("child of an unknown task")
		}
	}
	if p.live == nil {
		p.live, p.over = map[*Task]bool{}, map[int]bool{}
	}
	if e.Kind == TaskNew && !e.Thread {
		delete(p.over, t.PID)
	}
	if p.over[t.PID] {
		p.problem(e.Kind.String() + " in a process that has ended")
	}
	if e.Kind == TaskExit && t.TID == t.PID {
		p.over[t.PID] = !e.Replaced
	}
	switch e.Kind {
	case TaskNew:
		p.live[t] = true
	case TaskExit, TaskDetach:
		if !p.live[t] {
			p.problem("end of an unknown task")
		}
		delete(p.live, t)
	case TaskUnfinished:
		p.unfinished++
	default:
		if !p.live[t] {
			p.problem(e.Kind.String() + " of an unknown task")
		}
	}
	if p.onTask != nil {
		p.onTask(t, e)
	}
	p.events = append(p.events, n)
}

// count counts the events of a kind.
func (p *tape) count(k TaskKind) int {
	n := 0
	for _, e := range p.events {
		if e.kind == k {
			n++
		}
	}
	return n
}

// check says what must hold after any run.
func (p *tape) check(t *testing.T) {
	t.Helper()
	for _, s := range p.problems {
		t.Error(s)
	}
	if len(p.live) != 0 {
		t.Errorf("%d tasks never ended", len(p.live))
	}
	if p.verdict == WantExit && p.enters != len(p.calls)+p.unfinished {
		t.Errorf("%d entries, %d exits, %d unfinished", p.enters, len(p.calls), p.unfinished)
	}
	if n, x := p.count(TaskNew), p.count(TaskExit)+p.count(TaskDetach); n != x {
		t.Errorf("%d tasks began, %d ended", n, x)
	}
}

// outcome is how a program ended and what it said.
type outcome struct {
	status unix.WaitStatus
	output string
}

// runTraced runs argv under h.
func runTraced(t *testing.T, o *Options, h Handler, argv ...string) (outcome, *Result) {
	t.Helper()
	ctx := need.Limit(t)
	o.Argv = argv
	if o.Rules == nil {
		o.Rules = victimRules()
	}
	var buf bytes.Buffer
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o.Stdout, o.Stderr = w, w
	done := make(chan error)
	go func() {
		_, err := io.Copy(&buf, r)
		done <- err
	}()
	res, err := Run(ctx, o, h)
	w.Close()
	<-done
	r.Close()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, buf.String())
	}
	if !res.Ended {
		t.Fatalf("%v: no status", argv)
	}
	return outcome{res.Status, buf.String()}, res
}

// runPlain runs argv untraced.
func runPlain(t *testing.T, argv ...string) outcome {
	t.Helper()
	ctx := need.Limit(t)
	var buf bytes.Buffer
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, &buf, &buf
	err := c.Run()
	if ee := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	return outcome{unix.WaitStatus(c.ProcessState.Sys().(syscall.WaitStatus)), buf.String()}
}

// modes runs a test with and without a filter.
func modes(t *testing.T, f func(t *testing.T, mode SeccompMode)) {
	t.Run("seccomp", func(t *testing.T) { f(t, SeccompAuto) })
	t.Run("syscalls", func(t *testing.T) { f(t, SeccompOff) })
}

// runGo runs the go command.
func runGo(args ...string) ([]byte, error) { return exec.Command("go", args...).CombinedOutput() }
