package ptrace

import (
	"slices"

	"golang.org/x/sys/unix"
)

// SetBreakpoint puts a breakpoint in the memory of t's process. addr must be the
// beginning of an instruction, and not one that enters the kernel. It holds at
// once for all threads; they need not be stopped. Several can be at one address;
// their functions are called in the order in which they were set.
//
// fn runs on the tracing thread, before the instruction is executed, with the
// instruction pointer at addr. It may do what a [Handler] may. Afterwards the
// task executes the instruction, unless fn has moved the instruction pointer.
//
// No thread passes unseen: the instruction is executed from a copy (in a page
// that is mapped into the process at the first hit), or, if that can't be,
// in place while all other threads are stopped. A fault of the instruction,
// like a page fault that the program handles itself, is a hit again when the
// handler returns.
//
// What a program may notice: the changed byte, if it reads its own code; the
// page; and, in a thread that blocks or ignores SIGTRAP, the kernel unblocks it
// and resets its action, as under any debugger.
//
// When tracing ends while the program goes on, all breakpoints are removed. In a
// program that lives on if this process is killed ([Options].NoExitKill, [Attach]), and if
// there is an Injector, the breakpoint is a jump that may stay; t must be stopped
// then, and addr must be the beginning of a function.
// The error matches ErrBreakpoint if the address is not suitable.
func (t *Task) SetBreakpoint(addr uint64, fn func(t *Task, b *Breakpoint)) (*Breakpoint, error) {
	s := t.Proc.space
	plant := s.plant
	if t.tr.detours() {
		plant = s.detour
	}
	st, err := plant(t, addr)
	if err != nil {
		return nil, err
	}
	b := &Breakpoint{Addr: addr, fn: fn, site: st, space: s}
	st.list = append(slices.Clip(st.list), b)
	if st.jump != nil {
		s.enable(st)
	}
	return b, nil
}

// Remove ends the breakpoint; its function is not called any more. It may be
// called from within that. Removing it twice, or after its memory is gone, does
// nothing. An error says that the program's code could not be restored.
func (b *Breakpoint) Remove() error {
	st := b.site
	if st == nil {
		return nil
	}
	b.site = nil
	var rest []*Breakpoint
	for _, o := range st.list {
		if o != b {
			rest = append(rest, o)
		}
	}
	st.list = rest
	return b.space.removeUnused(st)
}

// Intact says whether the breakpoint is still in the program's code: the page
// could have been unmapped, or written by the program.
func (b *Breakpoint) Intact() bool {
	if b.site == nil {
		return false
	}
	if b.site.jump != nil {
		return b.space.intact(b.site)
	}
	v, ok := b.space.byteAt(b.Addr)
	return ok && v == breakInsn
}

// Breakpoints lists the breakpoints in t's process, in no order.
func (t *Task) Breakpoints() []*Breakpoint {
	var list []*Breakpoint
	s := t.Proc.space
	for _, m := range []map[uint64]*site{s.sites, s.jumps} {
		for _, st := range m {
			list = append(list, st.list...)
		}
	}
	return list
}

// onTrap: a task has got a SIGTRAP. It returns false if that is the program's own.
func (tr *tracer) onTrap(t *Task) bool {
	s := t.Proc.space
	if len(s.sites)+len(s.tombs) == 0 {
		return false
	}
	var si siginfo
	if e := getSiginfo(t.TID, &si); e != 0 {
		return e == unix.ESRCH // killed
	}
	if si.code != siKernel {
		return false
	}
	var r Regs
	if t.getRegs(&r) != 0 {
		return true
	}
	addr := r.IP() - breakLen
	st := s.sites[addr]
	if st == nil && !s.wasOurs(addr) {
		return false
	}
	r.SetIP(addr)
	if st == nil { // removed meanwhile
		t.setRegs(&r)
		tr.resume(t, 0)
		return true
	}
	t.brk = &t.brkRoom
	*t.brk = breakState{regs: r, addr: addr}
	t.at = placeBreak
	if t.skip == addr { // it was on its way behind this instruction
		t.skip = 0
	} else {
		t.skip = 0
		tr.res.Hits++
		tr.bequeath(t)
		tr.hit(t, s, st)
	}
	tr.resume(t, 0)
	return true
}

