package api

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"nvtrace/traces"
)

// model is what a Tracker is to do, written down without thought of cost.
type model struct {
	open map[int32][]*modelCall
	done []modelCall
}

type modelCall struct {
	id                int
	name              string
	depth             int
	ioctls, ioctlTime int64
	dur               int64 // -1: not seen to return
}

func (m *model) call(tid int32, id int, name string) {
	m.open[tid] = append(m.open[tid], &modelCall{id: id, name: name, depth: len(m.open[tid]), dur: -1})
}

func (m *model) pop(tid int32, dur int64) {
	n := len(m.open[tid]) - 1
	c := m.open[tid][n]
	c.dur = dur
	m.done = append(m.done, *c)
	m.open[tid] = m.open[tid][:n]
}

// TestTrackerAgainstModel makes random programs of several threads, with calls
// that return, that longjmp leaves and that end with their thread, and compares
// what a Tracker makes of them with a model that knows what happened.
func TestTrackerAgainstModel(t *testing.T) {
	names := []string{"cuInit", "cuMemAlloc_v2", "cuCtxSynchronize", "unknown_thing"}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		tr := NewTracker()
		m := &model{open: map[int32][]*modelCall{}}
		starts := map[int32][]int64{} // of the open calls
		ids := map[*Frame]int{}
		var got []modelCall
		now := int64(0)
		id := 0
		note := func(f *Frame, dur int64) {
			got = append(got, modelCall{ids[f], f.Name, f.Depth, int64(f.Ioctls), f.IoctlTime, dur})
			delete(ids, f)
		}
		add := func(ev *traces.Event) *Frame {
			f := tr.Add(ev)
			for _, e := range tr.Ended() {
				note(e, e.End)
			}
			return f
		}
		for range 400 {
			now += int64(r.IntN(50)) // equal times happen
			tid := int32(1 + r.IntN(3))
			open := m.open[tid]
			ev := &traces.Event{PID: 1, TID: tid, Time: now, FD: -1}
			switch n := r.IntN(10); {
			case n < 4:
				id++
				ev.Kind, ev.Name, ev.Path = traces.KindCall, names[r.IntN(len(names))], libcuda
				m.call(tid, id, ev.Name)
				starts[tid] = append(starts[tid], now)
				f := add(ev)
				if f == nil || f.Depth != len(open) || tr.Current(1, tid) != f {
					t.Fatalf("seed %d: a call at depth %d is %+v", seed, len(open), f)
				}
				ids[f] = id
			case n < 7 && len(open) > 0:
				at := len(open) - 1
				if r.IntN(8) == 0 { // longjmp to an outer one, which then returns
					at = r.IntN(len(open))
				}
				start := starts[tid][at]
				dur := now - start
				ambiguous := false // its twin inside began at the same time
				for i := at + 1; i < len(open); i++ {
					ambiguous = ambiguous || open[i].name == open[at].name && starts[tid][i] == start
				}
				if ambiguous {
					continue
				}
				ev.Kind, ev.Name, ev.Time, ev.Dur = traces.KindReturn, open[at].name, start, dur
				if r.IntN(2) == 0 {
					ev.Time = now
				}
				want := open[at].id
				for len(m.open[tid])-1 > at {
					m.pop(tid, -1)
				}
				m.pop(tid, dur)
				starts[tid] = starts[tid][:at]
				f := add(ev)
				if f == nil || ids[f] != want {
					t.Fatalf("seed %d: the return of call %d is taken for that of %+v", seed, want, f)
				}
				note(f, f.Dur())
			case n < 9:
				ev.Kind, ev.Dur = traces.KindIoctl, int64(r.IntN(5))
				for _, c := range open {
					c.ioctls++
					c.ioctlTime += ev.Dur
				}
				f := add(ev)
				if (f == nil) != (len(open) == 0) || f != nil && ids[f] != open[len(open)-1].id {
					t.Fatalf("seed %d: an ioctl is in %+v, want the innermost of %d", seed, f, len(open))
				}
			case n == 9 && r.IntN(6) == 0:
				ev.Kind = traces.KindExit
				if tid == 1 { // the process's first thread ends all
					for other := range int32(4) {
						for len(m.open[other]) > 0 {
							m.pop(other, -1)
						}
						starts[other] = nil
					}
				}
				for len(m.open[tid]) > 0 {
					m.pop(tid, -1)
				}
				starts[tid] = nil
				add(ev)
			}
		}
		for tid := range int32(4) {
			for len(m.open[tid]) > 0 {
				m.pop(tid, -1)
			}
		}
		add(&traces.Event{Kind: traces.KindEnd})
		for i := range m.done {
			if m.done[i].dur < 0 {
				m.done[i].dur = -1
			}
		}
		if len(ids) != 0 || fmt.Sprint(got) != fmt.Sprint(m.done) {
			t.Fatalf("seed %d:\n got %v\nwant %v", seed, got, m.done)
		}
		if len(tr.threads) != 0 {
			t.Errorf("seed %d: %d threads are kept after the end", seed, len(tr.threads))
		}
	}
}

