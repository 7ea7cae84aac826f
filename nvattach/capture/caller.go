package capture

import (
	"encoding/binary"
	"path/filepath"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

var le = binary.LittleEndian

// callerOf names the library that called a function at whose entry the registers
// are regs. The interposer's call was made for somebody further up, whose return
// address its frame has.
func (c *Capture) callerOf(t *ptrace.Task, maps *proc.View, regs *ptrace.Regs) string {
	ret, err := readWord(t, regs.SP())
	if err != nil {
		return ""
	}
	lib := libraryAt(maps, ret)
	if c.o.Shim == "" || lib != c.o.Shim {
		return lib
	}
	fp := framePointer(regs)
	for range 4 {
		var frame [16]byte
		if fp <= regs.SP() || fp-regs.SP() > maxShimStack {
			break
		}
		if n, _ := t.ReadMem(fp, frame[:]); n < len(frame) {
			break
		}
		m := maps.At(le.Uint64(frame[8:]))
		if m == nil || !m.Exec {
			break
		}
		if m.Path != lib {
			return libraryAt(maps, le.Uint64(frame[8:]))
		}
		fp = le.Uint64(frame[:])
	}
	return lib
}

// callerAlone is callerOf where nothing else is asked of the process's mappings.
func (c *Capture) callerAlone(t *ptrace.Task, k *call) string {
	maps := proc.NewView(t.PID)
	defer maps.Close()
	return c.callerOf(t, maps, &k.entry)
}

// maxShimStack bounds the frames of the interposer.
const maxShimStack = 64 << 10

// libraryAt names the file that an address lies in, "" if there is none.
func libraryAt(maps *proc.View, addr uint64) string {
	if m := maps.At(addr); m != nil && filepath.IsAbs(m.Path) {
		return m.Path
	}
	return ""
}
