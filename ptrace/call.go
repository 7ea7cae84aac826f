package ptrace

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Syscall executes a system call in the task: at the entry or the exit of a call,
// at TaskNew and TaskExec, at a breakpoint, in a function given to
// [Task.Interrupt], or while it is held at one of these. It must not be one that
// may block, since the tracer waits for it.
//
// The task's registers, the call that it is about to make or to return from, and
// its signals are as before; those that arrive meanwhile are delivered later. No
// handler sees the call, and no filter of this package stops it. A filter of the
// program's own may forbid it.
//
// The error matches ErrState where that is not possible, and ErrGone if the task
// died. A call that the kernel refuses returns its negative errno, and an error
// that matches the errno. Calls that make, replace or end tasks are refused.
func (t *Task) Syscall(nr uint64, args ...uint64) (int64, error) {
	if len(args) > 6 {
		return 0, fmt.Errorf("system call in %d: %d arguments", t.TID, len(args))
	}
	if name := SyscallName(nativeArch, nr); slices.Contains(uncallable, name) {
		return 0, fmt.Errorf("system call in %d: %s can't be injected", t.TID, name)
	}
	return t.syscall(nr, args)
}

// uncallable are calls after which there would be no way back.
var uncallable = []string{
	"clone", "clone3", "fork", "vfork", "execve", "execveat", "exit", "exit_group", "rt_sigreturn", "restart_syscall",
}

// await waits for the next stop of a task that was let run. If that is its end,
// the error matches ErrGone, and the main loop hears of it later.
func (t *Task) await() (unix.WaitStatus, error) {
	var st unix.WaitStatus
	_, e := waitAny(t.TID, &st)
	for e == unix.EINTR {
		_, e = waitAny(t.TID, &st)
	}
	if e != 0 {
		return 0, fmt.Errorf("wait for %d: %w (%w)", t.TID, ErrGone, e)
	}
	if classify(st).ended() {
		t.tr.queue(t, st)
		return 0, fmt.Errorf("wait for %d: %w", t.TID, ErrGone)
	}
	t.tr.res.Stops++
	return st, nil
}

// queue keeps a stop or an end for the main loop. The task stays as it is until
// then.
func (tr *tracer) queue(t *Task, st unix.WaitStatus) {
	t.queued, t.dead = true, classify(st).ended()
	tr.pending = append(tr.pending, waited{t.TID, st})
}
