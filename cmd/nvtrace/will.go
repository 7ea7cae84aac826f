package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// A tracing process that is killed leaves its breakpoints behind, in programs
// that live on. What it would have to do is written down beforehand, for the
// decoding process to do it at once.

// deathLive is the value of --on-tracer-death with which the program lives on.
const deathLive = "live"

// will is what the tracing process leaves to the decoding process.
type will struct {
	alive   *os.File // closed by the kernel when this process dies; a byte: all is well
	journal *os.File // of breakpoints
}

// newWill returns a will, and what the decoding process has of it besides the
// journal.
func newWill() (w *will, alive *os.File, err error) {
	fd, err := unix.MemfdCreate("nvtrace-breakpoints", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("memfd_create: %w", err)
	}
	w = &will{journal: os.NewFile(uintptr(fd), "journal")}
	if alive, w.alive, err = os.Pipe(); err != nil {
		_ = w.journal.Close()
		return nil, nil, err
	}
	return w, alive, nil
}

// planted notes a breakpoint. It is an Options.Planted of package ptrace.
func (w *will) planted(pid int, addr uint64, code []byte) {
	b := bequest{PID: int32(pid), Len: int32(len(code)), Addr: addr}
	copy(b.Code[:], code)
	// What can't be noted, in want of memory, can't be taken away: no worse than
	// without a will.
	_ = binary.Write(w.journal, binary.NativeEndian, &b)
}

// settle says that nothing is left to do.
func (w *will) settle() {
	if w == nil {
		return
	}
	_, _ = w.alive.Write([]byte{1}) // an error means that the other process has ended
	closeAll([]*os.File{w.alive, w.journal})
}

// bequest is a breakpoint in the journal. A later one of the same place holds.
type bequest struct {
	PID  int32
	Len  int32
	Addr uint64
	Code [16]byte // what the program has there, Len bytes of it
}

// take waits, beside the caller's work, for the death of the tracing process, and
// executes its will. The function that it returns waits for that.
func take(alive, journal *os.File) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer closeAll([]*os.File{alive, journal})
		if n, err := alive.Read(make([]byte, 1)); n == 0 && errors.Is(err, io.EOF) {
			executeWill(journal)
		}
	}()
	return func() { <-done }
}

// executeWill takes away the breakpoints in the journal. Processes that have
// ended, and code that is gone, need nothing.
func executeWill(journal io.ReaderAt) {
	type place struct {
		pid  int32
		addr uint64
	}
	last := make(map[place]bequest)
	r := io.NewSectionReader(journal, 0, 1<<62)
	for {
		var b bequest
		if binary.Read(r, binary.NativeEndian, &b) != nil {
			break // its end, or what was being written
		}
		if b.Len > 0 && int(b.Len) <= len(b.Code) {
			last[place{b.PID, b.Addr}] = b
		}
	}
	mem := make(map[int32]*os.File)
	for at := range last {
		if _, ok := mem[at.pid]; !ok {
			mem[at.pid], _ = os.OpenFile(proc.Path(int(at.pid), "mem"), os.O_RDWR, 0)
		}
	}
	for at, b := range last {
		if f := mem[at.pid]; f != nil {
			b.remove(f)
		}
	}
	for _, f := range mem {
		_ = f.Close() // nil's error, too, says nothing
	}
}

// breakpointInsn is the breakpoint instruction where package ptrace has breakpoints
// (amd64: int3).
const breakpointInsn = 0xcc

// remove restores the code, if there is the breakpoint, and around it what was
// there then. Nearby code may have breakpoints, too.
func (b *bequest) remove(mem *os.File) {
	now := make([]byte, b.Len)
	if _, err := mem.ReadAt(now, int64(b.Addr)); err != nil || now[0] != breakpointInsn {
		return
	}
	for i, c := range now {
		if c == breakpointInsn {
			now[i] = b.Code[i]
		}
	}
	if bytes.Equal(now, b.Code[:b.Len]) {
		_, _ = mem.WriteAt(now[:1], int64(b.Addr)) // the process may have ended
	}
}
