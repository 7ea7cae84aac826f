package main

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena is a page run outside Go's heap that parameters are built in. The
// driver's structures hold addresses of further structures as integers, and
// neither the garbage collector nor a growing stack may move what they point
// to.
type arena struct {
	mem  []byte
	used int
}

// newArena maps an arena; see [arena.free].
func newArena() (*arena, error) {
	mem, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map memory for parameters: %w", err)
	}
	return &arena{mem: mem}, nil
}

func (a *arena) free() { _ = unix.Munmap(a.mem) }

// reset makes the whole arena available again; everything that [alloc]
// returned is void.
func (a *arena) reset() { a.used = 0 }

// alloc returns a zeroed T in the arena.
func alloc[T any](a *arena) *T {
	size := int(unsafe.Sizeof(*new(T)))
	at := (a.used + 15) &^ 15
	if at+size > len(a.mem) {
		panic("BUG: rminfo: arena too small")
	}
	a.used = at + size
	clear(a.mem[at : at+size])
	return (*T)(unsafe.Pointer(&a.mem[at]))
}

// addrSize is the address of v, which lies in an arena, and its size.
func addrSize[T any](v *T) (addr uint64, size uint32) {
	return uint64(uintptr(unsafe.Pointer(v))), uint32(unsafe.Sizeof(*v))
}

// ioctlF does an ioctl of type 'F', direction read and write, with the
// structure arg, which lies in an arena. An interrupted call is repeated, as
// the driver documents it.
func ioctlF[T any](fd int, nr uint32, arg *T) error {
	const readWrite, typeF = 3 << 30, 'F' << 8
	req := readWrite | unsafe.Sizeof(*arg)<<16 | typeF | uintptr(nr)
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(unsafe.Pointer(arg)))
		runtime.KeepAlive(arg)
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN:
			continue
		}
		return errno
	}
}
