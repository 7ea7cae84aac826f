package host

import (
	"debug/elf"
	"errors"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

const (
	nativeArch = unix.AUDIT_ARCH_AARCH64
	elfMachine = elf.EM_AARCH64
)

// registers of functions' programs, which there are none of on this machine.
func registers(*ptrace.Regs) []uint64 { return nil }

// noCall would need the registers of the system call, which are set apart here.
func noCall(*ptrace.Regs) bool { return false }

// returnNow would need to know a function's return address, which there are no programs to ask for.
func returnNow(*ptrace.Task, *ptrace.Regs, uint64) error {
	return errors.New("functions have no programs on this machine")
}
