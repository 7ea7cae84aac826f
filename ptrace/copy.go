package ptrace

// A thread at a breakpoint executes the program's instruction from a copy in a
// page of ours, behind which the copy jumps back. So the breakpoint stays where it
// is, no other thread passes it unseen, and none has to be stopped. Where the
// thread gets a signal in the copy, its instruction pointer is corrected to what
// it would have been.

// copyAt finds the site whose copy is at addr, and how far behind its beginning
// addr is.
func (s *space) copyAt(addr uint64) (st *site, off uint64) {
	for _, p := range s.pages {
		if addr-p.addr >= pageSize {
			continue
		}
		slot := addr &^ (copySize - 1)
		for _, m := range []map[uint64]*site{s.sites, s.tombs} {
			for _, st := range m {
				if st.slot == slot {
					return st, addr - slot
				}
			}
		}
	}
	return nil, 0
}

// behind is the address that the instruction pointer stands for in a copy, off
// bytes behind its beginning.
func (st *site) behind(off uint64) uint64 {
	switch {
	case off == 0:
		return st.addr
	case st.plan == planBranch && off >= branchTaken:
		return st.how.target
	}
	return st.addr + uint64(st.how.n)
}

// leaveCopy corrects the registers of a stopped task that is in a copy. If it
// has not executed the instruction yet, its next hit is none.
func (t *Task) leaveCopy() {
	s := t.Proc.space
	if len(s.pages) == 0 || t.brk != nil {
		return
	}
	var r Regs
	if t.getRegs(&r) != 0 {
		return
	}
	st, off := s.copyAt(r.IP())
	if st == nil {
		return
	}
	r.SetIP(st.behind(off))
	if t.setRegs(&r) == 0 && off == 0 && st.live() {
		t.skip, s.skips = st.addr, true
	}
}

// signalInCopy corrects the registers of a task that gets a signal in a copy. If
// the instruction was not executed and did not cause the signal, it stays there,
// so that it is executed just once, after the signal's handler.
func (t *Task) signalInCopy() {
	s := t.Proc.space
	if len(s.pages) == 0 {
		return
	}
	var r Regs
	if t.getRegs(&r) != 0 {
		return
	}
	if t.skip != 0 {
		if st := s.sites[t.skip]; st != nil && st.slot != 0 && r.IP() == t.skip {
			r.SetIP(st.slot)
			t.setRegs(&r)
		}
		t.skip = 0
	}
	st, off := s.copyAt(r.IP())
	if st == nil {
		return
	}
	if off == 0 {
		var si siginfo
		if getSiginfo(t.TID, &si) != 0 || si.code <= 0 || faults>>(si.signo-1)&1 == 0 {
			return
		}
		if si.addr == st.slot {
			si.addr = st.addr
			setSiginfo(t.TID, &si)
		}
	}
	r.SetIP(st.behind(off))
	t.setRegs(&r)
}
