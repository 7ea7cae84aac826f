package api

import (
	"testing"

	"nvtrace/traces"
)

// TestHang: what was still going on is told, unless it came to its end; of a stream the first work
// counts.
func TestHang(t *testing.T) {
	tracker, h := NewTracker(), NewHang()
	add := func(ev traces.Event) {
		ev.PID, ev.FD = 7, -1
		if ev.TID == 0 {
			ev.TID = 7
		}
		h.Add(&ev, tracker, tracker.Add(&ev))
	}
	gpu := func(flags traces.Flags, call int64, stream uint64) traces.Event {
		return traces.Event{
			Kind: traces.KindGPU, Flags: flags, Time: 1000, Name: "cuMemsetD8Async", Path: "libcuda.so.1",
			Args: [6]uint64{uint64(call), uint64(call), uint64(1000 - call), stream, 0xc0, 64},
		}
	}
	add(traces.Event{Kind: traces.KindCall, Time: 100, Name: "cuMemcpy", Path: "libcuda.so.1"})
	add(traces.Event{Kind: traces.KindCall, Time: 200, Name: "cuStreamSynchronize", Path: "libcuda.so.1"})
	stack := traces.Event{Kind: traces.KindStack, Flags: traces.FlagUnfinished, Time: 1000, Name: "cuStreamSynchronize"}
	stack.SetStack([]traces.StackFrame{{Language: "python", File: "a.py", Func: "f", Line: 3}})
	add(stack)
	other := stack
	other.TID = 8
	add(other)
	for _, call := range []int64{60, 50, 70} {
		add(gpu(traces.FlagUnfinished, call, 0x10))
	}
	add(gpu(traces.FlagUnfinished, 55, 0x20))
	threads, streams := h.Report()
	if len(threads) != 2 || threads[0].Since != 100 || threads[0].For != 900 || threads[0].In != "cuStreamSynchronize" || len(threads[0].Stack) != 1 || threads[1].TID != 8 {
		t.Errorf("threads %+v", threads)
	}
	if len(streams) != 2 || streams[0].Since != 50 || streams[0].For != 950 || streams[0].Behind != 2 || streams[0].Name != "cuMemsetD8" || streams[1].Stream != 0x20 {
		t.Errorf("streams %+v", streams)
	}
	add(gpu(0, 50, 0x10)) // the first is over: it went on
	add(traces.Event{Kind: traces.KindReturn, Time: 200, Dur: 2000, Name: "cuStreamSynchronize"})
	add(traces.Event{Kind: traces.KindReturn, Time: 100, Dur: 2200, Name: "cuMemcpy"})
	if threads, streams = h.Report(); len(threads) != 1 || threads[0].TID != 8 || len(streams) != 1 || streams[0].Stream != 0x20 {
		t.Errorf("later: threads %+v, streams %+v", threads, streams)
	}
}
