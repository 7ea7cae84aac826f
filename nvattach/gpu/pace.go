package gpu

import (
	"slices"
	"time"
)

// holdWindow is the time of which threads may be held for a part (Options.Hold).
const holdWindow = 200 * time.Millisecond

// A pace says when threads of a program may be held for what can wait: for hold of any holdWindow. What is
// done in a hold comes in pieces, none of which begins unless as much is left as such a piece takes. Of a
// piece that takes longer than hold, the rest of the time is waited for afterwards.
type pace struct {
	hold  time.Duration
	held  []heldTime // by time, of the last holdWindow
	since time.Time  // the beginning of a hold that is under way; zero: none
	done  int        // pieces in that
	piece time.Duration
}

// heldTime is a time in which a thread was held.
type heldTime struct{ begin, end time.Time }

// left is for how long a thread may be held that has been held since p.since, or is held from now on.
func (p *pace) left(now time.Time) time.Duration {
	left := p.hold
	for _, h := range p.held {
		left -= max(h.end.Sub(latest(h.begin, now.Add(-holdWindow))), 0)
	}
	if !p.since.IsZero() {
		left -= min(now.Sub(p.since), holdWindow)
	}
	return left
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// may reports whether there is time for a piece of work. In a hold that was begun there is, for the first one.
func (p *pace) may(now time.Time) bool {
	return !p.since.IsZero() && p.done == 0 || p.left(now) >= max(min(p.piece, p.hold), 1)
}

// begin begins a hold, end ends it.
func (p *pace) begin(now time.Time) { p.since, p.done = now, 0 }

func (p *pace) end(now time.Time) {
	if p.since.IsZero() {
		return
	}
	p.held = append(slices.DeleteFunc(p.held, func(h heldTime) bool { return now.Sub(h.end) > holdWindow }), heldTime{p.since, now})
	p.since = time.Time{}
}

// took learns how long a piece of work takes: as long as the longest of the last ones.
func (p *pace) took(d time.Duration) { p.piece, p.done = max(d, p.piece*3/4), p.done+1 }
