package ptrace

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_AARCH64
	compatArch = unix.AUDIT_ARCH_ARM
	hasX32     = false
)

// fillEntry sets c from the registers at the entry of a call, for kernels
// before 5.3, which lack PTRACE_GET_SYSCALL_INFO.
func fillEntry(c *Syscall, r *unix.PtraceRegs) {
	c.Nr, c.IP, c.SP, c.Arch = r.Regs[8], r.Pc, r.Sp, nativeArch
	copy(c.Args[:], r.Regs[:6])
}

// retOf returns a call's result from the registers at its exit.
func retOf(r *unix.PtraceRegs) int64 { return int64(r.Regs[0]) }

// setArg0 changes a call's first argument at its entry.
func setArg0(r *unix.PtraceRegs, _ *Syscall, v uint64) { r.Regs[0] = v }