// TestDepthBound has recursion deeper than a Tracker follows: it comes out of it
// at the right place.
func TestDepthBound(t *testing.T) {
	tr, s := NewTracker(), NewSummary()
	add := func(ev *traces.Event) *Frame {
		f := tr.Add(ev)
		s.Add(ev, tr, f)
		return f
	}
	const deep = maxDepth + 100
	var calls []*traces.Event
	for i := range deep {
		calls = append(calls, call(int64(i), libcuda, "cuInit"))
		if f := add(calls[i]); f == nil || f.Depth != min(i, maxDepth) {
			t.Fatalf("call %d: %+v", i, f)
		}
	}
	for i := deep - 1; i >= 0; i-- {
		f := add(ret(calls[i], int64(2*(deep-i)), 0))
		if (f != nil) != (i < maxDepth) {
			t.Fatalf("return %d: %+v", i, f)
		}
		if f != nil && f.Start != int64(i) {
			t.Fatalf("return %d is of the call at %d", i, f.Start)
		}
	}
	r := s.Report()
	if s := tr.threads[threadKey{1, 1}]; s.over != 0 || len(s.open) != 0 || r.Calls != deep || r.Unfinished != 100 || r.Time != 2*deep || r.Functions[0].Total != 2*deep {
		t.Errorf("%+v", r)
	}
}

// TestManyThreadsBound has more threads in calls than are followed.
func TestManyThreadsBound(t *testing.T) {
	tr := NewTracker()
	ev := call(1, libcuda, "cuInit")
	for i := range int32(maxThreads + 10) {
		ev.TID = i + 1
		if f := tr.Add(ev); f == nil || (len(tr.Ended()) == 1) != (i >= maxThreads) {
			t.Fatalf("thread %d: %+v, %d ended", i, f, len(tr.Ended()))
		}
	}
	tr.Add(&traces.Event{Kind: traces.KindEnd})
	if len(tr.threads) != 0 || len(tr.Ended()) != maxThreads {
		t.Errorf("%d threads left, %d calls ended", len(tr.threads), len(tr.Ended()))
	}
}

// TestIdleThreads has many threads one after the other.
func TestIdleThreads(t *testing.T) {
	tr := NewTracker()
	for i := range int32(maxThreads + 10) {
		c := call(int64(i), libcuda, "cuInit")
		c.TID = i + 1
		r := ret(c, 1, 0)
		tr.Add(c)
		if f := tr.Add(r); f == nil || f.Dur() != 1 {
			t.Fatalf("thread %d: %+v", i, f)
		}
	}
	if len(tr.threads) > maxThreads {
		t.Errorf("%d threads are kept", len(tr.threads))
	}
}

// TestNoReturn has a call that is known not to have a return.
func TestNoReturn(t *testing.T) {
	tr := NewTracker()
	outer := call(1, libcuda, "cuInit")
	tr.Add(outer)
	ev := call(2, libcuda, "cuCtxSynchronize")
	ev.Flags = traces.FlagNoExit
	if f := tr.Add(ev); f == nil || f.Depth != 1 || f.End != -1 || len(tr.Ended()) != 1 {
		t.Errorf("%+v", f)
	}
	if f := tr.Add(ret(outer, 5, 0)); f == nil || f.Name != "cuInit" || f.Dur() != 5 || f.Calls != 1 {
		t.Errorf("%+v", f)
	}
}

// TestSummary counts a recursive function's time once, and self time without
// what is inside.
func TestSummary(t *testing.T) {
	tr, s := NewTracker(), NewSummary()
	add := func(ev *traces.Event) { s.Add(ev, tr, tr.Add(ev)) }
	a, b, c := call(100, libcudart, "cudaMalloc"), call(200, libcuda, "cuMemAlloc_v2"), call(300, libcuda, "cuMemAlloc_v2")
	ioctl := &traces.Event{Kind: traces.KindIoctl, PID: 1, TID: 1, Time: 310, Dur: 50}
	add(a)
	add(b)
	add(c)
	add(ioctl)
	add(&traces.Event{Kind: traces.KindMmap, PID: 1, TID: 1, Time: 370, Dur: 10})
	add(ret(c, 100, 2))
	add(ret(b, 300, 2))
	add(ret(a, 500, 2))
	r := s.Report()
	want := Report{Calls: 3, Failed: 3, Time: 500, Ioctls: 1, IoctlTime: 50, Functions: []CallCount{
		{Library: "runtime", Name: "cudaMalloc", Calls: 1, Failed: 1, Total: 500, Self: 200, Max: 500, Ioctls: 1, IoctlTime: 50, module: Runtime, purpose: Allocating},
		{Library: "driver", Name: "cuMemAlloc_v2", Calls: 2, Failed: 2, Total: 300, Self: 240, Max: 300, Ioctls: 1, IoctlTime: 50, module: Driver, purpose: Allocating},
	}}
	if fmt.Sprint(*r) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", *r, want)
	}
	if n := r.Made(Allocating); n != 2 {
		t.Errorf("%d calls allocate, want those of the driver alone", n)
	}
}

