package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// defaultSignal gives a signal its default effect again, past Go's runtime,
// which would answer some (SIGSEGV, SIGQUIT) with a crash report of its own.
func defaultSignal(sig unix.Signal) {
	// struct kernel_sigaction: handler, flags, restorer, mask; zero is SIG_DFL.
	var act [4]uint64
	const maskSize = 8
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, maskSize, 0, 0)
}
