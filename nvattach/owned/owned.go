// Package owned opens folders and files that nobody but this user can have made or changed,
// at places where other users can write: /dev/shm, folders of temporary files, shared folders.
package owned

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrForeign is in the chain of errors about what is a link, belongs to another user, or can be
// written to by others.
var ErrForeign = errors.New("refused")

// Open opens a folder. Its last name is not followed if it is a link; everything in the folder
// is then reached by the returned root, whatever happens to the name.
func Open(dir string) (*os.Root, error) {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return open(parent, filepath.Base(dir))
}

// OpenBelow opens a folder in a folder.
func OpenBelow(r *os.Root, name string) (*os.Root, error) { return open(r, name) }

// Make opens a chain of folders, each in the one before, and makes those that are missing, for
// this user alone. The first lies in base, which must be there, and may be anybody's.
func Make(base string, below ...string) (*os.Root, error) {
	r, err := os.OpenRoot(base)
	for _, name := range below {
		if err != nil {
			break
		}
		parent := r
		if err = parent.Mkdir(name, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			r, err = open(parent, name)
		}
		_ = parent.Close()
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// open opens a folder that belongs to this user. What has been looked at is what is opened: the
// name may change meanwhile.
func open(parent *os.Root, name string) (*os.Root, error) {
	path := filepath.Join(parent.Name(), name)
	seen, err := parent.Lstat(name)
	if err != nil {
		return nil, err
	}
	if err := check(path, seen, fs.ModeDir); err != nil {
		return nil, err
	}
	r, err := parent.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if st, err := r.Stat("."); err != nil || !os.SameFile(seen, st) {
		return nil, errors.Join(err, fmt.Errorf("%s was replaced while it was opened: %w", path, ErrForeign), r.Close())
	}
	return r, nil
}

// File opens a regular file of a folder. It neither waits for anything, as opening a pipe would,
// nor follows a link. flags are for open(2); what O_CREATE makes is for this user alone.
func File(r *os.Root, name string, flags int) (*os.File, error) {
	path := filepath.Join(r.Name(), name)
	if st, err := r.Lstat(name); err == nil { // a root follows the links that stay in it
		if err := check(path, st, 0); err != nil {
			return nil, err
		}
	}
	f, err := r.OpenFile(name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if errors.Is(err, unix.ENXIO) { // a socket, or a pipe that nobody reads
		return nil, fmt.Errorf("%s is not a regular file: %w", path, ErrForeign)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil {
		err = check(path, st, 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadFile reads a file of at most limit bytes, as File opens it.
func ReadFile(r *os.Root, name string, limit int64) ([]byte, error) {
	f, err := File(r, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", filepath.Join(r.Name(), name), limit)
	}
	return b, err
}

// WriteFile makes a file of a folder, or replaces its contents.
func WriteFile(r *os.Root, name string, b []byte) error {
	f, err := File(r, name, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	err = f.Truncate(0) // not before it is known whose it is
	if err == nil {
		_, err = f.Write(b)
	}
	return errors.Join(err, f.Close())
}

// check returns an error unless a file is of a type, is this user's, and nobody else can
// write to it.
func check(path string, st fs.FileInfo, want fs.FileMode) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a link, which is not followed: %w", path, ErrForeign)
	case st.Mode().Type() != want && want == fs.ModeDir:
		return fmt.Errorf("%s is not a folder: %w", path, ErrForeign)
	case st.Mode().Type() != want:
		return fmt.Errorf("%s is not a regular file: %w", path, ErrForeign)
	case !ok:
		return fmt.Errorf("%s has no known owner: %w", path, ErrForeign)
	case int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not to user %d, who runs nvtrace: %w", path, sys.Uid, os.Geteuid(), ErrForeign)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written to by other users (mode %#o; chmod go-w %[1]s): %[3]w", path, st.Mode().Perm(), ErrForeign)
	}
	return nil
}
