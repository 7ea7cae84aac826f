package ptrace

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// PokeText writes b at addr, also to memory that the program can't write: code,
// and other private mappings, of which the program gets a copy of its own.
// Breakpoints in the range stay in place; what is written there is what their
// removal brings back, see [Task.ReadText].
func (t *Task) PokeText(addr uint64, b []byte) error {
	s := t.Proc.space
	if hit := s.within(addr, len(b)); len(hit) > 0 {
		b = bytes.Clone(b)
		for _, st := range hit {
			st.edit(addr, b)
			if st.live() {
				t.tr.planted(t.PID, st)
			}
			if i := st.addr - addr; i < uint64(len(b)) && st.live() {
				b[i] = breakInsn
			}
		}
	}
	return t.poke(addr, b)
}

// ReadText reads code as the program made it, without breakpoints. It reads as
// much as is mapped, as [Task.ReadMem] does.
func (t *Task) ReadText(addr uint64, buf []byte) (int, error) {
	n, err := t.ReadMem(addr, buf)
	for _, st := range t.Proc.space.sites {
		if i := st.addr - addr; i < uint64(n) && st.live() && buf[i] == breakInsn {
			buf[i] = st.code[0]
		}
	}
	return n, err
}

// poke writes memory by force: through /proc/PID/mem, or, where the kernel does
// not allow that, by words.
func (t *Task) poke(addr uint64, b []byte) error {
	if t.Proc.space.write(addr, b) {
		return nil
	}
	for len(b) > 0 {
		if t.dead {
			return t.textError(addr, unix.ESRCH)
		}
		var w [8]byte
		at := addr &^ 7
		if e := peekWord(t.TID, at, &w); e != 0 {
			return t.textError(addr, e)
		}
		n := copy(w[addr-at:], b)
		if e := pokeWord(t.TID, at, &w); e != 0 {
			return t.textError(addr, e)
		}
		addr, b = addr+uint64(n), b[n:]
	}
	return nil
}

func (t *Task) textError(addr uint64, e unix.Errno) error {
	if e == unix.ESRCH {
		return t.opError(fmt.Sprintf("write code at %#x", addr), e)
	}
	why := WhyRefused(t.PID, e)
	if e == unix.EIO || e == unix.EFAULT {
		why = " (it is not mapped, or is shared memory that the program can't write itself)"
	}
	return fmt.Errorf("write code of %d at %#x: %w%s", t.TID, addr, e, why)
}
