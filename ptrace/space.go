package ptrace

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// join makes p one of the processes in s.
func (s *space) join(p *Process) {
	p.space = s
	s.procs = append(s.procs, p)
}

// leave is the opposite, and says whether nobody is left.
func (s *space) leave(p *Process) bool {
	s.procs = slices.DeleteFunc(s.procs, func(q *Process) bool { return q == p })
	return len(s.procs) == 0
}

// byteAt reads one byte.
func (s *space) byteAt(addr uint64) (byte, bool) {
	var b [1]byte
	ok := s.read(addr, b[:])
	return b[0], ok
}

// plant makes a site at addr, or finds it.
func (s *space) plant(t *Task, addr uint64) (*site, error) {
	old := s.sites[addr]
	if old != nil {
		if b, ok := s.byteAt(addr); ok && b == breakInsn {
			return old, nil
		}
		// The page has become another one.
	} else {
		old = s.tombs[addr]
	}
	if t.tr.o.Injector != nil && t.tr.o.Injector.Covers(t, addr) {
		return nil, breakError(addr, errors.New("it is within a jump of nvtrace's own"))
	}
	st := &site{addr: addr}
	st.n, _ = t.ReadText(addr, st.code[:])
	if st.n == 0 {
		var r Regs
		if e := t.getRegs(&r); e != 0 && !t.tr.unstopped { // killed: its memory is gone
			return nil, t.opError(fmt.Sprintf("breakpoint at %#x", addr), e)
		}
		return nil, breakError(addr, unix.EFAULT)
	}
	if old != nil && old.n == st.n && old.code == st.code {
		st = old // with its copy of the instruction
	} else if err := st.decode(); err != nil {
		return nil, err
	} else if old != nil {
		old.code, old.n, old.plan, old.how, old.slot = st.code, st.n, st.plan, st.how, 0
		st = old
	}
	t.tr.planted(t.PID, st)
	if err := t.poke(addr, []byte{breakInsn}); err != nil { // shared memory, for one
		return nil, fmt.Errorf("%w: %w", ErrBreakpoint, err)
	}
	delete(s.tombs, addr)
	s.tr = t.tr
	if s.sites == nil {
		s.sites = map[uint64]*site{}
	}
	s.sites[addr] = st
	return st, nil
}

// removeUnused removes the breakpoint instruction of a site that nobody needs.
func (s *space) removeUnused(st *site) (err error) {
	if st.jump != nil {
		s.enable(st)
		return nil
	}
	if st.live() || s.sites[st.addr] != st {
		return nil
	}
	delete(s.sites, st.addr)
	if s.tombs == nil {
		s.tombs = map[uint64]*site{}
	}
	s.tombs[st.addr] = st
	// The page may be gone, or be another one by now.
	if b, ok := s.byteAt(st.addr); ok && b == breakInsn {
		if !s.write(st.addr, st.code[:1]) {
			err = breakError(st.addr, errors.New("the breakpoint can't be removed"))
			if t := s.stopped(); t != nil {
				err = t.poke(st.addr, st.code[:1])
			}
		}
	}
	if s.skips { // nothing to be skipped any more
		for _, t := range s.tr.tasks {
			if t.skip == st.addr && t.Proc.space == s {
				t.skip = 0
			}
		}
	}
	return err
}

// clear removes all sites.
func (s *space) clear() {
	for _, m := range []map[uint64]*site{s.sites, s.jumps} {
		for _, st := range m {
			for _, b := range st.list {
				b.site = nil
			}
			st.list, st.waits = nil, 0
			if err := s.removeUnused(st); err != nil {
				s.tr.log.Warn("breakpoint left in a program", "error", err)
			}
		}
	}
}

// inherit makes p's space, a copy of s as it was when t was forked by one of s's
// threads. Sites may have been planted and removed since.
func (s *space) inherit(t *Task, p *Process, returns []oneShot) {
	c := &space{tr: s.tr, syscall: s.syscall, relay: s.relay, noPages: s.noPages}
	c.join(p)
	s.inheritDetours(c)
	for _, e := range returns {
		if e.stub != 0 {
			t.returns = append(t.returns, e)
		}
	}
	if len(s.sites)+len(s.tombs) == 0 {
		return
	}
	c.sites = map[uint64]*site{}
	copies := s.inheritCopies(t, c)
	for addr, old := range s.sites {
		st := &site{addr: addr, code: old.code, n: old.n, plan: old.plan, how: old.how}
		if copies[old.slot] {
			st.slot = old.slot
		}
		for _, b := range old.list {
			st.list = append(st.list, &Breakpoint{Addr: addr, fn: b.fn, site: st, space: c})
		}
		c.sites[addr] = st
		s.tr.planted(p.PID, st)
	}
	for _, e := range returns {
		if st := c.sites[e.addr]; st != nil && e.stub == 0 {
			st.waits++
			t.returns = append(t.returns, e)
		}
	}
	now := func(addr uint64) (byte, bool) {
		if v, ok := c.byteAt(addr); ok {
			return v, true
		}
		var b [1]byte
		n, _ := t.ReadMem(addr, b[:])
		return b[0], n == 1
	}
	for addr, st := range maps.All(c.sites) {
		switch v, ok := now(addr); {
		case !st.live():
			delete(c.sites, addr)
			if v == breakInsn && ok {
				_ = t.poke(addr, st.code[:1])
			}
		case ok && v != breakInsn && v == st.code[0]:
			_ = t.poke(addr, []byte{breakInsn})
		}
	}
	for addr, st := range s.tombs {
		if v, ok := now(addr); ok && v == breakInsn && c.sites[addr] == nil {
			_ = t.poke(addr, st.code[:1])
		}
	}
}

