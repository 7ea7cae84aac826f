package channels

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"nvtrace/ioctl/channels/internal/snapshot"
	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// A machine is a process with a GPU (Hopper's classes), made up: pieces are written as libcuda does,
// and tests say when the GPU passes them and when kernels are over.
type machine struct {
	*snapshot.Snapshot
	host  int64 // the host's clock
	ahead int64 // of the GPU's clock
	lines []*machineLine
	reads int
}

type machineLine struct {
	m           *machine
	ring, userd uint64
	push        uint64 // where the next piece goes
	tracker     uint64
	put, passed uint32
	slots       []uint64 // of the submissions, where kernels' ends are released; 0: it has no kernel
	ends        []uint64
	copy        bool
}

const (
	barBase    = 0x2_0060_0000
	systemBase = 0x2_0080_0000
	entries    = 1024
)

func newMachine(lines int) *machine {
	m := &machine{Snapshot: &snapshot.Snapshot{Pages: map[uint64][]byte{}}, host: 1e9, ahead: 5e17}
	m.Mappings = []proc.Mapping{
		{Start: barBase, End: barBase + 2<<20, Path: "/dev/nvidia0", Read: true, Write: true},
		{Start: systemBase, End: systemBase + 32<<20, Path: "/dev/nvidiactl", Read: true, Write: true},
	}
	for i := range uint64(lines) {
		m.lines = append(m.lines, &machineLine{
			m: m, ring: barBase + i*0x3000, userd: barBase + i*0x3000 + 0x2000,
			push: systemBase + 0x10_0000 + i*0x10_0000, tracker: systemBase + 0xff0 - 16*i,
		})
	}
	return m
}

func (m *machine) Read(address uint64, b []byte) error {
	m.reads++
	return m.Snapshot.Read(address, b)
}

func (m *machine) write(address uint64, b []byte) {
	for i, v := range b {
		page := (address + uint64(i)) &^ (pageSize - 1)
		if m.Pages[page] == nil {
			m.Pages[page] = make([]byte, pageSize)
		}
		m.Pages[page][(address+uint64(i))%pageSize] = v
	}
}

func (m *machine) write32(address uint64, v uint32) {
	m.write(address, binary.LittleEndian.AppendUint32(nil, v))
}

func (m *machine) write64(address, v uint64) {
	m.write(address, binary.LittleEndian.AppendUint64(nil, v))
}

var hopperHost, hopperCompute, hopperCopy = channel.ClassOf(0xc86f), channel.ClassOf(0xcbc0), channel.ClassOf(0xc8b5)

const (
	slotBefore, slotAfter = 5, 6
	slotsOfLine           = 64
)

// qmdWords makes a QMD of fields.
func qmdWords(fields map[string]uint64) []uint32 {
	q, _ := hopperCompute.NewQMD()
	for name, v := range fields {
		if err := q.Set(name, v); err != nil {
			panic(err)
		}
	}
	words := make([]uint32, len(q.Bytes())/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(q.Bytes()[4*i:])
	}
	return words
}

// launch submits a kernel. waits has it wait for the one before.
func (l *machineLine) launch(program uint64, waits bool) {
	n := uint64(l.put)
	slot := systemBase + 0x2000 + (l.tracker&0xff)*0x100 + n%slotsOfLine*8
	qmd := systemBase + 0x8_0000 + n%slotsOfLine*0x800
	var w channel.Writer
	if waits {
		w.Acquire(hopperHost, 0, channel.Semaphore{Address: l.slots[n-1], Payload: slotAfter})
	}
	w.Inline(hopperCompute, computeSubchannel, qmd, qmdWords(map[string]uint64{
		"QMD_TYPE": 2, "GRID_WIDTH": 7, "GRID_HEIGHT": 1, "GRID_DEPTH": 1,
		"CTA_THREAD_DIMENSION0": 32, "CTA_THREAD_DIMENSION1": 1, "CTA_THREAD_DIMENSION2": 1,
		"PROGRAM_ADDRESS_LOWER": program & (1<<32 - 1), "PROGRAM_ADDRESS_UPPER": program >> 32,
		"RELEASE_ENABLE": 1, "RELEASE_SEMAPHORE0_ADDR_LOWER": slot & (1<<32 - 1), "RELEASE_SEMAPHORE0_ADDR_UPPER": slot >> 32,
		"RELEASE_SEMAPHORE0_PAYLOAD_LOWER": slotAfter,
	}))
	w.Inline(hopperCompute, computeSubchannel, slot, []uint32{slotBefore})
	w.Methods(hopperCompute, computeSubchannel, "SEND_PCAS_A", uint32(qmd>>8))
	w.Methods(hopperCompute, computeSubchannel, "SEND_SIGNALING_PCAS2_B", 0xa)
	w.Release(hopperCompute, computeSubchannel, channel.Semaphore{Address: l.tracker, Payload: n + 1})
	l.submit(&w, slot)
}

