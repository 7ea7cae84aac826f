package mapmem

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// A Clock says how a GPU's %globaltimer relates to CLOCK_MONOTONIC, both in nanoseconds:
//
//	monotonic = timer + Offset + (timer-Since)*Drift/2^64
//
// The zero value says that they are the same.
type Clock struct {
	Offset int64
	Since  uint64 // when Offset was measured, by %globaltimer
	Drift  int64
	Margin uint64 // Offset may be off by so much either way
	Slip   uint64 // and Drift
}

// MarginAt returns by how much Monotonic may be off, either way, for a time of %globaltimer.
func (c *Clock) MarginAt(timer uint64) int64 {
	since := timer - c.Since
	if int64(since) < 0 {
		since = -since
	}
	slip, _ := bits.Mul64(since, c.Slip)
	return int64(min(c.Margin+slip, math.MaxInt64))
}

// Monotonic returns what CLOCK_MONOTONIC said when %globaltimer was timer.
func (c *Clock) Monotonic(timer uint64) int64 {
	since := timer - c.Since
	high, _ := bits.Mul64(since, uint64(c.Drift)) // of numbers without a sign
	if int64(since) < 0 {
		high -= uint64(c.Drift)
	}
	if c.Drift < 0 {
		high -= since
	}
	return int64(timer) + c.Offset + int64(high)
}

// bytes is the clock as the maps' memory has it, at clockOff.
func (c *Clock) bytes() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(c.Offset))
	b = binary.LittleEndian.AppendUint64(b, c.Since)
	return binary.LittleEndian.AppendUint64(b, uint64(c.Drift))
}

// SetClock has bpf_ktime_get_ns in kernels return the time of CLOCK_MONOTONIC, as on the host.
// Kernels may run: what one of them reads at that moment may be wrong by what the clock was.
func (m *Maps) SetClock(mem Memory, c Clock) error { return mem.WriteMem(m.Base+ClockOff, c.bytes()) }
