package ptrace

import "golang.org/x/sys/unix"

// A signal of which a tracer has been told is delivered when the tracer says so. If the
// tracer is killed before that, the kernel delivers it by itself, unless the tracer has
// waited for the stop. So, where programs outlive the tracer, it looks at such stops,
// and leaves them to be waited for: they are kept.

// keeps says whether the stop of a task is to be kept: for a signal that is none of the
// tracer's own.
func (tr *tracer) keeps(tid int, st unix.WaitStatus) bool {
	s := classify(st)
	if !tr.outlived || s.kind != stopSignal || s.sig == unix.SIGTRAP || s.sig == unix.SIGSEGV || s.sig == unix.SIGBUS {
		return false
	}
	t := tr.tasks[tid]
	return t != nil && !t.held
}

// look waits for a stop or end of a task, or of any, and keeps it if it is to be kept. Tid 0:
// nothing has happened.
func (tr *tracer) look(tid int, block bool) (w waited, e unix.Errno) {
	if w.tid, e = peekStop(tid, block, &w.status); e != 0 || w.tid == 0 {
		return w, e
	}
	if w.kept = tr.keeps(w.tid, w.status); w.kept {
		return w, 0
	}
	w.tid, e = waitNow(w.tid, &w.status)
	return w, e
}

// keeping says whether there are kept stops, which a look at all tasks would find again.
func (tr *tracer) keeping() bool {
	if tr.kept != 0 {
		return true
	}
	for _, w := range tr.pending {
		if w.kept {
			return true
		}
	}
	return false
}

// keptNoMore notes that a stop is kept no more, and returns whether it was.
func (tr *tracer) keptNoMore(tid int) bool {
	was := tr.kept == tid
	if was {
		tr.kept = 0
	}
	for i := range tr.pending {
		if w := &tr.pending[i]; w.tid == tid && w.kept {
			w.kept, was = false, true
		}
	}
	return was
}
