package agent

import (
	"bytes"
	"os"
)

// rdtsc reads the processor's counter.
func rdtsc() uint64

// A counter knows how fast the processor's counter runs, after a while.
type counter struct {
	ticks uint64 // when it was looked at first
	at    int64  // when that was, CLOCK_MONOTONIC
}

// minTicks is for how long it must have been looked at, in ns: what two looks at both clocks
// are wrong by is nothing beside that.
const minTicks = 2e6

// newCounter begins to look.
func newCounter() counter {
	if !steady() {
		return counter{}
	}
	return counter{rdtsc(), nanotime()}
}

// scale returns how many ns a tick has, << 32; 0: that is not known, or the counter is of no use.
func (c counter) scale() uint64 {
	if c.ticks == 0 {
		return 0
	}
	ticks, ns := rdtsc()-c.ticks, nanotime()-c.at
	if ns < minTicks || ticks>>62 != 0 || ticks < uint64(ns)/100 {
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
