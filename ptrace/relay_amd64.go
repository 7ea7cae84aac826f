package ptrace

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// A program that outlives this process must never depend on it for its registers. While a
// task makes a system call for the tracer, it executes the relay: a syscall instruction,
// and behind it code that gives the task back its signal mask and its registers and goes on
// where it was. The tracer normally does that itself, before the task gets there.
//
// The relay, and what it restores, lie where nothing has to be mapped first: in the unused
// end of the last page of the vDSO's code, or of a file's code.

// Of a relay in memory: its code, then what it restores, then its turn.
const (
	relayTurn = relaySave + relayWords*8
	relaySize = relayTurn + 8

	relaySave  = 144
	relayWords = 17 // signal mask; rax rbx rcx rdx rsi rdi rbp r8 to r15; rip
)

// relayCode is the code of a relay. It is the same wherever it lies. It changes neither
// the flags nor the stack pointer, so that signals do no harm on the way, whichever are
// blocked.
var relayCode = func() []byte {
	b := []byte{
		0x0f, 0x05, // syscall
		0xb8, unix.SYS_RT_SIGPROCMASK, 0, 0, 0, // mov $rt_sigprocmask,%eax
		0xbf, unix.SIG_SETMASK, 0, 0, 0, // mov $SIG_SETMASK,%edi
	}
	operand := func(word int, code ...byte) { // an instruction whose operand is one of the words
		b = append(b, code...)
		b = binary.LittleEndian.AppendUint32(b, uint32(relaySave+8*word-len(b)-4))
	}
	operand(0, 0x48, 0x8d, 0x35)          // lea mask(%rip),%rsi
	b = append(b, 0xba, 0, 0, 0, 0)       // mov $0,%edx
	b = append(b, 0x41, 0xba, 8, 0, 0, 0) // mov $8,%r10d
	b = append(b, 0x0f, 0x05)             // syscall
	for i, code := range [...][3]byte{    // mov word(%rip),register
		{0x48, 0x8b, 0x05},
		{0x48, 0x8b, 0x1d},
		{0x48, 0x8b, 0x0d},
		{0x48, 0x8b, 0x15},
		{0x48, 0x8b, 0x35},
		{0x48, 0x8b, 0x3d},
		{0x48, 0x8b, 0x2d},
		{0x4c, 0x8b, 0x05},
		{0x4c, 0x8b, 0x0d},
		{0x4c, 0x8b, 0x15},
		{0x4c, 0x8b, 0x1d},
		{0x4c, 0x8b, 0x25},
		{0x4c, 0x8b, 0x2d},
		{0x4c, 0x8b, 0x35},
		{0x4c, 0x8b, 0x3d},
	} {
		operand(1+i, code[:]...)
	}
	operand(relayWords-1, 0xff, 0x25) // jmp *rip(%rip)
	for len(b) < relaySave {
		b = append(b, 0xcc)
	}
	return b
}()

// relay returns the address of the relay in t's memory, which it writes first if this
// tracer has none there; 0 if there is no room.
func (t *Task) relay() uint64 {
	s := t.Proc.space
	if s.relay != 0 {
		var b [relaySave]byte
		if n, _ := t.ReadMem(s.relay, b[:]); n == len(b) && bytes.Equal(b[:], relayCode) {
			return s.relay
		}
		s.relay = 0 // the program has unmapped or replaced it
	}
	maps, err := proc.Maps(t.TID)
	if err != nil {
		return 0
	}
	// Other tracers may have been killed here, and a task of theirs may still be on its way
	// through their relay, or in a signal's handler that has come in between. So this one
	// takes what was never used, or else what was left first.
	var best, turn uint64
	oldest := ^uint64(0)
	for _, vdso := range []bool{true, false} {
		for _, m := range maps {
			if !m.Exec || !m.Private || (m.Path == "[vdso]") != vdso || !vdso && m.Inode == 0 {
				continue
			}
			for addr, n := range t.relaysIn(m) {
				if turn = max(turn, n); n < oldest && !t.tr.executing(s, addr) {
					best, oldest = addr, n
				}
			}
			if oldest == 0 {
				break
			}
		}
		if oldest == 0 {
			break
		}
	}
	if best == 0 {
		return 0
	}
	if t.poke(best, relayCode) != nil || t.poke(best+relayTurn, binary.LittleEndian.AppendUint64(nil, turn+1)) != nil {
		return 0
	}
	s.relay = best
	return best
}

// relaysIn finds the places for relays at the end of a mapping of code, and their turns: 0
// for one that was never used.
func (t *Task) relaysIn(m proc.Mapping) map[uint64]uint64 {
	var page [pageSize]byte
	base := m.End - pageSize
	if n, _ := t.ReadText(base, page[:]); n < len(page) {
		return nil
	}
	found := map[uint64]uint64{}
	for end := pageSize; end >= relaySize; end -= relaySize {
		b := page[end-relaySize : end]
		turn := uint64(0)
		switch {
		case bytes.HasPrefix(b, relayCode):
			turn = max(binary.LittleEndian.Uint64(b[relayTurn:]), 1)
		case len(bytes.Trim(b, "\x00")) > 0:
			return found
		}
		found[base+uint64(end-relaySize)] = turn
	}
	return found
}

// executing says whether a task in s may be in the relay at an address.
func (tr *tracer) executing(s *space, addr uint64) bool {
	for _, o := range tr.tasks {
		if o.Proc == nil || o.Proc.space != s {
			continue
		}
		if pc, err := o.PC(); err == nil && pc-addr < relaySave {
			return true
		}
	}
	return false
}

// arm has the relay give the task back its signal mask and its registers.
func (t *Task) armRelay(relay, mask uint64, r *Regs) bool {
	b := make([]byte, 0, relayWords*8)
	for _, v := range [relayWords]uint64{
		mask, r.Rax, r.Rbx, r.Rcx, r.Rdx, r.Rsi, r.Rdi, r.Rbp,
		r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.Rip,
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return t.poke(relay+relaySave, b) == nil
}
