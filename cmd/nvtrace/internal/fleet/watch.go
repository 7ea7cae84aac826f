package fleet

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A Change is a finding that is new while a job runs, or over.
type Change struct {
	Time    string  `json:"time"`  // the time of day at which it was told
	State   string  `json:"state"` // new, over
	Finding Finding `json:"finding"`
}

// States of changes.
const (
	Begun = "new"
	Over  = "over"
)

// A Watch tells what changes from one report of a job that runs to the next.
type Watch struct {
	known map[string]Finding
	found bool
}

// Found reports whether something was wrong at any time.
func (w *Watch) Found() bool { return w.found }

// Next returns what has changed since the report before: first what is over. What ranks differ in is not told: they come to it one after
// the other.
func (w *Watch) Next(r *Report, now time.Time) (changes []Change) {
	at := wallText(now.UnixNano())
	known := make(map[string]Finding)
	var begun []Change
	for _, x := range r.Findings {
		if x.Kind == Differs {
			continue
		}
		key := fmt.Sprint(x.Kind, x.Cause, x.Files)
		if _, ok := w.known[key]; !ok {
			begun = append(begun, Change{at, Begun, x})
		}
		known[key] = x
	}
	for _, key := range slices.Sorted(maps.Keys(w.known)) {
		x := w.known[key]
		if _, ok := known[key]; !ok && x.Kind != Paused {
			changes = append(changes, Change{at, Over, x})
		}
	}
	w.known, w.found = known, w.found || r.Found()
	return append(changes, begun...)
}

// Ended reports whether all ranks of the job have whole recordings.
func (r *Report) Ended() bool {
	return len(r.Ranks) > 0 && len(r.Missing) == 0 && !slices.ContainsFunc(r.Ranks, func(k Rank) bool { return !k.Complete })
}

// At has the next reports take the job to be running at a time of day, up to which the recordings have been read.
func (f *Fleet) At(now time.Time) { f.now = now.UnixNano() }
