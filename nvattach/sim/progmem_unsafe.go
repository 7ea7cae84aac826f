package sim

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// vmMemory is the memory of the process of that id, by process_vm_readv. The kernel allows it to
// the process's tracer, and to processes of the same user where Yama does not forbid that: the library
// names this process as one that may (PR_SET_PTRACER).
type vmMemory int

// chunk is how much one system call copies: it is not interrupted by signals.
const chunk = 64 << 20

// ReadMem implements [ProcessMemory].
func (pid vmMemory) ReadMem(addr uint64, buf []byte) (int, error) {
	return pid.move(addr, buf, unix.ProcessVMReadv)
}

// WriteMem implements [ProcessMemory].
func (pid vmMemory) WriteMem(addr uint64, buf []byte) (int, error) {
	return pid.move(addr, buf, unix.ProcessVMWritev)
}

// move copies in either direction, until all is copied or the first byte that can't be.
func (pid vmMemory) move(addr uint64, buf []byte, f func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) (int, error) {
	done := 0
	for done < len(buf) {
		n := min(len(buf)-done, chunk)
		local := []unix.Iovec{{Base: unsafe.SliceData(buf[done:]), Len: uint64(n)}}
		got, err := f(int(pid), local, []unix.RemoteIovec{{Base: uintptr(addr) + uintptr(done), Len: n}}, 0)
		if got > 0 {
			done += got
		}
		if err != nil {
			return done, err
		}
		if got <= 0 {
			return done, unix.EFAULT
		}
	}
	return done, nil
}
