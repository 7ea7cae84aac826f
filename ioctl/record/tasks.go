package record

import (
	"maps"
	"slices"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// Task implements ptrace.Handler.
func (r *Recorder) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch e.Kind {
	case ptrace.TaskNew:
		switch {
		case e.Attached:
			if t.TID == t.PID {
				r.findFDs(t)
			}
		case !e.Thread && e.Parent != nil:
			r.fork(t, r.process(e.Parent.PID), r.rec.Time(e.Time))
		}
	case ptrace.TaskExec:
		r.exec(t, e)
	case ptrace.TaskExit:
		if !e.Replaced && t.TID == t.PID {
			delete(r.procs, t.PID) // the leader's end is reported when all threads are gone
		}
	case ptrace.TaskUnfinished:
		r.unfinished(t)
	}
}

// fork enters a new process. What its parent's table says may be newer than the
// fork, where other threads opened or closed something meanwhile.
func (r *Recorder) fork(t *ptrace.Task, parent *process, when int64) {
	child := parent.fork(t.PID)
	r.procs[t.PID] = child
	for fd := range parent.closing {
		child.fds[fd] = parent.beingClosed(fd)
	}
	r.verify(t, child, when)
}

// verify drops the descriptors that a stopped process turns out not to have.
func (r *Recorder) verify(t *ptrace.Task, p *process, when int64) {
	at := traces.Event{PID: int32(t.PID), TID: int32(t.TID), Time: when}
	for _, fd := range p.heldFDs() {
		f := p.fds[fd]
		if rdev, _, ok := r.opts.Stat(t.PID, fd); !ok || rdev != f.rdev {
			p.forget(fd)
			r.implicitClose(&at, fd, f)
		}
	}
}

// findFDs enters the device descriptors that a process already has.
func (r *Recorder) findFDs(t *ptrace.Task) {
	for _, fd := range proc.FDs(t.PID) {
		r.lookup(t, fd)
	}
}

// exec drops the descriptors that were close-on-exec.
func (r *Recorder) exec(t *ptrace.Task, e *ptrace.TaskEvent) {
	p := r.process(t.PID)
	p.maps, p.agent, p.agents, p.irrelevant = nil, nil, nil, 0
	r.verify(t, p, r.rec.Time(e.Time))
	if !r.started {
		// Descriptors that nvtrace's own parent handed down.
		r.started, r.atExec = true, true
		r.findFDs(t)
		r.atExec = false
	}
}

// heldFDs returns the process's device descriptors, ascending; nil-safe.
func (p *process) heldFDs() []int32 {
	if p == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(p.fds))
}

// unfinished records a call that will not be seen to return.
func (r *Recorder) unfinished(t *ptrace.Task) {
	th := r.threads.Of(t)
	if !th.active {
		return
	}
	th.active = false
	th.ev.Flags |= traces.FlagUnfinished
	if th.class == classClose {
		r.exitClose(t, th)
		return
	}
	if th.class == classDup && th.file == nil {
		return // what it would have ended ends with the process
	}
	r.rec.Emit(&th.ev)
}
