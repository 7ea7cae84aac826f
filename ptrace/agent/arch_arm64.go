package agent

import "nvtrace/ptrace"

// program is the agent's code, which does not exist for this architecture.
type program struct {
	code []byte

	callEntry, hookEntry, returnEntry uint64
	breakEntry, breakStubs            uint64
	probeEntry, probeWatch            uint64
	probeReturn                       uint64
	copyInsn, tpInsn                  uint64
	ownCheck, ownInsn, ownNot         uint64
	bellLoad, bellInsn                uint64
}

func embedded() *program { return nil }

// Helper returns the address of a helper of eBPF; there are none here.
func Helper(int32) (addr uint64, ok bool) { return 0, false }

// ReleaseHelper returns 0.
func ReleaseHelper() uint64 { return 0 }

func unwindProgram() uint64 { return 0 }

func critical(uint64) bool { return false }

func helpers() []byte { return nil }

func frameRegs(*ptrace.Regs, []uint64) {}

func setCall(*ptrace.Regs, uint64) {}

func (*Process) readCounter(*ptrace.Task, *ptrace.Regs) bool { return false }

func enters(*ptrace.Regs) bool { return false }

func is64(*ptrace.Regs) bool { return true }

// A counter knows nothing here.
type counter struct{}

func newCounter() counter { return counter{} }

func (counter) scale() uint64 { return 0 }
