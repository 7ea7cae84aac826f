package ptrace

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWhyRefused: a refusal says where it was, why, and what to do; any other
// error only what it is.
func TestWhyRefused(t *testing.T) {
	task := &Task{TID: os.Getpid(), PID: os.Getpid()}
	for _, e := range []unix.Errno{unix.EPERM, unix.EACCES} {
		err := memError("write", task, 0x1234, e)
		if s := err.Error(); !errors.Is(err, e) || !strings.Contains(s, "at 0x1234") || !strings.Contains(s, fmt.Sprint(task.TID)) ||
			!strings.Contains(s, "root") && !strings.Contains(s, "sudo") && !strings.Contains(s, "next boot") {
			t.Error(s)
		}
	}
	if s := WhyRefused(os.Getpid(), memError("read", task, 0x1234, unix.EFAULT)); s != "" {
		t.Errorf("a fault is refused: %s", s)
	}
	if err := task.textError(0x1234, unix.EIO); !strings.Contains(err.Error(), "shared memory") || !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
}
