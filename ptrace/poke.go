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

// edit notes that the program's code changes to b at addr.
func (st *site) edit(addr uint64, b []byte) {
	changed := false
	for i := range st.n {
		if k := st.addr + uint64(i) - addr; k < uint64(len(b)) && st.code[i] != b[k] {
			st.code[i] = b[k]
			changed = true
		}
	}
	if changed {
		st.plan, st.slot = planUnknown, 0
	}
}

// within returns the sites, also the removed ones, whose code overlaps a range.
func (s *space) within(addr uint64, n int) []*site {
	var found []*site
	for _, m := range []map[uint64]*site{s.sites, s.tombs} {
		for a, st := range m {
			if a < addr+uint64(n) && addr < a+maxCode {
				found = append(found, st)
			}
		}
	}
	return found
}

// write writes by force, through the memory of any process in s.
func (s *space) write(addr uint64, b []byte) bool {
	for _, p := range s.procs {
		if p.mem >= 0 {
			if n, e := pwrite(p.mem, addr, b); e == 0 && n == len(b) {
				return true
			}
		}
	}
	return false
}

// read reads memory, without a task.
func (s *space) read(addr uint64, b []byte) bool {
	for _, p := range s.procs {
		if p.mem >= 0 {
			if n, e := pread(p.mem, addr, b); e == 0 && n == len(b) {
				return true
			}
		}
	}
	if t := s.stopped(); t != nil {
		n, _ := t.ReadMem(addr, b)
		return n == len(b)
	}
	return false
}

// stopped returns a stopped task in s, if there is one, for memory that can't
// be reached through a file.
func (s *space) stopped() *Task {
	if s.tr == nil || s.tr.cur == nil || s.tr.cur.Proc == nil || s.tr.cur.Proc.space != s {
		return nil
	}
	return s.tr.cur
}

// planted tells of a site once for each process, unless its code has changed.
func (tr *tracer) planted(pid int, st *site) {
	if tr.o.Planted != nil && (st.told != pid || st.toldCode != st.code) {
		st.told, st.toldCode = pid, st.code
		tr.o.Planted(pid, st.addr, st.code[:st.n])
	}
}
