package agent

import (
	"bytes"
	"math"
	"os"
)

// rdtsc reads the processor's counter.
func rdtsc() uint64

// A counter knows how fast the processor's counter runs, after a while.
type counter struct {
	ticks  uint64 // when it was looked at first
	at     int64  // when that was, CLOCK_MONOTONIC
	margin int64  // that may be wrong by so much, ns
}

const (
	minTicks = 2e6    // for how long it must have been looked at, in ns
	exact    = 10_000 // what both looks may be wrong by is one part in so many of that, at most
)

// look reads both clocks. On a busy machine another thread may run for long between the two: of some tries
// it takes the best, and says how good that is.
func look() counter {
	best := counter{margin: math.MaxInt64}
	for range 16 {
		before := nanotime()
		ticks := rdtsc()
		if width := nanotime() - before; width < best.margin {
			best = counter{ticks, before, width}
		}
	}
	return best
}

// newCounter begins to look.
func newCounter() counter {
	if !steady() {
		return counter{}
	}
	return look()
}

// scale returns how many ns a tick has, << 32; 0: that is not known, or the counter is of no use.
func (c counter) scale() uint64 {
	if c.ticks == 0 {
		return 0
	}
	now := look()
	ticks, ns := now.ticks-c.ticks, now.at-c.at
	if ns < minTicks || max(c.margin, now.margin) > ns/(2*exact) || ticks>>62 != 0 || ticks < uint64(ns)/100 {
		return 0
	}
	return uint64(float64(ns) / float64(ticks) * (1 << 32))
}

// steady reports whether the counter runs always and everywhere alike, as the kernel sees it.
func steady() bool {
	source, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	switch string(bytes.TrimSpace(source)) {
	case "tsc":
		return err == nil
	case "kvm-clock": // which is made of it
	default:
		return false
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && bytes.Contains(info, []byte(" constant_tsc ")) && bytes.Contains(info, []byte(" nonstop_tsc "))
}