// wasOurs says whether the program's own code at addr is no breakpoint, but we
// had one there.
func (s *space) wasOurs(addr uint64) bool {
	st := s.tombs[addr]
	if st == nil {
		return false
	}
	b, ok := s.byteAt(addr)
	return ok && b != breakInsn
}

// bequeath takes t, which is at a breakpoint, where it can go on should this
// process be killed before it does: its own registers are set later. What the
// kernel has told of a signal already, it does not deliver then.
func (tr *tracer) bequeath(t *Task) {
	st := t.Proc.space.at(t.brk.addr)
	if !tr.outlived || st == nil || t.brk.regs.IP() != st.addr {
		return
	}
	if at := st.resumeAt(); at != 0 {
		r := t.brk.regs
		r.SetIP(at)
		t.setRegs(&r)
	}
}

// passInPlace executes the instruction of a site where it is, while all other
// threads are stopped.
func (tr *tracer) passInPlace(t *Task, st *site, r *Regs) bool {
	_, thaw := tr.freeze(t)
	defer thaw()
	if t.setRegs(r) != 0 {
		return false
	}
	if err := t.poke(st.addr, st.code[:1]); err != nil {
		if !tr.alive(t) {
			return false
		}
		tr.log.Warn("a breakpoint can't be removed from a process, which ends of it", "pid", t.PID, "error", err)
		_ = unix.Tgkill(t.PID, t.TID, unix.SIGTRAP)
		return true
	}
	ok := tr.singleStep(t, st.addr)
	if ok && t.fault == 0 && st.pushesFlags() {
		t.hideTrapFlag()
	}
	if t.Proc.space.sites[st.addr] == st {
		_ = t.poke(st.addr, []byte{breakInsn})
	}
	return ok
}

// alive says whether a task can be resumed.
func (tr *tracer) alive(t *Task) bool {
	var r Regs
	return t.getRegs(&r) == 0
}

// singleStep executes one instruction of t. Signals are blocked meanwhile and
// delivered later, but for those that the instruction causes. It returns false
// if the task has died, or is left stopped with such a signal.
func (tr *tracer) singleStep(t *Task, addr uint64) bool {
	var mask uint64
	if sigmask(unix.PTRACE_GETSIGMASK, t.TID, &mask) != 0 {
		return false
	}
	blocked := ^uint64(faults) | mask&^signalBit(unix.SIGTRAP)
	if sigmask(unix.PTRACE_SETSIGMASK, t.TID, &blocked) != 0 {
		return false
	}
	var again []unix.Signal
	fault := stop{}
	for {
		if ptraceOp(unix.PTRACE_SINGLESTEP, t.TID, 0) != 0 {
			return false
		}
		st, err := t.await()
		if err != nil {
			return false
		}
		s := classify(st)
		if s.kind == stopGroup || s.kind == stopTrap {
			t.rejoin = true
		}
		if s.kind != stopSignal {
			continue
		}
		var si siginfo
		if getSiginfo(t.TID, &si) != 0 {
			return false
		}
		if si.code <= 0 { // sent by somebody
			again = append(again, s.sig)
			continue
		}
		if s.sig != unix.SIGTRAP {
			fault = s
			break
		}
		var r Regs
		if t.getRegs(&r) != 0 {
			return false
		}
		if r.IP() != addr { // otherwise a repeated string instruction, or a jump to itself
			break
		}
	}
	sigmask(unix.PTRACE_SETSIGMASK, t.TID, &mask)
	for _, sig := range again {
		_ = unix.Tgkill(t.PID, t.TID, sig)
	}
	if fault.kind != stopNone {
		t.fault = fault.sig
	}
	return true
}
