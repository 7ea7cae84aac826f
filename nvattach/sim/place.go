package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// place prepares the simulation in the first folder whose files programs can map
// as code, and in which there is room.
func (s *Sim) place() error {
	dirs := []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm", os.Getenv("XDG_RUNTIME_DIR")}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, home)
	}
	tried := map[string]bool{"": true}
	var errs []error
	for _, dir := range dirs {
		if tried[dir] {
			continue
		}
		tried[dir] = true
		err := s.placeIn(dir)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("no folder for its libraries (set TMPDIR): %w", errors.Join(errs...))
}

// placeIn prepares the simulation in a folder of its own in dir.
func (s *Sim) placeIn(dir string) error {
	if strings.ContainsAny(dir, ": \t\n$") || !filepath.IsAbs(dir) {
		return fmt.Errorf("%q: not a path that LD_PRELOAD can hold", dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s: mounted noexec", dir)
	}
	own, err := os.MkdirTemp(dir, "nvtrace-sim-")
	if err != nil {
		return err
	}
	s.dir, s.libs = own, s.opts.LibDir
	if err := s.prepare(); err != nil {
		_ = os.RemoveAll(own)
		return err
	}
	return nil
}
