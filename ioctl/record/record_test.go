package record

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// collect is a sink that keeps everything.
type collect struct{ events []*traces.Event }

func (c *collect) Event(ev *traces.Event) { c.events = append(c.events, ev.Clone()) }
func (c *collect) Idle()                  {}

// fakeNodes makes memory devices pass for NVIDIA's.
func fakeNodes(rdev uint64, _ string) (string, bool) {
	name, ok := map[uint64]string{
		unix.Mkdev(1, 7): "nvidiactl", unix.Mkdev(1, 5): "nvidia0", unix.Mkdev(1, 8): "nvidia-uvm",
	}[rdev]
	return name, ok
}

func compile(t testing.TB, source string, flags ...string) string {
	t.Helper()
	need.Tool(t, "gcc", "")
	bin := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	args := append([]string{"-O1", "-Wall", "-o", bin, source, "-pthread"}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

// options say what to record, as the program is to be run.
type options struct {
	Options
	ptrace ptrace.Options
	extend func(r *record.Recorder) record.Extension // nil: ioctls alone
	sinks  []record.Sink
}

// result is what a recording came to.
type result struct {
	record.Result
	FastIoctls uint64
}

// run records a program that takes memory devices for NVIDIA's.
func (o *options) run(ctx context.Context) (res result, err error) {
	var rec *Recorder
	o.NodeName = fakeNodes
	if o.NodePaths == nil && o.MayBeNode == nil {
		o.NodePaths = []agent.Path{{Prefix: "/dev/"}}
	}
	ro := &record.Options{Ptrace: o.ptrace, Sinks: o.sinks, Extend: func(r *record.Recorder) ([]record.Extension, error) {
		rec = New(r, &o.Options)
		list := []record.Extension{rec.Extension()}
		if o.extend != nil {
			list = append(list, o.extend(r))
		}
		return list, nil
	}}
	res.Result, err = record.Run(ctx, ro)
	res.FastIoctls = rec.fastIoctls()
	return res, err
}

// runRecorded records a program and returns what it printed and the events.
func runRecorded(t testing.TB, o options, argv ...string) (string, []*traces.Event, result) {
	t.Helper()
	sink := new(collect)
	o.sinks = append(o.sinks, sink)
	printed, res := runDiscarded(t, o, argv...)
	return printed, sink.events, res
}

// runDiscarded records a program for the sinks of o alone.
func runDiscarded(t testing.TB, o options, argv ...string) (string, result) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	o.ptrace.Argv, o.ptrace.Stdout, o.ptrace.Stdin, o.ptrace.NoSignals = argv, out, in, true
	res, err := o.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), res
}

// describe prints an event as testdata/fds.c does.
func describe(ev *traces.Event) string {
	implicit := ""
	if ev.Flags&traces.FlagImplicit != 0 {
		implicit = " implicit"
	}
	if ev.Flags&traces.FlagCompat != 0 {
		implicit += " compat"
	}
	switch ev.Kind {
	case traces.KindOpen, traces.KindIoctl, traces.KindClose, traces.KindDup:
		return fmt.Sprintf("%d %v %d = %d%s", ev.PID, ev.Kind, ev.FD, ev.Ret, implicit)
	case traces.KindMmap:
		return fmt.Sprintf("%d mmap %d = %d %d ok", ev.PID, ev.FD, ev.Args[1], ev.Args[5])
	}
	return ""
}

// byProcess groups lines by their first word; the order between processes is open.
func byProcess(lines []string) map[string][]string {
	m := make(map[string][]string)
	for _, l := range lines {
		pid, rest, _ := strings.Cut(l, " ")
		m[pid] = append(m[pid], rest)
	}
	return m
}

func TestDescriptors(t *testing.T) {
	testDescriptors(t, "testdata/fds.c", func(t *testing.T, events []*traces.Event) {
		checkFiles(t, events, map[string]int{"nvidiactl": 1, "nvidia0": 1, "nvidia-uvm": 1})
	})
}

