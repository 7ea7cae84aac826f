package main

import (
	"runtime"
	"sync/atomic"
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
		case unix.EINTR, unix.EAGAIN:
			continue
		}
		return errno
	}
}

// address pins bytes that the driver is to find by their address, as a structure that another one
// points to, and returns that address. They stay pinned until the pinner is unpinned.
func address(pin *runtime.Pinner, b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	pin.Pin(&b[0])
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}

// load reads a word that the GPU may write at any time.
func load(b []byte, at int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[at : at+4][0])))
}

// store writes a word that the GPU looks at, in one write.
//
//go:noinline
func store(b []byte, at int, v uint32) { *(*uint32)(unsafe.Pointer(&b[at : at+4][0])) = v }

// fence makes what was written before reach memory and the GPU before what is written later: the
// locked instruction behind it empties the processor's write-combining buffers, which mappings of
// the GPU's memory go through. That is so on x86-64 only.
func fence() { fences.Add(1) }

var fences atomic.Uint32
