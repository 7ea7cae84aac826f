package ptrace

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// StopWorld stops every other thread that shares t's memory: those of its process,
// and of a vfork child or parent. It returns them, and what lets them go on;
// that happens at the latest when the handler returns. What they were about to
// report is reported later. The few calls that job control interrupts
// (epoll_wait, semop, see signal(7)) return EINTR to a thread that slept in one.
//
// A thread that sleeps in the kernel and can't be woken (the parent of a vfork
// child, one that waits for a disk) can't be stopped before it wakes up; but it
// will not execute any of its program then. Its registers can't be read
// ([Task.PC] works).
func (t *Task) StopWorld() (tasks []*Task, resume func(), err error) {
	switch {
	case t.tr.tasks[t.TID] != t:
		return nil, nil, fmt.Errorf("stop the threads of %d: %w", t.PID, ErrGone)
	case t.tr.unstopped:
		return nil, nil, fmt.Errorf("stop the threads of %d: %w", t.PID, ErrState)
	}
	tasks, resume = t.tr.freeze(t)
	for _, o := range tasks {
		o.leaveCopy()
	}
	return tasks, resume, nil
}

// freeze is StopWorld.
func (tr *tracer) freeze(t *Task) (tasks []*Task, thaw func()) {
	var waiting []*Task
	for _, o := range tr.tasks {
		if o == t || o.Proc == nil || o.Proc.space != t.Proc.space {
			continue
		}
		tasks = append(tasks, o)
		if o.queued || o.parked || o.frozen || o == tr.cur || o == tr.born {
			continue // stopped already
		}
		if ptraceOp(unix.PTRACE_INTERRUPT, o.TID, 0) == 0 { // ESRCH: dying
			waiting = append(waiting, o)
		}
	}
	from := len(tr.frozen)
	for _, o := range waiting {
		tr.awaitStop(o)
	}
	tasks = slices.DeleteFunc(tasks, func(o *Task) bool { return o.dead })
	return tasks, func() { tr.thaw(from) }
}

// What it takes a thread to stop. One that runs has done so after some looks; one that
// sleeps on an idle processor may need wakeUp, in ns, for which it does not pay to
// sleep here.
const (
	looks  = 50
	wakeUp = 300e3
)

// awaitStop waits until o, which was interrupted, has stopped, or sleeps in the
// kernel where it can't. Then it will stop before it executes any of its program.
func (tr *tracer) awaitStop(o *Task) {
	for try, began := 0, nanotime(); ; try++ {
		var w waited
		var e unix.Errno
		if tr.outlived {
			w, e = tr.look(o.TID, false)
		} else {
			w.tid, e = waitNow(o.TID, &w.status)
		}
		switch {
		case e == unix.EINTR:
			continue
		case e != 0:
			return // gone
		case w.tid != 0:
			tr.iceOrQueue(o, w)
			return
		case try != looks && nanotime()-began < wakeUp:
			yield()
		default:
			switch threadState(o.PID, o.TID) {
			case 'D', 'Z', 'X', '?': // its wake-up or its end will be reported
				return
			case 't':
				if try > 10000 { // can't be: it has stopped, and wait should have told
					tr.log.Warn("stopped without a word", "tid", o.TID)
					return
				}
			}
			if try != looks {
				time.Sleep(20 * time.Microsecond)
			}
		}
	}
}

// iceOrQueue deals with the first stop of an interrupted task: the interruption
// itself, or something that is for the main loop.
func (tr *tracer) iceOrQueue(o *Task, w waited) {
	s := classify(w.status)
	if s.kind == stopTrap {
		o.listening = false
	}
	switch {
	case s.kind == stopTrap && len(o.onStop) == 0, s.kind == stopGroup && o.listening:
		tr.res.Stops++
		o.frozen, o.interrupted = true, true
		tr.frozen = append(tr.frozen, o)
	default:
		tr.queue(w)
	}
}

// thaw lets the tasks go on that were frozen from a point on.
func (tr *tracer) thaw(from int) {
	if from >= len(tr.frozen) {
		return
	}
	list := tr.frozen[from:]
	tr.frozen = tr.frozen[:from]
	for _, o := range list {
		if !o.frozen || tr.tasks[o.TID] != o {
			continue
		}
		o.frozen = false
		if o.listening {
			ptraceOp(unix.PTRACE_LISTEN, o.TID, 0)
		} else {
			o.cont(0)
		}
	}
}
