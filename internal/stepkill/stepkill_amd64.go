package stepkill

import "golang.org/x/sys/unix"

// stepOf says what the system call is at which a thread has stopped.
func stepOf(tid int) int {
	var r unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &r) != nil || int64(r.Rax) != -int64(unix.ENOSYS) {
		return isNothing // its exit
	}
	switch r.Orig_rax {
	case unix.SYS_PTRACE:
		if !harmless[r.Rdi] {
			return isStep
		}
	case unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PWRITE64:
		return isStep
	case unix.SYS_GETPGID:
		if r.Rdi == done {
			return isDone
		}
	}
	return isNothing
}
