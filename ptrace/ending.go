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
