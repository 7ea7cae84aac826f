package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// stamped is a session with the probe of times, in a kernel on the PTX machine.
type stamped struct {
	t       *testing.T
	machine *emu.Machine
	now     atomic.Uint64  // what the GPU's timer said last: it goes on by 1 each time
	asked   func(n uint64) // nil, or told that a thread asks for the time
	s       *Session
	c       *Context
	kernel  *emu.Kernel
	shown   bytes.Buffer

	mu   sync.Mutex
	list []Stamp
}

// Threads of k leave at three places.
const stampedPTX = `.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u32 n)
{
	.reg .pred %p<3>;
	.reg .b32 %r<4>;
	mov.u32 %r1, %tid.x;
	and.b32 %r2, %r1, 3;
	setp.eq.u32 %p1, %r2, 1;
	@%p1 exit;
	ld.param.u32 %r3, [n];
	setp.gt.u32 %p2, %r1, %r3;
	@%p2 bra end;
	ret;
end:
	exit;
}
`

func newStamped(t *testing.T) *stamped {
	t.Helper()
	return newStampedFor(t, "sm_70")
}

func newStampedFor(t *testing.T, target string) *stamped {
	t.Helper()
	x := &stamped{t: t}
	x.machine = emu.New(&emu.Options{Now: func() uint64 {
		n := x.now.Add(1)
		if x.asked != nil {
			x.asked(n)
		}
		return n
	}})
	o, err := Stamps()
	if err != nil {
		t.Fatal(err)
	}
	plan, err := nvattach.NewPlan([]*object.Object{o}, &nvattach.PlanOptions{Kernels: []string{"other"}, Programs: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	x.s = New(&Options{Plan: plan, Out: &x.shown, Stamped: func(s Stamp) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.list = append(x.list, s)
	}})
	x.c, err = x.s.Add(&Target{PID: 7, Handle: 0x70, SMs: x.machine.Device().SMs, Passive: true, Alloc: func(size uint64) (uint64, mapmem.Memory, error) {
		r, err := x.machine.Alloc(size+256, "maps")
		return (r.Base + 255) &^ 255, x.machine, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	image, _, err := x.c.Rewrite([]byte(strings.Replace(stampedPTX, "sm_70", target, 1)), "", &RewriteOptions{Arch: fatbin.Arch{SM: 70}})
	if err != nil {
		t.Fatal(err)
	}
	file, err := ptx.Parse("k", strings.TrimRight(string(image), "\x00"), nil)
	if err != nil {
		t.Fatal(err)
	}
	module, err := x.machine.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if x.kernel, err = module.Kernel("k"); err != nil {
		t.Fatal(err)
	}
	return x
}

// launch runs the kernel, and returns what the timer said before and behind it.
func (x *stamped) launch(grid, block emu.Dim3, id uint64) (before, after int64) {
	x.t.Helper()
	before = int64(x.now.Load())
	if _, err := x.machine.Launch(context.Background(), x.kernel, &emu.LaunchConfig{Grid: grid, Block: block, Params: []byte{40, 0, 0, 0}, ID: id}); err != nil {
		x.t.Fatal(err)
	}
	return before, int64(x.now.Load())
}

// end ends the session, and returns how many launches it says have no times, and why.
func (x *stamped) end() (lost map[string]int) {
	x.t.Helper()
	if err := x.c.Keep(true); err != nil {
		x.t.Fatal(err)
	}
	x.c.Abandon(nil)
	if err := x.s.Close(); err != nil {
		x.t.Fatal(err)
	}
	lost = make(map[string]int)
	for _, m := range regexp.MustCompile(`(?m)^nvtrace: ([\d,]+) launch(?:es)? of kernels without a time on the GPU: (.*)$`).FindAllStringSubmatch(x.shown.String(), -1) {
		n, err := strconv.Atoi(strings.ReplaceAll(m[1], ",", ""))
		if err != nil {
			x.t.Fatal(err)
		}
		lost[m[2]] += n
	}
	if strings.Count(x.shown.String(), "\n") != len(lost) {
		x.t.Errorf("more is shown:\n%s", &x.shown)
	}
	return lost
}

// TestStamps: each launch is told of once, between the times that the timer had before and behind
// it, whatever the shapes of grids and blocks, and whether its number is new or that of an earlier launch.
func TestStamps(t *testing.T) {
	x := newStamped(t)
	const offset, margin = -1000, 3
	if err := x.c.SetClock(mapmem.Clock{Offset: offset, Margin: margin}); err != nil {
		t.Fatal(err)
	}
	type span struct{ before, after int64 }
	var want []span
	var numbers []uint64
	node := x.machine.NewID()
	for _, s := range [][2]emu.Dim3{
		{{X: 1, Y: 1, Z: 1}, {X: 1, Y: 1, Z: 1}},
		{{X: 3, Y: 1, Z: 1}, {X: 33, Y: 1, Z: 1}},
		{{X: 32, Y: 1, Z: 1}, {X: 64, Y: 1, Z: 1}},
		{{X: 33, Y: 1, Z: 1}, {X: 32, Y: 1, Z: 1}},
		{{X: 5, Y: 7, Z: 3}, {X: 5, Y: 3, Z: 4}},
		{{X: 64, Y: 2, Z: 1}, {X: 1, Y: 1, Z: 1}},
		{{X: 1, Y: 1, Z: 70}, {X: 8, Y: 8, Z: 16}},
	} {
		for _, id := range []uint64{0, node, 0, node} {
			before, after := x.launch(s[0], s[1], id)
			want, numbers = append(want, span{before, after}), append(numbers, id)
		}
	}
	if lost := x.end(); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	if len(x.list) != len(want) {
		t.Fatalf("%d launches were told of, want %d", len(x.list), len(want))
	}
	slices.SortFunc(x.list, func(a, b Stamp) int { return int(a.Start - b.Start) })
	seen := make(map[uint64]bool)
	for i, s := range x.list {
		begin, end := s.Start-offset, s.End-offset
		if begin <= want[i].before || end <= begin || end > want[i].after {
			t.Errorf("launch %d: %d to %d, want it within %d to %d", i, begin, end, want[i].before, want[i].after)
		}
		if again := seen[s.Launch]; numbers[i] == node && s.Launch != node || numbers[i] == 0 && again {
			t.Errorf("launch %d has number %d, want %d (0: a new one)", i, s.Launch, numbers[i])
		}
		seen[s.Launch] = true
		if s.Kernel != "k" || s.PID != 7 || s.Context != 0x70 || s.Margin != margin {
			t.Errorf("launch %d: %+v", i, s)
		}
	}
}

// TestStampsAtOnce: launches that run at the same time are told apart.
func TestStampsAtOnce(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	const goroutines, each = 8, 40
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				_, err := x.machine.Launch(context.Background(), x.kernel, &emu.LaunchConfig{Grid: emu.Dim3{X: uint32(1 + 7*g + i)}, Block: emu.Dim3{X: 64}, Params: []byte{40, 0, 0, 0}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if lost := x.end(); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	numbers := make(map[uint64]bool)
	for _, s := range x.list {
		numbers[s.Launch] = true
	}
	if len(x.list) != goroutines*each || len(numbers) != len(x.list) {
		t.Errorf("%d launches were told of, with %d numbers, want %d", len(x.list), len(numbers), goroutines*each)
	}
}

// Why launches have no times.
const (
	lostLate   = "there were too many before them to be read"
	lostMixed  = "others had their places at the same time, as they run on other GPUs or for very long"
	lostHidden = "the next launch of the same node of a graph began too early for their end to be read"
	lostNever  = "not all of their threads were seen to leave the kernel"
)

// checkLost compares how many launches have no times, and why.
func checkLost(t *testing.T, got, want map[string]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("lost: %v, want %v", got, want)
	}
}

// checkSpans compares what launches were told of with what the timer had before and behind them.
func (x *stamped) checkSpans(want [][2]int64) {
	x.t.Helper()
	if len(x.list) != len(want) {
		x.t.Fatalf("%d launches were told of, want %d", len(x.list), len(want))
	}
	slices.SortFunc(x.list, func(a, b Stamp) int { return int(a.Start - b.Start) })
	for i, s := range x.list {
		if s.Start <= want[i][0] || s.End <= s.Start || s.End != want[i][1] {
			x.t.Fatalf("launch %d: %d to %d, want it to begin behind %d and to end at %d", i, s.Start, s.End, want[i][0], want[i][1])
		}
	}
}

// look is what is done from time to time.
func (x *stamped) look() {
	x.t.Helper()
	if err := x.c.Keep(false); err != nil {
		x.t.Fatal(err)
	}
}

// change changes a number in the memory of a map.
func (x *stamped) change(m *mapmem.Map, off uint64, to func(n uint64) uint64) {
	x.t.Helper()
	var b [8]byte
	if err := x.machine.ReadMem(m.Addr()+off, b[:]); err != nil {
		x.t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(b[:], to(binary.LittleEndian.Uint64(b[:])))
	if err := x.machine.WriteMem(m.Addr()+off, b[:]); err != nil {
		x.t.Fatal(err)
	}
}

// early has 32 threads of the next launch with that number leave before its first thread is there.
func (x *stamped) early(id uint64) {
	x.t.Helper()
	part := (5*stampPlaces + id%stampPlaces) * partBytes
	now := x.now.Add(1)
	x.change(x.c.stamps.parts, part, func(n uint64) uint64 { return max(n, now) })
	x.change(x.c.stamps.parts, part+8, func(n uint64) uint64 { return n + 32 })
	var asked atomic.Int32
	x.asked = func(uint64) {
		// The first thread asks when it comes. When others leave, it has looked at the parts, and those that
		// have left are going to leave again.
		if asked.Add(1) == 2 {
			x.change(x.c.stamps.parts, part+8, func(n uint64) uint64 { return n - 32 })
		}
	}
}

// TestStampsWait: what a thread does at its end is two reductions, for whose results nothing waits.
func TestStampsWait(t *testing.T) {
	x := newStamped(t)
	image, _, err := x.c.Rewrite([]byte(stampedPTX), "", &RewriteOptions{Arch: fatbin.Arch{SM: 70}})
	if err != nil {
		t.Fatal(err)
	}
	_, ends, _ := strings.Cut(string(image), "mov.u32 %r1, %tid.x;")
	for want, times := range map[string]int{`\bred\.relaxed\.gpu\.global\.(add|max)\.u64 `: 6, `\b(red|atom|match|fence|membar)\b`: 6, `\bld\.[^p]`: 0} {
		if got := regexp.MustCompile(want).FindAllString(ends, -1); len(got) != times {
			t.Errorf("%q in the ends: %q, want %d of them", want, got, times)
		}
	}
}

// TestStampsAgain: launches with the same number, as those of a node of a graph, are told apart
// without a look at them, also where blocks are smaller than a warp, or each thread is alone.
func TestStampsAgain(t *testing.T) {
	for _, target := range []string{"sm_70", "sm_50"} {
		t.Run(target, func(t *testing.T) { testStampsAgain(t, target) })
	}
}

func testStampsAgain(t *testing.T, target string) {
	x := newStampedFor(t, target)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	nodes := []uint64{x.machine.NewID(), x.machine.NewID(), x.machine.NewID()}
	blocks := []emu.Dim3{{X: 96, Y: 1, Z: 1}, {X: 5, Y: 1, Z: 1}, {X: 1, Y: 1, Z: 1}}
	var want [][2]int64
	for i := range 2000 {
		for k, id := range nodes {
			before, after := x.launch(emu.Dim3{X: uint32(1 + (i+k)%70), Y: 1, Z: 1}, blocks[k], id)
			want = append(want, [2]int64{before, after})
		}
	}
	checkLost(t, x.end(), map[string]int{})
	x.checkSpans(want)
}

// TestStampsMany: more launches than there are places, between looks at them.
func TestStampsMany(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	var want [][2]int64
	for i := range stampPlaces * 5 / 2 {
		before, after := x.launch(emu.Dim3{}, emu.Dim3{}, 0)
		want = append(want, [2]int64{before, after})
		if i == stampPlaces*5/4 {
			x.look()
		}
	}
	checkLost(t, x.end(), map[string]int{})
	x.checkSpans(want)
}

// TestStampsEarly: where threads of a launch leave before its first one is there, nobody knows when the
// one before it ended, if that was not told; no wrong time is.
func TestStampsEarly(t *testing.T) {
	for _, tt := range []struct {
		name   string
		step   uint64 // between the numbers of launches
		before bool   // there is a look before threads leave
		during bool   // and one before the first thread is there
		lost   map[string]int
		told   []int
	}{
		{"node", 0, false, false, map[string]int{lostHidden: 1}, []int{1, 2}},
		{"node, during", 0, false, true, map[string]int{lostHidden: 1}, []int{1, 2}},
		{"node, told", 0, true, true, map[string]int{}, []int{0, 1, 2}},
		{"place", stampPlaces, false, true, map[string]int{lostMixed: 2}, []int{2}},
		{"place, told", stampPlaces, true, true, map[string]int{}, []int{0, 1, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newStamped(t)
			if err := x.c.SetClock(mapmem.Clock{}); err != nil {
				t.Fatal(err)
			}
			var spans, want [][2]int64
			for i := range uint64(3) {
				id := 77 + i*tt.step
				if i == 1 {
					if tt.before {
						x.look()
					}
					x.early(id)
					if tt.during {
						x.look()
					}
				}
				before, after := x.launch(emu.Dim3{X: 9, Y: 1, Z: 1}, emu.Dim3{X: 64, Y: 1, Z: 1}, id)
				spans = append(spans, [2]int64{before, after})
			}
			checkLost(t, x.end(), tt.lost)
			for _, i := range tt.told {
				want = append(want, spans[i])
			}
			x.checkSpans(want)
		})
	}
}

// TestStampsTwice: a launch that was told when the next one began, which did not see that yet, is not
// told again.
func TestStampsTwice(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	var want [][2]int64
	for range 10 {
		before, after := x.launch(emu.Dim3{X: 3, Y: 1, Z: 1}, emu.Dim3{X: 32, Y: 1, Z: 1}, 9)
		want = append(want, [2]int64{before, after})
		x.look()
		x.change(x.c.stamps.told, 9*8, func(uint64) uint64 { return 1 })
	}
	checkLost(t, x.end(), map[string]int{})
	x.checkSpans(want)
}

// TestStampsTorn: records that are still being written are read when they are complete.
func TestStampsTorn(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	var want [][2]int64
	launch := func() {
		before, after := x.launch(emu.Dim3{X: 3, Y: 1, Z: 1}, emu.Dim3{X: 32, Y: 1, Z: 1}, 9)
		want = append(want, [2]int64{before, after})
	}
	invert := func(n uint64) uint64 { return ^n }
	told := func(n int) {
		t.Helper()
		x.look()
		if len(x.list) != n {
			t.Fatalf("%d launches were told of, want %d", len(x.list), n)
		}
	}
	launch()
	x.change(x.c.stamps.launches, 24, invert)
	told(0)
	launch() // with a copy of what the first one left
	told(0)  // nor of that one, as nobody knows whether it began too early
	x.change(x.c.stamps.launches, 24, invert)
	told(2)
	launch()
	launch()
	x.change(x.c.stamps.copies, copyBytes+copyBytes-8, invert)
	told(2)
	x.change(x.c.stamps.copies, copyBytes+copyBytes-8, invert)
	checkLost(t, x.end(), map[string]int{})
	x.checkSpans(want)
}

// TestStampsRunning: a kernel that does not end is counted, and others are told.
func TestStampsRunning(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	begun, over := make(chan struct{}), make(chan struct{})
	x.asked = func(n uint64) {
		if n == 2 { // the first threads are about to leave
			close(begun)
			<-over
		}
	}
	done := make(chan error)
	go func() {
		_, err := x.machine.Launch(context.Background(), x.kernel, &emu.LaunchConfig{Block: emu.Dim3{X: 32}, Params: []byte{40, 0, 0, 0}})
		done <- err
	}()
	<-begun
	for i := range 100 {
		x.launch(emu.Dim3{X: 2, Y: 1, Z: 1}, emu.Dim3{X: 32, Y: 1, Z: 1}, 0)
		if i%30 == 0 {
			x.look()
		}
	}
	lost := x.end()
	close(over)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	checkLost(t, lost, map[string]int{lostNever: 1})
	if len(x.list) != 100 {
		t.Errorf("%d launches were told of, want 100", len(x.list))
	}
}

// TestStampsLost: launches that nobody could be told of are counted, and nothing else is lost.
func TestStampsLost(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	// Of these, the last one at each place is there, copies of those before as long as there was room,
	// and the records of all but the first ones.
	const more = 500
	if !testing.Short() {
		const told = stampPlaces + stampCopies - more
		for range stampLaunches + more {
			x.launch(emu.Dim3{}, emu.Dim3{}, 0)
		}
		checkLost(t, x.end(), map[string]int{lostLate: stampLaunches + more - told})
		if len(x.list) != told {
			t.Errorf("%d launches were told of, want %d", len(x.list), told)
		}
	}

	x = newStamped(t) // whose clock is not known before some launches have ended
	for range 10 {
		x.launch(emu.Dim3{}, emu.Dim3{}, 0)
	}
	if err := x.c.Keep(true); err != nil || len(x.list) != 0 {
		t.Errorf("%v; %d launches were told of without a clock", err, len(x.list))
	}
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	if lost := x.end(); len(x.list) != 10 || len(lost) > 0 {
		t.Errorf("%d launches were told of, %v lost", len(x.list), lost)
	}

	x = newStamped(t) // whose clock is never known
	for range 10 {
		x.launch(emu.Dim3{}, emu.Dim3{}, 0)
	}
	lost := x.end()
	if n := lost["the clock of the GPU could not be compared with the host's"]; n != 10 || len(lost) != 1 || len(x.list) != 0 {
		t.Errorf("%d launches were told of, %v lost", len(x.list), lost)
	}
}

// TestStampsBeside: where it is to, the probe is in those kernels only that others want.
func TestStampsBeside(t *testing.T) {
	for _, beside := range []bool{false, true} {
		o, err := Stamps()
		if err != nil {
			t.Fatal(err)
		}
		o.Beside = beside
		other, err := object.Open("../../examples/probes/count.bpf.o")
		if err != nil {
			t.Fatal(err)
		}
		plan, err := nvattach.NewPlan([]*object.Object{other, o}, &nvattach.PlanOptions{Kernels: []string{"some*"}})
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(plan.Wants("something", false), plan.Wants("another", false))
		if want := fmt.Sprint(true, !beside); got != want {
			t.Errorf("beside %v: %s, want %s", beside, got, want)
		}
	}
}

// TestStampsMixed: two launches that have the same number at the same time, as those of two GPUs may,
// are not taken for one.
func TestStampsMixed(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(mapmem.Clock{}); err != nil {
		t.Fatal(err)
	}
	id := x.machine.NewID()
	leaves, over := make(chan struct{}), make(chan struct{})
	x.asked = func(n uint64) {
		if n == 2 { // the first launch has begun, and some of its threads are about to leave
			close(leaves)
			<-over
		}
	}
	done := make(chan error)
	launch := func() error {
		_, err := x.machine.Launch(context.Background(), x.kernel, &emu.LaunchConfig{Block: emu.Dim3{X: 32}, Params: []byte{40, 0, 0, 0}, ID: id})
		return err
	}
	go func() { done <- launch() }()
	<-leaves
	err := launch()
	close(over)
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	for range 3 { // when both have ended
		x.launch(emu.Dim3{}, emu.Dim3{}, id)
	}
	x.launch(emu.Dim3{}, emu.Dim3{}, 0)
	checkLost(t, x.end(), map[string]int{lostMixed: 2})
	if len(x.list) != 4 {
		t.Errorf("%d launches were told of, want 4", len(x.list))
	}
}
