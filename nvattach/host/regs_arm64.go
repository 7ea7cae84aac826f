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

// framePointer of system calls' programs, which nobody needs without those of functions.
func framePointer(*ptrace.Regs) uint64 { return 0 }

func returnNow(*ptrace.Task, *ptrace.Regs, uint64) error {
	return errors.New("not on this machine")
}

// noCall would need the registers of the system call, which are set apart here.
func noCall(*ptrace.Regs) bool { return false }
