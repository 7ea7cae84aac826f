package run

import (
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ptrace"
)

// failStatus returns the exit status for an error of starting a program.
func failStatus(err error) int {
	switch {
	case errors.Is(err, ptrace.ErrNotFound):
		return cli.ExitNotFound
	case errors.Is(err, ptrace.ErrNotExecutable):
		return cli.ExitNoExec
	}
	return cli.ExitFailed
}

// asked reports whether a program was ended by a signal that somebody sends to have it end.
func asked(status unix.WaitStatus) bool {
	if !status.Signaled() {
		return false
	}
	switch status.Signal() {
	case unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM:
		return true
	}
	return false
}

// endAs makes nvtrace end as the program did: it returns the exit status, or
// dies of the same signal.
func endAs(status unix.WaitStatus) int {
	if !status.Signaled() {
		return status.ExitStatus()
	}
	sig := status.Signal()
	// The program has dumped its core, if any; a second one would hide it.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	setSignal(sig, defaultSignal)
	if unix.Kill(os.Getpid(), sig) == nil {
		time.Sleep(100 * time.Millisecond)
	}
	return 128 + int(sig) // a signal that Go's runtime keeps to itself
}

// quits has SIGQUIT end nvtrace as it ends other programs, until it is stopped: Go's runtime would dump the
// stacks of all goroutines. While a program is traced, it gets the signal instead.
var quits = make(chan os.Signal, 1)

// DieQuietly has SIGQUIT end nvtrace as it ends other programs.
func DieQuietly() {
	signal.Notify(quits, unix.SIGQUIT)
	go func() {
		<-quits
		os.Exit(endAs(unix.WaitStatus(unix.SIGQUIT)))
	}()
}

// stopQuits leaves SIGQUIT to others, who ask for it themselves.
func stopQuits() { signal.Stop(quits) }
