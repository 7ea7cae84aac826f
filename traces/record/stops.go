package record

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
)

// stopCounts counts what the program was stopped for, and for how long the tracing
// thread dealt with it, for those who want to know where time goes. It is nil unless
// debug messages are wanted.
type stopCounts struct {
	of   map[string]stopCount
	last string        // the reason of the stop at hand, "" if it has none yet
	why  string        // what an extension says of the call at hand
	all  time.Duration // spent in all stops
}

// stopCount is what is known of the stops of one reason.
type stopCount struct {
	n       int
	held    time.Duration
	longest time.Duration
}

func newStopCounts(l *slog.Logger) *stopCounts {
	if l.Enabled(context.Background(), slog.LevelDebug) {
		return &stopCounts{of: make(map[string]stopCount)}
	}
	return nil
}

// Explains reports whether stops are counted by reason.
func (r *Recorder) Explains() bool { return r.stops != nil }

// Explain says why the call at hand stopped, for the counts.
func (r *Recorder) Explain(why string) {
	if r.stops != nil {
		r.stops.why = why
	}
}

// held notes that a stop was dealt with. It is a ptrace.Options.Held.
func (s *stopCounts) held(d time.Duration) {
	what := s.last
	if what == "" {
		what = "other"
		s.add(what)
	}
	c := s.of[what]
	c.held += d
	c.longest = max(c.longest, d)
	s.of[what], s.last = c, ""
	s.all += d
}

// entry counts the entry of a call: by its name, where it comes from and what an extension
// says of it.
func (s *stopCounts) entry(a *agent.Agent, c *ptrace.Syscall) {
	if s == nil {
		return
	}
	why := s.why
	s.why = ""
	if c.Class == agent.Class {
		return // the agent explains it
	}
	from := "program"
	if a.Owns(c.IP) {
		from = "agent"
	}
	s.add(fmt.Sprintf("entry %s, from the %s: %s", c.Name(), from, cmp.Or(why, "nothing to record")))
}

// exit counts the exit of a call.
func (s *stopCounts) exit(c *ptrace.Syscall) {
	if s != nil {
		s.add("exit " + c.Name())
	}
}

// explain counts a stop that somebody knows more of than it is counted as so far.
func (s *stopCounts) explain(why string) {
	if s.last != "" {
		c := s.of[s.last]
		c.n--
		s.of[s.last] = c
	}
	s.add(why)
}

func (s *stopCounts) add(what string) {
	if s == nil {
		return
	}
	c := s.of[what]
	c.n++
	s.of[what], s.last = c, what
}

// log prints the counts.
func (s *stopCounts) log(l *slog.Logger, res *ptrace.Result) {
	if s == nil {
		return
	}
	l.Debug("stops", "all", res.Stops, "entries", res.Calls, "exits", res.Exits, "signals", res.Signals,
		"breakpoints", res.Hits, "tasks", res.Tasks, "filters", res.Injected, "held", s.all)
	for _, what := range slices.SortedFunc(maps.Keys(s.of), func(a, b string) int {
		return cmp.Or(s.of[b].n-s.of[a].n, cmp.Compare(a, b))
	}) {
		l.Debug("stops", "n", s.of[what].n, "held", s.of[what].held, "longest", s.of[what].longest, "what", what)
	}
}
