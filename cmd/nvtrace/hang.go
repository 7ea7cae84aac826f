package main

import (
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
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
}

// newHangWatch makes one for hangs of a length.
func newHangWatch(at *stacks, hang time.Duration) *hangWatch {
	return &hangWatch{stacks: at, after: hang * 3 / 4}
}

// Enter implements ptrace.Handler.
func (*hangWatch) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (*hangWatch) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (h *hangWatch) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	h.stacks.Task(t, e)
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
	for _, w := range a.Waiting() {
		h.waiting(&w)
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

// waiting records where a thread is that is in a call.
func (h *hangWatch) waiting(w *agent.Waiting) {
	ev := traces.Event{
		Kind: traces.KindStack, Flags: traces.FlagUnfinished, PID: int32(w.Process.PID), TID: int32(w.TID),
		Time: h.stacks.recorder.Now(), FD: -1, Name: w.Hook.Name,
	}
	// Nothing that it reads can change: the thread waits for something that does not come.
	list, _ := h.stacks.frames(w.Process.PID, w.Process, w.ThreadPointer)
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
