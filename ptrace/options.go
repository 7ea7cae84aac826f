package ptrace

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Options says what to run and what to stop for. Run, Launch and StartApart need Argv;
// Attach takes nil.
type Options struct {
	Argv []string // program and arguments
	Path string   // file to execute; "" searches Argv[0] in $PATH as a shell does
	Env  []string // nil: this process's environment
	Dir  string   // working directory; "" keeps this process's

	// Standard files; nil passes this process's own. Other inherited
	// descriptors stay open in the program, as they would untraced.
	Stdin, Stdout, Stderr *os.File
	// ExtraFiles become descriptors 3, 4, ... of the program.
	ExtraFiles []*os.File

	// Rules select the calls that the handler sees.
	Rules []Rule
	// ExtraRules are for processes in which the handler asks for them, by
	// [Task.InjectFilter] with nil.
	ExtraRules []Rule
	// ExtraInBase applies ExtraRules everywhere from the start, at the price of
	// more stops. For machines where InjectFilter can't work.
	ExtraInBase bool

	// Injector, if not nil, has code of its own in the traced processes.
	Injector Injector

	Seccomp SeccompMode
	// NoExitKill lets the program live on when the tracing process is killed.
	// Its matched calls fail with ENOSYS from then on, and breakpoints that are
	// set end it when it comes to one, unless they are an Injector's detours; see Planted.
	NoExitKill bool
	// Planted, if not nil, is told on the tracing thread of each place in a process's
	// memory where a breakpoint instruction is about to be written, and of the code
	// that the program has there: for another process, which takes the breakpoints
	// away if this one is killed. It is not told of their removal. code is valid
	// during the call only.
	Planted func(pid int, addr uint64, code []byte)
	// Orphans says what Run does when the program has ended, but not all of the
	// processes that it left behind.
	Orphans OrphanPolicy
	// Waiting, if not nil, is called on the tracing thread when the program has ended, and
	// Run goes on for the processes that it left behind.
	Waiting func(pids []int)
	// Others are processes that Attach traces beside the one that it is given.
	Others []int
	// Leave, if not nil, is called on a goroutine of its own before Attach lets a program go
	// that goes on. Tasks are traced as before until it returns.
	Leave func()
	// NoSignals keeps Run and Attach from handling signals sent to this
	// process. By default those that end a program by default reach the traced one once,
	// whether they were sent to this process or to the group that both are in, and do
	// nothing else; but for SIGKILL, timers' signals and real-time signals. SIGINT and
	// SIGQUIT of a terminal are for those in the group only. SIGUSR1 and SIGUSR2 sent to
	// this process alone are not passed on to a program that knows nothing of them and
	// would end. When the program has ended, they go to all that it left behind.
	// In Attach the first signal detaches, but for SIGUSR1 and SIGUSR2, which do nothing;
	// one that comes a second later ends this process, whereupon the kernel
	// detaches what could not be stopped (a thread that sleeps uninterruptibly in a
	// driver). Where signals came, this process is deaf to them for a second after
	// Run or Attach has returned: timeout(1) sends each twice.
	NoSignals bool

	// Got, if not nil, is told by Run, on a goroutine of its own, of a signal that this
	// process has got and passes on.
	Got func(sig unix.Signal)

	// Held, if not nil, is told on the tracing thread for how long it has dealt with
	// each stop, all that it made the task do there included. What it takes to wake
	// this thread, and then the task, is not known here. why is what Task.Why has said, "" for nothing.
	Held func(d time.Duration, why string)

	// Logger gets warnings and debug messages; nil drops them.
	Logger *slog.Logger

	// Started, if not nil, is called on the tracing thread when the program's
	// execve succeeded, before its first instruction, with its process id. If the
	// context has been cancelled when it returns, the program does not begin.
	Started func(pid int)

	// Forked, if not nil, is called by Run on the tracing thread as soon as the process that
	// becomes the program is on its way there: what is done in it goes on beside the
	// program's start.
	Forked func()

	// Ended, if not nil, is called on the tracing thread as soon as no tracee is left, with
	// the Result, also of a child that did not get to its program; it is not if nothing was
	// traced. Run and Attach return after it. Signals end this process again.
	Ended func(*Result)

	apart bool // of StartApart

	noCopies bool          // for tests: instructions at breakpoints are executed in place
	onFork   func(pid int) // for tests: is told of the child, which waits
}

