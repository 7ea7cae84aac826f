package record

import (
	"strconv"
	"testing"
	"time"

	"nvtrace/ptrace"
)

// TestLatterStops: stops of a run's beginning are not among those of its latter part, however long it is.
func TestLatterStops(t *testing.T) {
	for _, seconds := range []int{3, 50, 10_000} {
		now := ptrace.Now()
		s := &stopCounts{of: make(map[string]*stopCount), began: now - int64(seconds)*int64(time.Second), width: firstWindow}
		at := func(second float64, what string, n uint32) {
			s.add(what)
			w := s.window(s.began + int64(second*float64(time.Second)))
			s.of[what].recent[w] += n
		}
		end := float64(seconds)
		at(0.5, "early", 7)
		at(end/3, "early", 7)
		at(end*0.9, "late", 5)
		at(end*0.95, "late", 6)
		got := s.latter(now)
		if len(got.Reasons) != 1 || got.Reasons[0] != (Stop{"late", 11}) {
			t.Errorf("%d s: %+v", seconds, got)
		}
		if half := time.Duration(seconds) * time.Second / 2; got.Over > half || got.Over < half*9/10 {
			t.Errorf("%d s: over %v", seconds, got.Over)
		}
	}
}

// TestStopReasons: no more of them are kept apart than there is room for.
func TestStopReasons(t *testing.T) {
	s := &stopCounts{of: make(map[string]*stopCount), began: ptrace.Now(), width: firstWindow}
	for i := range 2 * maxReasons {
		s.held(1, strconv.Itoa(i))
	}
	n := 0
	for _, c := range s.of {
		n += c.n
	}
	if len(s.of) > maxReasons+1 || n != 2*maxReasons || s.of["other"].n < maxReasons-1 {
		t.Errorf("%d reasons, %d stops, %d others", len(s.of), n, s.of["other"].n)
	}
}
