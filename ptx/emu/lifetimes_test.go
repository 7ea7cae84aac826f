package emu

import "testing"

// TestRegisters: registers that are declared, or named one after the other, are not held at a time.
func TestRegisters(t *testing.T) {
	for body, want := range map[string]int{
		".reg .b32 %r<100>; ret;": 0,
		".reg .b32 %r<100>; mov.u32 %r1, 1; mov.u32 %r2, 2; add.u32 %r3, %r1, %r2; ret;":                                  3,
		".reg .b32 %r<100>; mov.u32 %r1, 1; mov.u32 %r2, %r1; mov.u32 %r3, %r2; mov.u32 %r4, %r3; ret;":                   2,
		".reg .b64 %d<9>; .reg .b32 %r<9>; mov.u64 %d1, 1; mov.u64 %d2, %d1; cvt.u32.u64 %r1, %d2; st.u32 [%d1], 1; ret;": 5,
	} {
		k := mustKernel(t, mustModule(t, "k.ptx", header+".visible .entry k() { "+body+" }", nil), "k")
		if got := k.Registers(); got != want {
			t.Errorf("%s holds %d registers, want %d", body, got, want)
		}
	}
}
