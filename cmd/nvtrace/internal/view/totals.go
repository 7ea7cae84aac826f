package view

import (
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// Totals is what a run comes to: all that a summary is made of. It is an observe.Observer.
type Totals struct {
	Summary  *ioctl.Summary
	calls    *api.Summary
	book     *failureBook
	gathered gathered
	holds    *holdings
	place    ranks.Place    // which of several processes it is, as its launcher says
	live     bool           // the run has just ended
	changed  map[int32]bool // processes whose memory may have, since it was looked at
}

func newTotals(d *ioctl.Decoder, h *traces.Header, holds *holdings, live bool) *Totals {
	t := &Totals{Summary: ioctl.NewSummary(h), calls: api.NewSummary(), book: newFailureBook(d), holds: holds, place: ranks.Of(h.Rank), live: live, changed: make(map[int32]bool)}
	t.gathered.from = h.CallsFrom
	return t
}

// Observe implements observe.Observer.
func (s *Totals) Observe(e *observe.Event) {
	s.calls.Add(e.Event, e.Tracker, e.Frame)
	s.Summary.Add(e.Event, e.Call)
	s.book.Observe(e)
	s.gathered.Observe(e)
	s.context(e)
}

// context tells how much memory the driver has, when a process has come out of calls in which that may have changed.
func (s *Totals) context(e *observe.Event) {
	f := e.Frame
	if e.Kind == traces.KindIoctl || f != nil && len(f.Memory()) > 0 {
		s.changed[e.PID] = true
	}
	if e.Kind == traces.KindReturn && f != nil && f.Parent == nil && s.changed[e.PID] && !e.Tracker.Allocating(e.PID) {
		delete(s.changed, e.PID)
		now, _ := s.memory(e.PID)
		s.gathered.memory.Context(e.PID, now)
	}
}

// ObserveOwn implements observe.OwnObserver.
func (s *Totals) ObserveOwn(e *observe.Event) { s.Summary.Add(e.Event, e.Call) }

// Finish implements observe.Finisher.
func (s *Totals) Finish(e *observe.Event) { s.calls.Add(e.Event, e.Tracker, e.Frame) }

// api returns what was counted of library calls, nil where there were none.
func (s *Totals) api() *api.Report {
	if s == nil || s.calls == nil {
		return nil
	}
	return reportOf(s.calls)
}

// reportOf returns what was counted of library calls, nil where there were none.
func reportOf(calls *api.Summary) *api.Report {
	if r := calls.Report(); r.Calls > 0 {
		return r
	}
	return nil
}

// held says which library calls there are.
func (s *Totals) held() heldCalls { return s.holds.held(s.api()) }

// memory returns the GPU memory of a process, of all for 0: what lives, and the most that
// did.
func (s *Totals) memory(pid int32) (now, peak uint64) {
	if s == nil {
		return 0, 0
	}
	l := s.book.l
	for id := range l.Pids {
		if pid != 0 && id != pid {
			continue
		}
		for _, t := range l.Tree.Totals(id) {
			if t.Kind == rm.Memory && t.Aperture == rm.ApertureVidmem {
				now, peak = now+t.Bytes, peak+t.PeakBytes
			}
		}
	}
	return now, peak
}
