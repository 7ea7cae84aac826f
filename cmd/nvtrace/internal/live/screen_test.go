package live

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// meteredSink has counted what 30 processes did in a second.
func meteredSink() *view.Sink {
	m := view.NewMeter()
	for i := range int32(30) {
		pid := 100 + i
		m.Of[pid] = &view.Counters{Calls: uint64(i) * 1000, Launches: uint64(i), Ioctls: 3, Waited: int64(i) * 1e7, ToGPU: view.Copies{N: 1, Bytes: uint64(i) << 20}, Failed: uint64(i % 2)}
		m.Exe[pid] = fmt.Sprintf("/usr/bin/prog%d", i)
		m.All = m.All.Plus(m.Of[pid])
	}
	m.Exe[129] = "/a/very/long/path/of-a-program-whose-name-is-long\x1b[31m"
	m.Kernels[view.KernelKey{Pid: 129, Name: "_Z4axpyfPfS_"}] = 29
	m.Kernels[view.KernelKey{Pid: 129, Name: ""}] = 1
	m.Calls[view.KernelKey{Pid: 129, Name: "cuLaunchKernel"}] = 30
	m.Calls[view.KernelKey{Pid: 100, Name: "cuInit"}] = 1
	return &view.Sink{Meter: m}
}

// TestScreen: tables of top at the sizes of terminals, after keys.
func TestScreen(t *testing.T) {
	for _, tt := range []struct {
		name          string
		keys          string
		width, height int
	}{
		{"80x24", "", 80, 24},
		{"200x50", "", 200, 50},
		{"sorted by waits", ">>>jj", 80, 24},
		{"filtered", "/prog2\n", 80, 10},
		{"typing a filter", "/prog2\x7f1", 80, 10},
		{"kernels", "\r", 80, 24},
		{"stacks", "\r", 100, 12},
		{"and back", "\r\x1b", 80, 6},
		{"arrows", "\x1b[B\x1b[B\x1b[A", 80, 6},
		{"help", "h", 80, 24},
		{"narrow", "", 20, 4},
		{"busy", "<<", 80, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, sink := new(screen), meteredSink()
			if tt.name == "busy" {
				work := func(pid int32, start, took uint64) {
					sink.Meter.Work(sink.Meter.Of[pid], &traces.Event{Kind: traces.KindGPU, PID: pid, Args: [6]uint64{0, start, took}})
				}
				work(129, 0, 4e8)
				work(129, 1e8, 2e8) // beside it
				work(128, 3e8, 2e8)
			}
			if tt.name == "stacks" {
				for _, f := range []traces.StackFrame{{Language: "python", File: "train.py", Line: 35, Func: "step"}, {Language: traces.LanguageNative, File: "libc.so\x1b[31m", Offset: 0x27249}} {
					ev := &traces.Event{Kind: traces.KindStack, PID: 129, Name: "cuStreamSynchronize"}
					ev.SetStack([]traces.StackFrame{f})
					sink.Meter.Observe(&observe.Event{Event: ev, Call: new(ioctl.Call)})
				}
			}
			s.update(sink, time.Second, 90*time.Second)
			s.draw(tt.width, tt.height)
			for i := range len(tt.keys) {
				if s.key(tt.keys[i]) {
					t.Fatal("it ends")
				}
				s.draw(tt.width, tt.height)
			}
			lines := s.draw(tt.width, tt.height)
			marks := regexp.MustCompile("\x1b\\[[07]m")
			for _, l := range lines {
				if n := utf8.RuneCountInString(marks.ReplaceAllString(l, "")); n > tt.width {
					t.Errorf("a line of %d columns: %s", n, l)
				}
				if strings.Contains(marks.ReplaceAllString(l, ""), "\x1b") {
					t.Errorf("a name steers the terminal: %q", l)
				}
			}
			if len(lines) > tt.height {
				t.Errorf("%d lines", len(lines))
			}
			got := strings.NewReplacer(reverse, "[", plain, "]").Replace(strings.Join(lines, "\n")) + "\n"
			golden := filepath.Join("testdata/screen", strings.ReplaceAll(tt.name, " ", "-"))
			if *clitest.Update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || got != string(want) {
				t.Errorf("%v\ngot\n%swant\n%s", err, got, want)
			}
		})
	}
	if !new(screen).key('q') {
		t.Error("q does not end it")
	}
}

// TestScreenRates: what is shown is of the latest period alone, and what has ended goes
// after it was shown once more.
func TestScreenRates(t *testing.T) {
	s, sink := new(screen), meteredSink()
	s.update(sink, time.Second, time.Second)
	sink.Meter.Of[129].Launches += 100
	sink.Meter.Gone = []int32{100, 101}
	s.update(sink, 2*time.Second, 3*time.Second)
	if r := s.visible()[0]; r.pid != 129 || columns[0].text(&r) != "50" || len(s.rows) != 30 {
		t.Errorf("%+v, %d rows", r, len(s.rows))
	}
	if want := "    3.0s  KERN/s 50  CALLS/s 0  IOCTL/s 0  WAIT% 0  TO/s 0B  FROM/s 0B  MEM 0B  FAILED 15\n"; s.line() != want {
		t.Errorf("%q", s.line())
	}
	s.update(sink, time.Second, 4*time.Second)
	if len(s.rows) != 28 || len(s.calls.all) != 1 {
		t.Errorf("%d rows, %d calls", len(s.rows), len(s.calls.all))
	}
}

