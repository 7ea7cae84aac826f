package ptrace

import "fmt"

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

// What it takes a thread to stop. One that runs has done so after some looks; one that
// sleeps on an idle processor may need wakeUp, in ns, for which it does not pay to
// sleep here.
const (
	looks  = 50
	wakeUp = 300e3
)
