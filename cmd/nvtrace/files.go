package main

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
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/traces"
	"nvtrace/traces/record"
)

// Every file that nvtrace writes is made here, by one of two ways. What grows while a
// program runs (a recording, a log) is written in place, under a lock. All else is
// written beside its place, and takes it when it is whole.

// Modes of new files, before the umask. Recordings, and all that is written while programs
// are traced, hold the memory of programs. What is made of files is for nobody who may not
// read these: see env.limit.
const (
	modeFile    = 0o666
	modePrivate = 0o600
)

// errBusy is in the chain of errors about a file that another nvtrace is writing.
var errBusy = errors.New("another nvtrace is writing it")

// grownFile is a file that grows in place. What was in it before stays until begin.
type grownFile struct {
	*os.File
	info fs.FileInfo
	made bool // by this run
	mode fs.FileMode
}

// openGrown opens a file to grow in place, and makes it if need be. A regular one is
// locked until it is closed, so that two runs can't mix what they write.
func openGrown(name string, mode fs.FileMode) (*grownFile, error) {
	for {
		f, made, err := openOrMake(name, mode)
		if err != nil {
			return nil, err
		}
		st, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		g := &grownFile{f, st, made, mode}
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
func (g *grownFile) lock() error {
	err := unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%s: %w; give each run a name of its own: in names, %%p stands for the process id, %%h for the host, %%r for the rank", g.Name(), errBusy)
	}
	return nil
}

// begin takes away what was in the file before.
func (g *grownFile) begin() error {
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

// abandon closes a file that was not begun, and leaves things as they were.
func (g *grownFile) abandon() {
	if g.made {
		_ = os.Remove(g.Name()) // before the lock ends; it is empty
	}
	_ = g.Close()
}

// reads notes that a file is an input of this run: no output may be the same file, or be read
// by more users.
func (e *env) reads(name string) {
	if st, err := os.Stat(name); err == nil {
		e.inputs = append(e.inputs, input{name, st})
	}
}

// limit returns which of a mode's bits a new file may have: of those for others, what all
// inputs have; while a program is traced none.
func (e *env) limit(mode fs.FileMode) fs.FileMode {
	if e.tracing {
		return mode & modePrivate
	}
	for _, in := range e.inputs {
		perm := in.info.Mode().Perm()
		if sys, ok := in.info.Sys().(*syscall.Stat_t); ok && int(sys.Gid) != os.Getegid() {
			perm = perm&^0o070 | perm&0o007<<3 // another group, whose users are among all others
		}
		mode &= perm | modePrivate
	}
	return mode
}

// input is a file that a verb reads.
type input struct {
	name string
	info fs.FileInfo
}

// refuseInput refuses an output that is a file which is read, by any name.
func (e *env) refuseInput(name string) error {
	st, err := os.Stat(name)
	if err != nil {
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

// wholeFile is a file that takes its place when it is complete. Until then an earlier
// one of that name stays; if this process is killed, nothing is left behind.
type wholeFile struct {
	*os.File
	to    string // its place, links followed; "" if it is written in place
	named string // beside to; "" if it has no name yet
}

// create makes a verb's output: the file, or stdout where name is empty.
func (e *env) create(name string, mode fs.FileMode) (w io.Writer, finish func(error) error, err error) {
	if name == "" {
		return e.stdout, func(err error) error { return err }, nil
	}
	f, err := e.createWhole(name, mode)
	if err != nil {
		return nil, nil, err
	}
	return f, f.finish, nil
}

// writeFile writes a whole file.
func (e *env) writeFile(name string, data []byte, mode fs.FileMode) error {
	f, err := e.createWhole(name, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return f.finish(err)
}

func (e *env) createWhole(name string, mode fs.FileMode) (*wholeFile, error) {
	if err := errors.Join(e.refuseInput(name), foreignLink(name)); err != nil {
		return nil, err
	}
	mode = e.limit(mode)
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
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == os.Geteuid() && mode != modePrivate {
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
func inPlace(name string, mode fs.FileMode) (*wholeFile, error) {
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
	return &wholeFile{File: f}, nil
}

// beside makes a file without a name in the folder of to, or, where a file system has no
// such files, with another name.
func beside(to string, mode fs.FileMode) (*wholeFile, error) {
	dir := filepath.Dir(to)
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, uint32(mode))
	if err == nil {
		return &wholeFile{File: os.NewFile(uintptr(fd), to), to: to}, nil
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		return nil, &fs.PathError{Op: "open", Path: to, Err: err}
	}
	for {
		name := besideName(to)
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err == nil {
			return &wholeFile{File: f, to: to, named: name}, nil
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

// finish closes the file, which takes its place unless err, or closing it, says that it is
// not whole.
func (f *wholeFile) finish(err error) error {
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
func (f *wholeFile) link() error {
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

// outputNames are the files of a run, "" for those that are not written.
type outputNames struct{ recording, log, json, maps string }

// names returns the names of a run's outputs. The header says what their patterns stand for.
func (f *runFlags) names(h *traces.Header, getenv func(string) string) (n outputNames, err error) {
	var taken []string
	for _, o := range []struct {
		to         *string
		flag, name string
	}{
		{&n.recording, "-o", f.out},
		{&n.log, "--ioctl-log", f.log.value},
		{&n.json, "--json", f.json.value},
		{&n.maps, "--maps", f.attach.mapsFile},
	} {
		if *o.to, err = expandName(o.name, h, 1, getenv); err != nil {
			return n, fmt.Errorf("%s=%w", o.flag, err)
		}
		if *o.to == "" {
			continue
		}
		if slices.ContainsFunc(taken, func(other string) bool { return sameFile(other, *o.to) }) {
			return n, fmt.Errorf("%s=%s: another output has this name", o.flag, *o.to)
		}
		taken = append(taken, *o.to)
	}
	if n.recording != "" {
		return n, traces.CheckName(n.recording)
	}
	return n, nil
}

// sameFile reports whether two names are those of one regular file.
func sameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	if err1 != nil || err2 != nil {
		return b != "" && filepath.Clean(a) == filepath.Clean(b)
	}
	return x.Mode().IsRegular() && os.SameFile(x, y)
}

// expandName puts what a recording's header tells into the name of a run's output: %p is
// the program's process id, %n the number of the file with --rotate, %h the host, %r the rank, %t the start in UTC, %q{NAME} an
// environment variable of nvtrace, %% a percent sign.
func expandName(name string, h *traces.Header, part int, getenv func(string) string) (string, error) {
	var b strings.Builder
	rest := name
	for {
		text, verb, found := strings.Cut(rest, "%")
		b.WriteString(text)
		if !found {
			return b.String(), nil
		}
		if verb == "" {
			return "", fmt.Errorf("%s: a %% at the end: write %%%% for a percent sign", name)
		}
		value := ""
		switch verb[0] {
		case '%':
			b.WriteByte('%')
			rest = verb[1:]
			continue
		case 'p':
			value = strconv.Itoa(int(h.PID))
		case 'n':
			value = strconv.Itoa(part)
		case 'h':
			value = h.Host
		case 't':
			value = time.Unix(0, h.Start).UTC().Format("20060102T150405.000Z")
		case 'r':
			var ok bool
			if value, ok = record.Rank(h); !ok {
				return "", fmt.Errorf("%s: %%r: there is no rank: no launcher has set RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID or the like", name)
			}
		case 'q':
			inside, after, ok := strings.Cut(verb[1:], "}")
			if !ok || !strings.HasPrefix(inside, "{") || inside == "{" {
				return "", fmt.Errorf("%s: %%q: want %%q{NAME}, with the name of an environment variable", name)
			}
			if value = getenv(inside[1:]); value == "" {
				return "", fmt.Errorf("%s: %%q{%s}: the environment variable is not set", name, inside[1:])
			}
			verb = "q" + after
		default:
			return "", fmt.Errorf("%s: %%%c: want %%p (process id), %%n (number with --rotate), %%h (host), %%r (rank), %%t (time), %%q{NAME} (environment) or %%%%", name, verb[0])
		}
		if value == "" {
			return "", fmt.Errorf("%s: %%%c is not known here", name, verb[0])
		}
		// A value is a part of a name, and can't lead to another folder.
		b.WriteString(strings.ReplaceAll(value, "/", "_"))
		rest = verb[1:]
	}
}
