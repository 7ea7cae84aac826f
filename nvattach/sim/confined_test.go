package sim

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestConfined: it is said once which calls a program's filter forbids, of a program that has the driver.
func TestConfined(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &Sim{libs: "/nowhere"}
	deaf := func(nr uint64) bool { return nr != unix.SYS_CONNECT && nr != unix.SYS_SENDMSG }
	s.Confined(os.Getpid(), deaf)
	s.libs = filepath.Dir(exe)
	s.Confined(os.Getpid(), func(uint64) bool { return true })
	if h := s.report.Hints; len(h) != 0 {
		t.Errorf("hints %q", h)
	}
	s.Confined(os.Getpid(), deaf)
	s.Confined(os.Getpid(), deaf)
	const want = "the program's own seccomp filter forbids connect, sendmsg, by which it would call; a driver takes ioctl instead. Its calls of CUDA do what the filter says, or fail"
	if h := s.report.Hints; !slices.Equal(h, []string{want}) {
		t.Errorf("hints %q", h)
	}
}
