package api

import (
	"cmp"
	"slices"

	"nvtrace/traces"
)

// Hang is what was still going on when nothing else did: threads in calls, and works of GPUs. It is
// for one goroutine.
type Hang struct {
	threads map[threadKey]*WaitingThread
	works   map[hungKey]*HungStream
}

// WaitingThread is a thread in a library call.
type WaitingThread struct {
	PID   int32               `json:"pid"`
	TID   int32               `json:"tid"`
	In    string              `json:"in"`    // the innermost call
	Since int64               `json:"since"` // when its outermost call began
	For   int64               `json:"for"`   // how long it had been in that then
	Stack []traces.StackFrame `json:"stack,omitempty"`
}

// HungStream is a stream whose works are not known to be over.
type HungStream struct {
	PID     int32  `json:"pid"`
	Context uint64 `json:"context"`
	Stream  uint64 `json:"stream"`
	Name    string `json:"name"` // the first of them
	TID     int32  `json:"tid"`  // that had the GPU do it
	Since   int64  `json:"since"`
	For     int64  `json:"for"`
	Behind  int    `json:"behind"` // how many more there are
	calls   map[int64]struct{}
}

type hungKey struct {
	pid             int32
	context, stream uint64
}

// maxHung bounds what is kept of a hostile recording.
const maxHung = 1 << 12

// NewHang returns one that has seen nothing yet.
func NewHang() *Hang {
	return &Hang{threads: make(map[threadKey]*WaitingThread), works: make(map[hungKey]*HungStream)}
}

// Add takes in an event; t is the Tracker that has just taken it in, and f what it returned.
func (h *Hang) Add(ev *traces.Event, t *Tracker, f *Frame) {
	key := threadKey{ev.PID, ev.TID}
	switch {
	case ev.Kind == traces.KindStack && ev.Flags&traces.FlagUnfinished != 0:
		if len(h.threads) >= maxHung {
			return
		}
		w := &WaitingThread{PID: ev.PID, TID: ev.TID, In: ev.Name, Since: ev.Time, Stack: ev.Stack()}
		for c := t.Current(ev.PID, ev.TID); c != nil; c = c.Parent {
			w.Since = c.Start
		}
		w.For = ev.Time - w.Since
		h.threads[key] = w
	case ev.Kind == traces.KindGPU && ev.Work().By.Called(): // else its call is not known
		h.work(ev, t)
	case len(h.threads) == 0:
	case ev.Kind == traces.KindReturn && f != nil && f.Parent == nil: // a thread that ends in a call has waited until then
		delete(h.threads, key)
	}
}

// work notes one that is not over, or forgets one that is.
func (h *Hang) work(ev *traces.Event, t *Tracker) {
	w := ev.Work()
	key := hungKey{ev.PID, w.Context, w.Stream}
	s := h.works[key]
	if ev.Flags&traces.FlagUnfinished == 0 {
		if s == nil {
			return
		}
		delete(s.calls, w.Call)
		if s.Behind = len(s.calls) - 1; len(s.calls) == 0 || w.Call >= s.Since {
			delete(h.works, key) // it goes on
		}
		return
	}
	if s == nil {
		if len(h.works) >= maxHung {
			return
		}
		s = &HungStream{PID: ev.PID, Context: w.Context, Stream: w.Stream, Since: w.Call, calls: make(map[int64]struct{})}
		h.works[key] = s
	}
	if len(s.calls) < maxHung {
		s.calls[w.Call] = struct{}{}
	}
	s.Behind = len(s.calls) - 1
	if w.Call <= s.Since {
		s.Name, _ = t.Describe(ev)
		s.TID, s.Since, s.For = ev.TID, w.Call, ev.Time-w.Call
	}
}

// Report returns what was not over: threads, and streams, those first that waited longest.
func (h *Hang) Report() (threads []WaitingThread, streams []HungStream) {
	for _, w := range h.threads {
		threads = append(threads, *w)
	}
	slices.SortFunc(threads, func(a, b WaitingThread) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
	})
	for _, s := range h.works {
		streams = append(streams, *s)
	}
	slices.SortFunc(streams, func(a, b HungStream) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Context, b.Context), cmp.Compare(a.Stream, b.Stream))
	})
	return threads, streams
}