// SeccompMode says whether Run uses a seccomp filter.
type SeccompMode uint8

// The seccomp modes.
const (
	SeccompAuto SeccompMode = iota // use a filter; where it is refused, stop at every call
	SeccompOff                     // stop at every call
)

// OrphanPolicy says what happens to processes that outlive the program.
type OrphanPolicy uint8

// The orphan policies.
const (
	OrphansWait   OrphanPolicy = iota // trace them until the last has ended, as strace does
	OrphansKill                       // kill them when the program has ended
	OrphansDetach                     // let them go. Needs SeccompOff: under a filter they could not live without a tracer
	OrphansAuto                       // let them go if they have no filter, otherwise wait; see Options.Waiting
)

// Result is the outcome of a run.
type Result struct {
	PID    int             // the program's process id
	Status unix.WaitStatus // how it ended; for Attach only if it ended while being traced
	Ended  bool            // Status is valid

	Mode       Mode
	Reason     string // why not ModeSeccomp; ""
	NoNewPrivs bool   // PR_SET_NO_NEW_PRIVS had to be set for the filter

	Stops    uint64 // all stops
	Calls    uint64 // calls given to the handler
	Exits    uint64 // exits given to the handler
	Signals  uint64 // signals passed on
	Hits     uint64 // breakpoints hit
	Tasks    uint64 // threads and processes seen
	Injected uint64 // processes in which a second filter was installed

	TracerCPU time.Duration // CPU time of the tracing thread
	Wall      time.Duration
}

// Mode says how calls were stopped.
type Mode uint8

// The modes.
const (
	ModeSeccomp  Mode = iota + 1 // a filter in the program chose the calls
	ModeSyscalls                 // the program stopped at every call
)

// String returns the mode in a word.
func (m Mode) String() string {
	switch m {
	case ModeSeccomp:
		return "seccomp"
	case ModeSyscalls:
		return "syscalls"
	}
	return "invalid"
}

// Errors that callers tell apart.
var (
	ErrNotFound      = errors.New("command not found")
	ErrNotExecutable = errors.New("cannot execute")
	ErrNoProcess     = errors.New("no such process")
	ErrPermission    = errors.New("not permitted to trace")
	// ErrInject is wrapped by all errors of Task.InjectFilter.
	ErrInject = errors.New("filter not injected")
	// ErrGone is returned by methods of Task when the task has died.
	ErrGone = errors.New("task is gone")
)

// ExecError says at which step starting a program failed. It matches
// [ErrNotFound] or [ErrNotExecutable] if that is the reason; a shell's exit
// status is then 127 or 126.
type ExecError struct {
	Path  string
	Stage string // "find", "fork", "chdir", "dup", "seccomp", "exec"
	Errno unix.Errno
	kind  error
}

// Error implements error.
func (e *ExecError) Error() string {
	if e.kind != nil {
		return fmt.Sprintf("%s: %s: %v", e.Path, e.kind, e.Errno)
	}
	return fmt.Sprintf("%s: %s: %v", e.Path, e.Stage, e.Errno)
}

// Unwrap makes errors.Is work with the sentinel and the errno.
func (e *ExecError) Unwrap() []error {
	if e.kind != nil {
		return []error{e.kind, e.Errno}
	}
	return []error{e.Errno}
}

// EndedError says that the program was ended before its first instruction: by a signal
// that came so early, or by the kernel, which could not load all of it.
type EndedError struct {
	Path   string
	Status unix.WaitStatus // how it ended
}

// Error implements error.
func (e *EndedError) Error() string {
	return fmt.Sprintf("start %s: child was ended before its program began: %v", e.Path, describe(e.Status))
}

// HandlerError reports a panic in a [Handler]. The program was run to its end.
type HandlerError struct {
	Value any    // the value of the panic
	Stack []byte // where
}

// Error implements error.
func (e *HandlerError) Error() string { return fmt.Sprintf("trace handler: panic: %v", e.Value) }

func describe(w unix.WaitStatus) string {
	if w.Signaled() {
		return "signal " + w.Signal().String()
	}
	return fmt.Sprintf("status %d", w.ExitStatus())
}
