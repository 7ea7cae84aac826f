package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
)

// compile builds a victim.
func compile(t testing.TB, source string, flags ...string) string {
	t.Helper()
	need.Tool(t, "gcc", "")
	bin := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	args := append([]string{"-O1", "-g", "-Wall", "-o", bin, source, "-pthread"}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

// got is a record that was kept.
type got struct {
	Record
	name string
}

// bench is a tracer of victims: their marks call the function mark.
type tracer struct {
	t       testing.TB
	a       *Agent
	mark    func(t *ptrace.Task, c *ptrace.Syscall)
	ioctl   func(t *ptrace.Task, c *ptrace.Syscall)
	records []got
	last    int64
	tasks   map[int]bool // ended
	res     *ptrace.Result
	count   bool // do not keep records
	n       int
	wrap    func(ptrace.Handler) ptrace.Handler
	live    bool // the program would live on: breakpoints are detours
	orBreak bool // what can't be hooked has a breakpoint
	all     bool // every call stops
}

const (
	classMark = 1 + iota
	classOther
)

func newTracer(t testing.TB) *tracer {
	tr := &tracer{t: t, tasks: map[int]bool{}}
	tr.a = New(&Options{Record: tr.record, Bind: func(_ *Process, r *Record) any { return r.Args[0] }})
	return tr
}

func (tr *tracer) record(_ *Process, r *Record) {
	tr.n++
	if r.End < tr.last {
		tr.t.Errorf("record %+v out of order", r)
	}
	tr.last = r.End
	if tr.count {
		return
	}
	c := got{Record: *r}
	c.Segs = nil
	for _, s := range r.Segs {
		s.In, s.Out = slices.Clone(s.In), slices.Clone(s.Out)
		c.Segs = append(c.Segs, s)
	}
	if r.Hook != nil {
		c.name = r.Hook.Name
	}
	tr.records = append(tr.records, c)
}

func (tr *tracer) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	switch c.Class {
	case Class:
		tr.a.Trap(t, c, tr.flush)
	case classMark:
		tr.mark(t, c)
	case classOther:
		tr.ioctl(t, c)
	}
	return ptrace.Skip
}

func (tr *tracer) Exit(*ptrace.Task, *ptrace.Syscall) {}

func (tr *tracer) Task(t *ptrace.Task, e *ptrace.TaskEvent) { tr.a.Task(t, e) }

func (tr *tracer) flush() {
	tr.a.Collect()
	tr.deliver()
}

func (tr *tracer) deliver() {
	for {
		if _, ok := tr.a.Peek(); !ok {
			return
		}
		tr.a.Deliver()
	}
}

// run traces a program to its end and returns what it printed.
func (tr *tracer) run(argv ...string) string {
	t := tr.t
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	arg := func(fd, request uint64) []ptrace.ArgMatch {
		return []ptrace.ArgMatch{{Arg: 0, Value: fd, Low: true}, {Arg: 1, Value: request, Low: true}}
	}
	rules := append(tr.a.Rules(), ptrace.Rule{Names: []string{"ioctl"}, Class: classMark, Args: arg(0xfffffffe, 0x4d41524b)})
	if tr.ioctl != nil {
		rules = append(rules, ptrace.Rule{Names: []string{"ioctl"}, Class: classOther})
	}
	var h ptrace.Handler = tr
	if tr.wrap != nil {
		h = tr.wrap(h)
	}
	o := &ptrace.Options{
		Argv: argv, Stdout: out, NoSignals: true, Rules: rules, Injector: tr.a,
	}
	if tr.live {
		o.NoExitKill = true
	}
	if tr.all {
		o.Seccomp = ptrace.SeccompOff
	}
	tr.res, err = ptrace.Run(t.Context(), o, h)
	if err != nil {
		t.Fatal(err)
	}
	tr.a.Finish()
	tr.last = 0
	tr.deliver()
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if tr.res.Status != 0 {
		t.Fatalf("%v: status %v\n%s", argv, tr.res.Status, b)
	}
	if g := tr.a.Stats().Garbage; g != 0 {
		t.Errorf("%d rings spoiled", g)
	}
	if n := len(tr.a.rings); n != 0 {
		t.Errorf("%d rings left", n)
	}
	return string(b)
}

// hooks makes marks set the hooks of a list.
func (tr *tracer) hooks(list ...*Hook) {
	tr.mark = func(t *ptrace.Task, c *ptrace.Syscall) {
		p, err := tr.a.Process(t)
		if err != nil {
			tr.t.Error(err)
			return
		}
		switch i := int64(c.Args[2]); i {
		case -1:
			p.Unmapped(c.Args[3], c.Args[4])
		case -2:
			p.Forget(list[0])
		default:
			if tr.orBreak {
				one := []Target{{Addr: c.Args[3], Hook: list[i]}}
				tr.a.HookAllOrBreak(t, one)
				err = one[0].Err
			} else {
				err = p.Hook(t, c.Args[3], list[i])
			}
			if err != nil {
				tr.t.Error(err)
			}
		}
	}
}

func (g *got) String() string {
	s := fmt.Sprint(g.Kind, " ", g.name, " ", g.Args, " ", g.Ret)
	for i := range g.Segs {
		s += fmt.Sprintf(" %d in %q out %q", g.Segs[i].Len, g.Segs[i].In, g.Segs[i].Out)
	}
	return s
}

var _ = unix.Getpid
