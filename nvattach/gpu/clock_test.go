package gpu

import (
	"testing"
	"time"
)

// TestLearn: comparisons of the clocks add to what is known, whatever their order and however long they took,
// and what is known is never off by more than it says.
func TestLearn(t *testing.T) {
	const (
		s     = uint64(time.Second)
		ahead = uint64(7 * time.Hour) // the GPU's clock
		speed = 1 + 2e-5              // by the host's
	)
	timer := func(host uint64) uint64 { return ahead + uint64(float64(host)*speed) }
	for _, x := range []struct {
		name  string
		at    []uint64 // host's clock
		wrong []int64  // by how much a comparison misses it
		takes []uint64 // its margin
		more  []bool
		limit int64 // the margin behind the last one
	}{
		{"a slow answer", []uint64{s, 2 * s}, []int64{0, 9e7}, []uint64{300, 1e8}, []bool{true, false}, 1.1e5},
		{"slow answers first", []uint64{s, 2 * s, 3 * s}, []int64{-5e7, 9e7, 200}, []uint64{6e7, 1e8, 300}, []bool{true, false, true}, 500},
		{"a better drift", []uint64{s, 2 * s, 12 * s}, []int64{-5e7, 200, -100}, []uint64{6e7, 300, 300}, []bool{true, true, true}, 400},
		{"long ago", []uint64{s, 2 * s, 20 * s}, []int64{100, -100, 4000}, []uint64{300, 300, 9000}, []bool{true, true, true}, 9_001},
	} {
		var k clocks
		for i, host := range x.at {
			m := clockMoment{timer: timer(host), host: uint64(int64(host) + x.wrong[i]), margin: x.takes[i]}
			if more := k.learn(m); more != x.more[i] {
				t.Errorf("%s, %d: learnt %v", x.name, i, more)
			}
			margin := k.known.MarginAt(timer(host))
			if off := k.known.Monotonic(timer(host)) - int64(host); max(off, -off) > margin+1 {
				t.Errorf("%s, %d: off by %d, margin %d", x.name, i, off, margin)
			}
			if i == len(x.at)-1 && margin > x.limit {
				t.Errorf("%s: a margin of %d", x.name, margin)
			}
		}
	}
	// Where a clock was set, what was known no longer holds.
	var k clocks
	k.learn(clockMoment{timer: 1000, host: 5 * s, margin: 300})
	k.learn(clockMoment{timer: 1000 + s, host: 6 * s, margin: 300})
	if !k.learn(clockMoment{timer: 9 * s, host: 7 * s, margin: 5000}) || k.known.Monotonic(9*s) != int64(7*s) || k.known.Drift != 0 {
		t.Errorf("%+v", k.known)
	}
}
