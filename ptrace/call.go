package ptrace

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Syscall executes a system call in the task: at the entry or the exit of a call,
// at TaskNew, TaskExec and TaskStop, at a breakpoint, in a function given to
// [Task.Interrupt], or while it is held at one of these. It must not be one that
// may block, since the tracer waits for it.
//
// The task's registers, the call that it is about to make or to return from, and
// its signals are as before; those that arrive meanwhile are delivered later. No
// handler sees the call, and no filter of this package stops it. That holds also if
// this process is killed meanwhile and the program is not: some code that sees to it
// is then put into the unused end of a page of the program's code.
//
// The error matches ErrState where that is not possible, ErrGone if the task died, and
// ErrConfined where a filter of the program's own does not allow the call, which is not
// made then. A call that the kernel refuses returns its negative errno, and an error
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

// await waits for the next stop of a task that was let run. If it ends instead,
// the error matches ErrGone, and the main loop hears of it later.
//
// It waits for all tasks, and keeps what others report for the main loop. To wait
// for this one alone would be wrong: the end of a main thread is reported only
// when the others' ends have been, and an execve of another thread waits for
// those, too.
func (t *Task) await() (unix.WaitStatus, error) {
	tr := t.tr
	for looks := 0; ; looks++ {
		var w waited
		var e unix.Errno
		switch {
		case !tr.outlived:
			w.tid, e = waitAny(-1, &w.status)
		case !tr.keeping():
			w, e = tr.look(-1, true)
		case looks%1000 == 999 && isZombie(t.PID, t.TID): // as above
			w.tid, e = waitAny(-1, &w.status)
		default:
			if w.tid, e = waitNow(t.TID, &w.status); w.tid == 0 && e == 0 {
				yield()
				continue
			}
		}
		switch {
		case e == unix.EINTR || e == 0 && w.tid == 0:
			continue
		case e != 0:
			return 0, fmt.Errorf("wait for %d: %w (%w)", t.TID, ErrGone, e)
		case w.tid != t.TID:
			if w.kept || !tr.keptNoMore(w.tid) || classify(w.status).ended() {
				tr.queue(w)
			}
			continue
		}
		if w.kept { // whoever waits for it deals with it
			waitNow(w.tid, &w.status)
		}
		// An execve here is another thread's, which has killed t and taken its id.
		if s := classify(w.status); s.ended() || s.kind == stopExec {
			tr.queue(waited{tid: w.tid, status: w.status})
			t.dead = true
			return 0, fmt.Errorf("wait for %d: %w", t.TID, ErrGone)
		}
		tr.res.Stops++
		return w.status, nil
	}
}

// queue keeps a stop or an end for the main loop. The task stays as it is until
// then.
func (tr *tracer) queue(w waited) {
	if t := tr.tasks[w.tid]; t != nil {
		t.queued, t.dead = true, classify(w.status).ended()
	}
	tr.pending = append(tr.pending, w)
}

// unqueue takes back what is kept about a task.
func (tr *tracer) unqueue(tid int) (st unix.WaitStatus, ok bool) {
	for i, w := range tr.pending {
		if w.tid == tid {
			tr.pending = slices.Delete(tr.pending, i, i+1)
			return w.status, true
		}
	}
	return 0, false
}
