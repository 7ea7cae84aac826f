package run

import (
	"fmt"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/traces/record"
)

// mostStopReasons bounds the lines on why a program was stopped.
const mostStopReasons = 12

// stopLines says how often a program was stopped in the latter part of its run, and why.
func stopLines(s *record.Stops) (lines []string) {
	if s.Over <= 0 {
		return []string{"stops: the run was too short to say how many there are once it has begun (a second)"}
	}
	rate := func(n uint64) string { return fmt.Sprintf("%.3g a second", float64(n)/s.Over.Seconds()) }
	all := uint64(0)
	for _, r := range s.Reasons {
		all += r.N
	}
	lines = append(lines, fmt.Sprintf("stops of the program in its last %s: %d, %s", s.Over.Round(10*time.Millisecond), all, rate(all)))
	for i, r := range s.Reasons {
		if i == mostStopReasons {
			lines = append(lines, fmt.Sprintf("  … and for %s", cli.Counted(uint64(len(s.Reasons)-i), "other reason")))
			break
		}
		lines = append(lines, fmt.Sprintf("  %d, %s: %s", r.N, rate(r.N), r.Why))
	}
	return lines
}
