package agent

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"nvtrace/internal/testprog"
	"nvtrace/ptrace"
)

func TestLayout(t *testing.T) {
	if !slices.Equal(layout(), blobLayout) {
		t.Errorf("layout.go\n%#x\nlayout.h\n%#x", layout(), blobLayout)
	}
}

// TestHookVariants: what functions look like depends on how they were compiled; what is recorded does not.
func TestHookVariants(t *testing.T) {
	for _, v := range testprog.Variants {
		t.Run(v.Name, func(t *testing.T) {
			// Functions that call themselves are to do so.
			bin := compile(t, "testdata/hooks.c", slices.Concat(v.Flags, []string{"-fno-optimize-sibling-calls"})...)
			for name, test := range map[string]func(*testing.T, string){
				"plain": testHookPlain, "recursion": testHookRecursion, "longjmp": testHookLongjmp, "fibers": testHookFibers,
				"fork": testHookFork, "vfork": testHookVfork, "exit": testHookThreadExit,
			} {
				t.Run(name, func(t *testing.T) { test(t, bin) })
			}
		})
	}
}

// TestHookPlain checks arguments, memory and results.
func TestHookPlain(t *testing.T) { testHookPlain(t, compile(t, "testdata/hooks.c")) }

func testHookPlain(t *testing.T, bin string) {
	t.Helper()
	tr := newTracer(t)
	tr.orBreak = true // the loop of mem begins within its first bytes where code is to be small
	tr.hooks(
		&Hook{Name: "six", StackWords: 2}, &Hook{Name: "give"}, &Hook{Name: "dbl"}, &Hook{Name: "va"},
		&Hook{Name: "mem", Derefs: []Deref{
			{Arg: 0, Len: 256, CString: true, In: true},
			{Arg: 1, Len: 64, LenArg: 4, Unit: 8, In: true},
			{Arg: 2, Len: 32, LenArg: 4, Unit: 8, Out: true},
		}},
	)
	out := tr.run(bin, "plain")
	const want = "six 204\ngive 3 21\ndbl 6.25\nva 10\nmem 5 8\nmem 299\n"
	if out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
	// Those of breakpoints are given out at once, those of rings later.
	slices.SortStableFunc(tr.records, func(a, b got) int { return cmp.Compare(a.End, b.End) })
	var names []string
	for i := range tr.records {
		g := &tr.records[i]
		names = append(names, fmt.Sprint(g.name, g.Kind))
	}
	if s := strings.Join(names, " "); s != "six2 six3 give2 give3 dbl2 dbl3 va2 va3 mem2 mem3 mem2 mem3" {
		t.Fatal(s)
	}
	six := &tr.records[0]
	if six.Args != [6]uint64{1, 2, 3, 4, 5, 6} || len(six.Segs) != 1 || six.Segs[0].Addr != six.SP+8 ||
		binary.LittleEndian.Uint64(six.Segs[0].In) != 7 || binary.LittleEndian.Uint64(six.Segs[0].In[8:]) != 8 || six.Caller == 0 {
		t.Errorf("six: %+v", six)
	}
	if r := &tr.records[1]; r.Ret != 204 || r.SP != six.SP || r.Begin != six.Begin || r.End < r.Begin {
		t.Errorf("six returned: %+v", r)
	}
	m, r := &tr.records[8], &tr.records[9]
	if len(m.Segs) != 2 || string(m.Segs[0].In) != "hello\x00" || m.Segs[0].Len != 6 || len(m.Segs[1].In) != 32 || m.Segs[1].In[24] != 4 {
		t.Errorf("mem: %v", m)
	}
	if len(r.Segs) != 1 || len(r.Segs[0].Out) != 32 || r.Segs[0].Out[24] != 8 || r.Segs[0].In != nil || r.Ret != 5 {
		t.Errorf("mem returned: %v", r)
	}
	if m := &tr.records[10]; len(m.Segs[0].In) != 256 || m.Segs[0].Len != 256 || len(m.Segs[1].In) != 8 {
		t.Errorf("mem: %v", m)
	}
}

