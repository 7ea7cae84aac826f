package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Every file that nvtrace writes is made here, by one of two ways. What grows while a
// program runs (a recording, a log) is written in place, under a lock. All else is
// written beside its place, and takes it when it is whole.

// Modes of new files, before the umask. Recordings, and all that is written while programs
// are traced, hold the memory of programs. What is made of files is for nobody who may not
// read these: see env.limit.
const (
	ModeFile    = 0o666
	ModePrivate = 0o600
)

// ErrBusy is in the chain of errors about a file that another nvtrace is writing.
var ErrBusy = errors.New("another nvtrace is writing it")

// GrownFile is a file that grows in place. What was in it before stays until begin.
type GrownFile struct {
	*os.File
	info fs.FileInfo
	made bool // by this run
	mode fs.FileMode
}

// OpenGrown opens a file to grow in place, and makes it if need be. A regular one is
// locked until it is closed, so that two runs can't mix what they write.
func OpenGrown(name string, mode fs.FileMode) (*GrownFile, error) {
	if name == "-" {
		return grownStdout()
	}
	for {
		f, made, err := openOrMake(name, mode)
		if err != nil {
			return nil, err
		}
		st, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		g := &GrownFile{f, st, made, mode}
		if !st.Mode().IsRegular() { // a terminal, a pipe, /dev/null
			g.made = false
			return g, nil
		}
		if err := g.lock(); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// Between opening and locking it may have been replaced.
		if now, err := os.Stat(name); err != nil || !os.SameFile(st, now) {
			_ = f.Close() // nothing was written
			continue
		}
		return g, nil
	}
}

// grownStdout is stdout as a file that grows: from where it is, whatever it is.
func grownStdout() (*GrownFile, error) {
	f, err := dupStdout()
	if err != nil {
		return nil, err
	}
	st, err := os.Lstat("/dev/null") // neither is emptied, nor has a mode to narrow
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &GrownFile{File: f, info: st}, nil
}

// dupStdout opens stdout once more; to close that leaves stdout open.
func dupStdout() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(unix.Stdout), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("-: stdout: %w", err)
	}
	return os.NewFile(uintptr(fd), "-"), nil
}

// openOrMake opens a file for writing as it is. O_CREATE is set also for one that is there,
// for then the kernel refuses what others have laid in /tmp.
func openOrMake(name string, mode fs.FileMode) (f *os.File, made bool, err error) {
	if f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode); err == nil {
		return f, true, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	if err := foreignLink(name); err != nil {
		return nil, false, err
	}
	flags := os.O_WRONLY | os.O_CREATE
	if st, err := os.Stat(name); err == nil && st.Mode()&fs.ModeNamedPipe != 0 {
		flags |= unix.O_NONBLOCK // a program that is held meanwhile can't wait for a reader
	}
	f, err = os.OpenFile(name, flags, mode)
	if errors.Is(err, unix.ENXIO) {
		err = fmt.Errorf("%s: nobody reads this pipe: start its reader first", name)
	}
	return f, false, err
}

// lock takes the file's lock, which ends with the file's last descriptor. Some network
// file systems have no locks: files there are taken as they are.
func (g *GrownFile) lock() error {
	err := unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%s: %w; give each run a name of its own: in names, %%p stands for the process id, %%h for the host, %%r for the rank", g.Name(), ErrBusy)
	}
	return nil
}

// Begin takes away what was in the file before.
func (g *GrownFile) Begin() error {
	if !g.info.Mode().IsRegular() {
		return nil
	}
	if !g.made { // else it has its mode, and a file system may say that it is somebody else's
		if err := narrow(g.File, g.info, g.mode); err != nil {
			return err
		}
	}
	return g.Truncate(0)
}

// narrow takes from others what mode does not give them of a file that was there before. That
// of another user, who may read it whatever its mode is, must be for everyone.
func narrow(f *os.File, st fs.FileInfo, mode fs.FileMode) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if ok && int(sys.Uid) != os.Geteuid() && mode&0o044 != 0o044 {
		return fmt.Errorf("%s belongs to user %d, who may read it: take another name, or remove it", f.Name(), sys.Uid)
	}
	if st.Mode().Perm()&^mode != 0 {
		_ = f.Chmod(st.Mode().Perm() & mode) // else a file system without modes, where no file is better
	}
	return nil
}

// foreignLink refuses a name that another user has made a link: it may lead anywhere.
func foreignLink(name string) error {
	st, err := os.Lstat(name)
	if err != nil || st.Mode()&fs.ModeSymlink == 0 {
		return nil
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is a link of user %d, which is not followed: take another name, or remove it", name, sys.Uid)
	}
	return nil
}

// Abandon closes a file that was not begun, and leaves things as they were.
func (g *GrownFile) Abandon() {
	if g.made {
		_ = os.Remove(g.Name()) // before the lock ends; it is empty
	}
	_ = g.Close()
}

// Reads notes that a file is an input of this run: no output may be the same file, or be read
// by more users. A file that is read again counts as it is now.
func (e *Env) Reads(name string) {
	st, err := os.Stat(name)
	if err != nil {
		return
	}
	in := input{name, st}
	if i := slices.IndexFunc(e.inputs, func(old input) bool { return old.name == name }); i >= 0 {
		e.inputs[i] = in
	} else {
		e.inputs = append(e.inputs, in)
	}
}

