package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// Hook makes calls of the function at addr come to a record from now on. The
// agent is put into the process if it is not there. t must be stopped as
// [ptrace.Task.Syscall] wants; the other threads are stopped for a moment.
//
// The function's beginning, up to the first whole instruction behind its fifth
// byte, is moved, and replaced by a jump; its address, and what dladdr and its
// callers know of it, stay the same. It returns to the agent in place of its
// caller, which is where it goes afterwards, with everything as it was. So a
// debugger's, profiler's or exception's unwinder that comes through a hooked
// function finds no description of the frame and stops: an exception that a
// callback throws through the function ends the program, as it does in C code
// without unwind tables. A longjmp is fine, and so is pthread_exit. Hook.NoReturn
// avoids that. If memory that a Deref names can't be read while the thread blocks
// or ignores SIGSEGV, the kernel unblocks it and resets its action, as it does
// for any fault.
//
// The error matches ErrUnpatchable where the code is not suitable: too short, a
// branch goes into what would be replaced, an instruction is not known; or ErrUnsupported,
// see Process. Threads that are just executing it go on in what was moved. See HookAllOrBreak.
func (p *Process) Hook(t *ptrace.Task, addr uint64, h *Hook) error {
	target := []Target{{Addr: addr, Hook: h}}
	if err := p.HookAll(t, target); err != nil {
		return err
	}
	return target[0].Err
}

// HookAll is Hook of many functions at once, for which the threads are stopped
// only once. Each has an error of its own; the one returned is about all.
func (p *Process) HookAll(t *ptrace.Task, list []Target) error {
	if !p.started {
		return fmt.Errorf("%w: process %d has no agent", ErrUnsupported, p.PID)
	}
	if shadowStack(p.PID) {
		return fmt.Errorf("%w: process %d has a shadow stack, which allows no other return", ErrUnpatchable, p.PID)
	}
	threads, resume, err := standing(t)
	if err != nil {
		return err
	}
	defer resume()
	if !p.scaled { // once: threads keep what they have reckoned by it
		scale := p.a.counter.scale()
		if err := p.write64(confAddr+confScale, scale); err != nil {
			return err
		}
		p.scaled = scale > 0
	}
	room := rooms{p: p}
	for i := range list {
		x := &list[i]
		if x.Err = p.hook(t, x, threads, &room); x.Err == nil {
			p.a.stats.Hooks++
			p.inner = p.inner || x.Hook.Inner
			if x.Hook.Probe != 0 {
				p.a.stats.Probes++
			}
		}
	}
	return nil
}

// maxPrologue is how much code is looked at to move its beginning.
const maxPrologue = 64