// TestScreenMemory: of a simulated GPU, MEM is what calls have allocated and not freed.
func TestScreenMemory(t *testing.T) {
	s, sink := new(screen), meteredSink()
	m := sink.Meter
	m.Of[100].Ioctls = 0
	for _, pid := range []int32{100, 101} { // 101 has made ioctls
		m.Hold(view.MemoryKey{Pid: pid, Addr: 0x1000}, 1<<20)
		m.Hold(view.MemoryKey{Pid: pid, Addr: 0x2000}, 3<<20)
		m.Hold(view.MemoryKey{Pid: pid, Addr: 0x1000}, 0)
		m.Hold(view.MemoryKey{Pid: pid, Addr: 0x2000}, 2<<20) // its end was not seen
		m.Hold(view.MemoryKey{Pid: pid, Addr: 0x3000}, 0)
	}
	s.update(sink, time.Second, time.Second)
	for _, r := range s.rows {
		if want := map[int32]uint64{100: 2 << 20}[r.pid]; r.mem != want {
			t.Errorf("process %d has %d bytes, want %d", r.pid, r.mem, want)
		}
	}
	m.Gone = []int32{100, 101}
	if m.Forget(); len(m.Live) != 0 || len(m.Held) != 0 {
		t.Errorf("of processes that have ended, %v and %v are known", m.Live, m.Held)
	}
}

// TestTopLines: without a terminal there is a line for each period, and one at the end.
func TestTopLines(t *testing.T) {
	var out bytes.Buffer
	sink := meteredSink()
	top := NewTop(sink, &out, nil)
	at := top.start
	top.now = func() time.Time { at = at.Add(time.Second); return at }
	top.Begin()
	top.show(true)
	top.End()
	if lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"); len(lines) < 2 || !strings.HasPrefix(lines[0], "    1.0s  KERN/s 435 ") || !strings.Contains(lines[1], "KERN/s 0 ") {
		t.Errorf("%s", out.String())
	}
}

// TestOverlappingCalls: times in stat and in the first lines of a report are those in which at
// least one thread was in a call, so that no kind of call takes more than all calls; what tables
// sum over threads is said beside them.
func TestOverlappingCalls(t *testing.T) {
	s := view.NewSink(ioctl.NewDecoder(nil), nil)
	s.Notice = func(n string) { t.Error(n) }
	h := &traces.Header{PID: 1, API: "driver"}
	s.Summarise(h)
	s.Count()
	s.Event(&traces.Event{Kind: traces.KindExec, PID: 1, TID: 1, FD: -1, Path: "/bin/app"})
	const ms, lib = 1_000_000, "/usr/lib/libcuda.so.1"
	for _, name := range []string{"cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuCtxSynchronize", "cuModuleLoadData"} {
		for tid := range int32(4) { // at the same time
			s.Event(&traces.Event{Kind: traces.KindCall, PID: 1, TID: 1 + tid, Time: 10 * ms, FD: -1, Name: name, Path: lib})
		}
		for tid := range int32(4) {
			s.Event(&traces.Event{Kind: traces.KindReturn, PID: 1, TID: 1 + tid, Time: 50 * ms, Dur: 40 * ms, FD: -1, Name: name, Path: lib})
		}
	}
	for tid := range int32(4) {
		s.Event(&traces.Event{Kind: traces.KindIoctl, PID: 1, TID: 1 + tid, Time: 60 * ms, Dur: 20 * ms, FD: 3, Dev: "nvidiactl"})
	}
	top := new(screen) // four threads waited at once
	top.update(s, 100*time.Millisecond, time.Second)
	if r := top.visible()[0]; r.d.Waited != 40*ms || !strings.Contains(top.line(), "  WAIT% 40  ") {
		t.Errorf("waited %d ns, %q", r.d.Waited, top.line())
	}
	s.Event(&traces.Event{Kind: traces.KindExit, PID: 1, TID: 1, Time: 100 * ms, FD: -1})
	s.Finish()
	var out bytes.Buffer
	if err := s.Stat(nil).Text(&out); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"copies to the GPU", "copies from the GPU", "waits for the GPU", "loads of code", "calls of the driver's API"} {
		if !regexp.MustCompile(` 4 +` + row + ` +#  40\.0 ms \(40\.0 %\)\n| 16 +` + row + ` +#  40\.0 ms \(40\.0 %\)\n`).MatchString(out.String()) {
			t.Errorf("%s: %s", row, out.String())
		}
	}
	out.Reset()
	if err := s.WriteReport(&out, s.Totals.Summary.Report(), view.ReportLayout(0)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"in the driver        20.0 ms (20.0 %), 4 ioctls; summed over threads 80.0 ms\n",
		"in CUDA's libraries  40.0 ms (40.0 %), 16 calls; summed over threads 640 ms\n",
		"waiting for GPU    40.0 ms (40.0 %), 4 calls",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
}
