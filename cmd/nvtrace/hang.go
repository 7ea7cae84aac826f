package main

import (
	"slices"
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces"
)

// hangWatch records what threads and GPUs are at when no library call has been made for a while,
// a little before a flight recorder takes that for a hang. It is a ptrace.Handler that selects no
// calls.
type hangWatch struct {
	stacks *stacks
	after  time.Duration
	calls  uint64 // that were recorded by then
	since  time.Time
	told   bool
	timer  *time.Timer
	over   bool
	tasks  map[int]*ptrace.Task
}

// newHangWatch makes one for hangs of a length.
func newHangWatch(at *stacks, hang time.Duration) *hangWatch {
	return &hangWatch{stacks: at, after: hang * 3 / 4, tasks: make(map[int]*ptrace.Task)}
}

// Enter implements ptrace.Handler.
func (*hangWatch) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (*hangWatch) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (h *hangWatch) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	h.stacks.Task(t, e)
	if h.tasks[t.TID] = t; e.Kind == ptrace.TaskExit {
		delete(h.tasks, t.TID)
	}
	if h.timer != nil {
		return
	}
	h.since = time.Now()
	pause := max(h.after/8, time.Millisecond)
	h.timer = time.AfterFunc(pause, func() {
		t.Post(func() {
			if !h.over {
				h.look()
				h.timer.Reset(pause)
			}
		})
	})
}

// look runs on the tracing thread.
func (h *hangWatch) look() {
	a := h.stacks.recorder.Agent()
	if n := a.Stats().Calls; n != h.calls {
		h.calls, h.since, h.told = n, time.Now(), false
		return
	}
	if h.told || time.Since(h.since) < h.after {
		return
	}
	h.told = true
	r := h.stacks.recorder
	clear(h.stacks.natives) // something else may be mapped since
	clear(h.stacks.places)
	for _, w := range a.Waiting() {
		list, _ := h.stacks.frames(w.Process.PID, w.Process, w.ThreadPointer)
		// Nothing that it reads can change: the thread waits for something that does not come.
		h.waiting(&w, list)
		if t := h.tasks[w.TID]; t != nil { // and once more, if it can be stopped
			t.Interrupt(func(t *ptrace.Task) { h.stopped(t, &w) })
		}
	}
	now := r.Now()
	for _, u := range a.Unfinished() {
		start := r.Time(u.Start)
		r.Emit(&traces.Event{
			Kind: traces.KindGPU, Flags: traces.FlagUnfinished, PID: int32(u.Process.PID), TID: int32(u.TID), Time: now, FD: -1,
			Name: u.Hook.Name, Path: u.Hook.Library,
			Args: [6]uint64{uint64(r.Time(u.Call)), uint64(start), uint64(max(now-start, 0)), u.Stream, u.Context, u.Subject},
		})
	}
}

// stopped records where a thread that is in a call was called from, functions of machine code too.
func (h *hangWatch) stopped(t *ptrace.Task, w *agent.Waiting) {
	regs, err := t.Regs()
	if err != nil || h.over {
		return // it has ended
	}
	list, entries := h.stacks.frames(t.PID, t, regs.FSBase())
	native := h.stacks.walk(t, unwind.RegsOf(regs), (*unwind.Process).Walk)
	if i := slices.IndexFunc(native, func(f traces.StackFrame) bool { return f.Func == w.Hook.Name }); i >= 0 {
		native = native[i+1:]
	} else { // the library does not say how it can be followed: from where it will return to on
		known := new(unwind.Regs)
		known.Set(unwind.RSP, w.SP)
		native = h.stacks.walk(t, known, (*unwind.Process).Callers)
	}
	if list = merged(native, list, entries, h.stacks.interpreter(t.PID)); len(list) > 0 {
		h.waiting(w, list)
	}
}

// waiting records where a thread is that is in a call.
func (h *hangWatch) waiting(w *agent.Waiting, list []traces.StackFrame) {
	ev := traces.Event{
		Kind: traces.KindStack, Flags: traces.FlagUnfinished, PID: int32(w.Process.PID), TID: int32(w.TID),
		Time: h.stacks.recorder.Now(), FD: -1, Name: w.Hook.Name,
	}
	ev.SetStack(list)
	h.stacks.recorder.Emit(&ev)
}

// finish ends it.
func (h *hangWatch) finish() {
	h.over = true
	if h.timer != nil {
		h.timer.Stop()
	}
}
