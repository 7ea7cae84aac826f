package host

import (
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/ptrace/agent"
)

// TestHelpersInProcess: the agent has the helpers that the table says it has, and no others.
func TestHelpersInProcess(t *testing.T) {
	seen := 0
	for n := range int32(2000) {
		row := helper.Of(n)
		want := row != nil && row.In&helper.Process != 0
		if _, ok := agent.Helper(n); ok != want {
			t.Errorf("helper %d: the agent has it: %v, the table says %v", n, ok, want)
		}
		if want {
			seen++
		}
	}
	if seen < 40 {
		t.Errorf("the table has %d helpers of the agent", seen)
	}
}
