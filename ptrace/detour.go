package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// A program that lives on when this process is killed can't have breakpoint
// instructions: nobody would be there for their signal. In such a program a
// breakpoint is a detour: a jump, at the beginning of a function, to code that
// saves the registers, makes a system call, at which the task stops for us, and
// goes on in the function. And the return from a call is seen by a return address
// that names such code. Without a tracer the system call fails, and that is all.
//
// The code, and the jump, are the business of the Injector.

// stubOf returns the number of a stub.
func (l *ReturnStubs) stubOf(addr uint64) (int, bool) {
	if l.Size == 0 || addr < l.Code {
		return 0, false
	}
	i := (addr - l.Code) / l.Size
	return int(i), i < uint64(l.Count) && addr == l.Code+i*l.Size
}

// errDetour says that the beginning of a function can't be a breakpoint's.
var errDetour = errors.New("no crash-safe detour fits here")

// detours says whether breakpoints in the traced programs are detours.
func (tr *tracer) detours() bool { return tr.outlived && tr.o.Injector != nil }

// MovesReturns reports whether a function whose return OnReturn waits for returns to an Injector's stub, instead of a
// breakpoint behind its call: in programs that live on when this process is killed. Functions that look at who calls
// them notice.
func (t *Task) MovesReturns() bool { return t.tr.detours() }

// detour makes a site of a jump at addr, or finds it.
func (s *space) detour(t *Task, addr uint64) (*site, error) {
	if st := s.jumps[addr]; st != nil && s.intact(st) {
		s.enable(st)
		return st, nil
	}
	d, err := t.tr.o.Injector.Detour(t, addr)
	if err != nil {
		return nil, breakError(addr, fmt.Errorf("%w: %w", errDetour, err))
	}
	st := &site{addr: addr, jump: &d}
	if s.jumps == nil {
		s.jumps = map[uint64]*site{}
	}
	s.tr = t.tr
	s.jumps[addr] = st
	s.enable(st)
	return st, nil
}

// intact says whether a detour's jump is in the program's code.
func (s *space) intact(st *site) bool {
	b := make([]byte, len(st.jump.Jump))
	return s.read(st.jump.At, b) && slices.Equal(b, st.jump.Jump)
}

// enable makes a detour stop, or not, if nobody wants it.
func (s *space) enable(st *site) {
	v := uint32(0)
	if st.live() {
		v = st.jump.On
	}
	s.write(st.jump.Flag, binary.NativeEndian.AppendUint32(nil, v)) // fails if the memory is gone
}

// at returns the site of a breakpoint, of either kind.
func (s *space) at(addr uint64) *site {
	if st := s.sites[addr]; st != nil {
		return st
	}
	return s.jumps[addr]
}

// Detoured is called when the task is at the entry of the system call that the
// code of a detour makes, whose breakpoint is at addr. r are the registers as they
// were there.
func (t *Task) Detoured(addr uint64, r *Regs) {
	s := t.Proc.space
	st := s.jumps[addr]
	if st == nil || !st.live() || t.brk != nil || !t.skipCall() {
		return
	}
	tr := t.tr
	t.brk = &t.brkRoom
	*t.brk = breakState{regs: *r, addr: addr}
	t.brk.regs.SetIP(addr)
	t.brk.regs.noRestart()
	t.at = placeBreak
	tr.res.Hits++
	tr.hit(t, s, st)
}

// Returned is called when the task is at the entry of the system call that the
// stub at an address makes. r are the registers as they were when the function
// returned, with the stub's address for the instruction pointer.
func (t *Task) Returned(r *Regs) {
	s := t.Proc.space
	stub := r.IP()
	ret, ok := s.stubs[stub]
	if !ok || t.brk != nil || !t.skipCall() {
		return
	}
	tr := t.tr
	t.brk = &t.brkRoom
	*t.brk = breakState{regs: *r, addr: ret}
	t.brk.regs.SetIP(ret)
	t.brk.regs.noRestart()
	t.at = placeBreak
	var due []oneShot
	t.returns = slices.DeleteFunc(t.returns, func(e oneShot) bool {
		if e.stub != stub || e.sp != r.SP() {
			return false
		}
		due = append(due, e)
		return true
	})
	// Should this process be killed now, the stub is not asked where to go on: its own frame
	// lies where the return address was.
	t.setRegs(&t.brk.regs)
	// A call that is made again by setting the registers finds its return address.
	_, _ = t.WriteMem(r.SP()-retSize, binary.NativeEndian.AppendUint64(nil, ret))
	if len(due) == 0 {
		return // of another thread, that has begun the call: it may have others
	}
	s.freeStub(&tr.stubs, stub)
	tr.res.Hits++
	for _, e := range slices.Backward(due) {
		t.returning(&e)
		e.fn(t, t.brk.regs.Ret())
	}
}

