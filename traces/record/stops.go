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
// thread dealt with it, for those who want to know where time goes. It is nil where nobody does.
type stopCounts struct {
	of   map[string]*stopCount
	last string        // the reason of the stop at hand, "" if it has none yet
	why  string        // what an extension says of the call at hand
	all  time.Duration // spent in all stops

	began int64         // when counting did, CLOCK_MONOTONIC
	width time.Duration // of a window
}

// stopCount is what is known of the stops of one reason.
type stopCount struct {
	n       int
	held    time.Duration
	longest time.Duration
	recent  [windows]uint32 // by when they were
}

// Stops are counted in windows of time. When the last has come to its end, each two become one, so that the windows
// always reach back to the beginning, and half of them are in use at least.
const (
	windows     = 64
	firstWindow = 100 * time.Millisecond
	maxReasons  = 4096 // kept apart; the rest is "other"
)

// A Stop is a reason for which a program was stopped in the latter part of its run.
type Stop struct {
	Why string
	N   uint64
}

// Stops are those of the latter part of a run, in which a program does what it is there for: after a second, and
// at least half of the run.
type Stops struct {
	Over    time.Duration // the length of that part
	Reasons []Stop        // most first
}

func newStopCounts(o *Options) *stopCounts {
	if o.CountStops || o.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return &stopCounts{of: make(map[string]*stopCount), began: ptrace.Now(), width: firstWindow}
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
func (s *stopCounts) held(d time.Duration, why string) {
	if why != "" {
		s.explain(why)
	}
	what := s.last
	if what == "" {
		what = "other"
		s.add(what)
	}
	at, c := s.window(ptrace.Now()), s.of[what]
	c.held += d
	c.longest = max(c.longest, d)
	c.recent[at]++
	s.last = ""
	s.all += d
}

// window returns the number of the window that a time is in.
func (s *stopCounts) window(now int64) int {
	at := time.Duration(now - s.began)
	for at >= windows*s.width {
		for _, c := range s.of {
			for i := range windows / 2 {
				c.recent[i] = c.recent[2*i] + c.recent[2*i+1]
			}
			clear(c.recent[windows/2:])
		}
		s.width *= 2
	}
	return int(max(at, 0) / s.width)
}

// latter returns the stops of the latter part of the time until now.
func (s *stopCounts) latter(now int64) *Stops {
	if s == nil {
		return nil
	}
	end := s.window(now)
	first := max(int((max(time.Second, time.Duration(now-s.began)/2)+s.width-1)/s.width), 0)
	over := time.Duration(now-s.began) - time.Duration(first)*s.width
	if over <= 0 {
		return &Stops{}
	}
	list := &Stops{Over: over}
	for what, c := range s.of {
		n := uint64(0)
		for _, k := range c.recent[min(first, windows) : end+1] {
			n += uint64(k)
		}
		if n > 0 {
			list.Reasons = append(list.Reasons, Stop{what, n})
		}
	}
	slices.SortFunc(list.Reasons, func(a, b Stop) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Why, b.Why)) })
	return list
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
		s.of[s.last].n--
	}
	s.add(why)
}

func (s *stopCounts) add(what string) {
	if s == nil {
		return
	}
	c := s.of[what]
	if c == nil && len(s.of) >= maxReasons {
		what = "other"
		c = s.of[what]
	}
	if c == nil {
		c = new(stopCount)
		s.of[what] = c
	}
	c.n++
	s.last = what
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
