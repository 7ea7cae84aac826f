package session

import (
	"fmt"
	"time"
)

// Live reports whether a look at a passive context can show anything before its
// end: it has rings, launches are timed, programs print, or maps are shown at intervals.
func (c *Context) Live() bool {
	return len(c.readers) > 0 || c.stamps != nil || c.s.opts.Interval > 0 || len(c.s.opts.Plan.Formats()) > 0
}

// LookEvery is how often a passive context wants to be looked at while its
// program runs.
func (c *Context) LookEvery() time.Duration {
	every := 5 * drainEvery
	if len(c.readers) == 0 && len(c.s.opts.Plan.Formats()) == 0 {
		if c.stamps == nil {
			return c.s.opts.Interval
		}
		c.mu.Lock()
		every = c.stamps.often
		c.mu.Unlock()
	}
	if c.s.opts.Interval > 0 {
		every = min(every, c.s.opts.Interval)
	}
	return every
}

// stampsEvery is how often times of launches alone are read, unless there are many: nobody waits for
// them.
const stampsEvery = time.Second / 2

// Look shows what came in the rings of a passive context, and its maps if it is
// time for that. Its memory must be reachable; kernels may run.
func (c *Context) Look(now time.Time) {
	c.drain(false)
	c.mu.Lock()
	due := !c.ended && c.s.opts.Interval > 0 && now.Sub(c.shown) >= c.s.opts.Interval
	if due {
		c.shown = now
	}
	c.mu.Unlock()
	if !due {
		return
	}
	tables, err := c.read()
	c.s.out.moment(now)
	c.s.out.tables(c, several(c.s.all()), tables, err)
	c.s.out.scripted(tables, false)
}

// Keep reads a passive context's maps and what is in its rings: it may be the
// last chance. idle says that no kernel runs. What could not be read stays as it
// was kept before.
func (c *Context) Keep(idle bool) error {
	c.drain(idle)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	return c.keep()
}

// Abandon ends a passive context whose memory is gone, with what was kept. why, if
// not nil, says why that may not be what the maps held at the end; then that is shown,
// and how long before it was.
func (c *Context) Abandon(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	switch {
	case !c.kept:
		c.s.out.fault(fmt.Errorf("the maps of process %d, device %d, are lost: %w", c.PID, c.Device, why))
	case why != nil:
		c.s.out.fault(fmt.Errorf("the maps of process %d, device %d, are those of %s before its end: %w",
			c.PID, c.Device, age(time.Since(c.keptAt)), why))
	}
	c.finish()
}

// age writes how long ago something was, in three digits at most.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 10*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f minutes", d.Minutes())
}