// nesting checks that calls and returns of each thread nest, and returns their
// numbers.
func (tr *tracer) nesting() (calls, returns, unfinished int) {
	tr.t.Helper()
	type key struct{ pid, tid int }
	open := map[key][]*got{}
	for i := range tr.records {
		g := &tr.records[i]
		k := key{g.PID, g.TID}
		switch g.Kind {
		case KindCall:
			calls++
			if !g.NoReturn {
				open[k] = append(open[k], g)
			}
		case KindReturn:
			returns++
			if g.Unfinished {
				unfinished++
			}
			n := len(open[k])
			if n == 0 {
				continue // of the process that it was forked from
			}
			// A call that was left by longjmp ends when that is noticed.
			at := n - 1
			for at > 0 && open[k][at].SP != g.SP {
				at--
			}
			if c := open[k][at]; c.SP != g.SP || c.name != g.name || c.Caller != g.Caller || c.Begin != g.Begin {
				for j := max(0, i-8); j < min(i+6, len(tr.records)); j++ {
					tr.t.Logf("%d: %+v", j, tr.records[j])
				}
				tr.t.Fatalf("return %+v of %+v", g, c)
			}
			open[k] = slices.Delete(open[k], at, at+1)
		}
	}
	return calls, returns, unfinished
}

func TestHookRecursion(t *testing.T) { testHookRecursion(t, compile(t, "testdata/hooks.c")) }

func testHookRecursion(t *testing.T, bin string) {
	t.Helper()
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "fib"})
	if out := tr.run(bin, "fib"); out != "fib 987\n" {
		t.Error(out)
	}
	if calls, returns, un := tr.nesting(); calls != 3193 || returns != calls || un != 0 {
		t.Errorf("%d calls, %d returns, %d unfinished", calls, returns, un)
	}
}

// TestHookThreads: threads at full speed lose nothing.
func TestHookThreads(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, how := range []string{"threads", "storm"} {
		t.Run(how, func(t *testing.T) {
			tr := newTracer(t)
			tr.hooks(&Hook{Name: "add"})
			out := tr.run(bin, how)
			want := map[int]int{}
			for line := range strings.Lines(out) {
				var tid, n int
				if _, err := fmt.Sscanf(line, "tid %d calls %d", &tid, &n); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				want[tid] += n
			}
			calls, returns, _ := tr.nesting()
			have := map[int]int{}
			for i := range tr.records {
				if g := &tr.records[i]; g.Kind == KindCall {
					have[g.TID]++
				}
			}
			for tid, n := range want {
				if have[tid] != n {
					t.Errorf("thread %d: %d of %d calls", tid, have[tid], n)
				}
			}
			if calls != returns {
				t.Errorf("%d calls, %d returns", calls, returns)
			}
			t.Logf("%d calls, %+v", calls, tr.a.Stats())
		})
	}
}

func TestHookLongjmp(t *testing.T) { testHookLongjmp(t, compile(t, "testdata/hooks.c")) }

func testHookLongjmp(t *testing.T, bin string) {
	t.Helper()
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "call"})
	if out := tr.run(bin, "longjmp"); out != "back 200 jumped 100\n" {
		t.Error(out)
	}
	if calls, returns, un := tr.nesting(); calls != 300 || returns != 300 || un != 100 {
		t.Errorf("%d calls, %d returns, %d unfinished", calls, returns, un)
	}
}

func TestHookFibers(t *testing.T) { testHookFibers(t, compile(t, "testdata/hooks.c")) }

func testHookFibers(t *testing.T, bin string) {
	t.Helper()
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "call"})
	if out := tr.run(bin, "fibers"); out != "fibers 3\n" {
		t.Error(out)
	}
	if calls, returns, _ := tr.nesting(); calls != 2 || returns != 2 {
		t.Errorf("%d calls, %d returns", calls, returns)
	}
}

