package cli

import (
	"testing"
)

// TestGPUNode: which open files tell that a process uses a GPU.
func TestGPUNode(t *testing.T) {
	for path, want := range map[string]bool{
		"/dev/nvidia0": true, "/dev/nvidia15": true, "/dev/nvidia-uvm": true, "/dev/nvidiactl": false, "/dev/nvidia-modeset": false,
		"/dev/nvidia": false, "/dev/null": false, "/tmp/dev/nvidia0": false, "/dev/nvidia-caps/nvidia-cap1": false,
	} {
		if isGPUNode(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

// TestPIDList: the forms of -p.
func TestPIDList(t *testing.T) {
	var l PIDList
	for _, s := range []string{"7", "8,9", "8"} {
		if err := l.Set(s); err != nil {
			t.Error(err)
		}
	}
	if got := l.String(); got != "7, 8 and 9" {
		t.Error(got)
	}
	for _, s := range []string{"", "0", "-1", "1,", "a"} {
		if l.Set(s) == nil {
			t.Errorf("%q is taken", s)
		}
	}
}
