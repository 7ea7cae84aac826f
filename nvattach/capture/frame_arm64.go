package capture

import "nvtrace/ptrace"

// framePointer returns the register that code with frame pointers keeps its frame in.
func framePointer(r *ptrace.Regs) uint64 { return r.Regs[29] }
