package record

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// compileFast builds the victim, at fixed addresses.
func compileFast(t testing.TB) string {
	return compile(t, "testdata/fast.c", "-no-pie", "-Wno-nonnull")
}

// lines describes events, by thread, without what differs from run to run: times
// and ids. Threads are named by their order of appearance.
func lines(events []*traces.Event) map[int][]string {
	names := map[int32]int{}
	name := func(id int32) int {
		if _, ok := names[id]; !ok && id != 0 {
			names[id] = len(names) + 1
		}
		return names[id]
	}
	out := map[int][]string{}
	for _, ev := range events {
		if ev.Kind == traces.KindNote || ev.Kind == traces.KindEnd || ev.Kind == traces.KindExec {
			continue
		}
		n := name(ev.TID)
		args := ev.Args
		if ev.Kind == traces.KindIoctl {
			args[3], args[4], args[5] = 0, 0, 0 // left over in registers
		} else {
			args = [6]uint64{}
		}
		ret := ev.Ret
		if ev.Kind == traces.KindMmap && !failed(ret) {
			ret, args = 1, ev.Args // its address is random
		}
		s := fmt.Sprintf("%v %v pid %d %x = %d fd %d file %d %s child %d %s", ev.Kind, ev.Flags, name(ev.PID), args, ret, ev.FD, ev.File, ev.Dev, name(ev.Child), ev.Path)
		for _, m := range ev.Mem {
			s += fmt.Sprintf("\n\t%#x %d %x out %x", m.Addr, m.Len, m.In, m.Out)
			if m.Out != nil && bytes.Equal(m.In, m.Out) != (len(m.In) == 0 || len(m.Out) == len(m.In) && &m.In[0] == &m.Out[0]) {
				s += " not shared"
			}
		}
		out[n] = append(out[n], s)
	}
	return out
}

// TestFastSame: with the agent and without, the same events come in the same
// order in each thread.
func TestFastSame(t *testing.T) {
	bin := compileFast(t)
	for _, how := range []string{"some", "family", "filter", "sandbox", "taken", "idle"} {
		for _, counts := range []bool{false, true} {
			t.Run(fmt.Sprint(how, "/counts=", counts), func(t *testing.T) {
				_, slow, res := runRecorded(t, options{Options: Options{Fast: FastOff, CountsOnly: counts}}, bin, how)
				if res.FastIoctls != 0 || res.Agent.Processes != 0 {
					t.Fatalf("switched off, but %d ioctls came by the agent", res.FastIoctls)
				}
				_, fast, res := runRecorded(t, options{Options: Options{CountsOnly: counts}}, bin, how)
				compareEvents(t, lines(slow), lines(fast))
				n := 0
				for _, ev := range fast {
					if ev.Kind == traces.KindIoctl {
						n++
					}
				}
				t.Logf("%d of %d ioctls by the agent, %+v", res.FastIoctls, n, res.Agent)
				if want := n / 4; (res.FastIoctls < uint64(want)) != (how == "taken") {
					t.Errorf("%d of %d ioctls came by the agent", res.FastIoctls, n)
				}
			})
		}
	}
}

func compareEvents(t *testing.T, want, got map[int][]string) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%d threads, want %d", len(got), len(want))
	}
	for n, w := range want {
		g := got[n]
		for i := range max(len(w), len(g)) {
			if i >= len(w) || i >= len(g) || w[i] != g[i] {
				a, b := "(none)", "(none)"
				if i < len(w) {
					a = w[i]
				}
				if i < len(g) {
					b = g[i]
				}
				t.Errorf("thread %d, event %d of %d (%d): without the agent\n%.600s\nwith it\n%.600s", n, i, len(w), len(g), a, b)
				break
			}
		}
	}
}

// inOrder checks that events come in the order of their ends.
func inOrder(t *testing.T, events []*traces.Event) {
	t.Helper()
	last := int64(0)
	for _, ev := range events {
		if ev.Kind != traces.KindIoctl {
			continue
		}
		if end := ev.Time + ev.Dur; end < last-int64(20*time.Microsecond) {
			t.Fatalf("%v of thread %d ends at %d, behind one that ends at %d", ev.Kind, ev.TID, end, last)
		} else {
			last = max(last, end)
		}
	}
}

