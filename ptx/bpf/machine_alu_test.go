package bpf

import (
	"math/bits"
	"math/rand"
	"testing"
)

// TestReciprocal: dividing by reciprocals is dividing.
func TestReciprocal(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for i := range 200_000 {
		d := uint64(r.Uint32() >> (1 + i%31))
		if i < 3000 {
			d = uint64(i)
		}
		if d < 3 || bits.OnesCount64(d) == 1 {
			continue
		}
		factor, shift := reciprocal(d)
		for _, n := range []uint64{0, 1, d - 1, d, d + 1, 1<<32 - 1, 1<<32 - 1/d*d, 1<<63 - 1, 1 << 63, 1<<64 - 1, (1<<64 - 1) / d * d, (1<<64-1)/d*d - 1, r.Uint64() >> (i % 64)} {
			q, _ := bits.Mul64(n, factor)
			if got := ((n-q)>>1 + q) >> shift; got != n/d {
				t.Fatalf("%d/%d is %d, not %d", n, d, n/d, got)
			}
		}
	}
}
