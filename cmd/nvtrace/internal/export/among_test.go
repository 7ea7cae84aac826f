package export

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"nvtrace/ioctl"
)

// TestAmong: recordings of two hosts, with equal ids of processes, keep their tracks and arrows apart on one timeline, in
// its time.
func TestAmong(t *testing.T) {
	h, events := recording(t, "testdata/gpu.jsonl")
	alone := export(t, h, slices.Values(events)).file
	var b bytes.Buffer
	const shift = 1_000_000
	for i := range 2 {
		d := ioctl.NewDecoder(h)
		line := NewTimelineAmong(&b, h, d, &Among{
			Index: i, Name: fmt.Sprint("rank ", i), Begin: 7, At: func(ns int64) int64 { return ns + int64(i)*shift },
		})
		feed := following(d, line)
		for _, ev := range events {
			feed.Event(ev)
		}
		if err := line.Close(); err != nil {
			t.Fatal(err)
		}
	}
	file, err := parseTimeline(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Events) != 2*len(alone.Events) || len(file.Tracks) != 2*len(alone.Tracks) {
		t.Fatalf("%d events on %d tracks, alone %d on %d", len(file.Events), len(file.Tracks), len(alone.Events), len(alone.Tracks))
	}
	rank := func(track uint64) string {
		for file.Tracks[track].Parent != 0 {
			track = file.Tracks[track].Parent
		}
		name, _, _ := strings.Cut(file.Tracks[track].Name, ":")
		return name
	}
	for _, tr := range file.Tracks {
		if tr.PID != 0 || tr.TID != 0 {
			t.Errorf("%+v: ids of processes of two hosts", tr)
		}
	}
	of := map[string][]*traceEvent{}
	arrows := map[uint64]string{}
	for _, ev := range file.Events {
		r := rank(ev.Track)
		of[r] = append(of[r], ev)
		for _, flow := range slices.Concat(ev.From, ev.To) {
			if was, ok := arrows[flow]; ok && was != r {
				t.Errorf("an arrow from %s to %s", was, r)
			}
			arrows[flow] = r
		}
	}
	first, second := of["rank 0"], of["rank 1"]
	if len(first) != len(second) || len(first) != len(alone.Events) || len(arrows) == 0 {
		t.Fatalf("%d and %d events, %d arrows", len(first), len(second), len(arrows))
	}
	last := int64(0)
	for i := range first {
		if first[i].Name != second[i].Name && first[i].NS > 0 { // damaged times are the begin's, whatever the clock
			t.Errorf("event %d: %+v and %+v", i, first[i], second[i])
		}
		last = max(last, first[i].NS)
	}
	if got := second[len(second)-1].NS; got != last+shift {
		t.Errorf("the last event is at %d, want %d", got, last+shift)
	}
}