func (tr *tracer) list(pid func(int) bool) string {
	var s []string
	for i := range tr.records {
		if g := &tr.records[i]; pid(g.PID) {
			if g.Kind == KindCall {
				s = append(s, fmt.Sprintf("%s(%d,%d)", g.name, int64(g.Args[0])&0xffff, g.Args[1]))
			} else {
				s = append(s, fmt.Sprintf("=%d", g.Ret))
			}
		}
	}
	return strings.Join(s, " ")
}

// TestHookFork: a child returns through the frame that its parent has called,
// and records on its own.
func TestHookFork(t *testing.T) { testHookFork(t, compile(t, "testdata/hooks.c")) }

func testHookFork(t *testing.T, bin string) {
	t.Helper()
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "call"}, &Hook{Name: "add"})
	if out := tr.run(bin, "fork"); out != "fork 102\n" {
		t.Error(out)
	}
	main := tr.res.PID
	for i := range tr.records {
		if tr.records[i].name == "call" {
			tr.records[i].Args[0] = 0
		}
	}
	if s := tr.list(func(p int) bool { return p == main }); s != "add(1,1) =2 call(0,5) =102 add(2,102) =104" {
		t.Errorf("parent: %s", s)
	}
	if s := tr.list(func(p int) bool { return p != main }); s != "add(2,101) =103 add(101,0) =101" {
		t.Errorf("child: %s", s)
	}
}

func TestHookVfork(t *testing.T) { testHookVfork(t, compile(t, "testdata/hooks.c")) }

func testHookVfork(t *testing.T, bin string) {
	t.Helper()
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "call"}, &Hook{Name: "add"})
	if out := tr.run(bin, "vfork"); out != "vfork 43\nvfork 43\nvfork 43\nadd 3\n" {
		t.Error(out)
	}
	calls := map[bool]int{}
	for i := range tr.records {
		if g := &tr.records[i]; g.Kind == KindCall {
			calls[g.PID == tr.res.PID]++
		}
	}
	if calls[true] != 4 || calls[false] != 6 {
		t.Errorf("calls: %v", calls)
	}
}

func TestHookThreadExit(t *testing.T) { testHookThreadExit(t, compile(t, "testdata/hooks.c")) }

func testHookThreadExit(t *testing.T, bin string) {
	t.Helper()
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "call"}, &Hook{Name: "add"})
	if out := tr.run(bin, "exit"); out != "exit 1\nexit 2\nexit 3\nadd 3\n" {
		t.Error(out)
	}
	if calls, _, _ := tr.nesting(); calls != 4 {
		t.Errorf("%d calls", calls)
	}
}

// TestHookSignals: a handler that comes at any point makes calls of its own.
func TestHookSignals(t *testing.T) {
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "add"})
	out := tr.run(compile(t, "testdata/hooks.c"), "signals")
	var n, handled int
	if _, err := fmt.Sscanf(out, "calls %d handled %d", &n, &handled); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	calls, returns, un := tr.nesting()
	if calls != n+handled || returns != calls || un != 0 {
		t.Errorf("%d calls of %d, %d returns, %d unfinished", calls, n+handled, returns, un)
	}
	t.Logf("%d calls, %d in handlers", calls, handled)
}

// TestHookUnmapped: a library comes and goes.
func TestHookUnmapped(t *testing.T) {
	lib := compile(t, "testdata/twice.c", "-shared", "-fPIC")
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "twice"})
	if out := tr.run(compile(t, "testdata/hooks.c"), "dlclose", lib); out != "twice 42\ntwice 44\ntwice 46\n" {
		t.Error(out)
	}
	if s := tr.list(func(int) bool { return true }); s != "twice(21,0) =42 twice(22,0) =44 twice(23,0) =46" {
		var plain []string
		for i := range tr.records {
			plain = append(plain, fmt.Sprint(tr.records[i].Args[0], tr.records[i].Ret))
		}
		if len(tr.records) != 6 || tr.records[0].Args[0] != 21 || tr.records[5].Ret != 46 {
			t.Error(s, plain)
		}
	}
}

