package script

import "testing"

// TestKernelName: parameters are left out, and what stands for a graph is kept.
func TestKernelName(t *testing.T) {
	for in, want := range map[string]string{
		"_Z9vectorAddPKfS0_Pfi": "vectorAdd", "scale": "scale", "(graph)": "(graph)", "": "",
		"_ZN12_GLOBAL__N_14likeEPf": "(anonymous namespace)::like",
	} {
		if got := kernelName(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
