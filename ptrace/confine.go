package ptrace

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// Programs that confine themselves: by seccomp(2) or prctl(2) they have the kernel kill them, or fail
// their calls, when they make a call that they never make. A call that this package or an [Injector] makes in
// such a program must be one that its filters allow. Each filter is read at the entry of the call that
// installs it, before it takes effect, and of a process that is attached to, when it is looked at first.

// ErrConfined is wrapped by the errors of [Task.Syscall] that say that a filter of the program's own does not
// allow the call.
var ErrConfined = errors.New("the program's own seccomp filter does not allow it")

// confineRules select the calls that install filters.
func confineRules() []Rule {
	return []Rule{
		{Names: []string{"seccomp"}, Compat: true, Class: ClassInternal, Args: []ArgMatch{{Arg: 0, Op: LessEqual, Value: unix.SECCOMP_SET_MODE_FILTER, Low: true}}},
		{Names: []string{"prctl"}, Compat: true, Class: ClassInternal, Args: []ArgMatch{{Arg: 0, Value: unix.PR_SET_SECCOMP, Low: true}}},
	}
}

// Allows reports whether the filters that t's process has of its own let a call pass, whatever its arguments
// behind args are. t must be stopped. Of a filter that can't be read it is not known, and Allows is false.
func (t *Task) Allows(nr uint64, args ...uint64) bool {
	return t.lookForFilters() && allAllow(t.Proc.own, nr, args...)
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
	if !t.tr.confined(p) {
		return true
	}
	tasks, thaw := t.tr.freeze(t)
	defer thaw()
	for _, o := range append(tasks, t) {
		if o.Proc == p && o.isConfined() {
			o.readFilters()
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
	t.Proc.noRestart = !allAllow(list, unix.SYS_RESTART_SYSCALL) // before others go on that the Injector stops
	if tr.o.Injector != nil && !t.muted && tr.crash == nil {
		t.at = at
		tr.o.Injector.Confine(t, func(nr uint64, args ...uint64) bool { return allAllow(list, nr, args...) })
		t.at = placeNone
	}
	t.Proc.own = list
}

// spareRestart has a call that a stop has interrupted begin anew, where the kernel would have the task go on with
// it by restart_syscall(2), which the program's filters forbid. What is left of a timeout is not known then:
// it begins anew, too.
func (t *Task) spareRestart() {
	if t.Proc == nil || !t.lookForFilters() || !t.Proc.noRestart {
		return
	}
	var r Regs
	if t.getRegs(&r) == 0 && r.restartBegins() {
		t.setRegs(&r)
	}
}

// filterOf reads the filter that a call installs; nil: it installs none.
func (tr *tracer) filterOf(t *Task) Program {
	c := &t.call
	addr, strict := c.Args[2], uint32(c.Args[0]) == unix.SECCOMP_SET_MODE_STRICT
	if c.Name() == "prctl" {
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

// insnSize is the size of struct sock_filter.
const insnSize = 8

// decodeProgram is the opposite of what Program.bytes does.
func decodeProgram(b []byte) Program {
	p := make(Program, len(b)/insnSize)
	for i := range p {
		in := b[i*insnSize:]
		p[i] = Insn{binary.LittleEndian.Uint16(in), in[2], in[3], binary.LittleEndian.Uint32(in[4:])}
	}
	return p
}
