package ptrace

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	compatArch = unix.AUDIT_ARCH_I386
	hasX32     = true
)

// fillEntry sets c from the registers at the entry of a call, for kernels
// before 5.3, which lack PTRACE_GET_SYSCALL_INFO. Such registers don't tell an
// i386 call made by int 0x80 from 64-bit code; it is taken for a native one.
func fillEntry(c *Syscall, r *unix.PtraceRegs) {
	c.Nr, c.IP, c.SP, c.Arch = r.Orig_rax, r.Rip, r.Rsp, nativeArch
	if r.Cs == 0x23 { // __USER32_CS
		c.Arch = compatArch
		c.Args = [6]uint64{r.Rbx, r.Rcx, r.Rdx, r.Rsi, r.Rdi, r.Rbp}
		return
	}
	c.Args = [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}
}

// retOf returns a call's result from the registers at its exit.
func retOf(r *unix.PtraceRegs) int64 { return int64(r.Rax) }

// setArg0 changes a call's first argument at its entry.
func setArg0(r *unix.PtraceRegs, c *Syscall, v uint64) {
	if c.Arch == compatArch {
		r.Rbx = v
	} else {
		r.Rdi = v
	}
}

const (
	breakInsn = 0xcc // int3
	breakLen  = 1
	retSize   = 8 // of a return address on the stack
)

// branchTaken is where the jump of a taken branch lies in its copy.
const branchTaken = 2 + jumpSize

const jumpSize = 14
