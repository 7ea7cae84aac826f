package ptrace

import "golang.org/x/sys/unix"

func (r *Regs) noRestart() {}

// refuse is for what an Injector has in the program: there is none on this machine.
func (r *Regs) refuse(unix.Errno) {}

// skipCall reports that there are no detours on this machine.
func (t *Task) skipCall() bool { return false }
