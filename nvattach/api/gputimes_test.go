package api

import (
	"slices"
	"testing"

	"nvtrace/traces"
)

// Two streams, whose works are told of late and in the wrong order: busy is the time in which
// there was at least one, and what is idle is said by what the thread of the next work did.
func TestGPUTimes(t *testing.T) {
	tracker, g := NewTracker(), NewGPUTimes()
	tracker.Names.Set(1, 0xf, "kern")
	add := func(ev traces.Event) {
		ev.PID, ev.FD, ev.Path = 1, -1, "libcuda.so.1"
		f := tracker.Add(&ev)
		g.Add(&ev, tracker, f)
	}
	call := func(tid int32, name string, from, to int64) {
		add(traces.Event{Kind: traces.KindCall, TID: tid, Name: name, Time: from})
		add(traces.Event{Kind: traces.KindReturn, TID: tid, Name: name, Time: from, Dur: to - from})
	}
	work := func(tid int32, name string, start, dur int64, stream, subject uint64) {
		add(traces.Event{Kind: traces.KindGPU, TID: tid, Name: name, Time: 1000, Ret: 5, Args: [6]uint64{0, uint64(start), uint64(dur), stream, 0xc, subject}})
	}
	call(1, "cuLaunchKernel", 90, 95)
	call(2, "cuStreamSynchronize", 110, 160)
	call(1, "cuStreamSynchronize", 110, 180)
	call(1, "cuLaunchKernel", 190, 195)
	work(1, "cuLaunchKernel", 200, 100, 7, 0xf) // after an idle time from 150 on
	work(2, "cuMemcpyHtoDAsync_v2", 120, 30, 8, 4096)
	work(1, "cuLaunchKernel", 100, 40, 7, 0xf)
	work(1, "cuGraphLaunch_ptsz", 400, 10, 7, 0x9)
	contexts, kinds := g.Report()
	if len(contexts) != 1 {
		t.Fatalf("contexts: %+v", contexts)
	}
	c := contexts[0]
	idle := c.Idle
	c.Idle = nil
	if want := (GPUTime{PID: 1, Context: 0xc, First: 100, Last: 410, Busy: 50 + 100 + 10, Works: 4, Streams: 2, Margin: 5}); !equal(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if want := []IdleTime{{"", 100 + 10 + 5}, {"cuStreamSynchronize", 30}, {"cuLaunchKernel", 5}}; !slices.Equal(idle, want) {
		t.Errorf("idle %+v, want %+v", idle, want)
	}
	want := []WorkTime{
		{Name: "kern", Kernel: true, Works: 2, Total: 140, Min: 40, Max: 100},
		{Name: "cuMemcpyHtoD", Works: 1, Total: 30, Min: 30, Max: 30, Bytes: 4096},
		{Name: "(graph)", Kernel: true, Works: 1, Total: 10, Min: 10, Max: 10},
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("got  %+v\nwant %+v", kinds, want)
	}
}

// Kernels that probes timed count in place of the same kernels' events, and belong to the only context
// of the process, if theirs is not known, whichever comes first.
func TestGPUTimesByProbe(t *testing.T) {
	for _, first := range []bool{false, true} {
		tracker, g := NewTracker(), NewGPUTimes()
		tracker.Names.Set(1, 0xf, "kern")
		tracker.Names.Set(1, 0xe, "other")
		event := func(name string, start, dur, subject uint64) {
			ev := traces.Event{Kind: traces.KindGPU, PID: 1, TID: 1, FD: -1, Path: "libcuda.so.1", Name: name, Args: [6]uint64{0, start, dur, 7, 0xc, subject}}
			g.Add(&ev, tracker, tracker.Add(&ev))
		}
		probe := func(name string, start, dur int64) {
			ev := traces.Event{PID: 1, TID: 1, FD: -1}
			ev.SetWork(&traces.Work{Start: start, Dur: dur, Margin: 9, Kernel: name, Launch: 3})
			g.Add(&ev, tracker, tracker.Add(&ev))
		}
		if first {
			probe("kern", 90, 5)
		} else {
			event("cuMemsetD32_v2", 90, 5, 0)
		}
		event("cuLaunchKernel", 100, 50, 0xf)
		event("cuLaunchKernel", 200, 30, 0xe)
		probe("kern", 110, 30)
		event("cuGraphLaunch", 300, 50, 0x9)
		probe("kern", 310, 10)
		probe("inner", 325, 20)
		contexts, kinds := g.Report()
		kern := WorkTime{Name: "kern", Kernel: true, Probe: true, Works: 2, Total: 40, Min: 10, Max: 30}
		want := []WorkTime{
			{Name: "(graph)", Kernel: true, Works: 1, Total: 50, Min: 50, Max: 50},
			kern,
			{Name: "other", Kernel: true, Works: 1, Total: 30, Min: 30, Max: 30},
			{Name: "inner", Kernel: true, Probe: true, Works: 1, Total: 20, Min: 20, Max: 20},
		}
		if first {
			want[1].Works, want[1].Total, want[1].Min = 3, 45, 5
		} else {
			want = append(want, WorkTime{Name: "cuMemsetD32", Works: 1, Total: 5, Min: 5, Max: 5})
		}
		if !slices.Equal(kinds, want) {
			t.Errorf("got  %+v\nwant %+v", kinds, want)
		}
		wantContext := GPUTime{PID: 1, Context: 0xc, First: 90, Last: 350, Busy: 5 + 50 + 30 + 50, Works: 7, Streams: 1, Margin: 9}
		if len(contexts) != 1 || !equal(contexts[0], wantContext) {
			t.Errorf("got  %+v\nwant %+v", contexts, wantContext)
		}
	}
}

func equal(a, b GPUTime) bool {
	a.Idle, b.Idle = nil, nil
	return a.PID == b.PID && a.Context == b.Context && a.First == b.First && a.Last == b.Last && a.Busy == b.Busy && a.Works == b.Works && a.Streams == b.Streams && a.Margin == b.Margin
}

// A kernel that only the runtime's call names: the driver's inside of it is of the same one.
func TestInheritedName(t *testing.T) {
	tracker := NewTracker()
	tracker.Names.Set(1, 0x400, "_Z4kernv")
	for _, ev := range []traces.Event{
		{Kind: traces.KindCall, Name: "cudaLaunchKernel", Path: "libcudart.so.13", Time: 1, Args: [6]uint64{0x400}},
		{Kind: traces.KindCall, Name: "cuLaunchKernel", Path: "libcuda.so.1", Time: 2, Args: [6]uint64{0xf00}},
	} {
		ev.PID, ev.TID, ev.FD = 1, 1, -1
		tracker.Add(&ev)
	}
	if got := tracker.Names.kernel(1, 0xf00); got != "_Z4kernv" {
		t.Errorf("the driver's handle is of %q", got)
	}
}

func TestWork(t *testing.T) {
	driver := Module{Library: Driver}
	for _, c := range []struct {
		name  string
		want  Work
		is    bool
		waits bool
	}{
		{"cuLaunchKernel", Work{Stream: 9, Subject: 1, Launch: true}, true, false},
		{"cuLaunchKernelEx", Work{Stream: 1, StreamAt: 32, Subject: 2, Launch: true}, true, false},
		{"cuLaunchKernel_ptsz", Work{Stream: 9, Subject: 1, Launch: true, PerThread: true}, true, false},
		{"cuGraphLaunch", Work{Stream: 2, Subject: 1, Launch: true}, true, false},
		{"cuMemcpyHtoDAsync_v2", Work{Stream: 4, Subject: 3, Early: true}, true, false},
		{"cuMemcpyDtoH_v2", Work{Subject: 3, Early: true}, true, true},
		{"cuMemsetD32_v2", Work{}, true, true},
		{"cuMemAlloc_v2", Work{}, false, false},
		{"cuStreamSynchronize", Work{}, false, true},
		{"cuStreamWaitEvent", Work{Stream: 1, Orders: true}, true, false},
		{"cuStreamWaitValue32_v2", Work{Stream: 1, Orders: true}, true, false},
		{"cuLaunchHostFunc", Work{Stream: 1, Orders: true}, true, false},
	} {
		f := driver.Lookup(c.name)
		if got, is := f.Work(); is != c.is || is && got != c.want || f.Waits() != c.waits {
			t.Errorf("%s: %+v %v, waits %v", c.name, got, is, f.Waits())
		}
	}
	if arg, ok := driver.Lookup("cuCtxDestroy_v2").EndsContext(); !ok || arg != 1 {
		t.Errorf("cuCtxDestroy_v2: %d %v", arg, ok)
	}
}