// TestHookInside: a function is hooked while a thread is in the midst of what is moved.
func TestHookInside(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for range 3 {
		tr := newTracer(t)
		tr.hooks(&Hook{Name: "fill"})
		var rounds int
		out := tr.run(bin, "inside")
		if _, err := fmt.Sscanf(out, "rounds %d\n", &rounds); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if calls, returns, _ := tr.nesting(); calls < 2 || calls > rounds || returns != calls || tr.a.Stats().Hooks != 1 {
			t.Errorf("%d calls, %d returns of %d, %+v", calls, returns, rounds, tr.a.Stats())
		}
	}
}

// TestHookStill: what was said to be unmapped, but is there, is not hooked a second time.
func TestHookStill(t *testing.T) {
	tr := newTracer(t)
	h := &Hook{Name: "fib"}
	tr.hooks(h)
	hook := tr.mark
	tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
		hook(tk, c)
		p, err := tr.a.Process(tk)
		if err != nil {
			t.Error(err)
			return
		}
		p.Unmapped(c.Args[3]&^4095, 8192)
		if err := p.Hook(tk, c.Args[3], h); !errors.Is(err, ErrUnpatchable) || len(p.hooks) != 1 || p.hooks[0].gone {
			t.Errorf("%v, %d hooks", err, len(p.hooks))
		}
	}
	tr.run(compile(t, "testdata/hooks.c"), "fib")
	if calls, returns, _ := tr.nesting(); calls != 3193 || returns != calls {
		t.Errorf("%d calls, %d returns", calls, returns)
	}
}

func TestHookOnce(t *testing.T) {
	tr := newTracer(t)
	h := &Hook{Name: "add", Once: true}
	tr.hooks(h)
	mark := tr.mark
	var counted []map[uint64]uint64
	tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
		if int64(c.Args[2]) != -2 {
			mark(tk, c)
			return
		}
		p, err := tr.a.Process(tk)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			n, err := p.Repeated(h)
			if err != nil {
				t.Fatal(err)
			}
			counted = append(counted, n)
			p.Forget(h)
		}
		if _, err := p.Repeated(&Hook{Name: "other"}); err == nil {
			t.Error("counts of a hook that is not there")
		}
	}
	tr.run(compile(t, "testdata/hooks.c"), "once")
	if calls, returns, _ := tr.nesting(); calls != 105 || returns != 105 {
		t.Errorf("%d calls, %d returns, want 105", calls, returns)
	}
	if len(counted) != 2 || len(counted[0]) != 100 || len(counted[1]) != 0 {
		t.Fatalf("counted %v", counted)
	}
	for arg, n := range counted[0] {
		if n != 999 {
			t.Errorf("%d calls with %d after the first, want 999", n, arg)
		}
	}
}

// TestHookStop: OnStop is called while the function has not run.
func TestHookStop(t *testing.T) {
	tr := newTracer(t)
	var stops []uint64
	tr.hooks(&Hook{Name: "twice", Stop: true, NoReturn: true, OnStop: func(tk *ptrace.Task, p *Process, r *Record) {
		if tk.PID != p.PID || r.TID != tk.TID {
			t.Errorf("stopped: %+v", r)
		}
		stops = append(stops, r.Args[0])
	}})
	lib := compile(t, "testdata/twice.c", "-shared", "-fPIC")
	tr.run(compile(t, "testdata/hooks.c"), "dlclose", lib)
	if !slices.Equal(stops, []uint64{21, 22, 23}) || len(tr.records) != 3 {
		t.Errorf("stops %v, %d records", stops, len(tr.records))
	}
}

