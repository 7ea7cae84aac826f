package agent

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory that is shared with a traced process is read and written by these.

// load64 loads the 8 bytes at an offset that is a multiple of 8, at once.
func load64(b []byte, off int) uint64 {
	_ = b[off+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off])))
}

// store64 stores them, after everything that was stored before.
func store64(b []byte, off int, v uint64) {
	_ = b[off+7]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[off])), v)
}

// store32 stores 4 bytes at an offset that is a multiple of 4, at once.
func store32(b []byte, off int, v uint32) {
	_ = b[off+3]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[off])), v)
}

// store8 stores a byte before anything is loaded that comes later.
func store8(b []byte, off int, v byte) {
	b[off] = v
	var fence atomic.Uint32
	fence.Swap(1) // a full barrier on amd64
}

// yield lets others run on this CPU.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// sharesMemory says whether two processes have one address space (kcmp(2),
// KCMP_VM). known is false where the kernel does not say.
func sharesMemory(pid1, pid2 int) (same, known bool) {
	const kcmpVM = 1
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpVM, 0, 0, 0)
	return e == 0 && r == 0, e == 0
}

//go:linkname nanotime runtime.nanotime
func nanotime() int64
