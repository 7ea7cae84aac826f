package host

import (
	"debug/elf"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	elfMachine = elf.EM_X86_64
)

// registers are those of struct pt_regs.
func registers(r *ptrace.Regs) []uint64 {
	return []uint64{
		r.R15, r.R14, r.R13, r.R12, r.Rbp, r.Rbx, r.R11, r.R10, r.R9, r.R8, r.Rax, r.Rcx, r.Rdx, r.Rsi, r.Rdi,
		r.Orig_rax, r.Rip, r.Cs, r.Eflags, r.Rsp, r.Ss,
	}
}

// returnNow sets registers at a function's entry to those behind its return.
func returnNow(task *ptrace.Task, r *ptrace.Regs, result uint64) error {
	var b [8]byte
	if n, err := task.ReadMem(r.SP(), b[:]); n < len(b) {
		return fmt.Errorf("its return address at %#x: %w", r.SP(), err)
	}
	r.SetIP(binary.LittleEndian.Uint64(b[:]))
	r.SetSP(r.SP() + 8)
	r.SetRet(result)
	return nil
}

// noCall has the kernel make no system call.
func noCall(r *ptrace.Regs) bool {
	r.Orig_rax = ^uint64(0)
	return true
}
