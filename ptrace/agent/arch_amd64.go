package agent

import "nvtrace/ptrace"

// blob is the agent's code.
type blob struct {
	code []byte

	ioctlEntry, hookEntry, returnEntry uint64
	copyInsn, tpInsn                   uint64
}

// embedded returns the code that this program carries.
func embedded() *blob { return newBlob(blobCode, blobSymbols) }

func newBlob(code []byte, symbols map[string]uint64) *blob {
	return &blob{
		code: code, ioctlEntry: symbols["ioctl_entry"], hookEntry: symbols["hook_entry"],
		returnEntry: symbols["return_entry"], copyInsn: symbols["copy_insn"], tpInsn: symbols["tp_insn"],
	}
}

// is64 says whether a task runs 64-bit code (asm/segment.h: __USER_CS).
func is64(r *ptrace.Regs) bool { return r.Cs == 0x33 }
