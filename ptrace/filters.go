package ptrace

import "nvtrace/ptrace/proc"

// Which seccomp filters a process has, by /proc/PID/status (since Linux 5.9).

// filterCount is the number of filters on a task.
func filterCount(tid int) (int, bool) {
	return proc.StatusNumber(tid, "Seccomp_filters")
}

// ownFilters is how many of a process's filters are ours or were inherited from
// before us.
func (t *Task) ownFilters() (int, bool) {
	n, ok := t.tr.countFilters()
	return n + 1 + len(t.Proc.sets), ok
}

// countFilters is how many filters the tracing thread has, hence the first child. It
// gets no others.
func (tr *tracer) countFilters() (int, bool) {
	if !tr.filtersKnown {
		tr.filters, tr.filtersKnown = filterCount(tr.tid)
	}
	return tr.filters, tr.filtersKnown
}

// foreignFilters is how many filters the program installed itself. They might
// forbid, or punish, the calls that an injection makes.
func (t *Task) foreignFilters() (int, bool) {
	have, ok1 := filterCount(t.TID)
	own, ok2 := t.ownFilters()
	return have - own, ok1 && ok2
}

// checkFilters corrects what a new process is believed to have inherited: its
// parent may have got a filter after the fork, but before the fork was reported.
func (t *Task) checkFilters() {
	p := t.Proc
	if p.all || len(p.sets) == 0 {
		return
	}
	if n, known := t.foreignFilters(); known && n < 0 {
		p.sets = p.sets[:max(0, len(p.sets)+n)]
	}
}