// move submits a copy.
func (l *machineLine) move(bytes uint32) {
	l.copy = true
	var w channel.Writer
	w.Methods(hopperCopy, copySubchannel, "LINE_LENGTH_IN", bytes)
	w.Methods(hopperCopy, copySubchannel, "LAUNCH_DMA", 2)
	w.Methods(hopperCopy, copySubchannel, "SET_SEMAPHORE_A", uint32(l.tracker>>32), uint32(l.tracker), l.put+1)
	w.Methods(hopperCopy, copySubchannel, "LAUNCH_DMA", 2<<3)
	l.submit(&w, 0)
}

func (l *machineLine) submit(w *channel.Writer, slot uint64) {
	m := l.m
	for i, word := range w.Words {
		m.write32(l.push+4*uint64(i), word)
	}
	entry, _ := channel.Entry{Address: l.push, Words: uint32(len(w.Words)), Subroutine: true}.Encode()
	m.write64(l.ring+uint64(l.put%entries)*8, entry)
	l.push += 4 * uint64(len(w.Words))
	l.put++
	l.slots, l.ends = append(l.slots, slot), append(l.ends, l.push)
	m.write32(l.userd+0x8c, l.put%entries)
}

// pass has the GPU pass the next submission.
func (l *machineLine) pass() {
	m := l.m
	if slot := l.slots[l.passed]; slot != 0 {
		m.write32(slot, slotBefore)
	}
	l.passed++
	m.write32(l.tracker, l.passed)
	m.write64(l.tracker+8, uint64(m.host+m.ahead))
	end := l.ends[l.passed-1]
	m.write32(l.userd+0x88, l.passed%entries)
	for _, at := range []uint64{0x40, 0x44} {
		m.write32(l.userd+at, uint32(end))
	}
	m.write32(l.userd+0x4c, uint32(end>>32))
	m.write32(l.userd+0x60, uint32(end>>32))
}

// over has the kernel of the n-th submission, from 0, be over.
func (l *machineLine) over(n int) { l.m.write32(l.slots[n], slotAfter) }

// watch begins to watch the machine.
func (m *machine) watch(t testing.TB, follow bool) (*Watch, *[]Span) {
	t.Helper()
	var spans []Span
	w, err := NewWatch(m, func() int64 { return m.host }, func(s *Span) { spans = append(spans, *s) })
	if err != nil {
		t.Fatal(err)
	}
	w.follow = follow
	if w.Channels() != len(m.lines) {
		t.Fatalf("%d channels are found, want %d", w.Channels(), len(m.lines))
	}
	for range 2 * len(m.lines) {
		m.look(t, w, 10)
	}
	return w, &spans
}

// look lets time go on, and looks.
func (m *machine) look(t testing.TB, w *Watch, later int64) {
	t.Helper()
	m.host += later
	if err := w.Look(); err != nil {
		t.Fatal(err)
	}
}

// spanText says a span without its times.
func spanText(s *Span) string {
	if s.Work.Kind == CopySpan {
		return fmt.Sprintf("%d copy %d %v", s.Channel, s.Bytes, s.End)
	}
	return fmt.Sprintf("%d %v %#x %v", s.Channel, s.Work.Kind, s.Work.Program, s.End)
}

// begun is a machine with lines that have each had a kernel that is over.
func begun(lines int) *machine {
	m := newMachine(lines)
	for _, l := range m.lines {
		l.launch(0x7f0000001000, false)
		l.pass()
		l.over(0)
	}
	return m
}

