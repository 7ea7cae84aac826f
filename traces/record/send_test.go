package record

import (
	"slices"
	"sync"
	"testing"

	"nvtrace/ptrace"
	"nvtrace/traces"
)

// list is a sink that keeps events.
type list struct{ events []traces.Event }

func (l *list) Event(ev *traces.Event) { l.events = append(l.events, *ev) }
func (l *list) Idle()                  {}

// TestSend: what other goroutines send, and what is sent at the end, is recorded in its
// order, before the recording's end, with times like those of other events.
func TestSend(t *testing.T) {
	const n = 100
	var sink list
	var sent sync.WaitGroup
	o := &Options{Sinks: []Sink{&sink}, Extend: func(r *Recorder) ([]Extension, error) {
		send := func(name string) {
			r.Send(&traces.Event{Kind: traces.KindNote, Time: ptrace.Now(), FD: -1, Text: name})
		}
		begin := func() {
			sent.Go(func() {
				for range n {
					send("sent")
				}
			})
		}
		return []Extension{{Begin: begin, Finish: func() {
			sent.Wait()
			send("last")
		}}}, nil
	}}
	o.Ptrace.Argv = []string{"/bin/true"}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	checkSent(t, sink.events, n)
}

// TestUntraced: a program that is not traced has a beginning, an end, its status, and what
// others send of it.
func TestUntraced(t *testing.T) {
	var sink list
	o := &Options{Sinks: []Sink{&sink}, Header: NewHeader(nil, 0, "")}
	o.Ptrace.Argv = []string{"sh", "-c", "exit 3"}
	u := NewUntraced(o)
	send := func(text string) {
		u.Send(&traces.Event{Kind: traces.KindNote, Time: ptrace.Now(), FD: -1, Text: text})
	}
	res, err := u.Run(func(int) error {
		send("sent")
		return nil
	}, func() { send("last") })
	if err != nil || !res.Ended || res.Status.ExitStatus() != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	checkSent(t, sink.events, 1)
	kinds := func(ev traces.Event) bool { return ev.Kind == traces.KindExit && ev.Ret == 3<<8 }
	if !slices.ContainsFunc(sink.events, kinds) {
		t.Errorf("no end with status 3: %+v", sink.events)
	}
	o.Ptrace.Argv = []string{"/does/not/exist"}
	if _, err := NewUntraced(o).Run(func(int) error { return nil }, func() {}); err == nil {
		t.Error("no error of a program that is not there")
	}
}

// checkSent wants n notes "sent", then one "last", then the recording's end.
func checkSent(t *testing.T, events []traces.Event, n int) {
	t.Helper()
	var texts []string
	for i := range events {
		ev := &events[i]
		if ev.Time < 0 || i > 0 && ev.Time > events[len(events)-1].Time {
			t.Errorf("event %d, %v, is at %d ns; the end at %d", i, ev.Kind, ev.Time, events[len(events)-1].Time)
		}
		if ev.Kind == traces.KindNote {
			texts = append(texts, ev.Text)
		}
	}
	want := append(slices.Repeat([]string{"sent"}, n), "last")
	if !slices.Equal(texts, want) || len(events) == 0 || events[len(events)-1].Kind != traces.KindEnd {
		t.Errorf("%q, %d events", texts, len(events))
	}
}