// hook is Hook of one function. threads are those of the process, all of them stopped.
func (p *Process) hook(t *ptrace.Task, x *Target, threads []stood, room *rooms) error {
	if x.Hook == nil {
		return errors.New("no such hook")
	}
	if err := x.Hook.check(); err != nil {
		return err
	}
	fail := func(err error) error {
		return fmt.Errorf("%w: %s at %#x: %w", ErrUnpatchable, x.Hook.Name, x.Addr, err)
	}
	at, code := function(t, x.Addr)
	if len(code) < 16 {
		return fail(errors.New("its code can't be read"))
	}
	var behind *hookSite // the last of those that are there
	for _, i := range p.hooksAt(at) {
		s := p.hooks[i]
		if s.jump == nil && behind == nil {
			s.gone = true // with what it was behind
		}
		switch {
		case !s.there(code):
		case s.inside():
			return fail(errors.New("a jump is there that is no function's beginning"))
		case s.free && !s.stop && (s.hook.Probe == 0) == (x.Hook.Probe == 0) && (x.Hook.Probe == 0 || s.hook.Returns == x.Hook.Returns):
			return p.claim(s, i, x.Hook)
		case !s.stop && !s.free && !s.hook.Beside && !x.Hook.Beside && (s.hook.Probe == 0) == (x.Hook.Probe == 0):
			return fail(fmt.Errorf("is hooked already (%s)", s.hook.Name))
		default:
			behind = s
		}
	}
	if len(p.hooks) >= maxHooks {
		return fail(fmt.Errorf("%d functions are hooked", maxHooks))
	}
	s := &hookSite{addr: x.Addr, at: at, hook: x.Hook}
	var err error
	if behind != nil {
		err = p.append(t, s, behind)
	} else {
		err = p.install(t, s, code, threads, room)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// function reads the code of a function, and returns it from where it can be
// replaced: an endbr64 stays where indirect calls want it.
func function(t *ptrace.Task, addr uint64) (at uint64, code []byte) {
	code = make([]byte, maxPrologue)
	n, _ := t.ReadText(addr, code)
	code = code[:n]
	if rest, ok := bytes.CutPrefix(code, endbr64); ok && len(rest) > 0 {
		return addr + uint64(len(endbr64)), rest
	}
	return addr, code
}

// findHooks enters the hooks that were added since.
func (p *Process) findHooks() {
	x := &p.found
	if x.at == nil {
		x.at, x.addr = make(map[uint64][]int), make(map[uint64][]int)
	}
	for ; x.n < len(p.hooks); x.n++ {
		s := p.hooks[x.n]
		x.at[s.at] = append(x.at[s.at], x.n)
		x.addr[s.addr] = append(x.addr[s.addr], x.n)
	}
}

// hooksAt returns the places of the hooks whose jump is at an address, ascending.
func (p *Process) hooksAt(at uint64) []int {
	p.findHooks()
	return p.found.at[at]
}

// there says whether a hook is in the program's code as it is now at its place.
func (s *hookSite) there(code []byte) bool {
	s.gone = s.gone || s.jump != nil && !bytes.HasPrefix(code, s.jump)
	return !s.gone
}

// trampoline: push the hook's number; jmp *hook_entry.
const trampolineLen = 5 + 6

// stub makes what the jump of a hook leads to, which lies at room. The function's moved
// beginning may come behind it.
func (s *hookSite) stub(room uint64, number int, ar *arena) []byte {
	switch {
	case s.stop:
		return trampoline(room, number, ar.base+arenaStop)
	case s.hook.Probe == 0:
		return trampoline(room, number, ar.base+arenaHook)
	case s.hook.Returns:
		return trampoline(room, number, ar.base+arenaWatch)
	}
	// A call, so that the processor knows where it returns to.
	b := trampoline(room, number, ar.base+arenaProbe)[:trampolineLen]
	b[trampolineLen-5] = 0x15                         // call *entry(%rip)
	b = append(b, 0x48, 0x8d, 0x64, 0x24, 0x08)       // lea 8(%rsp),%rsp
	return padded(appendJumpTo(b, number), probeRoom) // jmp *orig
}

// probeRoom is the room of such a stub.
const probeRoom = 32

// appendJumpTo appends a jump to where a hook goes on.
func appendJumpTo(b []byte, number int) []byte {
	b = append(b, 0xff, 0x24, 0x25) // jmp *orig
	return binary.LittleEndian.AppendUint32(b, uint32(hookAddr+number*hookSize))
}

// padded fills code up with what must not be executed.
func padded(b []byte, n int) []byte {
	for len(b) < n {
		b = append(b, 0xcc)
	}
	return b
}

// trampoline makes one.
func trampoline(room uint64, number int, entry uint64) []byte {
	stub := []byte{0x68} // push $number
	stub = binary.LittleEndian.AppendUint32(stub, uint32(number))
	stub = append(stub, 0xff, 0x25) // jmp *entry(%rip)
	stub = binary.LittleEndian.AppendUint32(stub, uint32(entry-(room+trampolineLen)))
	return padded(stub, 16)
}

// append hooks a function that begins with a jump of ours: behind that, so that it is
// what that goes on with.
func (p *Process) append(t *ptrace.Task, s, to *hookSite) error {
	room, ar, err := p.near(t, s.at, probeRoom)
	if err != nil {
		return err
	}
	s.orig, s.size = to.orig, to.size
	if err := p.enter(t, s, room, s.stub(room, len(p.hooks), ar), ar); err != nil {
		return err
	}
	to.orig = room
	return p.write64(uint64(hookAddr+slices.Index(p.hooks, to)*hookSize), room)
}

// enter writes the code of a hook, and makes it one.
func (p *Process) enter(t *ptrace.Task, s *hookSite, room uint64, stub []byte, ar *arena) (err error) {
	if s.hook.Once || s.hook.New != nil {
		if s.once, err = p.newOnce(); err != nil {
			return err
		}
	}
	if err := p.writeCode(t, room, stub); err != nil {
		return err
	}
	if err := p.write(uint64(hookAddr+len(p.hooks)*hookSize), s.hook.encode(s)); err != nil {
		return err
	}
	ar.take(len(stub))
	p.hooks = append(p.hooks, s)
	return nil
}

// install moves the beginning of a function and writes the jump. All threads stand still. Everything
// that the jump leads to is written first, and the jump itself last. Threads that are where the jump will
// be go on in what was moved.
func (p *Process) install(t *ptrace.Task, s *hookSite, code []byte, threads []stood, rooms *rooms) error {
	room, ar, err := p.near(t, s.at, 128)
	if err != nil {
		return err
	}
	number := len(p.hooks)
	inside := s.stop && !rooms.begins(s.addr)
	var stub []byte
	if inside {
		stub = append(stub, 0x48, 0x8d, 0x64, 0x24, 0x80) // lea -128(%rsp),%rsp
	}
	stub = append(stub, s.stub(room+uint64(len(stub)), number, ar)...)
	switch {
	case inside:
		s.orig = room + uint64(len(stub))
		stub = append(stub, leaveRedZone...)
		s.back = room + uint64(len(stub))
	case s.stop:
		s.back = room + uint64(len(stub))
		stub = padded(appendJumpTo(stub, number), 32)
		s.orig = room + uint64(len(stub))
	default:
		s.orig = room + uint64(len(stub))
	}
	to := room + uint64(len(stub)) // where the function's beginning is moved to
	m, err := moveCode(code, s.at, to, jumpLen)
	if err != nil {
		return err
	}
	if !p.jumps(s.at) { // where a jump of ours is, that was proven
		if err := rooms.replaceable(t, s.addr, s.at, code, m.n); err != nil {
			return err
		}
	}
	on, err := within(threads, s.at, &m, to)
	if err != nil {
		return err
	}
	s.size = uint64(m.n)
	s.jump = jumpTo(s.at, room)
	stub = append(stub, m.code...)
	if !m.ends {
		stub = append(stub, jumpTo(room+uint64(len(stub)), s.at+s.size)...)
	}
	if err := p.enter(t, s, room, stub, ar); err != nil {
		return err
	}
	for i := range on {
		if err := on[i].goOn(); err != nil {
			s.gone = true
			return err
		}
	}
	if err := t.PokeText(s.at, s.jump); err != nil {
		s.gone = true
		return err
	}
	return nil
}

// jumps says whether a function begins with a jump of ours.
func (p *Process) jumps(at uint64) bool {
	return slices.ContainsFunc(p.hooksAt(at), func(i int) bool { return !p.hooks[i].gone })
}

// check holds a hook against the bounds.
func (h *Hook) check() error {
	outs := 0
	for i := range h.Derefs {
		d := &h.Derefs[i]
		if d.Out {
			outs++
		}
		if d.Len > MaxDeref || int(d.Arg) >= 6+MaxStackWords || int(d.LenArg) > 6+MaxStackWords {
			return fmt.Errorf("hook of %s: memory %d: %d bytes of argument %d", h.Name, i, d.Len, d.Arg)
		}
	}
	if h.StackWords > MaxStackWords || len(h.Derefs) > MaxDerefs || outs > MaxOutDerefs {
		return fmt.Errorf("hook of %s: %d words of stack, %d memories, %d of them at return", h.Name, h.StackWords, len(h.Derefs), outs)
	}
	return nil
}

// encode writes struct hook.
func (h *Hook) encode(s *hookSite) []byte {
	b := make([]byte, hookSize)
	le := binary.LittleEndian
	le.PutUint64(b, s.orig)
	le.PutUint64(b[8:], s.once)
	flags := uint32(hookOn)
	switch {
	case s.stop:
		flags = hookBreak
	case h.Probe != 0:
		flags |= hookProbe
	case !h.NoReturn:
		flags |= hookReturn
	}
	if h.Once {
		flags |= hookOnce
	}
	if h.New != nil {
		flags |= hookNew
	}
	if h.Stop {
		flags |= hookStop
	}
	if h.OnFail != nil {
		flags |= hookFails
	}
	le.PutUint64(b[hookEvery:], uint64(h.Rate.Every))
	le.PutUint64(b[hookPause:], uint64(max(h.Rate.Pause, 0)))
	le.PutUint64(b[hookBurst:], uint64(max(h.Rate.Pause, 0))*uint64(h.Rate.Burst))
	ago := int64(longAgo)
	le.PutUint64(b[hookNext:], uint64(ago))
	if h.Count {
		flags |= hookCount
	}
	if h.Inner && !h.NoReturn && !h.Stop && !h.Once && h.Work == nil && !h.Waits && h.Ends == nil {
		flags |= hookInner
	}
	if h.Failed && (h.Count || h.Inner) {
		flags |= hookFailed
	}
	if w := h.Work; w != nil && !h.Count {
		flags |= hookTimed
		if w.PerThread {
			flags |= hookThread
		}
		if w.Early {
			flags |= hookEarly
		}
		if w.Orders {
			flags |= hookOrders
		}
		if w.Behind {
			flags |= hookBehind
		}
	}
	if h.Waits {
		flags |= hookWaits
	}
	if h.Ends != nil {
		flags |= hookEnds
		b[22] = *h.Ends
	}
	le.PutUint32(b[16:], flags)
	derefs := h.Derefs
	if h.Count {
		derefs = nil
	}
	b[20], b[21] = h.StackWords, byte(len(derefs))
	if w := h.Work; w != nil && !h.Count {
		b[22], b[23] = w.Stream, w.StreamAt/8
		le.PutUint64(b[hookSubject:], uint64(w.Subject))
	}
	for i := range derefs {
		d := &h.Derefs[i]
		e := b[24+i*derefSize:]
		e[0] = d.Arg
		for _, f := range []struct {
			on  bool
			bit byte
		}{{d.CString, derefString}, {d.In, derefIn}, {d.Out, derefOut}} {
			if f.on {
				e[1] |= f.bit
			}
		}
		e[2] = d.LenArg
		le.PutUint32(e[4:], d.Off)
		le.PutUint32(e[8:], d.Len)
		le.PutUint32(e[12:], max(d.Unit, 1))
	}
	kind := uint64(kindHook)
	switch {
	case s.stop:
		kind = kindDetour
	case h.Probe != 0:
		if kind = kindProbe; h.Returns {
			kind = kindWatch
		}
		if s.jump == nil {
			kind++ // behind another
		}
	case s.jump == nil:
		kind = kindBehind
	}
	for at, v := range map[int]uint64{hookAt: s.at, hookFunc: s.addr, hookBack: s.back, hookLen: s.size, hookKind: kind, hookPrograms: h.Probe, hookEntry: s.addr} {
		le.PutUint64(b[at:], v)
	}
	return b
}

// claim makes a hook that another supervisor has left one of this one's.
func (p *Process) claim(s *hookSite, number int, h *Hook) (err error) {
	s.hook, s.free = h, false
	if (h.Once || h.New != nil) && s.once == 0 {
		if s.once, err = p.newOnce(); err != nil {
			return err
		}
	}
	b := h.encode(s)
	return p.write(uint64(hookAddr+number*hookSize+8), b[8:]) // it goes on where it has
}

// newOnce finds room for a set of seen arguments.
func (p *Process) newOnce() (uint64, error) {
	const room = (slotAddr - onceAddr) / (seenSize * numOnce)
	if p.onces >= room {
		return 0, fmt.Errorf("%d hooks of first calls only, at most %d are possible", p.onces, room)
	}
	p.onces++
	return uint64(onceAddr + (p.onces-1)*seenSize*numOnce), nil
}

// Forget makes a hook with Once record the next call with each argument again:
// the arguments may mean something else now.
func (p *Process) Forget(h *Hook) {
	for _, s := range p.hooks {
		if s.hook == h && s.once != 0 && !s.gone {
			_ = p.write(s.once, make([]byte, seenSize*numOnce)) // fails if the process has ended
		}
	}
}

// Know notes that calls of a function with Hook.New that leave a number need not stop any more: the program is given
// another one instead, or the same.
func (p *Process) Know(h *Hook, number, given uint64) {
	if number == 0 || given == 0 {
		return
	}
	for _, s := range p.hooks {
		if s.hook != h || s.once == 0 || s.gone {
			continue
		}
		// As seen in calls.c. A set that is full there knows no more.
		for i, n := uint32((number>>4)*0x9e3779b97f4a7c15>>52), 0; n < 64; i, n = (i+1)%numOnce, n+1 {
			at := s.once + uint64(i)*seenSize
			old, err := p.read64(at)
			if err != nil || old == number && p.write64(at+8, given) == nil {
				break
			}
			if old == 0 {
				if p.write64(at+8, given) == nil {
					_ = p.write64(at, number) // last
				}
				break
			}
		}
	}
}

// Repeated returns how many calls of a function with a hook with Once came after the first
// with the same first argument, by that argument, since Forget was called. They are not
// known of one that has a breakpoint instead of a hook, nor when the process has ended.
func (p *Process) Repeated(h *Hook) (map[uint64]uint64, error) {
	list := make(map[uint64]uint64)
	found := false
	for _, s := range p.hooks {
		if s.hook != h || s.once == 0 {
			continue
		}
		found = true
		table := make([]byte, seenSize*numOnce)
		if _, err := p.mem.ReadAt(table, int64(s.once)); err != nil {
			return nil, err
		}
		for ; len(table) > 0; table = table[seenSize:] {
			if v, n := binary.LittleEndian.Uint64(table), binary.LittleEndian.Uint64(table[8:]); n > 0 {
				list[v] += n
			}
		}
	}
	if !found {
		return nil, fmt.Errorf("no hook of %s counts", h.Name)
	}
	return list, nil
}

// Unmapped must be called when memory with hooked functions was unmapped, or
// replaced by other: what is mapped there next can be hooked anew. Calls that
// are open return as usual. Jumps that are there stay: somebody else who has been told of
// the same change can have made them since.
func (p *Process) Unmapped(addr, size uint64) {
	there := make(map[uint64]bool)
	for _, s := range p.hooks {
		if s.at >= addr+size || addr >= s.at+s.size || s.gone {
			continue
		}
		b := make([]byte, len(s.jump))
		switch n, _ := p.mem.ReadAt(b, int64(s.at)); {
		case s.jump == nil: // behind another
			s.gone = !there[s.at]
		case n == len(b) && bytes.Equal(b, s.jump):
			there[s.at] = true
		default:
			s.gone = true
		}
	}
}

// Hooked reports whether the function at addr is hooked, by a jump, for records.
func (p *Process) Hooked(addr uint64) bool { return p.has(addr, false) }

// Probed reports whether programs run at the function at addr.
func (p *Process) Probed(addr uint64) bool { return p.has(addr, true) }

// has looks for a hook that somebody has asked for, for records or for programs.
func (p *Process) has(addr uint64, programs bool) bool {
	p.findHooks()
	return slices.ContainsFunc(p.found.addr[addr], func(i int) bool {
		s := p.hooks[i]
		return !s.gone && !s.free && !s.stop && !s.hook.Beside && (s.hook.Probe != 0) == programs
	})
}

// HookAllOrBreak hooks functions by a jump each, or, where that can't be, by
// breakpoints at their entries and returns, which cost a stop each. The records are
// the same. In a program that lives on when this one is killed there are no such
// breakpoints, see Agent.Detour. Each function has an error of its own, nil for those
// that are hooked in either way.
func (a *Agent) HookAllOrBreak(t *ptrace.Task, list []Target) {
	p, err := a.Process(t)
	if err == nil {
		err = p.HookAll(t, list)
	}
	for i := range list {
		x := &list[i]
		if err != nil {
			x.Err = err
		}
		if x.Err != nil {
			if berr := a.breakpoint(t, x); berr != nil {
				x.Err = fmt.Errorf("%w; %w", x.Err, berr)
			} else {
				a.o.Logger.Debug("hooked by a breakpoint", "error", x.Err)
				x.Err = nil
			}
		}
	}
}

// breakpoint hooks a function by a breakpoint.
func (a *Agent) breakpoint(t *ptrace.Task, x *Target) error {
	h := x.Hook
	if h == nil {
		return errors.New("no such hook")
	}
	if err := h.check(); err != nil {
		return err
	}
	p := a.procs[t.PID]
	if old := p.breaks[x.Addr]; old != nil {
		_ = old.Remove() // of what was mapped there before
	}
	seen := make(map[uint64]bool)
	b, err := t.SetBreakpoint(x.Addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
		if a.o.Explain != nil {
			a.o.Explain("breakpoint at " + h.Name)
		}
		r, err := t.Regs()
		if err != nil {
			return // it has died
		}
		var args [6]uint64
		for i := range args {
			args[i] = r.Arg(i)
		}
		if h.Once {
			if seen[args[0]] && len(seen) < numOnce {
				return
			}
			seen[args[0]] = true
		}
		var w [8]byte
		_, _ = t.ReadMem(r.SP(), w[:])
		a.broke(t, h, args, r.SP(), binary.LittleEndian.Uint64(w[:]))
	})
	if err != nil {
		return err
	}
	if p.breaks == nil {
		p.breaks = make(map[uint64]*ptrace.Breakpoint)
	}
	p.breaks[x.Addr] = b
	a.stats.Breakpoints++
	return nil
}

// broke records a call, and its return, that a breakpoint has caught.
func (a *Agent) broke(t *ptrace.Task, h *Hook, args [6]uint64, sp, caller uint64) {
	p := a.procs[t.PID]
	if p == nil {
		p = &Process{a: a, PID: t.PID}
		a.procs[t.PID] = p
	}
	rec := callRecord(t, h, args, sp, caller)
	if h.New != nil {
		if err := t.OnReturn(func(t *ptrace.Task, ret uint64) {
			if uint32(ret) == 0 {
				h.New(t, p, rec)
			}
		}); err != nil {
			a.o.Logger.Debug("a return is not seen", "function", h.Name, "pid", t.PID, "error", err)
		}
		return
	}
	if !h.NoReturn {
		begin := rec.Begin
		rec.NoReturn = t.OnReturn(func(t *ptrace.Task, ret uint64) {
			if a.o.Explain != nil {
				a.o.Explain("return of " + h.Name)
			}
			back := returnRecord(t, h, rec, begin, ret)
			if h.OnFail != nil && uint32(ret) != 0 && h.Rate.due(&h.next, back.End) {
				h.OnFail(t, p, back)
			}
			a.give(p, back)
		}) != nil
	} else {
		rec.NoReturn = true
	}
	if h.stops(rec.Begin) {
		h.OnStop(t, p, rec)
	}
	a.give(p, rec)
}

// returnRecord makes the record of a return as the agent would.
func returnRecord(t *ptrace.Task, h *Hook, call *Record, begin int64, ret uint64) *Record {
	rec := &Record{
		Kind: KindReturn, PID: t.PID, TID: t.TID, Begin: begin, End: nanotime(), Ret: int64(ret), Hook: h,
		SP: call.SP, Caller: call.Caller,
	}
	get := func(i int) uint64 {
		if i < len(call.Args) {
			return call.Args[i]
		}
		var w [8]byte
		_, _ = t.ReadMem(call.SP+8+8*uint64(i-len(call.Args)), w[:])
		return binary.LittleEndian.Uint64(w[:])
	}
	for i := range h.Derefs {
		if d := &h.Derefs[i]; d.Out {
			if s, ok := d.read(t, get(int(d.Arg)), get); ok {
				s.In, s.Out = nil, s.In
				rec.Truncated = rec.Truncated || len(s.Out) < int(s.Len)
				rec.Segs = append(rec.Segs, s)
			}
		}
	}
	return rec
}

// shadowStack says whether the processor checks where functions return to, in a
// process (/proc/PID/status: x86_Thread_features).
func shadowStack(pid int) bool {
	features, _ := proc.Status(pid, "x86_Thread_features")
	return strings.Contains(features, "shstk")
}

// frameWords are the words of struct frame before the stack: r10 r9 r8 rcx rdx
// rsi rdi rax hook ret.
const frameWords = 10

// callRecord makes a record of a call as the agent would, from a stopped task.
func callRecord(t *ptrace.Task, h *Hook, args [6]uint64, sp, caller uint64) *Record {
	now := nanotime()
	rec := &Record{Kind: KindCall, PID: t.PID, TID: t.TID, Begin: now, End: now, Args: args, Hook: h, SP: sp, Caller: caller}
	stack := make([]byte, 8*int(h.StackWords))
	n, _ := t.ReadMem(sp+8, stack)
	if len(stack) > 0 {
		rec.Segs = append(rec.Segs, Seg{Addr: sp + 8, Len: uint32(len(stack)), In: stack[:n]})
		rec.Truncated = n < len(stack)
	}
	get := func(i int) uint64 {
		if i < len(args) {
			return args[i]
		}
		var w [8]byte
		_, _ = t.ReadMem(sp+8+8*uint64(i-len(args)), w[:])
		return binary.LittleEndian.Uint64(w[:])
	}
	for i := range h.Derefs {
		if d := &h.Derefs[i]; d.In {
			if s, ok := d.read(t, get(int(d.Arg)), get); ok {
				rec.Truncated = rec.Truncated || len(s.In) < int(s.Len)
				rec.Segs = append(rec.Segs, s)
			}
		}
	}
	return rec
}

// Offsets in struct open of the hook's number, of when the call began, and of how it is counted.
const (
	openHook  = 16
	openBegin = 24
	openHow   = 40
	openArgs  = 48

	openInner   = 2
	openTouched = 4 // OPEN_TOUCHED
)

// Touched must be called when something was recorded at a stop of a thread within a call that may only be counted,
// which is recorded then, see Hook.Inner. The thread is stopped.
func (p *Process) Touched(tid int) {
	r := p.byTID[tid]
	if r == nil || !p.inner {
		return
	}
	slot := uint64(slotAddr + r.home*slotSize)
	depth, err := p.read64(slot + slotDepth)
	if err != nil || depth == 0 || depth > maxOpen {
		return
	}
	open := slot + slotOpen + (depth-1)*openSize
	begin, err1 := p.read64(open + openBegin)
	how, err2 := p.read64(open + openHow)
	if err1 == nil && err2 == nil && int64(begin) < 0 && how&openInner != 0 {
		_ = p.write64(open+openHow, how|openTouched) // fails if the process has ended
	}
}
