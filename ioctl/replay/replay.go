package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/traces"
)

// MissPolicy says what a call gets that the recording has no answer for.
type MissPolicy uint8

// The policies.
const (
	// MissStatus lets the ioctl succeed with NV_ERR_NOT_SUPPORTED in its status,
	// as the driver itself refuses a control that it does not have. A call
	// without a status member fails with ENOTTY.
	MissStatus MissPolicy = iota
	// MissErrno lets the ioctl fail with ENOTTY, which the driver never returns.
	MissErrno
	// MissAbort kills the program; Run returns a [*MissError].
	MissAbort
)

var missPolicies = [...]string{MissStatus: "status", MissErrno: "errno", MissAbort: "abort"}

// ParseMissPolicy reads "status", "errno" or "abort".
func ParseMissPolicy(s string) (MissPolicy, error) {
	for i, name := range missPolicies {
		if s == name {
			return MissPolicy(i), nil
		}
	}
	return 0, fmt.Errorf("%q is no policy for calls that are not in the recording, want status, errno or abort", s)
}

// Options say how to run the program. Nil, and the zero value, are good defaults.
type Options struct {
	Path string   // file to execute; "" searches argv[0] in $PATH
	Env  []string // nil: this process's environment
	Dir  string   // working directory; "" keeps this process's

	Stdin, Stdout, Stderr *os.File // nil: this process's own

	OnMiss MissPolicy
	// Strict makes a miss of a call whose recorded twins all had other input.
	Strict bool
	// NoSignals keeps Run from handling signals sent to this process. By default
	// SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the program, and
	// SIGINT and SIGQUIT do not end this process: the program, in the same
	// terminal, gets its own.
	NoSignals bool

	// Logger gets debug messages, one for each answered call; nil drops them.
	Logger *slog.Logger
}

// Result is the outcome of a replay.
type Result struct {
	PID    int             // the program's process id
	Status unix.WaitStatus // how it ended
	Ended  bool            // Status is valid

	Opens    uint64 // opens of device nodes answered
	Answered uint64 // ioctls answered from the recording, the next two included
	Repeated uint64 // … by an answer that had been given before
	Inexact  uint64 // … by an answer to the same call with other input
	Missed   uint64 // opens and ioctls that the recording has no answer for
	Unused   int    // recorded answers that were never asked for

	// Misses are the missed and the inexactly answered calls, equal ones once, in
	// the order of their first appearance. At most 1000 are kept.
	Misses []Miss
}

// Miss is a call that the recording could not answer, or only inexactly.
type Miss struct {
	Line    string // the call, decoded
	Reason  string // what the recording lacks
	Count   int    // how often
	Inexact bool   // it was answered nevertheless
}

// String is the line for a report, without a newline.
func (m *Miss) String() string {
	s := m.Line + ": " + m.Reason
	if m.Count > 1 {
		s += fmt.Sprintf(" (%d times)", m.Count)
	}
	return s
}

// MissError reports the call that ended the program under [MissAbort].
type MissError struct{ Miss Miss }

// Error implements error.
func (e *MissError) Error() string { return "not in the recording: " + e.Miss.String() }

// Errors that callers may want to tell apart.
var (
	// ErrUnsupported: this machine can't replay; the message says why.
	ErrUnsupported = errors.New("replay is not possible here")
	// ErrEmpty: the recording has no device calls.
	ErrEmpty = errors.New("the recording has no device calls to answer from")
)

// Run runs argv, answers its device calls from the recording rec, which is at the beginning
// of its events, and returns when argv and all its descendants have ended. A recording that
// ends in damage serves as far as it goes; Run says so through o.Logger.
//
// When ctx is cancelled, the program is killed, and Run returns the context's
// cause. Failure to start the program is a [*ptrace.ExecError]. The Result is
// valid also with an error.
func Run(ctx context.Context, r *traces.Reader, argv []string, o *Options) (Result, error) {
	if o == nil {
		o = &Options{}
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := supported(); err != nil {
		return Result{}, err
	}
	rec, err := load(r)
	if err != nil {
		return Result{}, err
	}
	if rec.damage != nil {
		log.Warn("replaying the undamaged part of the recording", "error", rec.damage)
	}
	child, err := ptrace.Launch(&ptrace.Options{
		Argv: argv, Path: o.Path, Env: o.Env, Dir: o.Dir,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
		Rules: rules(), Logger: o.Logger,
	})
	if err != nil {
		return Result{}, explainLaunch(err)
	}
	defer child.Listener.Close()
	defer child.Pidfd.Close()
	s := newServer(rec, child, o, log)
	if !o.NoSignals {
		stop := s.forwardSignals()
		defer stop()
	}
	err = s.serve(ctx)
	return s.finish(), err
}

// supported checks for the kernel features without which no answer could be
// given: SECCOMP_ADDFD_FLAG_SEND is the youngest of them.
func supported() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("%w: uname: %w", ErrUnsupported, err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 5 || major == 5 && minor < 14) {
		return fmt.Errorf("%w: it needs Linux 5.14 or later (seccomp's ADDFD with SEND), this is %s", ErrUnsupported, release)
	}
	return nil
}

// explainLaunch says what a refused filter means.
func explainLaunch(err error) error {
	e, ok := errors.AsType[*ptrace.ExecError](err)
	if !ok || e.Stage != "seccomp" {
		return err
	}
	why := "seccomp user notification is refused; a container's seccomp profile may forbid it"
	switch e.Errno {
	case unix.EBUSY:
		why = "this process already runs under a seccomp listener (a container manager's, or another replay's), and there can be only one"
	case unix.ENOSYS, unix.EINVAL:
		why = "this kernel or sandbox lacks seccomp user notification"
	}
	return fmt.Errorf("%w: %s: %w", ErrUnsupported, why, err)
}
