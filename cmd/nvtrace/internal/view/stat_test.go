package view

import (
	"math"
	"strings"
	"testing"
)

// TestOverRuns: means, standard errors, counters that one run lacks, and those that were not recorded.
func TestOverRuns(t *testing.T) {
	n := func(v uint64) *uint64 { return &v }
	r := OverRuns([]*Stat{
		{Command: "app", Seconds: 1, Counters: []StatCounter{{Name: "a", Value: n(10)}, {Name: "x"}}},
		{Command: "app", Seconds: 3, Counters: []StatCounter{{Name: "a", Value: n(14)}, {Name: "x"}, {Name: "graph launches", Value: n(2)}}},
	}, 3)
	a := r.Counters[0].Value
	if r.Runs != 2 || r.Asked != 3 || r.Seconds.Mean != 2 || a.Mean != 12 || math.Abs(a.Error-2) > 1e-9 || a.Least != 10 || a.Most != 14 {
		t.Errorf("%+v %+v", r, a)
	}
	if r.Counters[1].Value != nil || r.Counters[2].Value.Mean != 1 || r.Nothing() {
		t.Errorf("%+v", r.Counters)
	}
	var b strings.Builder
	if err := r.CSV(&b); err != nil || !strings.Contains(b.String(), "a,12,2,10,14\nx,not recorded,,,\n") || !strings.Contains(b.String(), "\nruns,2,,,\n") {
		t.Error(err, b.String())
	}
}

// TestStatSince: what an interval had is the difference, where a counter counts.
func TestStatSince(t *testing.T) {
	n := func(v uint64) *uint64 { return &v }
	busy := func(v int64) *int64 { return &v }
	before := &Stat{Counters: []StatCounter{{Name: "a", Value: n(10), Busy: busy(4)}, {Name: "bytes of GPU memory", Value: n(100)}}}
	now := &Stat{Seconds: 2, Counters: []StatCounter{{Name: "a", Value: n(15), Busy: busy(9)}, {Name: "bytes of GPU memory", Value: n(120)}, {Name: "new", Value: n(3)}, {Name: "x"}}}
	got := now.Since(before)
	if *got.Counters[0].Value != 5 || *got.Counters[0].Busy != 5 || *got.Counters[1].Value != 120 || *got.Counters[2].Value != 3 || got.Counters[3].Value != nil {
		t.Errorf("%+v", got)
	}
	if *now.Counters[0].Value != 15 {
		t.Error("the later one was changed")
	}
}