// viaStub makes the call at whose entry t is return to a stub, and returns that
// and where the call returns to indeed.
func (t *Task) viaStub(r *Regs) (stub, ret uint64, err error) {
	s, l := t.Proc.space, &t.tr.stubs
	if ret, err = t.returnAddress(r); err != nil {
		return 0, 0, err
	}
	if to, ok := s.stubs[ret]; ok {
		return ret, to, nil // another one waits for the same return
	}
	if i, ok := l.stubOf(ret); ok { // of a tracer that is gone
		to := s.stubTarget(l, i)
		s.useStub(ret, to)
		return ret, to, nil
	}
	for i := range l.Count {
		stub = l.Code + uint64(i)*l.Size
		if _, taken := s.stubs[stub]; taken || s.stubTarget(l, i) != 0 {
			continue
		}
		if !s.write(l.Table+8*uint64(i), binary.NativeEndian.AppendUint64(nil, ret)) {
			break
		}
		if _, err := t.WriteMem(r.SP(), binary.NativeEndian.AppendUint64(nil, stub)); err != nil {
			return 0, 0, err
		}
		s.useStub(stub, ret)
		return stub, ret, nil
	}
	return 0, 0, errors.New("too many calls are open")
}

// useStub notes where a stub returns to.
func (s *space) useStub(stub, ret uint64) {
	if s.stubs == nil {
		s.stubs = map[uint64]uint64{}
	}
	s.stubs[stub] = ret
}

// stubTarget returns where stub i returns to, as it is in the program's memory; 0: it is
// free.
func (s *space) stubTarget(l *ReturnStubs, i int) uint64 {
	var b [8]byte
	if !s.read(l.Table+8*uint64(i), b[:]) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

// freeStub makes a stub one that can be used again.
func (s *space) freeStub(l *ReturnStubs, stub uint64) {
	delete(s.stubs, stub)
	if i, ok := l.stubOf(stub); ok {
		s.write(l.Table+8*uint64(i), make([]byte, 8)) // fails if the process has ended
	}
}

// gone says whether the return address of a call is no more in its place.
func (t *Task) gone(e *oneShot) bool {
	var b [retSize]byte
	n, _ := t.ReadMem(e.slot(), b[:])
	v := binary.NativeEndian.Uint64(b[:])
	switch l := &t.tr.stubs; {
	case n != len(b):
		return true
	case e.stub != 0:
		return v != e.stub && (v < l.Own || v >= l.OwnEnd)
	}
	return v != e.addr
}

// dropStub makes a stub free that no one-shot needs, of a call that is gone.
func (t *Task) dropStub(s *space, stub uint64) {
	for i := range t.returns {
		if t.returns[i].stub == stub {
			return
		}
	}
	s.freeStub(&t.tr.stubs, stub)
}

// inheritDetours gives c, a copy of s's memory, what s has of detours.
func (s *space) inheritDetours(c *space) {
	for addr, old := range s.jumps {
		st := &site{addr: addr, jump: old.jump}
		for _, b := range old.list {
			st.list = append(st.list, &Breakpoint{Addr: addr, fn: b.fn, site: st, space: c})
		}
		if c.jumps == nil {
			c.jumps = map[uint64]*site{}
		}
		c.jumps[addr] = st
	}
	for stub, ret := range s.stubs {
		if c.stubs == nil {
			c.stubs = map[uint64]uint64{}
		}
		c.stubs[stub] = ret
	}
}
