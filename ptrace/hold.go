package ptrace

import (
	"os"

	"golang.org/x/sys/unix"
)

// Hold keeps the task stopped where it is when the handler (or the function of a
// breakpoint) returns, until [Task.Release]. Others go on. The task may be killed
// meanwhile, and it is released when Attach ends or a handler panics. It has no
// effect at TaskExit and TaskDetach. A task that Attach announces is held as soon
// as it has stopped.
func (t *Task) Hold() { t.hold = true }

// Release lets a task go on that is held. fn, if not nil, is called first, on the
// tracing thread, and may do what the function that called Hold could; it may
// also call Hold again. Release may be called from any goroutine, and does not
// wait. If the task is gone by then, or was released for another reason, fn is
// not called.
func (t *Task) Release(fn func(t *Task)) { t.tr.request(request{t: t, fn: fn}) }

// Interrupt calls fn once, on the tracing thread, as soon as the task has
// stopped, wherever it is; a call in which it sleeps is restarted afterwards, as
// by a debugger. It may be called from any goroutine, and does not wait. If the
// task ends before, fn is not called.
func (t *Task) Interrupt(fn func(t *Task)) { t.tr.request(request{t: t, fn: fn, interrupt: true}) }

func (tr *tracer) request(q request) {
	tr.mu.Lock()
	tr.requests = append(tr.requests, q)
	tr.mu.Unlock()
	tr.work.Store(true)
	if tid := unix.Gettid(); tid != tr.tid { // on that thread itself, nothing waits
		tr.nudge()
		select {
		case tr.kick <- struct{}{}:
		default: // the watcher has been told
		}
	}
}

// serve does one request.
func (tr *tracer) serve() {
	tr.mu.Lock()
	if len(tr.requests) == 0 {
		tr.work.Store(false)
		tr.mu.Unlock()
		return
	}
	q := tr.requests[0]
	tr.requests = tr.requests[1:]
	tr.mu.Unlock()
	t := q.t
	if t == nil { // of Task.Post
		if q.signal || !tr.detaching && tr.crash == nil {
			q.fn(nil)
		}
		return
	}
	if tr.tasks[t.TID] != t || tr.detaching || tr.crash != nil {
		return
	}
	switch {
	case q.interrupt && t.parked:
		tr.cur = t
		q.fn(t)
		tr.cur = nil
	case t.hold && !q.interrupt && !t.parked: // in an announcement by Attach: it has not stopped yet
		t.hold = false
		if q.fn == nil {
			return
		}
		fallthrough
	case q.interrupt:
		t.onStop = append(t.onStop, q.fn)
		ptraceOp(unix.PTRACE_INTERRUPT, t.TID, 0)
	case t.parked:
		t.hold, t.parked = false, false
		tr.cur = t
		if q.fn != nil {
			q.fn(t)
		}
		tr.release(t)
	}
}

// release lets a task go on where it was parked, unless it is held again.
func (tr *tracer) release(t *Task) {
	if t.after == stopGroup {
		tr.listen(t)
		return
	}
	if t.after == stopExec {
		tr.afterExec(t)
		return
	}
	tr.resume(t, t.afterSig)
}

// stopAt notes where a task has stopped, unless it is better known: a new task
// returns from the call that made it.
func (t *Task) stopAt(at place) {
	if t.at == placeNone {
		t.at = at
	}
}

// interrupted calls the functions given to Interrupt.
func (tr *tracer) interrupted(t *Task) {
	for len(t.onStop) > 0 {
		fn := t.onStop[0]
		t.onStop = t.onStop[1:]
		fn(t)
	}
}

// listen leaves a task in the stop of its process by job control.
func (tr *tracer) listen(t *Task) {
	tr.thaw(0)
	if t.hold {
		t.parked, t.after = true, stopGroup
		return
	}
	t.at = placeNone
	if ptraceOp(unix.PTRACE_LISTEN, t.TID, 0) == unix.EIO { // a system call was injected: it has left that stop, and joins it again
		ptraceOp(unix.PTRACE_INTERRUPT, t.TID, 0) // first, or it would execute some of its program
		t.cont(0)
	}
}

// finish is exit with a known result.
func (tr *tracer) finish(t *Task, ret int64) {
	t.inKernel = false
	t.changed.undo(t)
	if !t.wantExit {
		tr.resume(t, 0)
		return
	}
	t.wantExit = false
	c := &t.call
	c.Exit = nanotime()
	c.Ret = ret
	c.Restarted = isRestart(c.Ret)
	tr.res.Exits++
	t.at = placeExit
	tr.h.Exit(t, c)
	tr.resume(t, 0)
}

// restore gives them back to a task's memory, unless the program has changed them since.
func (c *changedFlags) restore(t *Task) {
	if now, ok := t.cloneFlags(c.addr); ok && now == c.flags&^unix.CLONE_UNTRACED {
		t.setCloneFlags(c.addr, c.flags)
	}
}

// undo does so if the call of t is over, whatever became of it.
func (c *changedFlags) undo(t *Task) {
	if c.pending {
		c.restore(t)
		*c = changedFlags{}
	}
}

// afterExec lets a task go on after its execve. If a system call was injected,
// the exit of execve has been seen already.
func (tr *tracer) afterExec(t *Task) {
	switch {
	case t.hold:
		tr.thaw(0)
		t.parked, t.after = true, stopExec
	case t.execed:
		t.execed = false
		tr.finish(t, 0)
	default:
		tr.resume(t, 0)
	}
}

// wakeSignal interrupts the tracing thread's wait: a realtime signal that Go
// handles and ignores, and nobody uses.
const wakeSignal = unix.Signal(63)

// nudge interrupts the tracing thread's wait.
func (tr *tracer) nudge() { _ = unix.Tgkill(os.Getpid(), tr.tid, wakeSignal) }
