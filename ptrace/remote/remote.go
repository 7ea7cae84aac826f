// Package remote is what is needed to have a program call functions of its own for
// somebody: memory in it, a stack, places for results.
//
// Who may call: code on the tracing thread, of a task that is held where [ptrace.Task.Call]
// allows it, and that is in no such call already ([ptrace.Task.Calling]): whatever watches the
// program's functions leaves calls alone that are not the program's. In which thread: whoever
// needs locks of a library free holds one at the entry of a function of that library, where the
// program itself might call it. A [Scratch] has one stack, so that one thread at a time may
// call on it; callers that know nothing of each other have a Scratch each.
package remote

import (
	"fmt"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// Alloc maps memory of the program's own into it, with access prot (PROT_READ, ...). It stays
// until [Free], or as long as the program.
func Alloc(t *ptrace.Task, size, prot uint64) (uint64, error) { return mmap(t, size, prot, 0) }

func mmap(t *ptrace.Task, size, prot, flags uint64) (uint64, error) {
	addr, err := t.Syscall(unix.SYS_MMAP, 0, size, prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags, ^uint64(0), 0)
	if err != nil {
		return 0, fmt.Errorf("map %d bytes in %d: %w", size, t.PID, err)
	}
	return uint64(addr), nil
}

// Free unmaps what Alloc has mapped.
func Free(t *ptrace.Task, addr, size uint64) error {
	if _, err := t.Syscall(unix.SYS_MUNMAP, addr, size); err != nil {
		return fmt.Errorf("unmap %d bytes at %#x in %d: %w", size, addr, t.PID, err)
	}
	return nil
}

// Layout of a Scratch, from its base on: a page that faults when the stack overflows,
// the stack, words, the stage.
const (
	guardBytes = 4 << 10
	stackBytes = 2 << 20 // the driver's functions need some hundred kilobytes at most
	wordsBytes = 4 << 10

	wordsAt = guardBytes + stackBytes
	stageAt = wordsAt + wordsBytes
	size    = stageAt + StageBytes
)

// Words and StageBytes are how much room a Scratch has for results of functions, of 8 bytes each,
// and for what is passed to functions by address.
const (
	Words      = wordsBytes / 8
	StageBytes = 1 << 20
)

// A Scratch is memory in a program for calls that it is to make. The zero value is none. Copies
// are the same memory, also in a process that was forked since.
type Scratch struct{ base uint64 }

// Map maps a Scratch into the task's process. Pages that are not used take no memory.
func Map(t *ptrace.Task) (Scratch, error) {
	base, err := mmap(t, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_NORESERVE)
	if err != nil {
		return Scratch{}, err
	}
	if _, err := t.Syscall(unix.SYS_MPROTECT, base, guardBytes, unix.PROT_NONE); err != nil {
		_ = Free(t, base, size) // what matters is the first error
		return Scratch{}, fmt.Errorf("protect the end of a stack in %d: %w", t.PID, err)
	}
	return Scratch{base}, nil
}

// Mapped reports whether there is memory.
func (s Scratch) Mapped() bool { return s.base != 0 }

// Base is the address at which it begins.
func (s Scratch) Base() uint64 { return s.base }

// Unmap gives the memory back.
func (s *Scratch) Unmap(t *ptrace.Task) error {
	base := s.base
	s.base = 0
	return Free(t, base, size)
}

// Word is the address of word i, below Words.
func (s Scratch) Word(i int) uint64 { return s.base + wordsAt + 8*uint64(i) }

// Stage is the address of StageBytes bytes.
func (s Scratch) Stage() uint64 { return s.base + stageAt }

// Call is [ptrace.Task.Call] on the Scratch's stack.
func (s Scratch) Call(t *ptrace.Task, function uint64, args []uint64, done func(t *ptrace.Task, ret uint64, err error)) error {
	return t.Call(function, s.base+wordsAt, args, done)
}
