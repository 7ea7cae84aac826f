package traces

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestResultEvents: what nvtrace found out beside the program survives the file format.
func TestResultEvents(t *testing.T) {
	events := []*Event{
		{Kind: KindFault, PID: 7, TID: 7, Time: 1, FD: -1, Name: "_Z1kv", Text: "CUDA_ERROR_ILLEGAL_ADDRESS: \x1b[2J\n"},
		{Kind: KindProbe, Time: 2, FD: -1, Name: "_Z1kv", Probe: &Probe{Images: 2, Sites: 5, Launched: true, Reason: "no PTX", Unprobed: 3, UnprobedWhy: "registers", Launches: 1475, Machine: true}},
		{Kind: KindProbe, Time: 2, FD: -1, Name: "_Z1lv", Probe: &Probe{}},
		{Kind: KindMap, PID: 7, TID: 7, Time: 3, FD: -1, Name: "m", Text: "m (array)\n  [0] = 1\n", Data: `{"map": "m", "entries": [{"key": 0, "value": 1}]}`},
	}
	var file bytes.Buffer
	w, err := NewWriter(&file, &Header{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		w.Write(e)
	}
	w.Write(&Event{Kind: KindMap, FD: -1, Name: "large", Data: strings.Repeat("x", MaxText+1)})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	var got []*Event
	for e, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Clone())
	}
	if len(got) != len(events)+1 {
		t.Fatalf("%d events", len(got))
	}
	ignore := cmp.Options{cmpopts.IgnoreUnexported(Event{}), cmpopts.EquateEmpty()}
	if d := cmp.Diff(events, got[:len(events)], ignore); d != "" {
		t.Errorf("(-written +read)\n%s", d)
	}
	if large := got[len(events)]; large.Flags&FlagTruncated == 0 || len(large.Data) > MaxText {
		t.Errorf("%d bytes of a map, flags %v", len(large.Data), large.Flags)
	}
	if c := got[1].Clone(); c.Probe == got[1].Probe {
		t.Error("a clone shares what became of a kernel")
	}
}
