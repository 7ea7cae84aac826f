package record

import (
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// taskEvent starts an event about a task's life.
func (r *Recorder) taskEvent(t *ptrace.Task, e *ptrace.TaskEvent, kind traces.Kind) *traces.Event {
	ev := &r.scratch
	ev.Reset()
	ev.Kind, ev.PID, ev.TID, ev.Time = kind, int32(t.PID), int32(t.TID), r.Time(e.Time)
	return ev
}

// taskBegins records what else happens to a task than its end.
func (r *Recorder) taskBegins(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch e.Kind {
	case ptrace.TaskNew:
		r.newTask(t, e)
	case ptrace.TaskExec:
		r.exec(t, e)
	case ptrace.TaskStop:
		ev := r.taskEvent(t, e, traces.KindSignal)
		ev.Ret = int64(e.Signal)
		r.put(ev)
	}
}

// newTask records a fork or clone, or what a process that was already running is.
func (r *Recorder) newTask(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Parent == nil && t.PID == t.TID && !e.Attached {
		return // the first process: its exec says what it is
	}
	ev := r.taskEvent(t, e, traces.KindFork)
	ev.Child = int32(t.TID)
	if e.Thread {
		ev.Flags |= traces.FlagThread
	}
	if e.Parent != nil {
		ev.PID, ev.TID = int32(e.Parent.PID), int32(e.Parent.TID)
	}
	if !e.Attached {
		r.put(ev)
		return
	}
	ev.Flags |= traces.FlagAttached
	r.put(ev)
	if t.TID == t.PID {
		ev := r.taskEvent(t, e, traces.KindExec)
		ev.Flags |= traces.FlagAttached | traces.FlagImplicit
		ev.Path, ev.Argv = proc.Exe(t.PID), proc.Cmdline(t.PID)
		r.put(ev)
	}
}

// exec records a new program.
func (r *Recorder) exec(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.OldTID != t.TID {
		// The thread that called execve is the main thread now.
		ev := r.taskEvent(t, e, traces.KindExit)
		ev.TID = int32(e.OldTID)
		ev.Flags |= traces.FlagThread
		r.put(ev)
	}
	ev := r.taskEvent(t, e, traces.KindExec)
	path := proc.Exe(t.PID)
	ev.Path, ev.Argv = path, proc.Cmdline(t.PID)
	r.put(ev)
	r.checkRights(t, path)
}

// taskEnds records a task's end; that of a process when all its threads have ended.
func (r *Recorder) taskEnds(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Kind == ptrace.TaskDetach || e.Replaced {
		return
	}
	ev := r.taskEvent(t, e, traces.KindExit)
	ev.Ret = int64(e.Status)
	if t.TID != t.PID {
		ev.Flags |= traces.FlagThread
	}
	r.put(ev)
}
