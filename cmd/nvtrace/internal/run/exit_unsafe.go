package run

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What setSignal sets: SIG_DFL and SIG_IGN.
const (
	defaultSignal = 0
	ignoredSignal = 1
)

// setSignal gives a signal its default effect again, or none, past Go's runtime,
// which would answer some (SIGSEGV, SIGQUIT) with a crash report of its own.
func setSignal(sig unix.Signal, handler uint64) {
	act := [4]uint64{handler} // struct kernel_sigaction: handler, flags, restorer, mask
	const maskSize = 8
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, maskSize, 0, 0)
}
