package ptrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// A tracing process that is killed leaves its breakpoint instructions behind, in programs
// that live on. Where they are is written down beforehand, for another process to remove
// them at once.

// A Journal keeps where breakpoint instructions are, for a process that removes them when
// the tracing process dies: see [RemoveOrphaned].
type Journal struct {
	alive *os.File // closed by the kernel when this process dies; a byte: all is well
	file  *os.File // of breakpoints
}

// NewJournal makes a Journal. The other process is to have the files that it returns; this
// one must close its alive when that has been started.
func NewJournal() (j *Journal, alive, journal *os.File, err error) {
	fd, err := proc.Memfd("nvtrace-breakpoints", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("memfd_create: %w", err)
	}
	j = &Journal{file: os.NewFile(uintptr(fd), "journal")}
	if alive, j.alive, err = os.Pipe(); err != nil {
		_ = j.file.Close()
		return nil, nil, nil, err
	}
	return j, alive, j.file, nil
}

// Planted notes a breakpoint. It is for [Options].Planted.
func (j *Journal) Planted(pid int, addr uint64, code []byte) {
	e := journalEntry{PID: int32(pid), Len: int32(len(code)), Addr: addr}
	copy(e.Code[:], code)
	// What can't be noted, in want of memory, can't be removed: no worse than without.
	_ = binary.Write(j.file, binary.NativeEndian, &e)
}

// Close says that this process has removed its breakpoints itself. It does nothing for nil.
func (j *Journal) Close() {
	if j == nil {
		return
	}
	_, _ = j.alive.Write([]byte{1}) // an error means that the other process has ended
	_ = j.alive.Close()
	_ = j.file.Close()
}

// journalEntry is a breakpoint in the journal. A later one of the same place holds.
type journalEntry struct {
	PID  int32
	Len  int32
	Addr uint64
	Code [16]byte // what the program has there, Len bytes of it
}

// RemoveOrphaned waits, beside the caller's work, for the death of the tracing process whose
// Journal the files are from, and removes the breakpoints that it has left. The function
// that it returns waits for that.
func RemoveOrphaned(alive, journal *os.File) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer journal.Close()
		defer alive.Close()
		if n, err := alive.Read(make([]byte, 1)); n == 0 && errors.Is(err, io.EOF) {
			removeAll(journal)
		}
	}()
	return func() { <-done }
}

// removeAll removes the breakpoints in a journal. Processes that have ended, and code that
// is gone, need nothing.
func removeAll(journal io.ReaderAt) {
	type place struct {
		pid  int32
		addr uint64
	}
	last := make(map[place]journalEntry)
	r := io.NewSectionReader(journal, 0, 1<<62)
	for {
		var e journalEntry
		if binary.Read(r, binary.NativeEndian, &e) != nil {
			break // its end, or what was being written
		}
		if e.Len > 0 && int(e.Len) <= len(e.Code) {
			last[place{e.PID, e.Addr}] = e
		}
	}
	mem := make(map[int32]*os.File)
	for at := range last {
		if _, ok := mem[at.pid]; !ok {
			mem[at.pid], _ = os.OpenFile(proc.Path(int(at.pid), "mem"), os.O_RDWR, 0)
		}
	}
	for at, e := range last {
		if f := mem[at.pid]; f != nil {
			e.remove(f)
		}
	}
	for _, f := range mem {
		_ = f.Close() // nil's error, too, says nothing
	}
}

// remove restores the code, if there is the breakpoint, and around it what was
// there then. Nearby code may have breakpoints, too.
func (e *journalEntry) remove(mem *os.File) {
	now := make([]byte, e.Len)
	if _, err := mem.ReadAt(now, int64(e.Addr)); err != nil || now[0] != breakInsn {
		return
	}
	for i, c := range now {
		if c == breakInsn {
			now[i] = e.Code[i]
		}
	}
	if bytes.Equal(now, e.Code[:e.Len]) {
		_, _ = mem.WriteAt(now[:1], int64(e.Addr)) // the process may have ended
	}
}
