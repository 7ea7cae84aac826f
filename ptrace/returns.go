package ptrace

import (
	"fmt"
	"slices"
)

// OnReturn calls fn once, when the function returns at whose entry t is, with
// what it returns. It may be called only from the function of a breakpoint at a
// function's first instruction. It holds for this thread and this call of a
// recursive function, which are told by the stack pointer; a function that jumps
// to another one at its end returns when that does. fn runs as a breakpoint's
// function does, at the instruction behind the call.
//
// A call that is left in another way (longjmp, an exception, the thread's end)
// does not return, and fn is not called. That is noticed when its place on the
// stack is used again: before, another function that returns to the very
// same place on the stack and in the code would be taken for it.
func (t *Task) OnReturn(fn func(t *Task, ret uint64)) error {
	if t.brk == nil || t.brk.entry == nil {
		return fmt.Errorf("return breakpoint in %d: %w", t.TID, ErrState)
	}
	r := &t.brk.regs
	if t.tr.detours() {
		stub, ret, err := t.viaStub(r)
		if err != nil {
			return fmt.Errorf("return breakpoint in %d: %w", t.TID, err)
		}
		t.returns = append(t.returns, oneShot{ret, r.SP() + retSize, t.brk.addr, r.FSBase(), fn, stub, t.tr.why})
		return nil
	}
	ret, err := t.returnAddress(r)
	if err != nil {
		return fmt.Errorf("return breakpoint in %d: %w", t.TID, err)
	}
	st, err := t.Proc.space.plant(t, ret)
	if err != nil {
		return err
	}
	st.waits++
	t.returns = append(t.returns, oneShot{ret, r.SP() + retSize, t.brk.addr, r.FSBase(), fn, 0, t.tr.why})
	return nil
}

// Why says what the stop at hand is for, such as the function that has a breakpoint, for Options.Held. The return
// that OnReturn waits for is said to be that of it.
func (t *Task) Why(text string) { t.tr.why = text }

// AtReturn has fn called when the task comes to an address that a function returns to, whose return address is at
// an address of the stack: as OnReturn, for who has seen the call by other means. The task may be stopped anywhere in
// the call. Not for tasks where MovesReturns.
func (t *Task) AtReturn(ret, at uint64, fn func(t *Task, ret uint64)) error {
	if t.tr.detours() {
		return fmt.Errorf("return breakpoint in %d: %w", t.TID, ErrState)
	}
	r, err := t.Regs()
	if err != nil {
		return err
	}
	st, err := t.Proc.space.plant(t, ret)
	if err != nil {
		return err
	}
	st.waits++
	t.returns = append(t.returns, oneShot{ret, at + retSize, 0, r.FSBase(), fn, 0, t.tr.why})
	return nil
}

// returning says why a return is looked at.
func (t *Task) returning(e *oneShot) {
	if e.why != "" && t.tr.o.Held != nil {
		t.tr.why = "return of " + e.why
	}
}

// ReturnOf returns what a return address is that lies at an address of the stack: one that OnReturn has
// put in its place leads to another. Others are returned as they are.
func (t *Task) ReturnOf(at, addr uint64) uint64 {
	for i := range t.returns {
		if e := &t.returns[i]; e.stub != 0 && e.stub == addr && e.slot() == at {
			return e.addr
		}
	}
	return addr
}

// returned calls the one-shots of the frame that has just returned to st.
func (t *Task) returned(s *space, st *site, sp uint64) {
	var due []oneShot
	t.returns = slices.DeleteFunc(t.returns, func(e oneShot) bool {
		if e.addr != st.addr || e.sp != sp {
			return false
		}
		due = append(due, e)
		return true
	})
	for _, e := range slices.Backward(due) {
		st.waits--
		t.returning(&e)
		e.fn(t, t.brk.regs.Ret())
	}
	_ = s.removeUnused(st) // nothing that could be told
}

// purge forgets the one-shots of frames that can't be there any more, now that t
// is at the entry of a function with its return address at sp.
func (t *Task) purge(s *space, entry, sp uint64) {
	for i := len(t.returns) - 1; i >= 0; i-- {
		e := &t.returns[i]
		if e.slot() > sp {
			continue // of a caller
		}
		// The same slot with the same address in it is a function that jumped here
		// at its end, unless it is this one.
		dead := e.slot() == sp && e.entry == entry
		if dead || t.gone(e) {
			t.dropReturn(s, i)
		}
	}
}

func (t *Task) dropReturn(s *space, i int) {
	e := t.returns[i]
	st := s.sites[e.addr]
	t.returns = slices.Delete(t.returns, i, i+1)
	if e.stub != 0 {
		t.dropStub(s, e.stub)
		return
	}
	if st != nil {
		st.waits--
		_ = s.removeUnused(st)
	}
}

// dropReturns forgets all of a task's one-shots. Their stubs are not used again:
// another thread may have taken over the stack.
func (t *Task) dropReturns() {
	t.returns = slices.DeleteFunc(t.returns, func(e oneShot) bool { return e.stub != 0 })
	for len(t.returns) > 0 {
		t.dropReturn(t.Proc.space, len(t.returns)-1)
	}
}
