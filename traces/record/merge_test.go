package record

import (
	"testing"
	"time"
)

// TestSoon: the pause between looks is bounded by how fast rings fill, and by nothing where that was long ago.
func TestSoon(t *testing.T) {
	for _, c := range []struct{ rate, want float64 }{
		{0, tick.Seconds()},
		{5e-324, tick.Seconds()},
		{1e-25, tick.Seconds()},
		{filled / 1e9, tick.Seconds()},
		{filled / 10e6, 0.01},
		{filled / 1e3, shortTick.Seconds()},
		{1e300, shortTick.Seconds()},
	} {
		if got, want := soon(tick, c.rate), time.Duration(c.want*1e9); got != want {
			t.Errorf("rate %g: %v, want %v", c.rate, got, want)
		}
	}
}
