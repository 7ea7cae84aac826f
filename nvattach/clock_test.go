package nvattach

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestClock compares Monotonic with whole numbers of any size.
func TestClock(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		since := rng.Uint64N(1 << 62)
		c := Clock{Offset: rng.Int64N(1<<62) - 1<<61, Since: since, Drift: int64(rng.Uint64()) >> rng.IntN(64)}
		timer := since + uint64(rng.Int64N(1<<40)-1<<39)
		n := new(big.Int).Mul(big.NewInt(int64(timer-since)), big.NewInt(c.Drift))
		n.Rsh(n, 64) // towards the lower one, as mul.hi does
		if want := int64(timer) + c.Offset + n.Int64(); c.Monotonic(timer) != want {
			t.Fatalf("%+v at %d: %d, want %d", c, timer, c.Monotonic(timer), want)
		}
	}
	if c := (Clock{Offset: -5}); c.Monotonic(math.MaxInt64) != math.MaxInt64-5 {
		t.Error("offset alone")
	}
}
