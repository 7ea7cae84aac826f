package ptrace

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVec is how many ranges one process_vm_readv is given.
const maxVec = 16

// remoteVec is a struct iovec that names memory of another process.
type remoteVec struct {
	base uintptr
	len  uint64
}

// ReadMem reads len(buf) bytes at addr. It reads as much as is mapped without a
// gap; n < len(buf) comes with an error. Bytes behind n are unspecified.
//
// Without root, the memory of a child of an undumpable process (PR_SET_DUMPABLE) can be read
// on x86-64 only, and there not if a filter of the program's own forbids it prctl.
func (t *Task) ReadMem(addr uint64, buf []byte) (n int, err error) {
	if len(buf) == 0 {
		return 0, nil
	}
	local := unix.Iovec{Base: &buf[0], Len: uint64(len(buf))}
	remote := remoteVec{uintptr(addr), uint64(len(buf))}
	r, _, e := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.TID), uintptr(unsafe.Pointer(&local)), 1,
		uintptr(unsafe.Pointer(&remote)), 1, 0)
	if e == 0 && int(r) == len(buf) {
		return len(buf), nil
	}
	if e != 0 {
		r = 0
	}
	return t.readTail(addr, buf, int(r), e)
}

// readTail goes on after a read that stopped at n: to the end of the page that
// n lies in, and through /proc/PID/mem if the direct way is forbidden.
func (t *Task) readTail(addr uint64, buf []byte, n int, e unix.Errno) (int, error) {
	if e == unix.ESRCH {
		return n, fmt.Errorf("read memory of %d: %w", t.TID, ErrGone)
	}
	for n < len(buf) {
		at := addr + uint64(n)
		if at < addr { // past the end of the address space
			return n, memError("read", t, at, unix.EFAULT)
		}
		room := int(pageSize - at%pageSize)
		k, e := t.access(unix.SYS_PROCESS_VM_READV, unix.SYS_PREAD64, at, buf[n:min(len(buf), n+room)])
		n += k
		if e != 0 {
			return n, memError("read", t, at, e)
		}
		if k == 0 {
			return n, memError("read", t, at, unix.EFAULT)
		}
	}
	return n, nil
}

// access moves one piece of memory by a process_vm call, or by pread or pwrite
// of /proc/PID/mem where that is forbidden.
func (t *Task) access(vm, file uintptr, addr uint64, buf []byte) (int, unix.Errno) {
	local := unix.Iovec{Base: &buf[0], Len: uint64(len(buf))}
	remote := remoteVec{uintptr(addr), uint64(len(buf))}
	r, _, e := unix.RawSyscall6(vm, uintptr(t.TID), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if e == 0 {
		return int(r), 0
	}
	if e == unix.ESRCH || t.Proc == nil || t.Proc.mem < 0 {
		return 0, e
	}
	r, _, e2 := unix.RawSyscall6(file, uintptr(t.Proc.mem), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(addr), 0, 0)
	switch {
	case e2 == unix.EIO: // its word for EFAULT
		return 0, unix.EFAULT
	case e2 != 0:
		return 0, e
	}
	return int(r), 0
}

func memError(verb string, t *Task, addr uint64, e unix.Errno) error {
	if e == unix.ESRCH {
		return fmt.Errorf("%s memory of %d: %w", verb, t.TID, ErrGone)
	}
	return fmt.Errorf("%s memory of %d at %#x: %w%s", verb, t.TID, addr, e, WhyRefused(t.PID, e))
}

// ReadMemV reads several ranges at the cost of one, and sets the N of each.
// The error is that of the first range that could not be read whole.
func (t *Task) ReadMemV(r []Range) error {
	var first error
	for len(r) > 0 {
		n := min(len(r), maxVec)
		if err := t.readVec(r[:n]); err != nil && first == nil {
			first = err
		}
		r = r[n:]
	}
	return first
}

func (t *Task) readVec(r []Range) error {
	var local [maxVec]unix.Iovec
	var remote [maxVec]remoteVec
	n, total := 0, 0
	for i := range r {
		r[i].N = 0
		if len(r[i].Buf) == 0 {
			continue
		}
		local[n] = unix.Iovec{Base: &r[i].Buf[0], Len: uint64(len(r[i].Buf))}
		remote[n] = remoteVec{uintptr(r[i].Addr), uint64(len(r[i].Buf))}
		total += len(r[i].Buf)
		n++
	}
	if n == 0 {
		return nil
	}
	got, _, e := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.TID), uintptr(unsafe.Pointer(&local)), uintptr(n),
		uintptr(unsafe.Pointer(&remote)), uintptr(n), 0)
	if e == 0 && int(got) == total {
		for i := range r {
			r[i].N = len(r[i].Buf)
		}
		return nil
	}
	var first error // some range has a hole: one by one
	for i := range r {
		var err error
		if r[i].N, err = t.ReadMem(r[i].Addr, r[i].Buf); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// WriteMem writes buf to the task's memory, as far as it is writable.
func (t *Task) WriteMem(addr uint64, buf []byte) (n int, err error) {
	if t.dead {
		return 0, memError("write", t, addr, unix.ESRCH)
	}
	for n < len(buf) {
		at := addr + uint64(n)
		room := int(pageSize - at%pageSize)
		k, e := t.access(unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PWRITE64, at, buf[n:min(len(buf), n+room)])
		n += k
		if e != 0 {
			return n, memError("write", t, at, e)
		}
		if k == 0 {
			return n, memError("write", t, at, unix.EFAULT)
		}
	}
	return n, nil
}

// errLimit is a string without an end within the limit.
var errLimit = errors.New("string is longer than the limit")

// ReadString reads a NUL-terminated string of at most limit bytes, without the
// NUL. One that is longer is cut there, one that runs into unmapped memory is
// returned as far as it goes; both come with an error.
func (t *Task) ReadString(addr uint64, limit int) (string, error) {
	var stack [256]byte
	var s []byte
	for len(s) < limit {
		at := addr + uint64(len(s))
		// Not beyond the page: what lies behind the string need not be mapped.
		n := min(len(stack), limit-len(s), int(pageSize-at%pageSize))
		k, err := t.ReadMem(at, stack[:n])
		for i, c := range stack[:k] {
			if c == 0 {
				return string(append(s, stack[:i]...)), nil
			}
		}
		s = append(s, stack[:k]...)
		if err != nil {
			return string(s), err
		}
	}
	return string(s), errLimit
}
