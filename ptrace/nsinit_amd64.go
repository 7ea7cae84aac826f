package ptrace

import "golang.org/x/sys/unix"

// repeat goes back to the instruction that has caused a signal, and says whether anything
// had to be changed: most leave the instruction pointer where they are.
func (r *Regs) repeat(sig unix.Signal, code int32) bool {
	switch {
	case sig == unix.SIGTRAP && code == siKernel: // int3
		r.Rip -= breakLen
	case sig == unix.SIGSYS: // its registers are as before the call
		r.Rip, r.Orig_rax = r.Rip-uint64(len(syscallInsn)), noCall
	default:
		return false
	}
	return true
}