// TestFastThreads: threads at full speed lose nothing, and their events come in
// order.
func TestFastThreads(t *testing.T) {
	bin := compileFast(t)
	for _, how := range []string{"threads", "storm", "many"} {
		t.Run(how, func(t *testing.T) {
			printed, events, res := runRecorded(t, options{}, bin, how)
			have, want := map[int32]int{}, map[int32]int{}
			for _, ev := range events {
				if ev.Kind == traces.KindIoctl && ev.TID != ev.PID {
					have[ev.TID]++
					if len(ev.Mem) != 2 || len(ev.Mem[1].Out) != 64 || ev.Ret != -int64(unix.ENOTTY) || ev.Dev != "nvidiactl" {
						t.Fatalf("recorded %+v", ev)
					}
				}
			}
			sum := 0
			for line := range strings.Lines(printed) {
				var tid int32
				var n int
				if _, err := fmt.Sscanf(line, "tid %d calls %d", &tid, &n); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				want[tid] += n
				sum += n
			}
			for tid, n := range want {
				if have[tid] != n {
					t.Errorf("thread %d: %d of %d ioctls", tid, have[tid], n)
				}
			}
			inOrder(t, events)
			if res.FastIoctls < uint64(sum)*8/10 {
				t.Errorf("%d of %d ioctls came by the agent", res.FastIoctls, sum)
			}
			t.Logf("%d ioctls, %d by the agent, %+v", sum, res.FastIoctls, res.Agent)
		})
	}
}

// TestFastSignals: a handler comes in the midst of an ioctl and makes others,
// and may leave by longjmp.
func TestFastSignals(t *testing.T) {
	bin := compileFast(t)
	for _, how := range []string{"signals", "longjmp"} {
		t.Run(how, func(t *testing.T) {
			printed, events, res := runRecorded(t, options{}, bin, how)
			var calls, done, made int
			if _, err := fmt.Sscanf(printed, "calls %d done %d made %d", &calls, &done, &made); err != nil {
				t.Fatalf("%q: %v, %v; %d events, %d ioctls by the agent, %+v", printed, err, res.Status, len(events), res.FastIoctls, res.Agent)
			}
			outer, inner, rest := 0, 0, 0
			for _, ev := range events {
				switch {
				case ev.Kind != traces.KindIoctl:
				case ev.Dev == "nvidia-uvm":
					rest++
				case len(ev.Mem) == 2 && ev.Mem[1].Len == 8:
					inner++
				default:
					outer++
				}
			}
			if inner != made || rest != made {
				t.Errorf("%d and %d of %d ioctls of the handler", inner, rest, made)
			}
			if outer < done || outer > calls {
				t.Errorf("%d ioctls, begun %d, returned %d", outer, calls, done)
			}
			t.Logf("%d ioctls, %d by the agent, %+v", outer+inner+rest, res.FastIoctls, res.Agent)
		})
	}
}

