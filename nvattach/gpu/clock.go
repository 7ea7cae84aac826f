package gpu

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/mapmem"
)

// clockPTX is clock.ptx.
//
//go:embed clock.ptx
var clockPTX string

// Words of the line.
const (
	clockAsked    = 0
	clockTimer    = 64
	clockAnswered = 72
)

// How the clocks are compared: the answer that came soonest counts, of clockRounds; a kernel
// gives up after clockLimit or, when nothing is known yet, more, and so do we.
const (
	clockRounds = 32
	clockLimit  = 5 * time.Millisecond
	clockMost   = 320 * time.Millisecond // the first time
)

// driftAfter is how old what the drift is measured from may become: the host's clock is
// corrected from time to time, and goes at another speed then.
const driftAfter = 30 * time.Second

// pause is how long after a comparison the next is due: soon at first, since the drift is not
// known yet.
func (k *clocks) pause() time.Duration {
	return min(20*time.Millisecond<<(2*min(k.tries, 8)), 5*time.Second)
}

// clockDue returns how long it is until the context's clock is to be compared again; false: it is
// not compared.
func (tr *Tracer) clockDue(c *context) (time.Duration, bool) {
	if tr.clock == nil || c.shared == 0 || c.ended || !tr.o.Session.Clocks() {
		return 0, false
	}
	c.clocksMu.Lock()
	defer c.clocksMu.Unlock()
	return time.Until(c.clocks.due), !c.clocks.failed
}

// compareClocks finds out what the GPU's clock says; the context is current. What keeps it
// from that is told.
func (v *visit) compareClocks(c *context) {
	tr := v.p.tr
	if wait, ok := tr.clockDue(c); !ok || wait > 0 {
		return
	}
	c.clocksMu.Lock()
	defer c.clocksMu.Unlock()
	k := &c.clocks
	m, err := v.moment(c, clockLimit)
	for limit := clockLimit; k.past.timer == 0 && errors.Is(err, errNoAnswer) && limit < clockMost; {
		limit *= 4
		m, err = v.moment(c, limit)
	}
	k.due = time.Now().Add(k.pause())
	k.tries++
	switch {
	case errors.Is(err, errNoAnswer) && k.past.timer != 0:
		return // its kernels take all of the GPU; the next time, perhaps
	case err != nil:
		k.failed = !errors.Is(err, errNoAnswer)
		tr.report("process %d, device %d: the time in kernels is not the host's: %v", v.p.pid, c.device, err)
		return
	}
	tr.log.Debug("clocks compared", "pid", v.p.pid, "timer", m.timer, "host", m.host, "margin", m.margin)
	if !k.learn(m) {
		return
	}
	if c.mem.v == nil {
		c.mem.open(v)
		defer func() { _ = c.mem.close() }()
	}
	if err := c.session.SetClock(k.known); err != nil {
		tr.log.Debug("the clock is not set", "err", err)
	}
}

// learn takes what a comparison has found, and reports whether more is known by it than before. On a busy
// machine an answer may take a hundred milliseconds: an older one that came at once says more then.
func (k *clocks) learn(m clockMoment) (more bool) {
	if k.known.Margin != 0 {
		margin := k.known.MarginAt(m.timer)
		off := int64(m.host) - k.known.Monotonic(m.timer)
		switch {
		case max(off, -off) > margin+int64(m.margin): // a clock was set
			k.past = clockMoment{}
		case int64(m.margin) >= margin:
			return false
		}
	}
	k.known = mapmem.Clock{Offset: int64(m.host - m.timer), Since: m.timer, Margin: m.margin, Slip: parts64(worstDrift)}
	if k.past.timer == 0 {
		k.past = m
		return true
	}
	// What can't be measured better than it is known beforehand is left as it is.
	if slip := float64(k.past.margin+m.margin) / float64(m.timer-k.past.timer); slip < worstDrift {
		k.known.Drift, k.known.Slip = drift(k.past, m), parts64(slip)
	} else if m.margin < k.past.margin {
		k.past = m
	}
	if m.host-k.past.host > uint64(driftAfter) {
		k.past = m
	}
	return true
}

