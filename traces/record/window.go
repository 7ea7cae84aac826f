package record

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// window says when library calls are recorded. Its methods may be called by any goroutine.
type window struct {
	delay, duration int64

	mu      sync.Mutex               // of writing changes
	changes atomic.Pointer[[]change] // by time; nil: calls are recorded
	waits   atomic.Bool              // for begin
}

// A change has calls recorded that begin from a time on, or not.
type change struct {
	at int64
	on bool
}

// maxChanges bounds the changes that are kept. Of older ones no call can come any more.
const maxChanges = 64

func (w *window) init(delay, duration time.Duration, waits bool) {
	w.delay, w.duration = int64(delay), int64(duration)
	w.waits.Store(waits)
	switch {
	case waits:
		w.changes.Store(&[]change{{math.MinInt64, false}})
	case delay > 0 || duration > 0:
		w.span(nil, 0)
	}
}

// span stores the changes before, and what delay and duration come to from a time on.
func (w *window) span(before []change, from int64) {
	list := append(before, change{math.MinInt64, false})
	if n := len(before); n > 0 {
		list = before
	}
	if list = append(list, change{from + w.delay, true}); w.duration > 0 {
		list = append(list, change{from + w.delay + w.duration, false})
	}
	w.changes.Store(&list)
}

// begin begins delay and duration, once, where the window waits for that.
func (w *window) begin(at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits.CompareAndSwap(true, false) {
		w.span(slices.Clone(*w.changes.Load()), at)
	}
}

// turn has calls recorded from a time on, or not, whatever was meant to be from then on.
func (w *window) turn(at int64, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits.Store(false)
	var list []change
	if old := w.changes.Load(); old != nil {
		for _, c := range *old {
			if c.at < at {
				list = append(list, c)
			}
		}
	} else {
		list = append(list, change{math.MinInt64, true})
	}
	if list = append(list, change{at, on}); len(list) > maxChanges {
		list = list[len(list)-maxChanges:]
		list[0].at = math.MinInt64
	}
	w.changes.Store(&list)
}

// wanted reports whether a library call that began at a time is recorded.
func (w *window) wanted(began int64) bool {
	list := w.changes.Load()
	if list == nil {
		return true
	}
	for _, c := range slices.Backward(*list) {
		if began >= c.at {
			return c.on
		}
	}
	return true // not reached: the first is of all time
}
