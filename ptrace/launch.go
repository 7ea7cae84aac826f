package ptrace

import (
	"errors"
	"os"
)

// Child is a program started by [Launch].
type Child struct {
	PID      int
	Listener *os.File // the seccomp user notification descriptor; the caller closes it
	Pidfd    *os.File // for pidfd_send_signal and waitid(P_PIDFD); the caller closes it
}

// Launch starts a program without tracing it, under a filter that asks a
// listener ([ActionNotify]) about the calls that o.Rules match. It returns when
// the program's execve has succeeded, or with an [*ExecError]. The caller must
// answer the listener, and wait for the child.
//
// A rule that matches execve would block it, since nobody listens yet.
func Launch(o *Options) (*Child, error) { return nil, errors.ErrUnsupported }
