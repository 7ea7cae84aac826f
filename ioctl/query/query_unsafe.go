package query

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl repeats an interrupted call, as the driver documents it.
func (linux) ioctl(fd int, nr uint32, arg []byte) error {
	const readWrite, typeF = 3 << 30, 'F' << 8
	request := readWrite | uintptr(len(arg))<<16 | typeF | uintptr(nr)
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// address pins bytes that the driver is to find by their address, and returns that.
func address(pin *runtime.Pinner, b []byte) uint64 {
	pin.Pin(&b[0])
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}
