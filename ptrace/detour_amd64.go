package ptrace

import "golang.org/x/sys/unix"

// noRestart says that the task is in no system call.
func (r *Regs) noRestart() { r.Orig_rax = noCall }

// refuse has the system call at whose entry the task is fail instead.
func (r *Regs) refuse(e unix.Errno) { r.Orig_rax, r.Rax = noCall, uint64(-int64(e)) }

// skipCall makes the task, which is at the entry of a system call, not make it,
// and stop behind it.
func (t *Task) skipCall() bool {
	var r Regs
	if t.getRegs(&r) != 0 {
		return false
	}
	orig := r
	r.noRestart()
	if t.setRegs(&r) != 0 {
		return false
	}
	in := &injection{t: t}
	if in.step(unix.PTRACE_SYSCALL, stopSyscall) != nil {
		return false
	}
	in.rejoin()
	return t.setRegs(&orig) == 0
}
