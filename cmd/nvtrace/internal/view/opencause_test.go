package view

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenCause: errors of opens that have one reason get it, and others get none.
func TestOpenCause(t *testing.T) {
	for _, tt := range []struct {
		path  string
		errno unix.Errno
		want  string // "": nothing is said
	}{
		{"/dev/nvidiactl", unix.EPERM, "device cgroup"},
		{"/dev/nvidia0", unix.EACCES, "owner and mode"},
		{"/dev/nvidia0", unix.ENXIO, "no driver"},
		{"/dev/nvidia7", unix.ENODEV, "no GPU"},
		{"/dev/nvidia0", unix.EIO, "could not start"},
		{"/dev/nvidia12", unix.ENOENT, "no such node"},
		{"/dev/nvidiactl", unix.ENOENT, "no such node"},
		{"/dev/nvidia-nvswitchctl", unix.ENOENT, ""}, // libcuda looks for it where there is none
		{"/dev/nvidia0", unix.EMFILE, ""},
	} {
		c := openCause(tt.path, tt.errno)
		if (c.Text == "") != (tt.want == "") || !strings.Contains(c.Text, tt.want) || c.Text != "" && (c.Advice == "" || c.Source == "" || c.Kind == 0) {
			t.Errorf("%s: %v: %+v", tt.path, tt.errno, c)
		}
	}
}