// Limit returns which of a mode's bits a new file may have: of those for others, what all
// inputs have; while a program is traced none.
func (e *Env) Limit(mode fs.FileMode) fs.FileMode {
	switch {
	case e.public:
		return mode
	case e.Tracing:
		return mode & ModePrivate
	}
	for _, in := range e.inputs {
		perm := in.info.Mode().Perm()
		if sys, ok := in.info.Sys().(*syscall.Stat_t); ok && int(sys.Gid) != os.Getegid() {
			perm = perm&^0o070 | perm&0o007<<3 // another group, whose users are among all others
		}
		mode &= perm | ModePrivate
	}
	return mode
}

// input is a file that a verb reads.
type input struct {
	name string
	info fs.FileInfo
}

// RefuseInput refuses an output that is a file which is read, by any name.
func (e *Env) RefuseInput(name string) error {
	st, err := os.Stat(name)
	if err != nil || name == "-" {
		return nil // there is none yet
	}
	for _, in := range e.inputs {
		if st.Mode().IsRegular() && os.SameFile(st, in.info) {
			if in.name == name {
				return fmt.Errorf("%s is read by this command: write to another file", name)
			}
			return fmt.Errorf("%s is the file %s, which this command reads: write to another file", name, in.name)
		}
	}
	return nil
}

// WholeFile is a file that takes its place when it is complete. Until then an earlier
// one of that name stays; if this process is killed, nothing is left behind.
type WholeFile struct {
	*os.File
	to    string // its place, links followed; "" if it is written in place
	named string // beside to; "" if it has no name yet
}

// Create makes a verb's output: the file, or stdout where name is empty or "-".
func (e *Env) Create(name string, mode fs.FileMode) (w io.Writer, finish func(error) error, err error) {
	if name == "" || name == "-" {
		return e.Stdout, func(err error) error { return err }, nil
	}
	f, err := e.CreateWhole(name, mode)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Finish, nil
}

// WriteFile writes a whole file; "-" is stdout.
func (e *Env) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if name == "-" {
		_, err := e.Content().Write(data)
		return err
	}
	f, err := e.CreateWhole(name, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return f.Finish(err)
}

// WritePublic writes a file that other users shall read, whatever its contents were made from.
func (e *Env) WritePublic(name string, data []byte) error {
	public := *e
	public.public = true
	return public.WriteFile(name, data, ModeFile)
}

// CreateWhole makes a file that takes its name when it is finished, and until then leaves what has that name as it is.
func (e *Env) CreateWhole(name string, mode fs.FileMode) (*WholeFile, error) {
	if name == "-" {
		f, err := dupStdout()
		if err != nil {
			return nil, err
		}
		return &WholeFile{File: f}, nil
	}
	if err := errors.Join(e.RefuseInput(name), foreignLink(name)); err != nil {
		return nil, err
	}
	mode = e.Limit(mode)
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(name); err == nil { // a link to a file that is not there
			return inPlace(name, mode)
		}
		return beside(name, mode)
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || opened(name) {
		return inPlace(name, mode) // a pipe, or what somebody else has open, too
	}
	// It is opened first: whether it may be written is the kernel's to say, which has rules
	// of its own for links in /tmp.
	old, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer old.Close()
	to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(old.Fd())))
	if err != nil {
		return inPlace(name, mode)
	}
	f, err := beside(to, mode)
	if err != nil { // a folder that can't be written to
		return inPlace(name, mode)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == os.Geteuid() && mode != ModePrivate {
		_ = f.Chmod(st.Mode().Perm() & mode) // as its owner has set it, where there are modes
	}
	return f, nil
}

// opened reports whether a name means what this or another process has open, such as
// /dev/stdout: whoever opened it has said who may read it.
func opened(name string) bool {
	path := filepath.Clean(name)
	return strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/")
}

// inPlace opens a file that can't be replaced as a whole.
func inPlace(name string, mode fs.FileMode) (*WholeFile, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, mode)
	if err != nil {
		return nil, err
	}
	if st, serr := f.Stat(); serr == nil && st.Mode().IsRegular() {
		if !opened(name) {
			err = narrow(f, st, mode)
		}
		if err == nil {
			err = f.Truncate(0)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &WholeFile{File: f}, nil
}

// beside makes a file without a name in the folder of to, or, where a file system has no
// such files, with another name.
func beside(to string, mode fs.FileMode) (*WholeFile, error) {
	dir := filepath.Dir(to)
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, uint32(mode))
	if err == nil {
		return &WholeFile{File: os.NewFile(uintptr(fd), to), to: to}, nil
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		return nil, &fs.PathError{Op: "open", Path: to, Err: err}
	}
	for {
		name := besideName(to)
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err == nil {
			return &WholeFile{File: f, to: to, named: name}, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
}

// besideName makes up a name in the same folder.
func besideName(to string) string {
	dir, base := filepath.Split(to)
	return filepath.Join(dir, "."+base[:min(len(base), 200)]+"."+strconv.FormatUint(rand.Uint64(), 36))
}

// Finish closes the file, which takes its place unless err, or closing it, says that it is
// not whole.
func (f *WholeFile) Finish(err error) error {
	if err == nil && f.to != "" && f.named == "" {
		err = f.link()
	}
	err = errors.Join(err, f.Close())
	if err == nil && f.to != "" {
		err = os.Rename(f.named, f.to)
	}
	if err != nil && f.named != "" {
		_ = os.Remove(f.named) // the error is told
	}
	return err
}

// link gives the file a name.
func (f *WholeFile) link() error {
	for {
		name := besideName(f.to)
		err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
		if err == nil {
			f.named = name
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return &fs.PathError{Op: "link", Path: f.to, Err: err}
		}
	}
}

// SameFile reports whether two names are those of one regular file.
func SameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	if err1 != nil || err2 != nil {
		return b != "" && filepath.Clean(a) == filepath.Clean(b)
	}
	return x.Mode().IsRegular() && os.SameFile(x, y)
}
