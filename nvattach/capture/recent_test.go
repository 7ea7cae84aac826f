package capture

import (
	"fmt"
	"testing"
)

// TestRecent: of any number of hashes a bounded one is kept, of which the last ones are, and
// one that is looked up all the time.
func TestRecent(t *testing.T) {
	var r recent
	if r.has("used") {
		t.Error("an empty set has a hash")
	}
	r.add("used")
	const all = 10*recentHashes + 5
	for i := range all {
		r.add(fmt.Sprint(i))
		if !r.has("used") {
			t.Fatalf("after %d others, one in use is forgotten", i+1)
		}
	}
	for i := all - recentHashes/2; i < all; i++ {
		if !r.has(fmt.Sprint(i)) {
			t.Fatalf("%d of %d is forgotten", i, all)
		}
	}
	if n := len(r.now) + len(r.old); n > 2*recentHashes || r.has("0") {
		t.Errorf("%d hashes are kept", n)
	}
}
