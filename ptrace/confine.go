package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// Programs that confine themselves: by seccomp(2) or prctl(2) they have the kernel kill them, or fail
// their calls, when they make a call that they never make. A call that this package or an [Injector] makes in
// such a program must be one that its filters allow. Syscall user dispatch, by which the kernel sends a thread
// a signal for its calls instead of making them, counts as a filter that allows none. Each filter is read at the entry of the call that
// installs it, before it takes effect, and of a process that is attached to, when it is looked at first.

// ErrConfined is wrapped by the errors of [Task.Syscall] that say that a filter of the program's own does not
// allow the call.
var ErrConfined = errors.New("the program's own seccomp filter does not allow it (syscall user dispatch counts as one)")

// Allows returns nil if the filters that t's process has of its own let a call pass, whatever its arguments
// behind args are. Otherwise, and of a filter that can't be read, the error matches ErrConfined. It matches ErrState
// where this can't be found out before t has stopped.
func (t *Task) Allows(nr uint64, args ...uint64) error {
	switch {
	case !t.lookForFilters():
		return fmt.Errorf("%s in task %d: %w", callName(nr), t.TID, ErrState)
	case !allAllow(t.Proc.own, nr, args...):
		return fmt.Errorf("%s in task %d: %w", callName(nr), t.TID, ErrConfined)
	}
	return nil
}

// callName is for messages.
func callName(nr uint64) string {
	if name := SyscallName(nativeArch, nr); name != "" {
		return name
	}
	return fmt.Sprintf("system call %d", nr)
}

// lookForFilters finds the filters of a process whose beginning was not seen. It returns false if it can't do
// so now.
func (t *Task) lookForFilters() bool {
	p := t.Proc
	if p.ownKnown {
		return true
	}
	if t.tr.unstopped {
		return false
	}
	p.ownKnown = true
	if t.tr.confined(p) {
		tasks, thaw := t.tr.freeze(t)
		defer thaw()
		for _, o := range append(tasks, t) {
			if o.Proc == p && o.isConfined() {
				o.readFilters()
			}
		}
	}
	// Threads are not stopped only to be asked this: those that run say nothing.
	for _, o := range t.tr.tasks {
		if o.Proc == p && dispatches(o.TID) {
			p.own = append(p.own, unknownFilter)
		}
	}
	p.noRestart = !allAllow(p.own, unix.SYS_RESTART_SYSCALL)
	return true
}

// confined reports whether a task of a process has filters of its own.
func (tr *tracer) confined(p *Process) bool {
	for _, t := range tr.tasks {
		if t.Proc == p && t.isConfined() {
			return true
		}
	}
	return false
}

// isConfined reports whether a task has more filters than this package and, before it, a container have given
// to it: this process has those, too.
func (t *Task) isConfined() bool {
	mode, ok := proc.StatusNumber(t.TID, "Seccomp")
	if !ok || mode != unix.SECCOMP_MODE_FILTER {
		return ok && mode != unix.SECCOMP_MODE_DISABLED
	}
	inherited, known := t.tr.countFilters()
	n, ok := filterCount(t.TID)
	return !ok || !known || n > inherited+t.Proc.ours
}

// readFilters adds the filters of a stopped task to those of its process.
func (t *Task) readFilters() {
	if mode, _ := proc.StatusNumber(t.TID, "Seccomp"); mode == unix.SECCOMP_MODE_STRICT {
		t.Proc.own = append(t.Proc.own, strictMode)
		return
	}
	for i := 0; ; i++ {
		p, e := getFilter(t.TID, i)
		switch {
		case e == unix.ENOENT && i > 0:
			return
		case e != 0: // it takes CAP_SYS_ADMIN
			t.Proc.own = append(t.Proc.own, unknownFilter)
			return
		}
		t.Proc.own = append(t.Proc.own, p)
	}
}

// confines deals with a task that is about to confine its process: the Injector is told, and what it and
// this package do in the process from now on are calls that the filter allows.
func (tr *tracer) confines(t *Task, at place) {
	p := tr.filterOf(t)
	if p == nil {
		return // the kernel can't read it either
	}
	t.lookForFilters()
	list := append(slices.Clip(t.Proc.own), p)
	if could := !t.Proc.noRestart; could {
		if t.Proc.noRestart = !allAllow(list, unix.SYS_RESTART_SYSCALL); t.Proc.noRestart {
			// One that has been let go on may not have come to its call yet.
			_, thaw := tr.freeze(t)
			thaw()
		}
	}
	if tr.o.Injector != nil && !t.muted && tr.crash == nil {
		t.at = at
		tr.o.Injector.Confine(t, func(nr uint64, args ...uint64) bool { return allAllow(list, nr, args...) })
		t.at = placeNone
	}
	t.Proc.own = list
	if t.announced && tr.crash == nil {
		tr.event(t, TaskEvent{Kind: TaskConfine})
	}
}

// Hides reports whether a filter of the program's own may answer calls of a number itself, by an error, a signal or
// another process: no handler sees these then, since the kernel has the filter decide before the tracer is asked.
func (t *Task) Hides(nr uint64) bool {
	return !t.Proc.all && slices.ContainsFunc(t.Proc.own, func(p Program) bool { return !p.shows(nr) })
}

// spareRestart has a call that a stop has interrupted begin anew, where the kernel would have the task go on with
// it by restart_syscall, which the program's filters forbid. What is left of a timeout is not known then:
// it begins anew, too. Which call that is must be known from its first interruption on.
func (t *Task) spareRestart() {
	if t.Proc == nil || !t.interrupted && !t.Proc.noRestart {
		return
	}
	t.interrupted = false
	var r Regs
	if t.getRegs(&r) == 0 && r.restarts(&t.restarted) && t.lookForFilters() && t.Proc.noRestart {
		r.beginAgain(&t.restarted)
		t.setRegs(&r) // fails if it has died
	}
}

// filterOf reads the filter that a call installs; nil: it installs none.
func (tr *tracer) filterOf(t *Task) Program {
	c := &t.call
	addr, strict := c.Args[2], uint32(c.Args[0]) == unix.SECCOMP_SET_MODE_STRICT
	if c.Name() == "prctl" {
		if uint32(c.Args[0]) == unix.PR_SET_SYSCALL_USER_DISPATCH {
			return unknownFilter // a byte in the program's memory decides, at each call anew
		}
		strict = uint32(c.Args[1]) == unix.SECCOMP_MODE_STRICT
	}
	switch {
	case strict && t.Proc.ours > 0:
		return nil // the kernel refuses it where there is a filter
	case strict:
		return strictMode
	}
	le := binary.LittleEndian
	var head [16]byte // struct sock_fprog: the number of instructions, their address
	size := len(head)
	if c.Compat && c.Arch == compatArch {
		size = 8
	}
	if n, _ := t.ReadMem(addr, head[:size]); n < size {
		return nil
	}
	at := le.Uint64(head[8:])
	if size == 8 {
		at = uint64(le.Uint32(head[4:]))
	}
	b := make([]byte, insnSize*int(le.Uint16(head[:])))
	if n, _ := t.ReadMem(at, b); n < len(b) || n == 0 {
		return nil
	}
	return decodeProgram(b)
}
