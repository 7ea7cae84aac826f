package ptrace

import "golang.org/x/sys/unix"

// repeat goes back to the instruction that has caused a signal, and says whether anything
// had to be changed: most leave the program counter where they are.
func (r *Regs) repeat(sig unix.Signal, _ int32) bool {
	if sig == unix.SIGSYS {
		r.Pc -= 4
		return true
	}
	return false
}
