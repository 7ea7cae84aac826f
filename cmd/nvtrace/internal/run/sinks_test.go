package run

import (
	"slices"
	"testing"

	"nvtrace/traces"
	"nvtrace/traces/record"
)

// heldSink notes the events that come, by their times.
type heldSink struct {
	times []int64
	idle  int
}

func (s *heldSink) Event(ev *traces.Event) { s.times = append(s.times, ev.Time) }

func (s *heldSink) Idle() { s.idle++ }

// TestGate: events that come before the outputs are open are not lost, nor late; those of
// a program that did not begin are nobody's.
func TestGate(t *testing.T) {
	var g gate
	ev := new(traces.Event)
	for i := range 3 {
		ev.Time = int64(i) // the same memory each time, as sinks get it
		g.Event(ev)
	}
	g.Idle()
	s := new(heldSink)
	g.open(record.Guard([]record.Sink{s}, nil, nil))
	if s.idle == 0 {
		t.Error("what came before was not put out")
	}
	ev.Time = 3
	g.Event(ev)
	if !slices.Equal(s.times, []int64{0, 1, 2, 3}) {
		t.Errorf("events %v", s.times)
	}
}