// lookAtClock is compareClocks for a context that need not be current, nor active.
func (v *visit) lookAtClock(c *context) error {
	return v.ifActive(c, func() { v.compareClocks(c) })
}

// worstDrift is by how much the clocks of a GPU and a host go at different speeds at most, as far as
// nothing better is known: their crystals are a tenth as bad.
const worstDrift = 1e-4

// parts64 is a part of 1 in parts of 2^64.
func parts64(part float64) uint64 { return uint64(part * (1 << 63) * 2) }

// drift is how much slower than the host's clock the GPU's goes, in parts of 2^64.
func drift(a, b clockMoment) int64 {
	timer, host := float64(b.timer-a.timer), float64(b.host-a.host)
	const most = 1e-3 // no crystal is that bad: a clock was set
	if d := (host - timer) / timer; timer > 0 && d > -most && d < most {
		return int64(d * (1 << 63) * 2)
	}
	return 0
}

// errNoAnswer: the kernel did not begin in time.
var errNoAnswer = errors.New("the GPU did not answer in time")

// moment asks a kernel for the time, for so long.
func (v *visit) moment(c *context, limit time.Duration) (best clockMoment, err error) {
	l := v.p.tr.clock
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.clocks.kernel == 0 {
		if err := v.loadClock(c); err != nil {
			return best, err
		}
	}
	first := l.next + 1
	l.next += clockRounds
	at := v.stage()
	var b []byte
	params := []uint64{l.Addr(), first, l.next, uint64(limit)}
	for i := range params {
		b = binary.LittleEndian.AppendUint64(b, at+uint64(8*len(params)+8*i))
	}
	for _, p := range params {
		b = binary.LittleEndian.AppendUint64(b, p)
	}
	// With CUDA_LAUNCH_BLOCKING the launch returns when the kernel has ended, so it is asked meanwhile.
	launched := make(chan error, 1)
	go func() {
		launched <- v.exchange(b, at, []step{call("cuLaunchKernel", c.clocks.kernel, 1, 1, 1, 1, 1, 1, 0, c.mem.stream, at, 0)}, 0, nil)
	}()
	return l.ask(first, limit, launched)
}

// ask asks a kernel that waits for numbers from first to next, and whose launch returns an error on launched:
// from then on for no longer than limit.
func (l *clockLine) ask(first uint64, limit time.Duration, launched <-chan error) (best clockMoment, err error) {
	until := ^uint64(0)
	look := func() (over bool) { // whether there is no answer to be expected any more
		select {
		case err = <-launched:
			launched, until = nil, monotonic()+uint64(limit)
		default:
		}
		return err != nil || monotonic() > until
	}
	for i := first; i <= l.next && !look(); i++ {
		asked := monotonic()
		l.Store(clockAsked, i)
		for l.Load(clockAnswered) != i && !look() {
		}
		if l.Load(clockAnswered) != i {
			break
		}
		got := monotonic()
		if margin := (got-asked)/2 + 1; best.timer == 0 || margin < best.margin {
			best = clockMoment{timer: l.Load(clockTimer), host: asked + margin, margin: margin}
		}
	}
	// A kernel that begins later finds all that it waits for, and ends at once.
	l.Store(clockAsked, l.next)
	if launched != nil {
		err = <-launched
	}
	if err == nil && best.timer == 0 {
		err = errNoAnswer
	}
	return best, err
}

// monotonic is the host's clock.
func monotonic() uint64 { return hostClock(unix.CLOCK_MONOTONIC) }

// hostClock is one of the host's clocks, in nanoseconds.
func hostClock(id int32) uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // there are both
	return uint64(t.Nano())
}

// loadClock loads the kernel that says what time it is.
func (v *visit) loadClock(c *context) error {
	list, err := v.loadKernels(c, clockPTX, "nvtrace_clock")
	if err != nil {
		return fmt.Errorf("the kernel that says it: %w", err)
	}
	c.clocks.kernel = list[0]
	return nil
}
