package view

import (
	"testing"

	"nvtrace/nvattach/script"
)

// TestOnlyCounted: a script that asks for calls that are there as numbers alone is told of them.
func TestOnlyCounted(t *testing.T) {
	h := &holdings{counted: map[string]uint64{"cuDeviceGetAttribute": 7, "cuDeviceGetName": 1, "cuInit": 1}}
	for text, want := range map[string]string{
		"api:cuDeviceGet* { @ = count(); }":       "cuDeviceGetAttribute, cuDeviceGetName: 8 calls only counted, not recorded (--api=all)",
		"apiret:cuDeviceGetName { @ = count(); }": "cuDeviceGetName: 1 call only counted, not recorded (--api=all)",
		"api:cuLaunchKernel { @ = count(); }":     "",
		"ioctl:NV_ESC_RM_ALLOC { @ = count(); }":  "",
	} {
		p, err := script.Compile("-e", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.onlyCounted(p); got != want {
			t.Errorf("%s: %q, not %q", text, got, want)
		}
	}
}