// TestFollow holds spans against when the machine's kernels ran.
func TestFollow(t *testing.T) {
	m := begun(2)
	w, spans := m.watch(t, true)
	l := m.lines[1]
	*spans = nil

	// Two kernels, of which the second waits for the first; then nothing.
	l.launch(0x7f0000002000, false)
	l.launch(0x7f0000003000, true)
	m.look(t, w, 1000)
	m.host += 500
	l.pass() // at 500
	first := m.host
	for range 20 {
		m.look(t, w, 1000)
	}
	m.host += 500
	l.over(1)
	m.host += launchLatency
	l.pass()
	second := m.host
	for range 7 {
		m.look(t, w, 1000)
	}
	end := m.host + 400
	m.host = end
	l.over(2)
	m.look(t, w, 600)
	m.look(t, w, 1000)

	if len(*spans) != 2 {
		t.Fatalf("%d spans, want 2: %+v", len(*spans), *spans)
	}
	a, b := (*spans)[0], (*spans)[1]
	if got, want := []string{spanText(&a), spanText(&b)}, []string{"1 kernel 0x7f0000002000 next", "1 kernel 0x7f0000003000 seen"}; !slices.Equal(got, want) {
		t.Errorf("spans %q, want %q", got, want)
	}
	near := func(what string, got, want, margin int64) {
		t.Helper()
		if d := got - want; d > margin || d < -margin {
			t.Errorf("%s is %d ns off, more than the margin of %d", what, d, margin)
		}
	}
	near("the first begin", a.Start, first, a.Margin)
	near("the second begin", b.Start, second, b.Margin)
	near("the first end", a.Start+a.Dur, second-launchLatency, a.EndMargin+a.Margin)
	near("the second end", b.Start+b.Dur, end, b.EndMargin+b.Margin)
	if a.Margin > 1500 || b.EndMargin > 2200 || a.EndMargin != latencyMargin {
		t.Errorf("margins are %d, %d and %d: looks were 1000 ns apart", a.Margin, a.EndMargin, b.EndMargin)
	}
	c := w.Counts()[1]
	if c.Completions != 2 || c.Seen != 2 || len(c.Missed) != 0 {
		t.Errorf("%+v: want 2 completions, all seen", c)
	}
}

// TestFollowMissed: what ends between two looks is counted, and gets no time, but two between which it ran.
func TestFollowMissed(t *testing.T) {
	m := begun(1)
	w, spans := m.watch(t, true)
	l := m.lines[0]
	*spans = nil
	const n = 3000 // more than the ring has entries
	var ran []Miss // those that look will miss
	told := 0
	w.Missed = func(miss *Miss) {
		told++
		at := slices.IndexFunc(ran, func(r Miss) bool { return miss.After <= r.After && r.Before <= miss.Before })
		if at < 0 || miss.Work.Program != ran[at].Work.Program || miss.Before-miss.After > 8000 {
			t.Fatalf("missed %+v of %+v", miss, ran)
		}
		ran = slices.Delete(ran, at, at+1)
	}
	for i := range n {
		program := 0x7f0000002000 + uint64(i%3)<<8
		l.launch(program, i > 0)
		m.host += 700
		l.pass()
		began := m.host
		m.host += 700
		l.over(i + 1)
		if i%3 != 2 {
			ran = append(ran, Miss{Work: WorkID{Program: program}, After: began, Before: m.host})
		}
		if i%3 == 2 {
			m.look(t, w, 0)
		}
	}
	m.look(t, w, 1000)
	c := w.Counts()[0]
	missed := uint64(0)
	for id, k := range c.Missed {
		if id.Program == 0x7f0000002200 {
			t.Errorf("the kernel before each look was missed %d times", k)
		}
		missed += k
	}
	if c.Completions != n || c.Seen != n/3 || missed != n*2/3 || told != n*2/3 || len(*spans) != n/3 || c.Skipped != 0 {
		t.Errorf("%d completions, %d seen, %d missed, %d skipped, %d spans", c.Completions, c.Seen, missed, c.Skipped, len(*spans))
	}
}

