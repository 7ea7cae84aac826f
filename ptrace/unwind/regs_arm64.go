package unwind

import "nvtrace/ptrace"

// RegsOf returns the registers of a stopped thread. Stacks are followed on x86-64 only: elsewhere
// a walk has where the thread is, and no callers.
func RegsOf(r *ptrace.Regs) *Regs {
	regs := &Regs{}
	regs.Set(PC, r.IP())
	return regs
}
