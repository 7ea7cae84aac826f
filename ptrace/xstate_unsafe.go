package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// ntX86XState selects all that XSAVE saves (linux/elf.h: NT_X86_XSTATE).
	ntX86XState = 0x202
	// ntPrfpreg selects what FXSAVE saves: x87 and SSE (linux/elf.h: NT_PRFPREG).
	ntPrfpreg = 2
	// maxXState is more than that takes; with AMX it is about 11 KiB.
	maxXState = 64 << 10
)

// getRegset reads a set of registers, and returns how many bytes it has.
func getRegset(tid int, set uintptr, buf []byte) (int, unix.Errno) {
	iov := unix.Iovec{Base: &buf[0], Len: uint64(len(buf))}
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), set, uintptr(unsafe.Pointer(&iov)), 0, 0)
	return int(iov.Len), e
}

// setRegset is the opposite.
func setRegset(tid int, set uintptr, buf []byte) unix.Errno {
	iov := unix.Iovec{Base: &buf[0], Len: uint64(len(buf))}
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid), set, uintptr(unsafe.Pointer(&iov)), 0, 0)
	return e
}
