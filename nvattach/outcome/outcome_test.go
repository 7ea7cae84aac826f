package outcome

import (
	"strings"
	"testing"

	"nvtrace/nvattach/session"
)

// TestUntimed: kernels that were launched and have no times, or not for all launches, are named.
func TestUntimed(t *testing.T) {
	kernels := []session.Kernel{
		{Name: "_Z3addPf", Images: 1, Ran: true},
		{Name: "idle", Reason: "never launched"},
		{Name: "_Z4linkPf", Reason: "it is linked", Ran: true},
		{Name: "large", Images: 1, Ran: true, Unprobed: 2, UnprobedWhy: "too many registers"},
	}
	const want = "kernels without times on the GPU, or not for all launches: 2 (link(float*): it is linked; large: too many registers); --gpu-times=events times them"
	if got := untimed(kernels); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := untimed(kernels[:2]); got != "" {
		t.Error(got)
	}
	for range 3 {
		kernels = append(kernels, session.Kernel{Name: "more", Reason: "none", Ran: true})
	}
	if got := untimed(kernels); !strings.Contains(got, ": 5 (") || !strings.Contains(got, "more: none; and 2 more)") {
		t.Error(got)
	}
}
