package ptrace

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// A program that outlives this process must be able to end: its matched calls fail then, which no program
// expects of these. What comes behind them in a C library may be an instruction that ends the program by a
// signal, or a loop. So filters let them pass, and they are seen by a stop of the task at its end.
var endings = []uint32{unix.SYS_EXIT, unix.SYS_EXIT_GROUP}

// errReturning: there is no such stop for the return from a signal handler.
var errReturning = errors.New("system call rt_sigreturn: a program that outlives its tracer would crash at it")

// unfailing returns the rules that filters are made of: where the program may outlive this process, without
// calls that must not fail.
func (tr *tracer) unfailing(rules []Rule) ([]Rule, error) {
	if !tr.o.NoExitKill || tr.o.Seccomp != SeccompAuto {
		return rules, nil
	}
	list := make([]Rule, 0, len(rules))
	for _, r := range rules {
		if named(&r, unix.SYS_RT_SIGRETURN) {
			return nil, errReturning
		}
		if slices.ContainsFunc(endings, func(nr uint32) bool { return named(&r, nr) }) {
			tr.seesEnds = true
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(name string) bool {
				return slices.ContainsFunc(endings, func(nr uint32) bool { return SyscallName(nativeArch, uint64(nr)) == name })
			})
			r.Nrs = slices.DeleteFunc(slices.Clone(r.Nrs), func(nr uint32) bool { return slices.Contains(endings, nr) })
		}
		if len(r.Names)+len(r.Nrs) > 0 {
			list = append(list, r)
		}
	}
	return list, nil
}

// named reports whether a rule selects a call of this architecture.
func named(r *Rule, nr uint32) bool {
	return slices.Contains(r.Nrs, nr) || slices.Contains(r.Names, SyscallName(nativeArch, uint64(nr)))
}

// onEnding: the task is about to end, by one of those calls or in another way. It can't be made to do
// anything any more.
func (tr *tracer) onEnding(t *Task) {
	var r unix.PtraceRegs
	if !tr.seesEnds || t.Proc.all || t.muted || getRegs(t.TID, &r) != 0 {
		tr.resume(t, 0)
		return
	}
	c := &t.call
	*c = Syscall{Enter: nanotime()}
	fillEntry(c, &r)
	if c.Arch == nativeArch && slices.Contains(endings, uint32(c.Nr)) {
		var ok bool
		if c.Class, ok = tr.selected(t); ok {
			tr.res.Calls++
			t.at = placeNone
			t.wantExit = tr.h.Enter(t, c) == WantExit // it is unfinished then
		}
	}
	tr.resume(t, 0)
}
