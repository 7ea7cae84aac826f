package nvattach

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"nvtrace/nvattach/mapmem"
)

// TestClock compares Monotonic with whole numbers of any size.
func TestClock(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		since := rng.Uint64N(1 << 62)
		c := mapmem.Clock{Offset: rng.Int64N(1<<62) - 1<<61, Since: since, Drift: int64(rng.Uint64()) >> rng.IntN(64)}
		timer := since + uint64(rng.Int64N(1<<40)-1<<39)
		n := new(big.Int).Mul(big.NewInt(int64(timer-since)), big.NewInt(c.Drift))
		n.Rsh(n, 64) // towards the lower one, as mul.hi does
		if want := int64(timer) + c.Offset + n.Int64(); c.Monotonic(timer) != want {
			t.Fatalf("%+v at %d: %d, want %d", c, timer, c.Monotonic(timer), want)
		}
	}
	c := mapmem.Clock{Since: 1 << 40, Margin: 7, Slip: 1 << 34} // one nanosecond in 2^30
	for _, off := range []int64{0, 1 << 29, 1 << 31, -1 << 31, -1 << 29} {
		if got, want := c.MarginAt(uint64(1<<40+off)), 7+max(off, -off)>>30; got != want {
			t.Errorf("%d from when it was measured: a margin of %d, want %d", off, got, want)
		}
	}
	if c := (mapmem.Clock{Offset: -5}); c.Monotonic(math.MaxInt64) != math.MaxInt64-5 {
		t.Error("offset alone")
	}
}
