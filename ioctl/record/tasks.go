package record

import (
	"maps"
	"slices"

	"nvtrace/ptrace"
	"nvtrace/traces"
)

// Task implements ptrace.Handler.
func (r *recorder) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	r.fast.task = t
	if r.stops != nil {
		r.stops.add("task " + e.Kind.String())
	}
	r.syncFor(t, e)
	r.agent.Task(t, e)
	switch e.Kind {
	case ptrace.TaskNew:
		r.newTask(t, e)
	case ptrace.TaskExec:
		r.exec(t, e)
	case ptrace.TaskExit, ptrace.TaskDetach:
		r.endTask(t, e)
	case ptrace.TaskStop:
		ev := r.taskEvent(t, e, traces.KindSignal)
		ev.Ret = int64(e.Signal)
		r.put(ev)
	case ptrace.TaskUnfinished:
		r.unfinished(t)
	}
}

// taskEvent starts an event about a task's life.
func (r *recorder) taskEvent(t *ptrace.Task, e *ptrace.TaskEvent, kind traces.Kind) *traces.Event {
	ev := &r.scratch
	ev.Reset()
	ev.Kind, ev.PID, ev.TID, ev.Time = kind, int32(t.PID), int32(t.TID), e.Time-r.start
	return ev
}

// newTask records a fork or clone. A new process has its parent's descriptors.
func (r *recorder) newTask(t *ptrace.Task, e *ptrace.TaskEvent) {
	ev := r.taskEvent(t, e, traces.KindFork)
	ev.Child = int32(t.TID)
	if e.Thread {
		ev.Flags |= traces.FlagThread
	}
	if e.Parent != nil {
		ev.PID, ev.TID = int32(e.Parent.PID), int32(e.Parent.TID)
	}
	switch {
	case e.Attached:
		ev.Flags |= traces.FlagAttached
		r.put(ev)
		if t.TID == t.PID {
			r.adopt(t, e)
		}
		return
	case e.Parent == nil && t.PID == t.TID:
		return // the first process: its exec says what it is
	case !e.Thread && e.Parent != nil:
		r.put(ev)
		r.fork(t, r.process(e.Parent.PID), e.Time-r.start)
		return
	}
	r.put(ev)
}

// fork enters a new process. What its parent's table says may be newer than the
// fork, where other threads opened or closed something meanwhile.
func (r *recorder) fork(t *ptrace.Task, parent *process, when int64) {
	child := parent.fork(t.PID)
	r.procs[t.PID] = child
	for fd := range parent.closing {
		child.fds[fd] = parent.beingClosed(fd)
	}
	r.verify(t, child, when)
}

// verify drops the descriptors that a stopped process turns out not to have.
func (r *recorder) verify(t *ptrace.Task, p *process, when int64) {
	at := traces.Event{PID: int32(t.PID), TID: int32(t.TID), Time: when}
	for _, fd := range p.heldFDs() {
		f := p.fds[fd]
		if rdev, _, ok := r.opts.Stat(t.PID, fd); !ok || rdev != f.rdev {
			p.forget(fd)
			r.implicitClose(&at, fd, f)
		}
	}
}

// adopt records what a process that was already running is and holds.
func (r *recorder) adopt(t *ptrace.Task, e *ptrace.TaskEvent) {
	ev := r.taskEvent(t, e, traces.KindExec)
	ev.Flags |= traces.FlagAttached | traces.FlagImplicit
	ev.Path, ev.Argv = exePath(t.PID), cmdline(t.PID)
	r.put(ev)
	r.findFDs(t)
}

// findFDs enters the device descriptors that a process already has.
func (r *recorder) findFDs(t *ptrace.Task) {
	for _, fd := range listFDs(t.PID) {
		r.lookup(t, fd)
	}
}

// exec records a new program. The descriptors that are gone were close-on-exec.
func (r *recorder) exec(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.OldTID != t.TID {
		// The thread that called execve is the main thread now.
		ev := r.taskEvent(t, e, traces.KindExit)
		ev.TID = int32(e.OldTID)
		ev.Flags |= traces.FlagThread
		r.put(ev)
	}
	ev := r.taskEvent(t, e, traces.KindExec)
	path := exePath(t.PID)
	ev.Path, ev.Argv = path, cmdline(t.PID)
	r.put(ev)
	r.checkRights(t, path)
	p := r.process(t.PID)
	p.maps, p.agent, p.agents, p.dull = nil, nil, nil, 0
	r.verify(t, p, e.Time-r.start)
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

func (r *recorder) endTask(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Kind == ptrace.TaskDetach || e.Replaced {
		return
	}
	ev := r.taskEvent(t, e, traces.KindExit)
	ev.Ret = int64(e.Status)
	if t.TID != t.PID {
		ev.Flags |= traces.FlagThread
	}
	r.put(ev)
	if t.TID == t.PID {
		// The leader's end is reported when all threads are gone.
		delete(r.procs, t.PID)
	}
}

// unfinished records a call that will not be seen to return.
func (r *recorder) unfinished(t *ptrace.Task) {
	th := r.thread(t)
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
	r.put(&th.ev)
}