// TestHookShapes: each beginning is moved right or refused, and caught by a
// breakpoint then, with the same records.
func TestHookShapes(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	refused := []string{"tiny", "brief", "loopy"}
	names := []string{"short1", "tiny", "tight", "brief", "ripload", "ripstore", "early", "loopy", "again", "thunk", "marked", "calls", "calls2"}
	for _, fallback := range []bool{false, true} {
		tr := newTracer(t)
		next := 0
		var failed []string
		tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
			h := &Hook{Name: names[next]}
			next++
			p, err := tr.a.Process(tk)
			if err != nil {
				t.Fatal(err)
			}
			if fallback {
				list := []Target{{Addr: c.Args[3], Hook: h}}
				tr.a.HookAllOrBreak(tk, list)
				err = list[0].Err
			} else {
				err = p.Hook(tk, c.Args[3], h)
			}
			if err != nil {
				if !errors.Is(err, ErrUnpatchable) {
					t.Error(err)
				}
				t.Log(err)
				failed = append(failed, h.Name)
			}
		}
		if out := tr.run(bin, "shapes"); out != "same 1\n" {
			t.Error(out)
		}
		count := map[string]int{}
		for i := range tr.records {
			if g := &tr.records[i]; g.Kind == KindReturn {
				count[g.name]++
			}
		}
		// The loop of `again` begins at its entry: each round is a call.
		const rounds = 1 + 1 + 2 + 3 + 4
		want := 5*(len(names)-len(refused)-1) + rounds
		if fallback {
			want = 5*(len(names)-1) + rounds
			if len(failed) != 0 || tr.a.Stats().Breakpoints != len(refused) {
				t.Errorf("failed: %v, %+v", failed, tr.a.Stats())
			}
		} else if !slices.Equal(failed, refused) {
			t.Errorf("refused %v, want %v", failed, refused)
		}
		if calls, returns, _ := tr.nesting(); calls != want || returns != want {
			t.Errorf("%d calls, %d returns, want %d: %v", calls, returns, want, count)
		}
	}
}