// TestReuse: numbers of device descriptors come to mean other things, calls come
// from 32-bit code, and a thread that is not the main one calls execve.
func TestReuse(t *testing.T) {
	testDescriptors(t, "testdata/reuse.c", func(t *testing.T, events []*traces.Event) {
		checkFiles(t, events, map[string]int{"nvidia0": 1})
		ends := make(map[int32]int)
		for _, ev := range events {
			if ev.Kind == traces.KindExit && ev.TID == ev.PID {
				ends[ev.PID]++
			} else if ends[ev.PID] > 0 {
				t.Errorf("process %d: %v after its end", ev.PID, ev.Kind)
			}
		}
		for pid, n := range ends {
			if n != 1 {
				t.Errorf("process %d ended %d times", pid, n)
			}
		}
	})
}

func testDescriptors(t *testing.T, source string, check func(*testing.T, []*traces.Event)) {
	bin := compile(t, source)
	for _, mode := range []ptrace.SeccompMode{ptrace.SeccompAuto, ptrace.SeccompOff} {
		t.Run("seccomp="+strconv.Itoa(int(mode)), func(t *testing.T) {
			var o options
			o.ptrace.Seccomp = mode
			printed, events, res := runRecorded(t, o, bin)
			if !res.Status.Exited() || res.Status.ExitStatus() != 7 {
				t.Fatalf("status %v, want exit 7", res.Status)
			}
			var got []string
			for _, ev := range events {
				if ev.Kind == traces.KindOpen && (ev.Dev == "" || ev.TID == 0) {
					continue
				}
				if d := describe(ev); d != "" {
					got = append(got, d)
				}
			}
			want := byProcess(strings.Split(strings.TrimSpace(printed), "\n"))
			have := byProcess(got)
			if len(want) != len(have) {
				t.Errorf("%d processes recorded, want %d", len(have), len(want))
			}
			for pid, w := range want {
				if !slices.Equal(have[pid], w) {
					t.Errorf("process %s:\nrecorded\n\t%s\nthe program says\n\t%s", pid,
						strings.Join(have[pid], "\n\t"), strings.Join(w, "\n\t"))
				}
			}
			check(t, events)
		})
	}
}

// checkFiles counts the open files on which calls were made. In fds.c, nvidiactl
// was opened once and duplicated; nvidia-uvm came by SCM_RIGHTS after the sender
// had closed it, so it can't be told from another open file.
func checkFiles(t *testing.T, events []*traces.Event, want map[string]int) {
	t.Helper()
	files := make(map[string]map[uint32]bool)
	for _, ev := range events {
		if ev.Kind == traces.KindIoctl {
			if files[ev.Dev] == nil {
				files[ev.Dev] = make(map[uint32]bool)
			}
			files[ev.Dev][ev.File] = true
		}
	}
	for dev, n := range want {
		if len(files[dev]) != n {
			t.Errorf("%s: %d open files, want %d: %v", dev, len(files[dev]), n, files[dev])
		}
	}
}

// TestHammer compares with what 8 threads say about their 1000 calls each, some
// of whose parameters end at the end of a page, or are not there.
func TestHammer(t *testing.T) {
	bin := compile(t, "testdata/hammer.c")
	for _, mode := range []ptrace.SeccompMode{ptrace.SeccompAuto, ptrace.SeccompOff} {
		var o options
		o.ptrace.Seccomp = mode
		printed, events, _ := runRecorded(t, o, bin)
		type tally struct{ calls, whole, sum, missing int }
		seen := make(map[int32]tally)
		for _, ev := range events {
			if ev.Kind != traces.KindIoctl {
				continue
			}
			n := seen[ev.TID]
			n.calls++
			if last := ev.Mem[len(ev.Mem)-1]; last.Len == 24 && len(last.In) == 24 && len(last.Out) == 24 {
				n.whole++
				n.sum += int(last.In[0])
			} else if ev.Flags&traces.FlagTruncated != 0 {
				n.missing++
			}
			seen[ev.TID] = n
		}
		lines := strings.Split(strings.TrimSpace(printed), "\n")
		for _, line := range lines {
			var tid int32
			var n tally
			if _, err := fmt.Sscanf(line, "tid %d calls %d whole %d sum %d missing %d", &tid, &n.calls, &n.whole, &n.sum, &n.missing); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if seen[tid] != n {
				t.Errorf("%s: recorded %+v", line, seen[tid])
			}
		}
		if len(lines) != 8 || len(seen) != 8 {
			t.Errorf("%d threads spoke, %d were recorded", len(lines), len(seen))
		}
	}
}
