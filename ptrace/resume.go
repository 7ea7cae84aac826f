package ptrace

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// fault asks the Injector about a signal, and lets the task go on without it if that was
// dealt with.
func (tr *tracer) fault(t *Task, sig unix.Signal) bool {
	if tr.o.Injector == nil || !t.announced || tr.crash != nil || !tr.o.Injector.Fault(t, sig) {
		return false
	}
	tr.resume(t, 0)
	return true
}

// resume lets a stopped task go on, with a signal or without. Between the entry
// and the exit of a call it always asks for the exit, or a stop in between (a
// fork, an exec, job control) would lose it. ESRCH: it was killed meanwhile.
func (tr *tracer) resume(t *Task, sig unix.Signal) {
	tr.thaw(0)
	if t.replaced() {
		t.brk = nil
		return
	}
	if t.hold {
		t.parked, t.after, t.afterSig = true, stopNone, sig
		return
	}
	if t.brk != nil {
		if !tr.goOn(t) {
			return
		}
		if t.fault != 0 {
			sig, t.fault = t.fault, 0
			t.at = placeNone
			tr.res.Signals++
			tr.event(t, TaskEvent{Kind: TaskSignal, Signal: sig})
			if t.hold {
				t.parked, t.after, t.afterSig = true, stopNone, sig
				return
			}
		}
	}
	t.at = placeNone
	t.cont(sig)
}

// cont is the request of resume.
func (t *Task) cont(sig unix.Signal) {
	t.spareRestart()
	req := unix.PTRACE_CONT
	if t.wantExit || t.changed.pending || t.Proc.all {
		req = unix.PTRACE_SYSCALL
	}
	ptraceOp(req, t.TID, uintptr(sig))
	if t.rejoin || len(t.onStop) > 0 { // any stop clears an interruption that was to come
		t.rejoin = false
		ptraceOp(unix.PTRACE_INTERRUPT, t.TID, 0)
	}
}

// event tells the handler.
func (tr *tracer) event(t *Task, e TaskEvent) {
	tr.ev = e
	tr.ev.Time = nanotime()
	tr.h.Task(t, &tr.ev)
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

// goOn prepares a task at a breakpoint for going on, and returns false if it has
// died.
func (tr *tracer) goOn(t *Task) bool {
	brk := t.brk
	t.brk = nil
	st := t.Proc.space.at(brk.addr)
	if st != nil && st.jump != nil && brk.regs.IP() == brk.addr {
		brk.regs.SetIP(st.jump.Orig)
	} else if st != nil && brk.regs.IP() == brk.addr {
		return tr.pass(t, st, &brk.regs)
	}
	return t.setRegs(&brk.regs) == 0
}

// hit calls the functions of a site.
func (tr *tracer) hit(t *Task, s *space, st *site) {
	sp := t.brk.regs.SP()
	if st.waits > 0 {
		t.returned(s, st, sp)
	}
	if len(st.list) > 0 && len(t.returns) > 0 {
		t.purge(s, st.addr, sp)
	}
	for _, b := range st.list { // fn may set and remove: both leave this list alone
		if b.site != nil {
			b.Hits++
			t.brk.entry = b
			b.fn(t, b)
		}
	}
	t.brk.entry = nil
}
