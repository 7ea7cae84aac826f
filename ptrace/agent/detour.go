package agent

import (
	"encoding/binary"
	"errors"
	"fmt"

	"nvtrace/ptrace"
)

// Detour implements [ptrace.Injector]: it makes the beginning of a function a
// jump to code that stops for the supervisor. The agent's code is put into the process if
// it is not there. Where functions are hooked, too, that is behind it.
//
// If there is no supervisor any more, each call of the function makes a system
// call that fails, and is as before otherwise.
func (a *Agent) Detour(t *ptrace.Task, addr uint64) (ptrace.Detour, error) {
	p, err := a.Code(t)
	if err != nil {
		return ptrace.Detour{}, err
	}
	at, code := function(t, addr)
	for i, s := range p.hooks {
		if s.stop && s.at == at && s.there(code) {
			return s.detour(i), nil
		}
	}
	fail := func(err error) (ptrace.Detour, error) {
		return ptrace.Detour{}, fmt.Errorf("%w: %w", ErrUnpatchable, err)
	}
	switch {
	case shadowStack(p.PID):
		return fail(errors.New("the process has a shadow stack, which allows no other return"))
	case len(code) < 16:
		return fail(errors.New("its code can't be read"))
	case len(p.hooks) >= maxHooks:
		return fail(fmt.Errorf("%d functions are hooked", maxHooks))
	}
	threads, resume, err := standing(t)
	if err != nil {
		return ptrace.Detour{}, err
	}
	defer resume()
	s := &hookSite{addr: addr, at: at, stop: true, hook: new(Hook)}
	room := rooms{p: p}
	if err := room.find(addr); err != nil {
		return fail(err)
	}
	if err := p.install(t, s, code, threads, &room); err != nil {
		return fail(err)
	}
	a.stats.Detours++
	return s.detour(len(p.hooks) - 1), nil
}

// standing stops a process's other threads, and returns where all are.
func standing(t *ptrace.Task) (threads []stood, resume func(), err error) {
	tasks, resume, err := t.StopWorld()
	if err != nil {
		return nil, nil, err
	}
	for _, o := range append(tasks, t) {
		pc, err := o.PC()
		if err != nil {
			continue // it ended
		}
		threads = append(threads, stood{o, pc})
	}
	return threads, resume, nil
}

// within returns those of threads that are in the n bytes at an address, and not at the first,
// with where they go on in code that these were moved to. It fails where one can't.
func within(threads []stood, at uint64, m *moved, to uint64) (list []stood, err error) {
	for _, s := range threads {
		if s.pc <= at || s.pc >= at+uint64(m.n) {
			continue
		}
		off, ok := m.at[int(s.pc-at)]
		if ok {
			_, err = s.task.Regs()
			ok = err == nil // it is not asleep where it can't be stopped
		}
		if !ok {
			return nil, errors.New("a thread is executing it")
		}
		list = append(list, stood{s.task, to + uint64(off)})
	}
	return list, nil
}

// goOn has a thread that stands still go on where it says.
func (s *stood) goOn() error {
	r, err := s.task.Regs()
	if err == nil {
		r.SetIP(s.pc)
		err = s.task.SetRegs(r)
	}
	if errors.Is(err, ptrace.ErrGone) {
		return nil
	}
	return err
}

// redZone is how many bytes below the stack pointer a function may use.
const redZone = 128

// inside reports whether a detour is within a function, which may have something below the stack pointer:
// orig leads to what puts that back first, right before back. At a function's beginning orig may lead to
// the code of another hook, which lies anywhere.
func (s *hookSite) inside() bool { return s.stop && s.back == s.orig+uint64(len(leaveRedZone)) }

// leaveRedZone is lea 128(%rsp),%rsp.
var leaveRedZone = []byte{0x48, 0x8d, 0xa4, 0x24, redZone, 0, 0, 0}

// detour describes a site: the flag by which it stops, and where one goes on behind it.
func (s *hookSite) detour(number int) ptrace.Detour {
	return ptrace.Detour{
		Orig: s.back, Flag: uint64(hookAddr + number*hookSize + 16), On: hookBreak, Jump: s.jump, At: s.at,
	}
}

// Stubs implements [ptrace.Injector].
func (a *Agent) Stubs() ptrace.ReturnStubs {
	if a.blob == nil {
		return ptrace.ReturnStubs{}
	}
	return ptrace.ReturnStubs{
		Code: a.blob.breakStubs, Size: stubSize, Table: stubsAddr, Count: numStubs, Own: baseAddr, OwnEnd: confAddr, Calls: callStubAddr,
	}
}

// A stub is a call of 5 bytes, whose return address says which one it is.
const (
	stubSize = 8
	stubCall = 5
)

// detoured deals with a stop in the code of a detour, or in that of a return.
func (p *Process) detoured(t *ptrace.Task, frame uint64, returned bool) {
	const saved = 2 + frameWords // flags, r11, and struct frame; that of a return lacks the last
	var b [8 * saved]byte
	n, _ := t.ReadMem(frame-16, b[:])
	regs, err := t.Regs()
	if n < 8*(saved-1) || err != nil {
		return
	}
	var words [saved]uint64
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	r := *regs
	number := words[10]
	frameRegs(&r, words[:10])
	r.SetSP(frame + 8*9)
	if returned {
		r.SetIP(number - stubCall)
		t.Returned(&r)
		return
	}
	hooks := p.hooks
	if p.shares {
		hooks = p.host.hooks
	}
	if number < uint64(len(hooks)) && hooks[number].stop {
		if hooks[number].inside() {
			r.SetSP(r.SP() + redZone)
		}
		t.Detoured(hooks[number].addr, &r)
	}
}

// CalledByUs reports whether a function that returns to an address was called by
// [ptrace.Task.Call], and not by the program.
func CalledByUs(caller uint64) bool { return caller == ptrace.CallReturn || caller == callStubAddr }
