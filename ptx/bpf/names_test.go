package bpf

import "testing"

// TestHelperNames: helpers are called as in bpf.h.
func TestHelperNames(t *testing.T) {
	for n, want := range map[int64]string{1: "bpf_map_lookup_elem", 16: "bpf_get_current_comm", 7: "bpf_get_prandom_u32", 1 << 20: "no known name"} {
		if got := helperName(n); got != want {
			t.Errorf("helper %d is %q, want %q", n, got, want)
		}
	}
}
