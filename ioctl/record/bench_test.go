package record

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// BenchmarkIoctl is what recording adds to the two stops of an ioctl: reading the
// argument and its parameters at entry and exit, and handing over the event. The
// ratio is to the bare reading of the same memory.
func BenchmarkIoctl(b *testing.B) {
	s, self := selfStage(b)
	n := 0
	s.emit = func(ev *traces.Event) { n += len(ev.Mem) }
	c := newControlCall()
	call := c.syscall(b, 3)
	arg := make([]byte, len(c.arg))
	params := make([]byte, len(c.params))
	ranges := []ptrace.Range{{Addr: call.Args[2], Buf: arg}, {Addr: addr(c.params), Buf: params}}
	var record, read time.Duration
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		t0 := time.Now()
		for range 64 {
			s.whole(self, call, 0)
		}
		t1 := time.Now()
		for range 64 {
			_, _ = self.ReadMem(ranges[0].Addr, arg)
			_, _ = self.ReadMem(ranges[1].Addr, params)
			_ = self.ReadMemV(ranges)
		}
		record, read = record+t1.Sub(t0), read+time.Since(t1)
		i += 64
	}
	if n != 2*i {
		b.Fatalf("%d segments of %d calls", n, i)
	}
	b.ReportMetric(float64(record.Nanoseconds())/float64(i), "ns/ioctl")
	b.ReportMetric(float64(record)/float64(read), "x-reading")
}

// discard is a sink that counts.
type discard struct{ ioctls int }

func (d *discard) Event(ev *traces.Event) {
	if ev.Kind == traces.KindIoctl {
		d.ioctls++
	}
}

func (d *discard) Idle() {}

// BenchmarkFast is the cost of an ioctl as the program sees it: untraced, by the
// agent, by the supervisor, and under strace, which copies no memory. The mean
// includes all that the supervisor does meanwhile; "alone" is the median.
func BenchmarkFast(b *testing.B) {
	bin := compileFast(b)
	const calls, few = 200000, 10000
	strace, err := exec.LookPath("strace")
	if err != nil && need.Required("strace") {
		b.Fatal("strace is required (NVTRACE_REQUIRE) and not installed")
	}
	var bare, fast, slow, other, alone float64
	times := func(printed string) (mean, median float64) {
		if _, err := fmt.Sscan(printed, &mean, &median); err != nil {
			b.Fatalf("%q: %v", printed, err)
		}
		return mean, median
	}
	run := func(mode FastMode, n int) (mean, median float64) {
		sink := new(discard)
		printed, res := runDiscarded(b, options{Options: Options{Fast: mode}, sinks: []record.Sink{sink}}, bin, "bench", strconv.Itoa(n))
		if sink.ioctls != n+1 || mode == FastAuto && res.FastIoctls < uint64(n)*9/10 {
			b.Fatalf("%d of %d ioctls, %d by the agent", sink.ioctls, n+1, res.FastIoctls)
		}
		return times(printed)
	}
	plain := func(n int, argv ...string) float64 {
		out, err := exec.Command(argv[0], append(argv[1:], bin, "bench", strconv.Itoa(n))...).Output()
		if err != nil {
			b.Fatal(err)
		}
		mean, _ := times(string(out))
		return mean
	}
	for b.Loop() {
		bare += plain(calls, "env")
		mean, median := run(FastAuto, calls)
		fast, alone = fast+mean, alone+median
		mean, _ = run(FastOff, few)
		slow += mean
		if strace != "" {
			other += plain(few, strace, "-f", "--seccomp-bpf", "-e", "trace=ioctl", "-o", os.DevNull)
		}
	}
	n := float64(b.N)
	b.ReportMetric(bare/n, "ns/untraced")
	b.ReportMetric(fast/n, "ns/fast")
	b.ReportMetric(alone/n, "ns/fast-alone")
	b.ReportMetric(slow/n, "ns/slow")
	if strace != "" {
		b.ReportMetric(other/n, "ns/strace")
		b.ReportMetric(fast/other, "x-strace")
		b.ReportMetric(slow/other, "x-strace-slow")
	}
}

// bare is a tracer that stops where the recorder does and does nothing.
type bare struct{ n int }

func (h *bare) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { h.n++; return ptrace.WantExit }
func (h *bare) Exit(*ptrace.Task, *ptrace.Syscall)                 {}
func (h *bare) Task(*ptrace.Task, *ptrace.TaskEvent)               {}

// BenchmarkProgram records a program that makes calls in a loop, and holds it
// against a tracer that stops at the same calls and does nothing.
func BenchmarkProgram(b *testing.B) {
	bin := compile(b, "testdata/loop.c")
	const calls = 20000
	var recorded, bareTime time.Duration
	for b.Loop() {
		t0 := time.Now()
		_, events, res := runRecorded(b, options{}, bin)
		recorded += time.Since(t0)
		n := 0
		for _, ev := range events {
			if ev.Kind == traces.KindIoctl && len(ev.Mem) == 2 && len(ev.Mem[1].Out) == 64 {
				n++
			}
		}
		if n != calls || res.Status != 0 {
			b.Fatalf("%d calls recorded, %d made; status %#x", n, calls, uint32(res.Status))
		}
		t0 = time.Now()
		h := new(bare)
		o := &ptrace.Options{Argv: []string{bin}, Rules: baseRules(), NoSignals: true}
		if _, err := ptrace.Run(b.Context(), o, h); err != nil || h.n < calls {
			b.Fatalf("%d calls, %v", h.n, err)
		}
		bareTime += time.Since(t0)
	}
	b.ReportMetric(float64(recorded.Nanoseconds())/float64(b.N)/calls, "ns/ioctl")
	b.ReportMetric(float64(recorded)/float64(bareTime), "x-stopping")
}