// TestSlowLooks wants what runs at looks far apart, with rings that went round in between.
func TestSlowLooks(t *testing.T) {
	m := begun(3)
	w, spans := m.watch(t, false)
	*spans = nil
	l := m.lines[2]
	want := 0
	for i := range 5000 {
		l.launch(0x7f0000002000+uint64(i%5)<<8, i > 0)
		l.pass()
		if i%7 == 3 && i > 20 { // a look while it runs
			m.look(t, w, 10e6)
			want++
			if len(*spans) != want {
				t.Fatalf("%d spans after %d looks at a running kernel", len(*spans), want)
			}
			if s := (*spans)[want-1]; s.Work.Program != 0x7f0000002000+uint64(i%5)<<8 || !s.Look || s.Channel != 2 || s.Dur != 10e6 {
				t.Fatalf("look %d at launch %d: %+v", want, i, s)
			}
		}
		l.over(i + 1)
	}
	m.look(t, w, 10e6)
	if len(*spans) != want {
		t.Errorf("%d spans, want %d: nothing ran at the last look", len(*spans), want)
	}
}

// TestFollowCopy wants copies to have the GPU's end, and a beginning.
func TestFollowCopy(t *testing.T) {
	m := begun(1)
	m.lines = append(m.lines, &machineLine{m: m, ring: barBase + 0x9000, userd: barBase + 0xb000, push: systemBase + 0x90_0000, tracker: systemBase + 0xf00})
	l := m.lines[1]
	l.move(8)
	l.pass()
	w, spans := m.watch(t, true)
	*spans = nil
	m.lines[0].launch(0x7f0000002000, false) // by which the clocks are compared
	m.look(t, w, 100)
	m.lines[0].pass()
	m.look(t, w, 100)
	m.lines[0].over(1)
	m.look(t, w, 1000)
	m.look(t, w, 1000)
	l.move(1 << 20)
	start := m.host
	for range 30 {
		m.look(t, w, 1000)
	}
	l.pass()
	end := m.host
	m.look(t, w, 1000)
	i := slices.IndexFunc(*spans, func(s Span) bool { return s.Work.Kind == CopySpan })
	if i < 0 {
		t.Fatalf("no copy: %+v", *spans)
	}
	s := (*spans)[i]
	if spanText(&s) != "1 copy 1048576 stamped" {
		t.Error(spanText(&s))
	}
	if d := s.Start - start; d < -s.Margin || d > s.Margin || s.Margin > 25000 {
		t.Errorf("the begin is %d ns off, the margin %d", d, s.Margin)
	}
	if d := s.Start + s.Dur - end; d < -s.EndMargin || d > s.EndMargin || s.EndMargin > 1500 {
		t.Errorf("the end is %d ns off, the margin %d", d, s.EndMargin)
	}
}

