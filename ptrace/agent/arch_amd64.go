package agent

import "nvtrace/ptrace"

// program is the agent's code.
type program struct {
	code []byte

	callEntry, hookEntry, returnEntry uint64
	copyInsn, tpInsn                  uint64
}

// embedded returns the code that this program carries.
func embedded() *program { return newProgram(blobCode, blobSymbols) }

func newProgram(code []byte, symbols map[string]uint64) *program {
	return &program{
		code: code, callEntry: symbols["call_entry"], hookEntry: symbols["hook_entry"],
		returnEntry: symbols["return_entry"], copyInsn: symbols["copy_insn"], tpInsn: symbols["tp_insn"],
	}
}

// is64 says whether a task runs 64-bit code (asm/segment.h: __USER_CS).
func is64(r *ptrace.Regs) bool { return r.Cs == 0x33 }
