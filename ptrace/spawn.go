package ptrace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/internal/early"
)

// releaseSpins is how often a child looks whether it may go on before it sleeps: for some
// 200 µs, which is longer than it has to wait, where to wake it can take as long.
const releaseSpins = 1 << 17

// spawn forks a child that will run o.Argv under prog (none if empty).
func spawn(o *Options, prog Program, flags uintptr, optional bool) (*spawned, error) {
	s, err := newSpawned(o, prog, flags, optional)
	if err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		s.close()
		return nil, err
	}
	runtime.KeepAlive(o) // its files must be open at the fork
	if o.onFork != nil {
		o.onFork(s.pid)
	}
	return s, nil
}

// newSpawned makes all that a child needs.
func newSpawned(o *Options, prog Program, flags uintptr, optional bool) (*spawned, error) {
	if len(o.Argv) == 0 {
		return nil, errors.New("no program to run")
	}
	s := &spawned{dir: o.Dir}
	var err error
	if s.path, err = findProgram(o); err != nil {
		return nil, err
	}
	if s.page, s.hs, err = newHandshake(); err != nil {
		return nil, err
	}
	p := &plan{prog: prog.fprog(), flags: flags, optional: optional, apart: o.apart, page: s.hs, stack: end(s.page)}
	if runtime.NumCPU() > 1 {
		p.spins = releaseSpins
	}
	s.plan = p
	if err := s.fill(p, o); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// fill converts the strings and files of o.
func (s *spawned) fill(p *plan, o *Options) (err error) {
	if p.path, err = syscall.BytePtrFromString(s.path); err != nil {
		return fmt.Errorf("path %q: %w", s.path, err)
	}
	if p.argv, err = cstrings(o.Argv); err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	env := o.Env
	if env == nil {
		env = os.Environ()
	}
	if p.envv, err = cstrings(env); err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	if o.Dir != "" {
		if p.dir, err = syscall.BytePtrFromString(o.Dir); err != nil {
			return fmt.Errorf("directory %q: %w", o.Dir, err)
		}
	}
	for _, f := range append([]*os.File{o.Stdin, o.Stdout, o.Stderr}, o.ExtraFiles...) {
		fd := int32(-1)
		if f != nil {
			fd = int32(f.Fd())
		}
		p.fds = append(p.fds, fd)
	}
	if r, ok := early.NoFile(); ok {
		p.limit = &r
	}
	p.mask, _ = early.Mask()
	return nil
}

// start forks. The pipes get descriptors out of the way of the program's files.
func (s *spawned) start() error {
	p := s.plan
	minFd := len(p.fds) + 3
	goR, goW, err := highPipe(minFd)
	if err != nil {
		return err
	}
	defer goR.Close()
	doneR, doneW, err := highPipe(minFd)
	if err != nil {
		goW.Close()
		return err
	}
	defer doneW.Close() // the child has its own
	s.goW, s.done = goW, doneR
	p.sync, p.syncW = int(goR.Fd()), int(goW.Fd())
	syscall.ForkLock.Lock()
	pid, e := p.fork()
	syscall.ForkLock.Unlock()
	if e != 0 {
		return &ExecError{Path: s.path, Stage: "fork", Errno: e}
	}
	s.pid = pid
	return nil
}

// highPipe makes a close-on-exec pipe whose descriptors are at least minFd.
func highPipe(minFd int) (r, w *os.File, err error) {
	var p, hi [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	for i := range p {
		if hi[i], err = unix.FcntlInt(uintptr(p[i]), unix.F_DUPFD_CLOEXEC, minFd); err != nil {
			if i == 1 {
				unix.Close(hi[0])
			}
			return nil, nil, os.NewSyscallError("fcntl", err)
		}
	}
	return os.NewFile(uintptr(hi[0]), "pipe"), os.NewFile(uintptr(hi[1]), "pipe"), nil
}

// release lets the child go on.
func (s *spawned) release() error {
	_, err := s.goW.Write([]byte{1})
	if err == nil {
		store(&s.hs.released, 1)
	}
	return err
}

// failure returns why the child did not become the program, nil if it did or
// is still on its way.
func (s *spawned) failure() error {
	f := load(&s.hs.failure)
	if f == 0 {
		return nil
	}
	return newExecError(s.path, s.dir, stage(f>>16), unix.Errno(f&0xffff))
}

// close frees everything but the child itself. A child that was not released
// ends; if it still has to, the page with its stack stays.
func (s *spawned) close() {
	if s.goW != nil {
		s.goW.Close()
	}
	if s.page != nil && s.left() {
		unix.Munmap(s.page)
	}
	s.page, s.hs = nil, nil
	if s.done != nil {
		s.done.Close()
	}
}

// left says that there is no child, or that it has left this process's memory.
func (s *spawned) left() bool {
	if s.pid == 0 {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(s.done.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 // at its end
}

func newExecError(path, dir string, st stage, e unix.Errno) *ExecError {
	err := &ExecError{Path: path, Stage: stageNames[st], Errno: e}
	if st != stageExec {
		return err
	}
	err.kind = ErrNotExecutable
	if e == unix.ENOENT || e == unix.ENOTDIR {
		if dir != "" && !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		// If the file is there, its interpreter is missing.
		if _, statErr := os.Stat(path); statErr != nil {
			err.kind = ErrNotFound
		}
	}
	return err
}

// findProgram returns the file to execute, found as execvp(3) would.
func findProgram(o *Options) (string, error) {
	if o.Path != "" {
		return o.Path, nil
	}
	name := o.Argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	result := &ExecError{Path: name, Stage: "find", Errno: unix.ENOENT, kind: ErrNotFound}
	if name == "" {
		return "", result
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, name)
		if !strings.Contains(file, "/") {
			file = "./" + file
		}
		fi, err := os.Stat(file)
		if err != nil {
			continue
		}
		if !fi.IsDir() && unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS) == nil {
			return file, nil
		}
		result = &ExecError{Path: file, Stage: "find", Errno: unix.EACCES, kind: ErrNotExecutable}
	}
	return "", result
}