// TestWatchSnapshots watches real processes that stood still: what runs is running at each look.
func TestWatchSnapshots(t *testing.T) {
	for kind, want := range map[string][]string{
		"idle": nil, "spin": {"1 kernel"}, "queue": {"1 kernel"}, "event": {"1 kernel"}, "copy": {"1 kernel"}, "graph": {"1 graph"},
	} {
		s, err := snapshot.Load("testdata/" + kind + ".snapshot.gz")
		if err != nil {
			t.Fatal(err)
		}
		now := int64(0)
		got := map[string]int{}
		w, err := NewWatch(s, func() int64 { now += 1000; return now }, func(s *Span) { got[fmt.Sprintf("%d %v", s.Channel, s.Work.Kind)]++ })
		if err != nil {
			t.Fatal(err)
		}
		const looks = 10
		for range looks {
			if err := w.Look(); err != nil {
				t.Fatal(err)
			}
		}
		for _, k := range want {
			if got[k] < looks-3 {
				t.Errorf("%s: %s in %d of %d looks", kind, k, got[k], looks)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
}

// TestDoneHasNoTime holds what libcuda asks for at a kernel's end: a release of one word. So the memory
// of the semaphore has no time, and the next one lies right behind it.
func TestDoneHasNoTime(t *testing.T) {
	v := view(t, "queue")
	kernels := 0
	for _, cp := range v.Pieces(lookDepth) {
		r := v.Reader(cp.Of)
		for _, p := range cp.Pieces {
			var qmds []channel.Work
			r.Read(p.Words, p.Address, func(w channel.Work) bool {
				if w.Kind == channel.Kernel && w.Launch.Done.Address != 0 {
					qmds = append(qmds, w)
				}
				return true
			})
			for _, w := range qmds {
				kernels++
				if w.Launch.Done.Timed {
					t.Errorf("the release at %#x has four words", w.Launch.Done.Address)
				}
			}
		}
	}
	if kernels < 8 {
		t.Errorf("%d kernels", kernels)
	}
}

// BenchmarkWatch looks at 20 channels in which nothing happens, and at one that gets a launch.
func BenchmarkWatch(b *testing.B) {
	for _, busy := range []bool{false, true} {
		b.Run(fmt.Sprint("busy=", busy), func(b *testing.B) {
			m := begun(20)
			w, _ := m.watch(b, true)
			l := m.lines[3]
			for b.Loop() {
				if busy {
					b.StopTimer()
					l.push = systemBase + 0x40_0000 + uint64(l.put%64)*0x1000
					l.launch(0x7f0000002000, false)
					l.pass()
					l.over(int(l.passed) - 1)
					b.StartTimer()
				}
				m.host += 1000
				if err := w.Look(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// lively is a machine that goes on while it is looked at.
type lively struct {
	*machine
	mu sync.Mutex
}

func (m *lively) Read(address uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Read(address, b)
}

// TestFollowLive follows a machine while it works, and holds what is told against what it did.
func TestFollowLive(t *testing.T) {
	m := &lively{machine: begun(4)}
	start := time.Now()
	now := func() int64 { return 1e9 + int64(time.Since(start)) }
	m.host = now()
	var spans []Span
	w, err := NewWatch(m, now, func(s *Span) { spans = append(spans, *s) })
	if err != nil {
		t.Fatal(err)
	}
	type truth struct{ begin, end int64 }
	const n = 300
	did := make([]truth, n)
	ctx, stop := context.WithCancel(t.Context())
	go func() { // the GPU, and the program
		defer stop()
		l := m.lines[2]
		do := func(f func()) int64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.host = now()
			f()
			return m.host
		}
		pause := func(d time.Duration) {
			for until := time.Now().Add(d); time.Now().Before(until); {
				time.Sleep(50 * time.Microsecond)
			}
		}
		pause(300 * time.Millisecond) // until the channels are known
		for i := range n {
			do(func() { l.launch(0x7f0000002000+uint64(i)<<8, false) })
			did[i].begin = do(l.pass)
			pause(time.Duration(100+i%7*100) * time.Microsecond)
			did[i].end = do(func() { l.over(i + 1) })
			pause(time.Duration(i%5*100) * time.Microsecond)
		}
		pause(50 * time.Millisecond)
	}()
	if err := w.Follow(ctx, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	c := w.Counts()[2]
	missed := 0
	for _, k := range c.Missed {
		missed += int(k)
	}
	if c.Completions != n || c.Skipped != 0 || len(spans)+missed != n || len(spans) < n/10 {
		t.Fatalf("%d completions, %d skipped, %d spans, %d missed; want %d in all", c.Completions, c.Skipped, len(spans), missed, n)
	}
	outside := 0
	for _, s := range spans {
		d := did[(s.Work.Program-0x7f0000002000)>>8]
		begin, end := s.Start-d.begin, s.Start+s.Dur-d.end
		if begin > s.Margin || begin < -s.Margin || end > s.EndMargin+s.Margin || end < -s.EndMargin-s.Margin {
			outside++
			t.Logf("begin off by %d (margin %d), end by %d (margin %d)", begin, s.Margin, end, s.EndMargin)
		}
	}
	if outside > len(spans)/50 { // the clocks may still have been compared badly at first
		t.Errorf("%d spans of %d are outside of their margins", outside, len(spans))
	}
}

// BenchmarkDigest understands what looks without pause show of a channel that gets launches: what one costs, when
// 19 other channels are idle.
func BenchmarkDigest(b *testing.B) {
	m := begun(20)
	w, spans := m.watch(b, true)
	l := m.lines[3]
	var looks []*observation
	step := func() {
		m.host += 3000
		ob, err := w.observer.look(false)
		if err != nil {
			b.Fatal(err)
		}
		if ob != nil {
			looks = append(looks, ob)
		}
	}
	for b.Loop() {
		b.StopTimer()
		looks = looks[:0]
		l.push = systemBase + 0x40_0000 + uint64(l.put%64)*0x1000
		l.launch(0x7f0000002000, false)
		step()
		l.pass()
		step()
		l.over(int(l.passed) - 1)
		step()
		*spans = (*spans)[:0]
		b.StartTimer()
		for _, ob := range looks {
			w.digest(ob)
		}
	}
}
