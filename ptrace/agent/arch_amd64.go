package agent

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// embedded returns the code that this program carries.
func embedded() *program { return newProgram(blobCode, blobSymbols) }

func newProgram(code []byte, symbols map[string]uint64) *program {
	return &program{
		code: code, callEntry: symbols["call_entry"], hookEntry: symbols["hook_entry"],
		returnEntry: symbols["return_entry"], breakEntry: symbols["break_entry"], breakStubs: symbols["break_stubs"], probeEntry: symbols["probe_entry"], probeWatch: symbols["probe_watch"], probeReturn: symbols["probe_return"], copyInsn: symbols["copy_insn"], tpInsn: symbols["tp_insn"],
		ownCheck: symbols["own_check"], ownInsn: symbols["own_insn"], ownNot: symbols["own_not"],
		bellLoad: symbols["bell_load"], bellInsn: symbols["bell_insn"],
	}
}

// Helper returns the address of a helper of eBPF, which programs in processes can call.
func Helper(number int32) (addr uint64, ok bool) {
	addr, ok = blobSymbols["helper_"+strconv.Itoa(int(number))]
	return addr, ok
}

// ReleaseHelper returns that of the one that gives a record back unused.
func ReleaseHelper() uint64 { return blobSymbols["helper_release"] }

// unwindProgram is the address of the program at _Unwind_Find_FDE.
func unwindProgram() uint64 { return blobSymbols["program_unwind"] }

// critical is the code of helpers that must not be interrupted.
func critical(ip uint64) bool { return ip >= blobSymbols["crit_begin"] && ip < blobSymbols["crit_end"] }

// helpers is the code of all of them.
func helpers() []byte { return blobProgram }

// frameRegs sets the registers that hook_entry and the like save, in the order in
// which they lie in memory.
func frameRegs(r *ptrace.Regs, words []uint64) {
	r.Eflags, r.R11, r.R10, r.R9, r.R8 = words[0], words[1], words[2], words[3], words[4]
	r.Rcx, r.Rdx, r.Rsi, r.Rdi, r.Rax = words[5], words[6], words[7], words[8], words[9]
}

// setCall makes the call at whose entry a task is another one, on no descriptor.
func setCall(r *ptrace.Regs, nr uint64) { r.Orig_rax, r.Rdi = nr, trapFD }

// readCounter has a thread read the processor's counter that may not do so: seccomp's strict mode takes it from a program,
// and prctl(PR_SET_TSC). It does nothing, and returns false, where it was not the agent that wanted to, by itself or by the vdso.
func (p *Process) readCounter(t *ptrace.Task, r *ptrace.Regs) bool {
	var insn [3]byte
	n, _ := t.ReadText(r.IP(), insn[:])
	size := 0
	switch code := insn[:n]; {
	case bytes.HasPrefix(code, []byte{0x0f, 0x31}): // rdtsc
		size = 2
	case bytes.Equal(code, []byte{0x0f, 0x01, 0xf9}): // rdtscp, whose number of the processor nobody wants
		size = 3
	default:
		return false
	}
	if !ours(r.IP()) && !p.clockCalled(t, r) {
		return false
	}
	ticks := rdtsc()
	r.Rax, r.Rdx = uint64(uint32(ticks)), ticks>>32
	r.SetIP(r.IP() + uint64(size))
	return true
}

// ours reports whether an address is in the agent's code, or in that of the helpers.
func ours(addr uint64) bool {
	return addr-baseAddr < uint64(len(blobCode)) || addr-programAddr < uint64(len(blobProgram))
}

// clockCalled reports whether a thread is in the vdso's clock_gettime for the agent: it returns there. Where the agent has called
// the program, it has put its own addresses in the place of others.
func (p *Process) clockCalled(t *ptrace.Task, r *ptrace.Regs) bool {
	const frame = 24 // words; the function and what it calls have less
	var b [8 * frame]byte
	if n, _ := t.ReadMem(confAddr+confClock, b[:8]); n < 8 || r.IP()-binary.LittleEndian.Uint64(b[:]) > maxVDSO {
		return false
	}
	n, _ := t.ReadMem(r.SP(), b[:])
	for at := 0; at+8 <= n; at += 8 {
		if w := binary.LittleEndian.Uint64(b[at:]); ours(w) {
			return w != p.a.blob.returnEntry && w != p.a.blob.probeReturn
		}
	}
	return false
}

// enters says whether a task has been stopped at the entry of a system call, by the result that it has there.
func enters(r *ptrace.Regs) bool {
	return int64(r.Orig_rax) >= 0 && int64(r.Rax) == -int64(unix.ENOSYS)
}

// is64 says whether a task runs 64-bit code (asm/segment.h: __USER_CS).
func is64(r *ptrace.Regs) bool { return r.Cs == 0x33 }
