package live

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// seccompAction reports whether seccomp filters may have an action.
func seccompAction(action uint32) bool {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompGetActionAvail, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}