// TestFastDescriptors: threads open, close and replace descriptors whose numbers
// come back as other files. Each ioctl says by its command on which device it is.
func TestFastDescriptors(t *testing.T) {
	_, events, res := runRecorded(t, options{}, compileFast(t), "churn")
	n := 0
	files := map[int32]uint32{} // as the events tell, in their order
	for i, ev := range events {
		switch ev.Kind {
		case traces.KindOpen:
			if old := files[ev.FD]; old != 0 {
				t.Fatalf("event %d: descriptor %d is opened as file %d, while it is %d", i, ev.FD, ev.File, old)
			}
			files[ev.FD] = ev.File
		case traces.KindDup:
			files[int32(ev.Ret)] = ev.File
		case traces.KindClose:
			if old := files[ev.FD]; old != ev.File {
				t.Fatalf("event %d: descriptor %d of file %d is closed (%v), while it is %d", i, ev.FD, ev.File, ev.Flags, old)
			}
			delete(files, ev.FD)
		case traces.KindIoctl:
			if old := files[ev.FD]; old != ev.File {
				t.Fatalf("event %d: descriptor %d of file %d is used, while it is %d", i, ev.FD, ev.File, old)
			}
		}
		if ev.Kind != traces.KindIoctl {
			continue
		}
		n++
		want := "nvidia0"
		if ev.Mem[0].In[8] == 1 {
			want = "nvidiactl"
		}
		if ev.Dev != want {
			t.Fatalf("ioctl for %s on %s (file %d)", want, ev.Dev, ev.File)
		}
	}
	if want := 4 * (300 + 60); n != want {
		t.Errorf("%d of %d ioctls", n, want)
	}
	t.Logf("%d by the agent, %d other calls", res.FastIoctls, res.Agent.Syscalls)
	if res.Agent.Syscalls < 4*300 {
		t.Errorf("%d opens and closes by the agent", res.Agent.Syscalls)
	}
}

// TestFastGarbage: a program that writes garbage into the memory that it shares
// with the tracer harms its own records only.
func TestFastGarbage(t *testing.T) {
	printed, events, res := runRecorded(t, options{}, compileFast(t), "garbage")
	if n := strings.Count(printed, "calls 3000"); n != 4 || res.Status != 0 {
		t.Errorf("%d threads came through, status %v", n, res.Status)
	}
	if res.Agent.Garbage == 0 {
		t.Error("no garbage was seen")
	}
	told := slices.ContainsFunc(events, func(ev *traces.Event) bool { return ev.Kind == traces.KindGap })
	if !told {
		t.Error("the recording does not say that something is missing")
	}
	t.Logf("%d events, %+v", len(events), res.Agent)
}

// TestFastOrphan: the tracer is killed, and the program goes on.
func TestFastOrphan(t *testing.T) {
	if dir := os.Getenv("NVTRACE_TEST_ORPHAN"); dir != "" {
		out, err := os.Create(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		o := new(options)
		o.ptrace = ptrace.Options{Argv: []string{filepath.Join(dir, "fast"), "orphan", filepath.Join(dir, "go")}, Stdout: out, NoExitKill: true}
		_, err = o.run(context.Background())
		t.Fatal("the tracer lives", err)
	}
	bin := compileFast(t)
	dir := filepath.Dir(bin)
	cmd := exec.Command(os.Args[0], "-test.run=^TestFastOrphan$")
	cmd.Env = append(os.Environ(), "NVTRACE_TEST_ORPHAN="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	wait := func(what string) string {
		var b []byte
		if !need.Until(t, func() bool {
			b, _ = os.ReadFile(out)
			return strings.Contains(string(b), what) || strings.Contains(string(b), "call ")
		}) {
			t.Fatalf("no %q in %q", what, b)
		}
		return string(b)
	}
	wait("ready")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := wait("went on"); !strings.HasSuffix(s, "went on\n") {
		t.Errorf("printed %q", s)
	}
}

// TestFastLive: a record is seen though nothing else happens: the program makes its next
// call when the last one was seen.
func TestFastLive(t *testing.T) {
	in, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer tell.Close()
	sink := &arrivals{tell: tell}
	o := &options{sinks: []record.Sink{sink}}
	o.ptrace = ptrace.Options{Argv: []string{compileFast(t), "idle"}, Stdin: in, NoSignals: true}
	res, err := o.run(t.Context())
	if err != nil || res.Status != 0 || sink.n != 50 {
		t.Errorf("%d ioctls, status %#x, %v", sink.n, uint32(res.Status), err)
	}
}

// arrivals says of each ioctl that it has come.
type arrivals struct {
	tell *os.File
	n    int
}

func (a *arrivals) Event(ev *traces.Event) {
	if ev.Kind == traces.KindIoctl {
		a.n++
		_, _ = a.tell.Write([]byte{1})
	}
}

func (a *arrivals) Idle() {}
