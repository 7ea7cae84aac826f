package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPlace: a folder from which nothing can be preloaded is not taken.
func TestPlace(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_RUNTIME_DIR", "")
	bad := map[string]string{
		"not there":          filepath.Join(home, "none"),
		"two for LD_PRELOAD": filepath.Join(home, "a:b"),
		"no file's name":     "relative",
		"too long":           filepath.Join(home, strings.Repeat("d", 90)),
	}
	for name, dir := range bad {
		if filepath.IsAbs(dir) && name != "not there" {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	if os.Getuid() == 0 {
		dir := filepath.Join(home, "noexec")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
			t.Logf("noexec is not tried: %v", err)
		} else {
			bad["noexec"] = dir
			t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
		}
	}
	for name, dir := range bad {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", dir)
			s, err := New(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if strings.HasPrefix(s.dir, dir) {
				t.Errorf("it is in %s", s.dir)
			}
			if _, err := os.Stat(filepath.Join(s.dir, libraryNames[libCUDA])); err != nil {
				t.Error(err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "nvtrace-sim-*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
