package gpu

import (
	"errors"
	"fmt"
	"testing"
)

// TestLiveAgain: a kernel whose context is not active gets its copy later, if it comes back in time;
// with any other error it never does.
func TestLiveAgain(t *testing.T) {
	asleep := fmt.Errorf("entering: %w", errAsleep)
	k := &liveKernel{context: new(context)}
	for try := range liveAsleep {
		if !k.again(asleep) {
			t.Fatalf("given up after %d times", try)
		}
	}
	if k.again(asleep) {
		t.Error("it is tried for ever")
	}
	if k = (&liveKernel{context: new(context)}); k.again(errors.New("refused")) {
		t.Error("what was refused is tried again")
	}
	if k.context.ended = true; k.again(asleep) {
		t.Error("a context that has ended is waited for")
	}
}
