package record

import (
	"sync"

	"nvtrace/ptrace"
	"nvtrace/traces"
)

// mailbox holds events that other goroutines than the tracing thread's have sent.
type mailbox struct {
	mu     sync.Mutex
	events []traces.Event // in order; times are CLOCK_MONOTONIC
	task   *ptrace.Task   // any, by which the tracing thread is reached; nil: none yet
}

// Send records an event as Emit does, but from any goroutine, and its Time is
// CLOCK_MONOTONIC in ns. The event is copied, but for what it points to. It comes in
// before the recording ends if it is sent before the extensions' Finish has returned.
func (r *Recorder) Send(ev *traces.Event) {
	b := &r.sent
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, *ev)
	if b.task != nil && len(b.events) == 1 {
		b.task.Post(r.receive)
	}
}

// receive takes in what was sent. It runs on the tracing thread.
func (r *Recorder) receive() {
	b := &r.sent
	b.mu.Lock()
	events := b.events
	b.events = nil
	b.mu.Unlock()
	for i := range events {
		ev := &events[i]
		ev.Time -= r.start
		switch {
		case ev.Kind == traces.KindGPU && !r.wanted(ev.Work().Start):
			continue
		case ev.Kind == traces.KindMissed && !r.wanted(ev.Miss().After):
			continue
		}
		r.put(ev)
	}
}

// reachable says by which task the tracing thread is reached from now on.
func (r *Recorder) reachable(t *ptrace.Task) {
	b := &r.sent
	b.mu.Lock()
	first := b.task == nil
	b.task = t
	b.mu.Unlock()
	if first {
		r.receive()
	}
}
