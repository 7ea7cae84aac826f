package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
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
	plan, err := nvattach.NewPlan([]*nvattach.Object{o}, &nvattach.PlanOptions{Kernels: []string{"other"}, Programs: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	x.s = New(&Options{Plan: plan, Out: &x.shown, Stamped: func(s Stamp) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.list = append(x.list, s)
	}})
	x.c, err = x.s.Add(&Target{PID: 7, Handle: 0x70, SMs: x.machine.Device().SMs, Passive: true, Alloc: func(size uint64) (uint64, nvattach.Memory, error) {
		r, err := x.machine.Alloc(size+256, "maps")
		return (r.Base + 255) &^ 255, x.machine, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	image, _, err := x.c.Rewrite([]byte(stampedPTX), "", &RewriteOptions{Arch: fatbin.Arch{SM: 70}})
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
	if err := x.c.SetClock(nvattach.Clock{Offset: offset, Margin: margin}); err != nil {
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
	if err := x.c.SetClock(nvattach.Clock{}); err != nil {
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

// TestStampsLost: launches that nobody could be told of are counted, and nothing else is lost.
func TestStampsLost(t *testing.T) {
	x := newStamped(t)
	if err := x.c.SetClock(nvattach.Clock{}); err != nil {
		t.Fatal(err)
	}
	const most, more = 4096, 500 // what a multiprocessor's ring holds
	for range most + more {
		x.launch(emu.Dim3{}, emu.Dim3{}, 0)
	}
	lost := x.end()
	if n := lost["there were too many before them to be read"]; len(x.list) != most || n != more || len(lost) != 1 {
		t.Errorf("%d launches were told of, %v lost, want %d and %d", len(x.list), lost, most, more)
	}

	x = newStamped(t) // whose clock is not known before some launches have ended
	for range 10 {
		x.launch(emu.Dim3{}, emu.Dim3{}, 0)
	}
	if err := x.c.Keep(true); err != nil || len(x.list) != 0 {
		t.Errorf("%v; %d launches were told of without a clock", err, len(x.list))
	}
	if err := x.c.SetClock(nvattach.Clock{}); err != nil {
		t.Fatal(err)
	}
	if lost := x.end(); len(x.list) != 10 || len(lost) > 0 {
		t.Errorf("%d launches were told of, %v lost", len(x.list), lost)
	}

	x = newStamped(t) // whose clock is never known
	for range 10 {
		x.launch(emu.Dim3{}, emu.Dim3{}, 0)
	}
	lost = x.end()
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
		other, err := nvattach.OpenObject("../../examples/probes/count.bpf.o")
		if err != nil {
			t.Fatal(err)
		}
		plan, err := nvattach.NewPlan([]*nvattach.Object{other, o}, &nvattach.PlanOptions{Kernels: []string{"some*"}})
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
	if err := x.c.SetClock(nvattach.Clock{}); err != nil {
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
	for range 3 { // nobody knows what is still to come from the two
		x.launch(emu.Dim3{}, emu.Dim3{}, id)
	}
	x.launch(emu.Dim3{}, emu.Dim3{}, 0)
	lost := x.end()
	if n := lost["others had their places at the same time, as they run on other GPUs or for very long"]; n != 5 || len(lost) != 1 || len(x.list) != 1 {
		t.Errorf("%d launches were told of, %v lost, want 1 and 5", len(x.list), lost)
	}
}
