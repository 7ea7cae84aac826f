package ptrace

import "golang.org/x/sys/unix"

// Which seccomp filters a process has, by /proc/PID/status (since Linux 5.9).

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

// InjectFilter makes the task's process, and all that it starts from now on,
// stop for the calls that match rules, too (nil: Options.ExtraRules). It may be
// called where [Task.Syscall] may. A second call with the
// same rules, or one in a process whose ancestor had it, does nothing. Of two
// rules that match a call, one in the base filter and one injected, the injected
// one gives the class.
//
// The error matches ErrInject if the kernel, the architecture or the program (by a filter of
// its own) does not allow it; see [Task.TraceAll].
func (t *Task) InjectFilter(rules []Rule) error {
	set, has, err := t.tr.findSet(t.Proc, rules)
	if err != nil || has {
		return err
	}
	if !t.Proc.all {
		if err := t.inject(set.prog); err != nil {
			return err
		}
		t.Proc.ours++
		t.tr.res.Injected++
	}
	t.Proc.sets = append(t.Proc.sets, set)
	return nil
}

// TraceAll does the same as InjectFilter without touching the program, and always
// works, but from now on every call of the process costs two stops. Its other
// threads are interrupted once, as a debugger would.
func (t *Task) TraceAll(rules []Rule) error {
	set, has, err := t.tr.findSet(t.Proc, rules)
	if err != nil {
		return err
	}
	if !has {
		t.Proc.sets = append(t.Proc.sets, set)
	}
	if t.Proc.all {
		return nil
	}
	t.Proc.all = true
	for _, o := range t.tr.tasks {
		if o.Proc == t.Proc && o != t {
			ptraceOp(unix.PTRACE_INTERRUPT, o.TID, 0)
		}
	}
	return nil
}
