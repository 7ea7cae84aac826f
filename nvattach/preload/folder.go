package preload

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// A Folder is a private folder for libraries, as long as the process that made it
// lives: it holds a lock on it. What a process leaves behind that was killed is
// removed by the next [NewFolder].
type Folder struct {
	Path string
	lock *os.File
}

// NewFolder makes a folder in dir, whose name begins with prefix, and removes those of
// that name which no living process holds, unless a program still uses a file in them.
func NewFolder(dir, prefix string) (*Folder, error) {
	sweep(dir, prefix)
	for {
		path, err := os.MkdirTemp(dir, prefix)
		if err != nil {
			return nil, err
		}
		lock, err := hold(path)
		if err == nil {
			return &Folder{Path: path, lock: lock}, nil
		}
		if !errors.Is(err, errTaken) {
			return nil, errors.Join(err, os.Remove(path))
		}
	}
}

// errTaken says that another process has a folder.
var errTaken = errors.New("another process holds the folder")

// hold locks a folder of ours.
func hold(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() {
			err = fmt.Errorf("%s belongs to another user", path)
		}
	}
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		// It may have been swept between its making and the lock.
		if now, serr := os.Lstat(path); serr != nil || !os.SameFile(st, now) {
			err = errTaken
		}
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
		err = errTaken
	}
	return nil, err
}

// sweep removes what killed processes of this user left.
func sweep(dir, prefix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var stale []*Folder
	for _, e := range entries {
		// MkdirTemp adds digits.
		if rest, ok := strings.CutPrefix(e.Name(), prefix); !ok || !e.IsDir() || rest == "" || strings.Trim(rest, "0123456789") != "" {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if lock, err := hold(path); err == nil {
			stale = append(stale, &Folder{path, lock})
		}
	}
	if len(stale) == 0 {
		return
	}
	used := mapped()
	for _, f := range stale {
		if f.among(used) {
			_ = f.lock.Close()
			continue
		}
		_ = f.Remove()
	}
}

// mapped returns the files that those processes have mapped that can be looked at.
func mapped() map[string]bool {
	files := make(map[string]bool)
	for _, pid := range proc.All() {
		maps, _ := proc.Maps(pid) // some have ended, or are others' users'
		for i := range maps {
			files[maps[i].Path] = true
		}
	}
	return files
}

// among says whether one of some files is in the folder.
func (f *Folder) among(files map[string]bool) bool {
	for name := range files {
		if strings.HasPrefix(name, f.Path+"/") {
			return true
		}
	}
	return false
}

// Mapped says whether a process that can be looked at has mapped a file of the folder.
func (f *Folder) Mapped() bool { return f.among(mapped()) }

// Remove removes the folder with all that is in it.
func (f *Folder) Remove() error { return errors.Join(os.RemoveAll(f.Path), f.lock.Close()) }

// Leave gives the folder up without removing it: programs still use what is in it.
func (f *Folder) Leave() error { return f.lock.Close() }
