package agent

import "nvtrace/ptrace"

// program is the agent's code, which does not exist for this architecture.
type program struct {
	code []byte

	callEntry, hookEntry, returnEntry uint64
	breakEntry, breakStubs            uint64
	copyInsn, tpInsn                  uint64
}

func embedded() *program { return nil }

func frameRegs(*ptrace.Regs, []uint64) {}

func is64(*ptrace.Regs) bool { return true }
