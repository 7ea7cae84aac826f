package agent

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// call makes a system call in t and wants its result to be want, if that is not 0.
func call(t *ptrace.Task, name string, want uint64, nr uint64, args ...uint64) (uint64, error) {
	ret, err := t.Syscall(nr, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if want != 0 && uint64(ret) != want {
		if nr == unix.SYS_MMAP { // a kernel before 4.17 takes MAP_FIXED_NOREPLACE for a hint
			_, _ = t.Syscall(unix.SYS_MUNMAP, uint64(ret), args[1])
		}
		return 0, fmt.Errorf("%s: %#x instead of %#x", name, ret, want)
	}
	return uint64(ret), nil
}

// protect makes the code code, and has a forked child find no rings.
func (p *Process) protect(t *ptrace.Task) error {
	_, err := call(t, "mprotect", 0, unix.SYS_MPROTECT, baseAddr, confAddr-baseAddr, unix.PROT_READ|unix.PROT_EXEC)
	// A kernel before 4.14 does not know it: then there must be a supervisor when
	// the process forks.
	_, _ = t.Syscall(unix.SYS_MADVISE, gateAddr, uint64(os.Getpagesize()), unix.MADV_WIPEONFORK)
	return err
}

// write writes all of b, whatever the protection.
func (p *Process) write(addr uint64, b []byte) error {
	_, err := p.mem.WriteAt(b, int64(addr))
	return err
}

// write64 writes one number.
func (p *Process) write64(addr, v uint64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return p.write(addr, b[:])
}

// read64 reads a word of the process's memory.
func (p *Process) read64(addr uint64) (uint64, error) {
	var b [8]byte
	if _, err := p.mem.ReadAt(b[:], int64(addr)); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
