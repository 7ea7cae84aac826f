// Package preload finds a place for libraries that traced programs are to load
// before their own.
package preload

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Folders returns where libraries may be put, the likeliest first: folders for
// temporary files, and the user's own. Some may not exist.
func Folders() []string {
	dirs := []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm", os.Getenv("XDG_RUNTIME_DIR")}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, home)
	}
	return dirs
}

// Place calls put with each of the folders whose files programs can map as code, and
// whose path LD_PRELOAD can hold, until it returns no error. The error says of each
// folder why it does not serve.
func Place(dirs []string, put func(dir string) error) error {
	var errs []error
	tried := map[string]bool{"": true} // of a variable that is not set
	for _, dir := range dirs {
		if tried[dir] {
			continue
		}
		tried[dir] = true
		err := usable(dir)
		if err == nil {
			err = put(dir)
		}
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func usable(dir string) error {
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
	return nil
}
