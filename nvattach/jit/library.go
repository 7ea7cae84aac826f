package jit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemFolders are where drivers put their libraries, in the order in which they
// are looked through.
var systemFolders = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64",
	"/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/local/cuda/compat",
}

// Find returns the path of the compiler library. Folders of the system come first:
// that of libcuda, which a program has loaded, if it is one of them, and then the
// others. After them come those of LD_LIBRARY_PATH, and last libcuda's where it is
// anywhere else: the program chose that one. A file that others than root and
// nvtrace's user can change is passed over, and named in the error.
func Find(libcuda string) (string, error) {
	return find(libcuda, systemFolders)
}

func find(libcuda string, system []string) (string, error) {
	var first, last []string
	if libcuda != "" {
		beside := []string{filepath.Dir(libcuda)}
		if real, err := filepath.EvalSymlinks(libcuda); err == nil && filepath.Dir(real) != beside[0] {
			beside = append(beside, filepath.Dir(real))
		}
		for _, d := range beside {
			if under(d, system) {
				first = append(first, d)
			} else {
				last = append(last, d)
			}
		}
	}
	dirs := append(append(append(first, system...), filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...), last...)
	var refused error
	for _, d := range dirs {
		if !filepath.IsAbs(d) {
			continue // of LD_LIBRARY_PATH: an empty one, or one below the working directory
		}
		name := filepath.Join(d, LibraryName)
		f, err := openTrusted(name)
		if err == nil {
			_ = f.Close()
			return name, nil
		}
		if refused == nil && !errors.Is(err, fs.ErrNotExist) {
			refused = err
		}
	}
	if refused != nil {
		return "", fmt.Errorf("%w that can be trusted: %w", ErrNoLibrary, refused)
	}
	return "", fmt.Errorf("%w in %s", ErrNoLibrary, strings.Join(dirs, ", "))
}

// under says whether a folder is one of a list, or below one.
func under(dir string, list []string) bool {
	for _, d := range list {
		if dir == d || strings.HasPrefix(dir, d+"/") {
			return true
		}
	}
	return false
}

// openTrusted opens a file that nobody but root and nvtrace's user can change or
// replace. Where the name's links lead is what is looked at, and opened.
func openTrusted(name string) (*os.File, error) {
	real, err := filepath.EvalSymlinks(name)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, err
	}
	for dir := filepath.Dir(real); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return nil, &fs.PathError{Op: "lstat", Path: dir, Err: err}
		}
		if err := trusted(dir, &st, true); err != nil {
			return nil, fmt.Errorf("%s is not used: %w", name, err)
		}
		if dir == "/" {
			break
		}
	}
	fd, err := unix.Open(real, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: real, Err: err}
	}
	f := os.NewFile(uintptr(fd), real)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = trusted(real, &st, false)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is not used: %w", name, err)
	}
	return f, nil
}

// trusted returns an error if others than root and nvtrace's user can change a
// file, or what a folder has. In a folder with the sticky bit, others can't rename
// what is not theirs.
func trusted(name string, st *unix.Stat_t, folder bool) error {
	want := uint32(unix.S_IFREG)
	if folder {
		want = unix.S_IFDIR
	}
	switch {
	case st.Mode&unix.S_IFMT != want && folder:
		return fmt.Errorf("%s is no folder", name)
	case st.Mode&unix.S_IFMT != want:
		return fmt.Errorf("%s is no regular file", name)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && !(st.Uid == nobody() && !folder):
		return fmt.Errorf("%s belongs to user %d, not to root or the user that runs nvtrace", name, st.Uid)
	case st.Mode&0o022 != 0 && !(folder && st.Mode&unix.S_ISVTX != 0):
		return fmt.Errorf("%s can be written to by others (mode %#o)", name, st.Mode&0o7777)
	}
	return nil
}

// nobody returns the user to whom files of users seem to belong that a namespace
// of users does not have, as the driver's libraries do in a rootless container. It
// returns root where there is no such namespace.
var nobody = sync.OnceValue(func() uint32 {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295" {
		return 0
	}
	return 65534
})

// library is the compiler library's file, held open, so that what is hashed is what
// is loaded.
type library struct {
	name string
	file *os.File

	mu   sync.Mutex
	at   version
	hash string // of the content at that version
}

// version is what changes when a file's content does. Nobody sets a file's ctime.
type version struct {
	size, mtime, ctime int64
	mnsec, cnsec       int64
}

func openLibrary(name string) (*library, error) {
	f, err := openTrusted(name)
	if err != nil {
		return nil, err
	}
	return &library{name: name, file: f}, nil
}

// identity returns the hash of the library's content.
func (l *library) identity() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st, err := l.file.Stat()
	if err != nil {
		return "", err
	}
	sys := st.Sys().(*syscall.Stat_t)
	now := version{st.Size(), sys.Mtim.Sec, sys.Ctim.Sec, sys.Mtim.Nsec, sys.Ctim.Nsec}
	if l.hash == "" || l.at != now {
		if l.hash, err = hashFile(l.file, st.Size()); err != nil {
			return "", fmt.Errorf("%s: %w", l.name, err)
		}
		l.at = now
	}
	return l.hash, nil
}

// hashFile hashes a file of some 50 MB in parts, all processors at once, and then
// the parts' hashes: nvtrace's start waits for it.
func hashFile(r io.ReaderAt, size int64) (string, error) {
	const part = 1 << 20
	n := int((size + part - 1) / part)
	sums := make([][sha256.Size]byte, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	workers := min(n, runtime.GOMAXPROCS(0))
	for w := range workers {
		wg.Go(func() {
			b := make([]byte, part)
			for i := w; i < n; i += workers {
				k, err := r.ReadAt(b[:min(part, size-int64(i)*part)], int64(i)*part)
				if err != nil && !errors.Is(err, io.EOF) {
					errs[i] = err
				}
				sums[i] = sha256.Sum256(b[:k])
			}
		})
	}
	wg.Wait()
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", size)
	for _, s := range sums {
		h.Write(s[:])
	}
	return hex.EncodeToString(h.Sum(nil)), errors.Join(errs...)
}
