package ptrace

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
)

// byBreakpoint runs "hammer" with a breakpoint at the function that it calls.
func byBreakpoint(name string, o Options, returns bool) contender {
	return contender{name, func(b *testing.B, argv []string) float64 {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		o := o
		o.Argv, o.Rules, o.Stdout = argv, victimRules(), w
		q := &counter{b: b, path: argv[0], fn: argv[4], returns: returns}
		res, err := Run(context.Background(), &o, q)
		w.Close()
		out, _ := io.ReadAll(r)
		if err != nil || res.Status != 0 {
			b.Fatalf("%s: %+v, %v", name, res, err)
		}
		var threads, calls int
		fmt.Sscan(argv[2], &threads)
		fmt.Sscan(argv[3], &calls)
		if q.hits != threads*calls || returns && q.returned != q.hits {
			b.Fatalf("%s: %d hits, %d returns of %d", name, q.hits, q.returned, threads*calls)
		}
		return parseCost(b, name, string(out))
	}}
}

// counter counts the hits of one breakpoint.
type counter struct {
	b              *testing.B
	path, fn       string
	returns        bool
	hits, returned int
}

func (q *counter) Enter(*Task, *Syscall) Verdict { return Skip }
func (q *counter) Exit(*Task, *Syscall)          {}

func (q *counter) Task(t *Task, e *TaskEvent) {
	if e.Kind != TaskExec {
		return
	}
	done := func(*Task, uint64) { q.returned++ }
	_, err := t.SetBreakpoint(address(q.b, t.PID, q.path, q.fn), func(t *Task, _ *Breakpoint) {
		q.hits++
		if q.returns {
			if err := t.OnReturn(done); err != nil {
				q.b.Error(err)
			}
		}
	})
	if err != nil {
		q.b.Error(err)
	}
}

// BenchmarkBreakpoint is the cost of one hit: the instruction executed from a
// copy, skipped since it does nothing, and in place with all others stopped; and
// of a hit with a return. The time is that of the program divided by all calls.
func BenchmarkBreakpoint(b *testing.B) {
	path := build(b, "breaker")
	for _, threads := range []string{"1", "8"} {
		b.Run(threads, func(b *testing.B) {
			compare(b, []contender{
				byBreakpoint("copy", Options{}, false),
				byBreakpoint("allstop", Options{noCopies: true}, false),
				byBreakpoint("return", Options{}, true),
				byBreakpoint("nofilter", Options{Seccomp: SeccompOff}, false),
			}, path, "hammer", threads, "2000", "f_push")
		})
		b.Run(threads+"-endbr64", func(b *testing.B) {
			compare(b, []contender{byBreakpoint("skip", Options{}, false)}, path, "hammer", threads, "2000", "f_endbr")
		})
	}
}

// BenchmarkSyscall is the cost of a system call made in a task.
func BenchmarkSyscall(b *testing.B) {
	path := build(b, "breaker")
	n := 0
	q := &counter{b: b, path: path}
	o := &Options{Argv: []string{path, "one"}}
	h := &once{q: q, f: func(t *Task) {
		for b.Loop() {
			if pid, err := t.Syscall(39); err != nil || int(pid) != t.PID { // getpid
				b.Error(pid, err)
			}
			n++
		}
	}}
	if res, err := Run(context.Background(), o, h); err != nil || res.Status != 0 || n == 0 {
		b.Fatalf("%+v, %v", res, err)
	}
}

// once calls f at the first breakpoint.
type once struct {
	q *counter
	f func(*Task)
}

func (h *once) Enter(*Task, *Syscall) Verdict { return Skip }
func (h *once) Exit(*Task, *Syscall)          {}

func (h *once) Task(t *Task, e *TaskEvent) {
	if e.Kind == TaskExec {
		if _, err := t.SetBreakpoint(address(h.q.b, t.PID, h.q.path, "f_push"), func(t *Task, _ *Breakpoint) { h.f(t) }); err != nil {
			h.q.b.Error(err)
		}
	}
}