// TestHookAndBreakpoint: both at one function, in either order, and a watch on
// its return.
func TestHookAndBreakpoint(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, hookFirst := range []bool{false, true} {
		tr := newTracer(t)
		hits, returns := 0, 0
		var sum uint64
		tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
			set := func() {
				_, err := tk.SetBreakpoint(c.Args[3], func(tk *ptrace.Task, _ *ptrace.Breakpoint) {
					hits++
					if err := tk.OnReturn(func(_ *ptrace.Task, ret uint64) {
						returns++
						sum += ret
					}); err != nil {
						t.Error(err)
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
			p, err := tr.a.Process(tk)
			if err != nil {
				t.Fatal(err)
			}
			if !hookFirst {
				set()
			}
			if err := p.Hook(tk, c.Args[3], &Hook{Name: "fib"}); err != nil {
				t.Error(err)
			}
			if hookFirst {
				set()
			}
		}
		if out := tr.run(bin, "fib"); out != "fib 987\n" {
			t.Error(out)
		}
		calls, back, _ := tr.nesting()
		if calls != 3193 || back != calls || hits != calls || returns != calls {
			t.Errorf("hook first %v: %d calls, %d returns; breakpoint: %d hits, %d returns", hookFirst, calls, back, hits, returns)
		}
	}
}

// TestHookCount: calls are counted by thread, with their times and results, and nothing is
// recorded; the program computes the same. longjmp leaves calls that have not returned.
func TestHookCount(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for how, names := range map[string][]string{
		"plain": {"six", "give", "dbl", "va", "mem"}, "fib": {"fib"}, "threads": {"add"}, "longjmp": {"call"}, "fibers": {"call"},
		"fork": {"call", "add"}, "exit": {"call", "add"}, "signals": {"add"},
	} {
		t.Run(how, func(t *testing.T) {
			run := func(count bool, counted func(*Process, *Count)) (string, *tracer) {
				tr := newTracer(t)
				tr.a.o.Counted = counted
				var hooks []*Hook
				for _, name := range names {
					hooks = append(hooks, &Hook{Name: name, Count: count, Derefs: []Deref{{Arg: 0, Len: 8, Out: true}}})
				}
				tr.hooks(hooks...)
				return tr.run(bin, how), tr
			}
			printed, tr := run(false, func(_ *Process, c *Count) { t.Errorf("counted %+v", c) })
			want, returned := map[string]uint64{}, uint64(0)
			for i := range tr.records {
				switch g := &tr.records[i]; {
				case g.Kind == KindCall:
					want[g.name]++
				case !g.Unfinished:
					returned++
				}
			}
			got, threads, done := map[string]uint64{}, map[int]bool{}, uint64(0)
			again, tr := run(true, func(p *Process, c *Count) {
				got[c.Hook.Name] += c.Calls
				threads[c.TID] = true
				done += c.Returned
				if c.Returned > c.Calls || c.Nonzero > c.Returned || c.Returned > 0 && c.Time <= 0 {
					t.Errorf("%d: %+v", p.PID, c)
				}
			})
			if len(tr.records) > 0 {
				t.Errorf("recorded %v", &tr.records[0])
			}
			if how == "signals" || how == "exit" { // as many as there is time for, or in the child of a fork, too
				if len(got) == 0 {
					t.Error("nothing was counted")
				}
				return
			}
			if how == "threads" {
				again = printed // it prints thread ids
			}
			if again != printed || fmt.Sprint(got) != fmt.Sprint(want) || done != returned {
				t.Errorf("counted %v, %d returned; recorded %v, %d; printed %q and %q", got, done, want, returned, again, printed)
			}
			if how == "threads" && len(threads) < 2 {
				t.Errorf("%d threads", len(threads))
			}
		})
	}
}

// TestHookCountFailed: calls with a result are recorded at their return, the others are counted.
func TestHookCountFailed(t *testing.T) {
	counted := uint64(0)
	tr := newTracer(t)
	tr.a.o.Counted = func(_ *Process, c *Count) { counted += c.Calls }
	tr.hooks(&Hook{Name: "fib", Count: true, Failed: true})
	if out := tr.run(compile(t, "testdata/hooks.c"), "fib"); out != "fib 987\n" {
		t.Errorf("printed %q", out)
	}
	for i := range tr.records {
		if g := &tr.records[i]; g.Kind != KindReturn || !g.Alone || g.Ret == 0 || g.Begin == 0 || g.Begin > g.End {
			t.Fatalf("recorded %+v", g.Record)
		}
	}
	const zeros = 610 // as often as fib(0) is called for fib(16)
	if n := len(tr.records); counted+uint64(n) != 3193 || counted != zeros {
		t.Errorf("%d calls counted, %d recorded", counted, n)
	}
}

// timed reports whether about as many calls have a time as there are.
func timed(c *Count) bool {
	n := uint64(0)
	for _, b := range c.Buckets {
		n += uint64(b)
	}
	return c.Time > 0 && n >= min(c.Calls, 16) && n < c.Calls+16
}

// TestHookInner: of calls within others only those are recorded that fail, and those around them; all in order.
func TestHookInner(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	const all, zeros = 3193, 610 // calls of fib for fib(16), and of fib(0) among them
	for i := range 4 {
		counted, failed := uint64(0), i%2 > 0
		tr := newTracer(t)
		if i < 2 {
			tr.a.counter = counter{} // times by the clock
		}
		h := &Hook{Name: "fib", Inner: true, Failed: failed}
		tr.a.o.Counted = func(_ *Process, c *Count) {
			counted += c.Calls
			if c.Within != h || c.Returned != c.Calls || !timed(c) || failed && c.Nonzero > 0 {
				t.Errorf("counted %+v", c)
			}
		}
		tr.hooks(h)
		if out := tr.run(bin, "fib"); out != "fib 987\n" {
			t.Errorf("printed %q", out)
		}
		want := uint64(1)
		if failed {
			want = all - zeros
		}
		calls, returns, _ := tr.nesting()
		if uint64(calls) != want || returns != calls || counted != all-want {
			t.Errorf("failed %v: %d calls recorded, %d returns, %d counted", failed, calls, returns, counted)
		}
		var open []*got
		last := int64(0)
		for i := range tr.records {
			g := &tr.records[i]
			if g.Kind == KindCall {
				if len(open) > 0 && g.Begin < open[len(open)-1].Begin || g.Begin < last || g.Args[0] > 16 {
					t.Fatalf("call %+v in %+v, behind one that has ended at %d", g.Record, open, last)
				}
				open = append(open, g)
				continue
			}
			c := open[len(open)-1]
			open = open[:len(open)-1]
			if g.Begin != c.Begin || g.SP != c.SP || g.End < max(g.Begin, last) || g.Ret == 0 {
				t.Fatalf("return %+v of %+v, behind one that has ended at %d", g.Record, c.Record, last)
			}
			last = g.End
		}
	}
}

// TestHookRate: calls stop as often as Rate says, and returns that have failed.
func TestHookRate(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, c := range []struct {
		name         string
		rate         Rate
		stops, fails int
	}{
		{"each", Rate{}, 90, 45},
		{"one in ten", Rate{Every: 10}, 9, 45},
		{"a burst", Rate{Pause: time.Hour, Burst: 6}, 5, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTracer(t)
			var stops, fails []Record
			check := func(tk *ptrace.Task, r *Record) {
				regs, err := tk.Regs()
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range []uint64{regs.Rbx, regs.R12, regs.R13, regs.R14, regs.R15} {
					if v != 0x5a5a0000+uint64(i) || r.Unsaved {
						t.Errorf("register %d that calls preserve is %#x at a stop", i, v)
					}
				}
			}
			h := &Hook{Name: "odd", Stop: true, Rate: c.rate}
			h.OnStop = func(tk *ptrace.Task, _ *Process, r *Record) {
				stops = append(stops, *r)
				check(tk, r)
			}
			h.OnFail = func(tk *ptrace.Task, _ *Process, r *Record) {
				fails = append(fails, *r)
				check(tk, r)
				if r.Hook != h || r.Begin > r.End || r.Begin < stops[0].Begin || r.Ret&1 == 0 || r.TID != tk.TID {
					t.Errorf("failed: %+v", r)
				}
				for i := range tr.records {
					if g := &tr.records[i]; g.Kind == KindReturn && g.SP == r.SP && g.Begin == r.Begin {
						t.Errorf("the return is recorded before OnFail")
					}
				}
			}
			tr.hooks(h)
			if out := tr.run(bin, "odd", "90"); out != "odd 45 kept\n" {
				t.Errorf("the program prints %q", out)
			}
			if len(stops) != c.stops || len(fails) != c.fails {
				t.Errorf("%d stops and %d failures, want %d and %d", len(stops), len(fails), c.stops, c.fails)
			}
			if calls, returns, un := tr.nesting(); calls != 90 || returns != 90 || un != 0 {
				t.Errorf("%d calls, %d returns, %d unfinished", calls, returns, un)
			}
		})
	}
}

// layout is the table that the code was compiled with, by name.
func layout() []uint64 {
	return []uint64{
		baseAddr, confAddr, keysAddr, planAddr, hookAddr, onceAddr, slotAddr, sharedAddr, ringAddr, endAddr,
		maxSlots, numKeys, maxHooks, maxFD, ringSize, numOnce, maxOpen, numRules, numTables, numEntries,
		confSize, keySize, openSize, slotSize, rheadSize,
		sharedSize, ruleSize, planSize, derefSize, hookSize,
		recordSize, segSize,
		trapFD, trapRequest, pathSize, maxPaths, pathsAddr, maxDevices,
		numNested, maxPointers, maxNested, nestedSize,
		gateAddr, stubsAddr, numStubs, pagesAddr, numPages,
		programAddr, retsAddr, retsSize, programSize, mapSize, hookPrograms, slotIDs,
		countAddr, numCounts, numBuckets, countSize, seenSize, callsAddr, numCalls,
		timesAddr, timesSize, timerSize, sharedUntimed, confTimes, hookSubject, hookEvery, confScale,
		timesTimers, timerFirst, timerNext, timerList,
		workSize, maxWorks, workLeft, openHook,
		confOwn, ownSize,
		filesAddr, filesSize, fileSize, mostFiles, filesList, mostRets, retSize, retsList,
	}
}
