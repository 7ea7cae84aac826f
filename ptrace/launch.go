package ptrace

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a program started by [Launch].
type Child struct {
	PID      int
	Listener *os.File // the seccomp user notification descriptor; the caller closes it
	Pidfd    *os.File // for pidfd_send_signal and waitid(P_PIDFD); the caller closes it
	// NoNewPrivs: PR_SET_NO_NEW_PRIVS had to be set for the filter.
	NoNewPrivs bool
}

// Launch starts a program without tracing it, under a filter that asks a
// listener ([ActionNotify]) about the calls that o.Rules match. It returns when
// the program's execve has succeeded, or with an [*ExecError]. The caller must
// answer the listener, and wait for the child (os.FindProcess(PID).Wait). When
// the listener is closed, the calls fail with ENOSYS.
//
// Rules that select execve or exit_group are refused: the child makes these
// calls before there is anybody to answer. Needs Linux 5.6.
//
// Of the options it uses those about the program and its files, and Rules.
func Launch(o *Options) (*Child, error) {
	prog, err := launchFilter(o.Rules)
	if err != nil {
		return nil, err
	}
	// Once the listener has a call, a signal must not take it back: part of the
	// answer may be in the program's memory already. Kernels before 5.19 lack that.
	const listen = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	c, err := launch(o, prog, listen|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if e, ok := errors.AsType[*ExecError](err); ok && e.Stage == stageNames[stageSeccomp] && e.Errno == unix.EINVAL {
		c, err = launch(o, prog, listen)
	}
	return c, err
}

func launch(o *Options, prog Program, flags uintptr) (*Child, error) {
	s, err := spawn(o, prog, flags, false)
	if err != nil {
		return nil, err
	}
	defer s.close()
	c := &Child{PID: s.pid}
	if err := c.start(s); err != nil {
		c.abandon()
		return nil, err
	}
	c.NoNewPrivs = load(&s.hs.nnp) != 0
	return c, nil
}

// StartApart starts a program without tracing it, in a process group of its own and with all
// signals ignored. A signal to this process's group has no effect on it, not even one that
// comes while the child is still in that group. It returns when the program's execve has
// succeeded, or with an [*ExecError]. The caller must wait for the process.
//
// Of the options it uses those about the program and its files.
func StartApart(o *Options) (*os.Process, error) {
	opts := *o
	opts.apart = true
	s, err := spawn(&opts, nil, 0, false)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err = s.release(); err == nil {
		var b [1]byte
		_, _ = s.done.Read(b[:]) // end of file: it has execed or ended
		err = s.failure()
	}
	if err != nil {
		(&Child{PID: s.pid}).abandon()
		return nil, err
	}
	return os.FindProcess(s.pid)
}

func launchFilter(rules []Rule) (Program, error) {
	m, err := newMatcher(rules)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	for _, nr := range []uint32{unix.SYS_EXECVE, unix.SYS_EXIT_GROUP} {
		if _, ok := m.calls[call{nativeArch, nr}]; ok {
			return nil, fmt.Errorf("rules: %s can't be answered by a listener", SyscallName(nativeArch, uint64(nr)))
		}
	}
	prog, err := Compile(rules, ActionNotify)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return prog, nil
}

// start sees the child through to its program.
func (c *Child) start(s *spawned) error {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	c.Pidfd = os.NewFile(uintptr(fd), "pidfd")
	if err := s.release(); err != nil {
		return err
	}
	n, err := c.childListener(s)
	if err != nil {
		return err
	}
	if fd, err = unix.PidfdGetfd(fd, n, 0); err != nil {
		return fmt.Errorf("fetch the listener from process %d: pidfd_getfd: %w%s", s.pid, err, whyNoPtrace())
	}
	c.Listener = os.NewFile(uintptr(fd), "seccomp listener")
	store(&s.hs.fetched, 1)
	var b [1]byte
	_, _ = s.done.Read(b[:]) // end of file: it has execed or ended
	return s.failure()
}

// childListener waits until the child has installed its filter, and returns its
// descriptor. The child can't tell by a system call, which might be one that the
// filter stops.
func (c *Child) childListener(s *spawned) (int, error) {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, 2*time.Millisecond) {
		if n := load(&s.hs.listener); n != 0 {
			return int(n) - 1, nil
		}
		if err := s.failure(); err != nil {
			return 0, err
		}
		fds := []unix.PollFd{{Fd: int32(c.Pidfd.Fd()), Events: unix.POLLIN}}
		if n, _ := unix.Poll(fds, 0); n > 0 && load(&s.hs.listener) == 0 {
			if err := s.failure(); err != nil {
				return 0, err
			}
			return 0, fmt.Errorf("start %s: child was ended before its program began", s.path)
		}
		time.Sleep(pause)
	}
}

// abandon ends a child that did not get to its program.
func (c *Child) abandon() {
	_ = unix.Kill(c.PID, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(c.PID, nil, 0, nil); err != unix.EINTR {
			break
		}
	}
	for _, f := range []*os.File{c.Listener, c.Pidfd} {
		if f != nil {
			f.Close()
		}
	}
}
