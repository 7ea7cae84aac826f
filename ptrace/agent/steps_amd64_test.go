package agent

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// TestHookSteps: a signal's handler comes after an instruction of a hooked call,
// of each in turn. It makes calls itself, as many as fill the ring, or jumps out of the call.
// Nothing is lost, and nothing is told twice.
func TestHookSteps(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, c := range []struct {
		name               string
		how, stack, stride int
	}{
		{"many calls", 3, 0, 1}, {"call", 0, 1, 5}, {"jump", 1, 0, 3}, {"call and jump", 2, 1, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() {
				c.stride *= 7
			}
			tr := newTracer(t)
			tr.hooks(&Hook{Name: "add"})
			out := tr.run(bin, "steps", fmt.Sprint(c.how), fmt.Sprint(c.stack), "0", fmt.Sprint(c.stride))
			var steps, made, left int
			if _, err := fmt.Sscanf(out, "steps %d calls %d left %d", &steps, &made, &left); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			var calls, returns, un int
			if left == 0 {
				calls, returns, un = tr.nesting()
			} else {
				calls, returns, un = tr.counts()
			}
			t.Logf("%d steps, %d calls made, %d left; %d calls, %d returns, %d unfinished", steps, made, left, calls, returns, un)
			if steps < 300 {
				t.Errorf("%d steps", steps)
			}
			if left == 0 {
				if calls != made || returns != made || un != 0 {
					t.Error("not all calls were recorded, with their returns")
				}
				return
			}
			// A call that is left before it is recorded is none, though it may be told that it
			// did not return. All others are there once, and return once, unless that was
			// being recorded when they were left.
			count := map[[2]uint64]int{}
			for i := range tr.records {
				if g := &tr.records[i]; g.Kind == KindCall {
					count[[2]uint64{g.Args[0], g.Args[1]}]++
				}
			}
			rounds := (steps + c.stride - 1) / c.stride
			for i := range rounds {
				at := uint64(i * c.stride)
				inner := 0
				if c.how == 2 {
					inner = 1
				}
				if count[[2]uint64{at, 2}] != inner || count[[2]uint64{at, 5}] != 1 || count[[2]uint64{at, 1}] > 1 {
					t.Errorf("left at %d: %d calls; the handler's: %d, after it: %d", at, count[[2]uint64{at, 1}], count[[2]uint64{at, 2}], count[[2]uint64{at, 5}])
				}
			}
			if returns > calls+left || returns < calls-left || un > left || made-calls > left {
				t.Error("calls or returns of too many were not recorded")
			}
		})
	}
}

// counts counts calls, returns, and how many of these are of calls that were left.
func (tr *tracer) counts() (calls, returns, unfinished int) {
	for i := range tr.records {
		switch g := &tr.records[i]; {
		case g.Kind == KindCall:
			calls++
		case g.Kind == KindReturn:
			returns++
			if g.Unfinished {
				unfinished++
			}
		}
	}
	return calls, returns, unfinished
}

// TestIoctlSteps does so with ioctls that the agent makes. Those that it leaves to
// the supervisor are told by their stops.
func TestIoctlSteps(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, c := range []struct {
		name               string
		how, stack, stride int
	}{
		{"many calls", 3, 0, 4}, {"call", 0, 1, 3}, {"jump", 1, 0, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() {
				c.stride *= 7
			}
			tr := newTracer(t)
			plan, err := (&Plan{Rules: []Rule{{
				Kind: 1, Request: 0x4600, Size: 16, Ptr: NoField, Len: NoField, Select: NoField, Flags: NoField, Null: NoField,
			}}}).Encode()
			if err != nil {
				t.Fatal(err)
			}
			tr.a.SetPlan(plan)
			var p *Process
			fd, stopped, other := ^uint64(0), 0, 0
			tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
				var err error
				if p, err = tr.a.Process(tk); err != nil {
					t.Fatal(err)
				}
				fd = c.Args[2]
				p.SetKind(int32(fd), 1)
			}
			tr.ioctl = func(tk *ptrace.Task, c *ptrace.Syscall) {
				if c.Args[0] != fd {
					return
				}
				stopped++
				if tr.a.Owns(c.IP) {
					before, read := p.byTID[tk.TID], false
					if p.Relieve(tk, c.SP, func() { read = true; tr.flush() }) {
						if other++; read || p.byTID[tk.TID] == before {
							t.Error("its ring was read, or it got no other")
						}
					}
				} else {
					p.PatchSite(tk, c.IP, c.Nr)
				}
			}
			out := tr.run(bin, "steps", fmt.Sprint(c.how), fmt.Sprint(c.stack), "0", fmt.Sprint(c.stride), "ask")
			var steps, made, left int
			if _, err := fmt.Sscanf(out, "steps %d calls %d left %d", &steps, &made, &left); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			n := 0
			for i := range tr.records {
				if g := &tr.records[i]; g.Kind == KindIoctl && g.Args[0] == fd && (g.Unfinished || g.Ret == -int64(unix.ENOTTY)) {
					n++
				}
			}
			t.Logf("%d steps, %d ioctls made, %d left; %d recorded, %d stopped", steps, made, left, n, stopped)
			if n+stopped > made || n+stopped < made-left || steps < 200 || stopped > made/20 {
				t.Error("not all ioctls were recorded once")
			}
			if full := tr.a.Stats().Full > 0; full != (other > 0) {
				t.Errorf("a ring was full: %v; %d times it was exchanged for another", full, other)
			}
		})
	}
}
