package unwind

import "nvtrace/ptrace"

// RegsOf returns the registers of a stopped thread.
func RegsOf(r *ptrace.Regs) *Regs {
	return &Regs{
		v: [numRegs]uint64{
			RAX: r.Rax, RDX: r.Rdx, RCX: r.Rcx, RBX: r.Rbx, RSI: r.Rsi, RDI: r.Rdi, RBP: r.Rbp, RSP: r.Rsp,
			R8: r.R8, R9: r.R9, R10: r.R10, R11: r.R11, R12: r.R12, R13: r.R13, R14: r.R14, R15: r.R15, PC: r.Rip,
		},
		known: 1<<numRegs - 1,
	}
}
