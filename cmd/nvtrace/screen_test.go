package main

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

	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// meteredSink has counted what 30 processes did in a second.
func meteredSink() *logSink {
	m := newMeter()
	for i := range int32(30) {
		pid := 100 + i
		m.of[pid] = &counters{calls: uint64(i) * 1000, launches: uint64(i), ioctls: 3, waited: int64(i) * 1e7, toGPU: copies{n: 1, bytes: uint64(i) << 20}, failed: uint64(i % 2)}
		m.exe[pid] = fmt.Sprintf("/usr/bin/prog%d", i)
		m.all = m.all.plus(m.of[pid])
	}
	m.exe[129] = "/a/very/long/path/of-a-program-whose-name-is-long\x1b[31m"
	m.kernels[kernelKey{129, "_Z4axpyfPfS_"}] = 29
	m.kernels[kernelKey{129, ""}] = 1
	m.calls[kernelKey{129, "cuLaunchKernel"}] = 30
	m.calls[kernelKey{100, "cuInit"}] = 1
	return &logSink{meter: m}
}

// addWork counts a work of a GPU.
func (m *meter) addWork(pid int32, start, took uint64) {
	m.work(m.of[pid], &traces.Event{Kind: traces.KindGPU, PID: pid, Args: [6]uint64{0, start, took}})
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
				sink.meter.addWork(129, 0, 4e8)
				sink.meter.addWork(129, 1e8, 2e8) // beside it
				sink.meter.addWork(128, 3e8, 2e8)
			}
			if tt.name == "stacks" {
				for _, f := range []traces.StackFrame{{Language: "python", File: "train.py", Line: 35, Func: "step"}, {Language: traces.LanguageNative, File: "libc.so\x1b[31m", Offset: 0x27249}} {
					ev := &traces.Event{Kind: traces.KindStack, PID: 129, Name: "cuStreamSynchronize"}
					ev.SetStack([]traces.StackFrame{f})
					sink.meter.add(ev, new(ioctl.Call), nil, nil)
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
			if *update {
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

// TestWorked: works of several streams and GPUs are told of in no order; the time in which there was one
// at least is the same in any, and what is kept for it is bounded.
func TestWorked(t *testing.T) {
	works := [][2]uint64{{100, 50}, {400, 10}, {90, 20}, {120, 5}, {0, 10}, {150, 30}, {300, 200}, {200, 0}}
	const want = 10 + 90 + 200
	for turn := range works {
		m := newMeter()
		m.of[1] = new(counters)
		for i := range works {
			w := works[(turn+i)%len(works)]
			m.addWork(1, w[0], w[1])
		}
		if got := m.of[1].busy; got != want {
			t.Errorf("from work %d on: busy for %d, want %d", turn, got, want)
		}
	}
	// The works of one stream behind those of another, as many as are surely kept.
	m := newMeter()
	m.of[1] = new(counters)
	for stream := range uint64(2) {
		for i := range uint64(maxSpans / 2) {
			m.addWork(1, 100*i+50*stream, 40)
		}
	}
	if got := m.of[1].busy; got != 40*maxSpans {
		t.Errorf("two streams: busy for %d, want %d", got, 40*maxSpans)
	}
	for i := range uint64(10 * maxSpans) {
		m.addWork(1, 1e6+100*i, 40)
	}
	if n := len(m.worked[1].spans); n > maxSpans {
		t.Errorf("%d spans are kept", n)
	}
	m.addWork(1, 0, 1e9) // what is not kept is not counted twice
	if got := m.of[1].busy; got > 1e9 {
		t.Errorf("busy for %d of %d", got, int(1e9))
	}
	// Processes beyond those that there is room for do not keep others from being counted.
	for pid := int32(2); len(m.worked) < maxMetered; pid++ {
		m.of[pid] = new(counters)
		m.addWork(pid, 0, 1)
	}
	before := m.of[2].busy
	m.addWork(2, 10, 7)
	if got := m.of[2].busy - before; got != 7 {
		t.Errorf("with %d processes one was busy for %d, want 7", maxMetered, got)
	}
}

// TestScreenRates: what is shown is of the latest period alone, and what has ended goes
// after it was shown once more.
func TestScreenRates(t *testing.T) {
	s, sink := new(screen), meteredSink()
	s.update(sink, time.Second, time.Second)
	sink.meter.of[129].launches += 100
	sink.meter.gone = []int32{100, 101}
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
	m := sink.meter
	m.of[100].ioctls = 0
	for _, pid := range []int32{100, 101} { // 101 has made ioctls
		m.hold(memoryKey{pid, 0x1000}, 1<<20)
		m.hold(memoryKey{pid, 0x2000}, 3<<20)
		m.hold(memoryKey{pid, 0x1000}, 0)
		m.hold(memoryKey{pid, 0x2000}, 2<<20) // its end was not seen
		m.hold(memoryKey{pid, 0x3000}, 0)
	}
	s.update(sink, time.Second, time.Second)
	for _, r := range s.rows {
		if want := map[int32]uint64{100: 2 << 20}[r.pid]; r.mem != want {
			t.Errorf("process %d has %d bytes, want %d", r.pid, r.mem, want)
		}
	}
	m.gone = []int32{100, 101}
	if m.forget(); len(m.live) != 0 || len(m.held) != 0 {
		t.Errorf("of processes that have ended, %v and %v are known", m.live, m.held)
	}
}

// TestTopLines: without a terminal there is a line for each period, and one at the end.
func TestTopLines(t *testing.T) {
	var out bytes.Buffer
	sink := meteredSink()
	sink.api = &apiTrace{tracker: api.NewTracker()}
	top := newTop(sink, &out, nil)
	at := top.start
	top.now = func() time.Time { at = at.Add(time.Second); return at }
	top.begin()
	top.show(true)
	top.end()
	if lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"); len(lines) < 2 || !strings.HasPrefix(lines[0], "    1.0s  KERN/s 435 ") || !strings.Contains(lines[1], "KERN/s 0 ") {
		t.Errorf("%s", out.String())
	}
}

// TestOverlappingCalls: times in stat and in the first lines of a report are those in which at
// least one thread was in a call, so that no kind of call takes more than all calls; what tables
// sum over threads is said beside them.
func TestOverlappingCalls(t *testing.T) {
	s := &logSink{decoder: ioctl.NewDecoder(nil), meter: newMeter(), notice: func(n string) { t.Error(n) }}
	h := &traces.Header{PID: 1, API: "driver"}
	s.summarise(h)
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
	if r := top.visible()[0]; r.d.waited != 40*ms || !strings.Contains(top.line(), "  WAIT% 40  ") {
		t.Errorf("waited %d ns, %q", r.d.waited, top.line())
	}
	s.Event(&traces.Event{Kind: traces.KindExit, PID: 1, TID: 1, Time: 100 * ms, FD: -1})
	s.finish()
	var out bytes.Buffer
	if err := s.writeStat(&out, nil); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"copies to the GPU", "copies from the GPU", "waits for the GPU", "loads of code", "calls of the driver's API"} {
		if !regexp.MustCompile(` 4 +` + row + ` +#  40\.0 ms \(40\.0 %\)\n| 16 +` + row + ` +#  40\.0 ms \(40\.0 %\)\n`).MatchString(out.String()) {
			t.Errorf("%s: %s", row, out.String())
		}
	}
	out.Reset()
	if err := s.verdict(s.summary.Report()).write(&out); err != nil {
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

// TestMeterAddsUp: what is counted by process is what is counted in all.
func TestMeterAddsUp(t *testing.T) {
	sum := counters{}
	m := newMeter()
	tracker := api.NewTracker()
	for i := range int64(100) {
		ev := &traces.Event{Kind: traces.KindCall, PID: int32(1 + i%3), TID: 1, Time: 10 * i, FD: -1, Name: "cuMemcpyHtoD_v2", Path: "/usr/lib/libcuda.so.1", Args: [6]uint64{1, 2, uint64(i)}}
		f := tracker.Add(ev)
		m.add(ev, new(ioctl.Call), f, &tracker.Names)
		ev = &traces.Event{Kind: traces.KindReturn, PID: ev.PID, TID: 1, Time: 10*i + 5, Dur: 5, FD: -1, Name: ev.Name, Path: ev.Path}
		f = tracker.Add(ev)
		m.add(ev, new(ioctl.Call), f, &tracker.Names)
	}
	for _, c := range m.of {
		sum = sum.plus(c)
	}
	if want := (counters{calls: 100, callTime: 500, toGPU: copies{n: 100, bytes: 99 * 100 / 2}}); sum != want || m.all != want {
		t.Errorf("%+v and %+v, want %+v", sum, m.all, want)
	}
}
