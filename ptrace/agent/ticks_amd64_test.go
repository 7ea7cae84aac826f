package agent

import "testing"

// TestCounterScale: how fast the processor's counter runs is said only where both looks at it were good,
// however busy the machine is.
func TestCounterScale(t *testing.T) {
	good := look()
	bad := good
	bad.at -= 1e6 // as if another thread had run for a millisecond between its two clocks
	bad.margin += 1e6
	if scale := bad.scale(); scale != 0 {
		t.Errorf("%d, by a look that may be wrong by a millisecond", scale)
	}
	for nanotime()-good.at < minTicks {
	}
	if scale := bad.scale(); scale != 0 {
		t.Errorf("%d, by a look that may be wrong by a millisecond", scale)
	}
	other := look()
	for nanotime()-other.at < minTicks {
	}
	a, b := good.scale(), other.scale()
	if a == 0 || b == 0 {
		t.Skip("the machine is too busy for a good look")
	}
	if d := float64(a)/float64(b) - 1; d < -3./exact || d > 3./exact {
		t.Errorf("%d by one counter, %d by another", a, b)
	}
}
