// Package preload has traced programs load libraries before their own.
package preload

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// Env returns env with libs in front of what LD_PRELOAD holds, but for libraries there
// that drop names. Programs with AddressSanitizer in a shared library, which refuse to
// start where that is not the first one, are told that it need not be (ASAN_OPTIONS),
// unless the user says so.
func Env(env, libs []string, drop func(lib string) bool) []string {
	const order = "verify_asan_link_order" // compiler-rt's lib/asan/asan_flags.inc
	out := make([]string, 0, len(env)+2)
	libs, sanitizer := slices.Clone(libs), order+"=0"
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case name == "LD_PRELOAD":
			theirs := strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ' ' })
			libs = append(libs, slices.DeleteFunc(theirs, drop)...)
		case name != "ASAN_OPTIONS":
			out = append(out, e)
		case strings.Contains(value, order):
			sanitizer = value
		case value != "":
			sanitizer = value + ":" + sanitizer
		}
	}
	return append(out, "LD_PRELOAD="+strings.Join(libs, ":"), "ASAN_OPTIONS="+sanitizer)
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