// inheritCopies finds out which of the copies of instructions in s were made
// before t was forked, and are in its memory c, too.
func (s *space) inheritCopies(t *Task, c *space) map[uint64]bool {
	copies := map[uint64]bool{}
	var theirs, ours [pageSize]byte
	for _, p := range s.pages {
		n, _ := t.ReadMem(p.addr, theirs[:])
		if n < pageSize || !s.read(p.addr, ours[:]) {
			continue
		}
		c.pages = append(c.pages, p)
		for at := 0; at < pageSize; at += copySize {
			if bytes.Equal(theirs[at:at+copySize], ours[at:at+copySize]) {
				copies[p.addr+uint64(at)] = true
			}
		}
	}
	return copies
}

// scrub removes what a child, forked from s and about to be let go, has
// inherited.
func (s *space) scrub(t *Task) {
	for _, m := range []map[uint64]*site{s.sites, s.tombs} {
		for addr, st := range m {
			code := make([]byte, st.n)
			if n, _ := t.ReadMem(addr, code); n == st.n && code[0] == breakInsn && bytes.Equal(code[1:], st.code[1:st.n]) {
				_ = t.poke(addr, st.code[:1])
			}
		}
	}
}

// setMemory gives a new process its address space: its parent's, a copy of that,
// or a new one. A parent that has died can be told only by what it left in the
// child.
func (tr *tracer) setMemory(t, parent *Task) {
	p := t.Proc
	if parent == nil {
		for _, s := range tr.spaces() {
			if s.matches(t) {
				s.inherit(t, p, nil)
				return
			}
		}
		new(space).join(p)
		return
	}
	s := parent.Proc.space
	same, known := sameMemory(t.TID, parent.TID)
	if !known {
		same = t.sharesMemory()
	}
	if same {
		s.join(p)
		p.shareMem(parent.Proc)
		return
	}
	if p.mem < 0 && parent.Proc.mem >= 0 && !t.first.ended() {
		if err := t.unlock(s.read); err != nil {
			tr.log.Debug("memory of a child that can't be dumped stays closed", "pid", p.PID, "error", err)
		}
	}
	s.inherit(t, p, tr.returnsOf(t, parent))
}

// returnsOf finds the one-shots that a forked child has inherited: those of the
// thread that forked it, which has the same thread pointer.
func (tr *tracer) returnsOf(t, parent *Task) []oneShot {
	var have bool
	for _, o := range tr.tasks {
		have = have || o.Proc == parent.Proc && len(o.returns) > 0
	}
	if !have {
		return nil
	}
	var r Regs
	if t.getRegs(&r) != 0 {
		return nil
	}
	var all []oneShot
	for _, o := range tr.tasks {
		if o.Proc == parent.Proc && (o == parent || len(o.returns) > 0) {
			for _, e := range o.returns {
				if e.thread == r.FSBase() {
					all = append(all, e)
				}
			}
		}
	}
	return all
}

// spaces lists all address spaces that are known, also those of processes that
// have ended not long ago.
func (tr *tracer) spaces() []*space {
	list := slices.Clone(tr.former)
	for _, t := range tr.tasks {
		if t.Proc != nil && t.Proc.space != nil && !slices.Contains(list, t.Proc.space) {
			list = append(list, t.Proc.space)
		}
	}
	return list
}

// matches says whether t's memory has all of s's breakpoints.
func (s *space) matches(t *Task) bool {
	var b [1]byte
	for addr := range s.sites {
		if n, _ := t.ReadMem(addr, b[:]); n != 1 || b[0] != breakInsn {
			return false
		}
	}
	for _, st := range s.jumps {
		code := make([]byte, len(st.jump.Jump))
		if n, _ := t.ReadMem(st.jump.At, code); n < len(code) || !bytes.Equal(code, st.jump.Jump) {
			return false
		}
	}
	return len(s.sites)+len(s.jumps) > 0
}

// retire forgets the memory of a process that has ended or execed.
func (tr *tracer) retire(p *Process) {
	s := p.space
	if s == nil || !s.leave(p) || len(s.sites)+len(s.tombs) == 0 {
		return
	}
	const keep = 16
	tr.former = append(tr.former, s)
	if len(tr.former) > keep {
		tr.former = slices.Delete(tr.former, 0, 1)
	}
}
