package ptrace

import (
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// The first process of a pid namespace gets no signals that it has no handler for, except
// from outside. A fault of its own ends it nevertheless, since the kernel makes an exception
// then; but not while it is traced: it would come to the fault again and again. Such a
// task is let go, and comes to it once more, alone.

// doomed says whether a signal is a fault that t, were it not traced, would die of, and
// does not as it is.
func (tr *tracer) doomed(t *Task, sig unix.Signal) bool {
	if faults>>(sig-1)&1 == 0 && sig != unix.SIGSYS || t.Proc == nil {
		return false
	}
	var si siginfo
	if getSiginfo(t.TID, &si) != 0 || si.code <= 0 { // sent by somebody
		return false
	}
	p := t.Proc
	if p.nsInit == unknown {
		p.nsInit = isNSInit(p.PID)
	}
	if p.nsInit != yes {
		return false
	}
	caught, ok := signalSet(t.TID, "SigCgt")
	return ok && caught&signalBit(sig) == 0
}

// isNSInit says whether a process is the first one of its pid namespace.
func isNSInit(pid int) tristate {
	ids, ok := proc.Status(pid, "NSpid") // in each namespace, the innermost last
	if !ok {
		return unknown
	}
	if f := strings.Fields(ids); len(f) > 0 && f[len(f)-1] == "1" {
		return yes
	}
	return no
}

// letDie lets go a task that is doomed.
func (tr *tracer) letDie(t *Task, sig unix.Signal) {
	var si siginfo
	var r Regs
	if getSiginfo(t.TID, &si) == 0 && t.getRegs(&r) == 0 && r.repeat(sig, si.code) {
		t.setRegs(&r)
	}
	ptraceOp(unix.PTRACE_DETACH, t.TID, 0)
	tr.forget(t)
	if t.announced {
		tr.unfinished(t)
		tr.event(t, TaskEvent{Kind: TaskDetach})
	}
}
