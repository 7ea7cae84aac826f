package agent

import (
	"fmt"
	"testing"
)

// TestHookSteps: a signal's handler comes after an instruction of a hooked call,
// of each in turn. It makes calls itself, as many as fill the ring, or jumps out of the call.
// Nothing is lost, and nothing is told twice.
func TestHookSteps(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	for _, c := range []struct {
		name               string
		how, stack, stride int
	}{
		{"many calls", 3, 0, 1}, {"call", 0, 1, 5}, {"jump", 1, 0, 3}, {"call and jump", 2, 1, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTracer(t)
			tr.hooks(&Hook{Name: "add"})
			out := tr.run(bin, "steps", fmt.Sprint(c.how), fmt.Sprint(c.stack), "0", fmt.Sprint(c.stride))
			var steps, made, left int
			if _, err := fmt.Sscanf(out, "steps %d calls %d left %d", &steps, &made, &left); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			calls, returns, un := tr.nesting()
			t.Logf("%d steps, %d calls made, %d left; %d calls, %d returns, %d unfinished", steps, made, left, calls, returns, un)
			if steps < 300 {
				t.Errorf("%d steps", steps)
			}
			if left == 0 {
				if calls != made || returns != made || un != 0 {
					t.Error("not all calls were recorded, with their returns")
				}
				return
			}
			// A call that is left before it is recorded is none. All others are there
			// once, and return once, unless that was being recorded when they were left.
			count := map[[2]uint64]int{}
			for i := range tr.records {
				if g := &tr.records[i]; g.Kind == KindCall {
					count[[2]uint64{g.Args[0], g.Args[1]}]++
				}
			}
			rounds := (steps + c.stride - 1) / c.stride
			for i := range rounds {
				at := uint64(i * c.stride)
				inner := 0
				if c.how == 2 {
					inner = 1
				}
				if count[[2]uint64{at, 2}] != inner || count[[2]uint64{at, 5}] != 1 || count[[2]uint64{at, 1}] > 1 {
					t.Errorf("left at %d: %d calls; the handler's: %d, after it: %d", at, count[[2]uint64{at, 1}], count[[2]uint64{at, 2}], count[[2]uint64{at, 5}])
				}
			}
			if returns > calls || returns < calls-left || un > left || made-calls > left {
				t.Error("calls or returns of too many were not recorded")
			}
		})
	}
}
