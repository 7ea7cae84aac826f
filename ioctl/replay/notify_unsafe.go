package replay

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The structures and requests of linux/seccomp.h that x/sys/unix lacks.

// notification is struct seccomp_notif.
type notification struct {
	id   uint64
	pid  uint32 // the thread
	_    uint32 // flags
	nr   int32  // struct seccomp_data from here
	arch uint32
	_    uint64 // instruction_pointer
	args [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	err   int32 // negative
	flags uint32
}

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	id      uint64
	flags   uint32
	srcFD   uint32
	_       uint32 // newfd
	newMode uint32
}

const (
	ioctlRecv     = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
	ioctlSend     = 0xc0182101 // SECCOMP_IOCTL_NOTIF_SEND
	ioctlIDValid  = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	ioctlAddFD    = 0x40182103 // SECCOMP_IOCTL_NOTIF_ADDFD
	ioctlSetFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS (Linux 6.6)

	respContinue = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
	addFDSend    = 2 // SECCOMP_ADDFD_FLAG_SEND (Linux 5.14)
	syncWakeUp   = 1 // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
)

// ioctlPtr does an ioctl on the listener with a structure of the above.
func ioctlPtr[T any](fd int, req uintptr, arg *T) (int, unix.Errno) {
	for {
		r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(unsafe.Pointer(arg)))
		if e != unix.EINTR {
			return int(r), e
		}
	}
}

// setSyncWakeUp asks the kernel to wake this process on the program's CPU, which
// saves most of a notification's latency. Kernels before 6.6 refuse; no harm.
func setSyncWakeUp(fd int) {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlSetFlags, syncWakeUp)
}

// ReadMem implements ioctl.Memory.
func (t *task) ReadMem(addr uint64, buf []byte) (int, error) {
	return t.transfer(unix.SYS_PROCESS_VM_READV, addr, buf)
}

// writeMem writes to the program's memory, all or an error.
func (t *task) writeMem(addr uint64, b []byte) error {
	_, err := t.transfer(unix.SYS_PROCESS_VM_WRITEV, addr, b)
	return err
}

func (t *task) transfer(nr uintptr, addr uint64, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	r, _, e := unix.Syscall6(nr, uintptr(t.tid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if e != 0 {
		return 0, fmt.Errorf("memory of %d at %#x: %w", t.tid, addr, e)
	}
	if int(r) < len(b) {
		return int(r), fmt.Errorf("memory of %d at %#x: %w", t.tid, addr+uint64(r), unix.EFAULT)
	}
	return int(r), nil
}

// bytesOf returns the memory of one of the kernel's structures.
func bytesOf[T unix.Stat_t | unix.Statx_t](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}