// TestManyFunctions has more functions than a Summary keeps apart.
func TestManyFunctions(t *testing.T) {
	tr, s := NewTracker(), NewSummary()
	for i := range maxCounted + 50 {
		c := call(int64(i), "/x/libother.so", "f"+strings.Repeat("x", i%7)+itoa(i))
		s.Add(c, tr, tr.Add(c))
		r := ret(c, 3, 0)
		s.Add(r, tr, tr.Add(r))
	}
	r := s.Report()
	if r.Calls != maxCounted+50 || len(r.Functions) != maxCounted+1 || r.Functions[0].Name != "(other)" || r.Functions[0].Calls != 50 || r.Functions[1].Library != "libother.so" {
		t.Errorf("%d calls of %d functions, %+v", r.Calls, len(r.Functions), r.Functions[:2])
	}
}

// BenchmarkCall is a call with its return: followed, counted, and printed.
func BenchmarkCall(b *testing.B) {
	c := call(1, libcuda, "cuLaunchKernel", 0x5570, 4096, 1, 1, 256, 1, 1, 0, 0, 0x7ffd0020, 0)
	r := ret(c, 5000, 0)
	b.Run("count", func(b *testing.B) {
		tr, s := NewTracker(), NewSummary()
		n := uint64(0)
		for b.Loop() {
			s.Add(c, tr, tr.Add(c))
			s.Add(r, tr, tr.Add(r))
			n++
		}
		if got := s.Report(); got.Calls != n || got.Unfinished != 0 {
			b.Fatal(got)
		}
	})
	b.Run("print", func(b *testing.B) {
		tr := NewTracker()
		var line []byte
		for b.Loop() {
			line = AppendCall(line[:0], tr.Add(c), c, &tr.Names, nil)
			line = AppendReturn(line, tr.Add(r), r, nil)
		}
		if !strings.HasSuffix(string(line), "= CUDA_SUCCESS <5.00µs>") {
			b.Fatalf("%s", line)
		}
	})
	b.Run("decode-tables", func(b *testing.B) {
		for b.Loop() {
			if _, err := Decode(packed); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestDevices has contexts of two processes: on which GPU each is, and that a program that
// another replaced has none.
func TestDevices(t *testing.T) {
	const libcuda = "/lib/libcuda.so.1"
	tr := NewTracker()
	made := func(pid int32, at int64, name string, result int64, context uint64, args ...uint64) {
		c := call(at, libcuda, name, args...)
		r := out(ret(c, 1, result), args[0], words(context))
		c.PID, r.PID = pid, pid
		tr.Add(c)
		tr.Add(r)
	}
	made(1, 1, "cuCtxCreate_v2", 0, 0xc0, 0x50, 0, 1)
	made(1, 2, "cuDevicePrimaryCtxRetain", 0, 0xc1, 0x50, 3)
	made(1, 3, "cuDevicePrimaryCtxRetain", 101, 0xc2, 0x50, 9) // CUDA_ERROR_INVALID_DEVICE
	made(2, 4, "cuCtxCreate_v4", 0, 0xc0, 0x50, 0, 0, 2)
	check := func(pid int32, context uint64, want int32) {
		t.Helper()
		if got := tr.Names.Device(pid, context); got != want {
			t.Errorf("context %#x of process %d is on %d, want %d", context, pid, got, want)
		}
	}
	check(1, 0xc0, 1)
	check(1, 0xc1, 3)
	check(1, 0xc2, -1)
	check(2, 0xc0, 2)
	tr.Add(&traces.Event{Kind: traces.KindExec, PID: 1, TID: 1, Time: 5, FD: -1})
	check(1, 0xc0, -1)
	check(2, 0xc0, 2)
}

// TestAlone: a call of the runtime's stands for the driver's only in a process that calls no driver.
func TestAlone(t *testing.T) {
	tracker := NewTracker()
	now := int64(0)
	add := func(pid int32, kind traces.Kind, path, name string) *Frame {
		now++
		return tracker.Add(&traces.Event{Kind: kind, PID: pid, TID: pid, FD: -1, Path: path, Name: name, Time: now})
	}
	const driver, runtime = "libcuda.so.1", "libcudart.so.12"
	if f := add(1, traces.KindCall, runtime, "cudaFree"); !f.Alone() {
		t.Error("a runtime without driver")
	}
	if f := add(1, traces.KindCall, runtime, "cudaGetLastError"); f.Alone() {
		t.Error("a call within another")
	}
	add(1, traces.KindReturn, runtime, "cudaGetLastError")
	add(1, traces.KindReturn, runtime, "cudaFree")
	add(2, traces.KindCall, runtime, "cudaFree")
	add(2, traces.KindCall, driver, "cuInit")
	add(2, traces.KindReturn, driver, "cuInit")
	if f := add(2, traces.KindReturn, runtime, "cudaFree"); f.Alone() {
		t.Error("a call that has called the driver")
	}
	if f := add(2, traces.KindCall, runtime, "cudaLaunchKernel"); f.Alone() {
		t.Error("a call in a process that has a driver")
	}
	if f := add(1, traces.KindCall, runtime, "cudaLaunchKernel"); !f.Alone() {
		t.Error("another process")
	}
}
