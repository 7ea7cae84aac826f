package agent

import "nvtrace/ptrace"

// blob is the agent's code, which does not exist for this architecture.
type blob struct {
	code []byte

	ioctlEntry, hookEntry, returnEntry uint64
	copyInsn, tpInsn                   uint64
}

func embedded() *blob { return nil }

func is64(*ptrace.Regs) bool { return true }
