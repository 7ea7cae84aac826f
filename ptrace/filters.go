package ptrace

import "nvtrace/ptrace/proc"

// Which seccomp filters a process has, by /proc/PID/status (since Linux 5.9).

// filterCount is the number of filters on a task.
func filterCount(tid int) (int, bool) {
	return proc.StatusNumber(tid, "Seccomp_filters")
}

// countFilters is how many filters the tracing thread has, hence the first child. It
// gets no others.
func (tr *tracer) countFilters() (int, bool) {
	if !tr.filtersKnown {
		tr.filters, tr.filtersKnown = filterCount(tr.tid)
	}
	return tr.filters, tr.filtersKnown
}

// checkFilters corrects what a new process is believed to have inherited: its
// parent may have got a filter after the fork, but before the fork was reported.
func (t *Task) checkFilters() {
	p := t.Proc
	if p.all || len(p.sets) == 0 {
		return
	}
	have, ok1 := filterCount(t.TID)
	inherited, ok2 := t.tr.countFilters()
	if n := have - inherited - p.ours; ok1 && ok2 && n < 0 {
		p.sets = p.sets[:max(0, len(p.sets)+n)]
		p.ours = max(0, p.ours+n)
	}
}
