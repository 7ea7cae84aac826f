package observe

import (
	"slices"
	"testing"

	"nvtrace/ioctl"
	"nvtrace/traces"
)

// seen is an observer that writes down what it gets.
type seen struct {
	name string
	list *[]string
}

func (s *seen) Observe(e *Event) {
	text := s.name + " " + e.Kind.String()
	if e.Frame != nil {
		text += " " + e.Frame.Name
	}
	if e.Call.Returned.Known {
		text += " " + e.Call.Returned.Name
	}
	if e.Unwanted {
		text += " unwanted"
	}
	*s.list = append(*s.list, text)
}

func (s *seen) Finish(e *Event) {
	for _, f := range e.Tracker.Ended() {
		*s.list = append(*s.list, s.name+" ends "+f.Name)
	}
}

// TestFeed: observers get each event in the order in which they were registered, with the library
// call that it is in, how calls ended, and whether the filter selects it; calls that are open at the
// end are ended for those who ask.
func TestFeed(t *testing.T) {
	var got []string
	filter, err := ioctl.ParseFilter("api=cuInit")
	if err != nil {
		t.Fatal(err)
	}
	feed := NewFeed(ioctl.NewDecoder(nil), &seen{"a", &got}, Func(func(e *Event) { got = append(got, "b "+e.Kind.String()) }))
	feed.Filter = filter
	tracker := feed.Follow()
	if feed.Follow() != tracker {
		t.Error("a second tracker")
	}
	event := func(kind traces.Kind, name string, ret int64) {
		feed.Event(&traces.Event{Kind: kind, PID: 1, TID: 1, FD: -1, Name: name, Path: "/usr/lib/libcuda.so.1", Ret: ret})
	}
	event(traces.KindCall, "cuInit", 0)
	event(traces.KindNote, "", 0)
	event(traces.KindReturn, "cuInit", 999)
	event(traces.KindCall, "cuCtxSynchronize", 0)
	feed.Finish()
	want := []string{
		"a call cuInit", "b call", "a note cuInit", "b note", "a return cuInit CUDA_ERROR_UNKNOWN", "b return",
		"a call cuCtxSynchronize unwanted", "b call", "a ends cuCtxSynchronize",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestUndecoded: without anybody who asks what events mean, no decoder is needed, and results of
// calls are still known.
func TestUndecoded(t *testing.T) {
	var got []string
	feed := NewFeed(nil, &seen{"a", &got})
	feed.Undecoded = true
	feed.Follow()
	feed.Event(&traces.Event{Kind: traces.KindIoctl, PID: 1, TID: 1, FD: 3, Dev: "nvidiactl"})
	feed.Event(&traces.Event{Kind: traces.KindCall, PID: 1, TID: 1, FD: -1, Name: "cuInit", Path: "/usr/lib/libcuda.so.1"})
	feed.Event(&traces.Event{Kind: traces.KindReturn, PID: 1, TID: 1, FD: -1, Name: "cuInit", Path: "/usr/lib/libcuda.so.1"})
	feed.Event(&traces.Event{Kind: traces.KindIoctl, PID: 1, TID: 1, FD: 3, Dev: "nvidiactl"})
	if want := []string{"a ioctl", "a call cuInit", "a return cuInit CUDA_SUCCESS", "a ioctl"}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
