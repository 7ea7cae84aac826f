package agent

import (
	"encoding/binary"

	"nvtrace/ptrace"
)

// Trap deals with a system call of class [Class]: the agent wants something. The
// call itself need not be followed; it fails without effect. flush is called to
// give out records; it should call Collect, Peek and Deliver.
//
// Its arguments are the reason (trapSlot, trapFull, …), what the reason is about, and the address of
// a word that is set to say that somebody has listened: without a supervisor the call fails just the
// same, and only that word tells the agent.
func (a *Agent) Trap(t *ptrace.Task, c *ptrace.Syscall, flush func()) {
	if !a.Owns(c.IP) {
		return // the program's own idea
	}
	a.stats.Traps++
	if c.Args[4] != 0 {
		var served [8]byte
		served[0] = 1
		_, _ = t.WriteMem(c.Args[4], served[:]) // on its stack; without it the agent ends its work
	}
	a.keepAllowed(t, c)
	why, what := c.Args[2], c.Args[3]
	if a.o.Explain != nil && why < uint64(len(traps)) {
		a.o.Explain("agent: " + traps[why])
	}
	if why == trapStart {
		_, _ = a.Process(t) // the agent looks whether it worked
		return
	}
	p := a.procs[t.PID]
	if p == nil {
		return
	}
	switch why {
	case trapSlot:
		p.Update(t)
	case trapFull, trapWake:
		if why == trapFull {
			a.stats.Full++
		}
		flush()
		if r := p.byTID[t.TID]; r != nil && why == trapFull {
			if !r.making() || !p.exchange(t, r, maxRings) {
				r.relieve()
			}
			flush()
		}
	case trapStop:
		p.stopped(t, what)
		flush()
	case trapWho:
		answerWho(t, what)
	case trapFailed:
		p.failed(t, what)
	case trapCall:
		p.called(t, what)
	case trapLock:
		if g := a.programs; g != nil && g.OnLock != nil {
			g.OnLock(what)
		}
	case trapBreak, trapReturn:
		p.detoured(t, what, why == trapReturn)
	}
}

// Relieve makes room in t's ring if it is crowded: the reason, most likely, why
// the agent has left an ioctl to the supervisor. sp is t's stack pointer; flush is
// called to give out records, as by [Agent.Trap]. It returns true if it has had the
// thread go on in another ring instead: then the records should be given out soon.
func (p *Process) Relieve(t *ptrace.Task, sp uint64, flush func()) bool {
	r := p.byTID[t.TID]
	if r == nil || r.spoil || !r.crowded() {
		return false
	}
	p.a.stats.Full++
	if !r.making() && p.roomy() && p.exchange(t, r, 2) { // as far as its records were looked at
		return true
	}
	flush()
	if !r.crowded() {
		return false
	}
	// Something in the making keeps the room of all that came after it. Unless there
	// is another ring, what looks as if it was left by longjmp is given up.
	if r.making() && p.exchange(t, r, maxRings) {
		return false
	}
	r.resync()
	for i := range r.pend {
		n := &r.pend[i]
		if n.done || n.taken {
			continue
		}
		frame := binary.LittleEndian.Uint64(r.data[n.pos%ringSize:][recSP:])
		if onDescriptor(n.kind) && sp+sameFrame > frame && sp < frame+sameStack {
			n.lost, r.death = true, nanotime()
		}
	}
	flush()
	return false
}

// making says whether a record in the making keeps the room in a crowded ring.
func (r *ring) making() bool {
	if r.spoil || !r.crowded() {
		return false
	}
	for i := range r.pend {
		if n := &r.pend[i]; !n.done && !n.taken {
			return true
		}
	}
	return r.unwritten || len(r.holes) > 0
}

// How far a thread's stack pointer in the agent lies below that in the frame of
// the same call, at most, and less than in a signal handler that was called
// within it; and how large a stack is, at least, with which another one is not
// mistaken for it. An ioctl whose frame is gone was left by longjmp.
const (
	sameFrame = 1 << 10
	sameStack = 1 << 20
)

// relieve makes room in a ring whose stopped thread waits for some, and can't be
// given another one: records in the making are given up. They were left by
// longjmp, most likely. What the program has spoiled is thrown away.
func (r *ring) relieve() {
	head := load64(r.p.shared, r.head)
	if r.spoil {
		r.pend, r.base = r.pend[:0], r.base+uint64(len(r.pend))
		r.seen, r.tail, r.given, r.spoil = head, head, head, false
		r.holes, r.unwritten = nil, false
		store64(r.p.shared, r.head+rheadTail, head)
		return
	}
	if !r.crowded() {
		return
	}
	r.resync()
	for i := range r.pend {
		if n := &r.pend[i]; !n.done && !n.taken {
			n.lost = true
			r.death = nanotime()
		}
	}
}

// stopped calls OnStop for the call that a thread has recorded at pos.
func (p *Process) stopped(t *ptrace.Task, pos uint64) {
	// One that it had before may have another record there.
	now := p.byTID[t.TID]
	if now != nil && now.stopped(t, pos) {
		return
	}
	for _, r := range p.rings {
		if r != nil && r != now && r.tid == t.TID && r.stopped(t, pos) {
			return
		}
	}
	if now != nil {
		now.stoppedLate(t, pos)
	}
}

// stoppedLate does so for a call whose record has been given out already: between the call's record
// and its stop, somebody has looked at the rings. What is there stays until the thread goes on.
func (r *ring) stoppedLate(t *ptrace.Task, pos uint64) {
	if r.spoil || pos%64 != 0 || pos >= r.seen || r.seen-pos > ringSize || !r.written(pos) {
		return
	}
	h := r.data[pos%ringSize:]
	size, kind := binary.LittleEndian.Uint32(h[recSize:]), h[recKind]
	if size < recordSize || size%64 != 0 || uint64(size) > min(uint64(len(h)), r.seen-pos) || kind != kindCall {
		return
	}
	r.onStop(t, &pending{pos: pos, size: size, kind: kind})
}

// onStop calls OnStop for a record.
func (r *ring) onStop(t *ptrace.Task, n *pending) {
	end := int64(binary.LittleEndian.Uint64(r.data[n.pos%ringSize:][recEnd:]))
	if rec := r.parse(n, end); rec != nil && rec.Hook.OnStop != nil {
		own := *rec // OnStop may come back here
		own.Segs = append([]Seg(nil), rec.Segs...)
		own.Hook.OnStop(t, r.p, &own)
	}
}

// stopped does so if the call is in this ring.
func (r *ring) stopped(t *ptrace.Task, pos uint64) bool {
	r.scan()
	for i := len(r.pend) - 1; i >= 0; i-- {
		n := &r.pend[i]
		if n.pos != pos || n.kind != kindCall || n.done {
			continue
		}
		r.onStop(t, n)
		return true
	}
	return false
}

// failed calls OnFail for a call that returns, whose struct rframe is at addr.
func (p *Process) failed(t *ptrace.Task, addr uint64) {
	le := binary.LittleEndian
	var f [16]byte // rdx, rax
	if n, _ := t.ReadMem(addr, f[:]); n < len(f) {
		return
	}
	sp := addr + uint64(len(f))
	p.homes(t.TID, func(i int) bool {
		slot := uint64(slotAddr + i*slotSize)
		o, ok := p.entry(slot+slotDepth, slot+slotOpen, openSize, maxOpen, func(o []byte) bool { return le.Uint64(o) == sp })
		if !ok {
			return false
		}
		number := le.Uint64(o[openHook:])
		if number >= uint64(len(p.hooks)) {
			return true
		}
		h := p.hooks[number].hook
		if h != nil && h.New != nil {
			p.given(t, h, sp, p.returnOf(t.TID, sp, le.Uint64(o[8:])), o)
			return true
		}
		if h == nil || h.OnFail == nil {
			return true
		}
		rec := &Record{
			Kind: KindReturn, PID: t.PID, TID: t.TID, End: nanotime(), Ret: int64(le.Uint64(f[8:])), Hook: h,
			Alone: h.Count, Caller: p.returnOf(t.TID, sp, le.Uint64(o[8:])), SP: sp,
		}
		rec.Begin = rec.End
		if begin := int64(le.Uint64(o[openBegin:])); begin > 0 { // else by another clock
			rec.Begin = min(begin, rec.End)
		}
		h.OnFail(t, p, rec)
		return true
	})
}

// given has Hook.New called when t has returned from a call, whose struct open is o.
func (p *Process) given(t *ptrace.Task, h *Hook, sp, caller uint64, o []byte) {
	if CalledByUs(caller) {
		return
	}
	rec := &Record{Kind: KindReturn, PID: t.PID, TID: t.TID, Hook: h, Caller: caller, SP: sp}
	for i := range 3 {
		rec.Args[i] = binary.LittleEndian.Uint64(o[openArgs+8*i:])
	}
	t.Why("a new handle by " + h.Name)
	if err := t.AtReturn(caller, sp, func(t *ptrace.Task, _ uint64) { h.New(t, p, rec) }); err != nil {
		p.a.o.Logger.Debug("a return is not seen", "function", h.Name, "pid", p.PID, "error", err)
	}
}

// called records a call of a hooked function by a thread that has no ring, from
// its registers at addr.
func (p *Process) called(t *ptrace.Task, addr uint64) {
	var b [8 * frameWords]byte
	if n, _ := t.ReadMem(addr, b[:]); n < len(b) {
		return
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	site := word(8)
	hooks := p.hooks
	if p.shares {
		hooks = p.host.hooks
	}
	if site >= uint64(len(hooks)) {
		return
	}
	h := hooks[site].hook
	if h.New != nil {
		var o [openSize]byte
		for i := range 3 {
			binary.LittleEndian.PutUint64(o[openArgs+8*i:], word(6-i))
		}
		p.given(t, h, addr+8*9, word(9), o[:])
		return
	}
	rec := callRecord(t, h, [6]uint64{word(6), word(5), word(4), word(3), word(2), word(1)}, addr+8*9, word(9))
	rec.NoReturn = true
	rec.Unsaved = true // they are the agent's by now
	if h.stops(rec.Begin) {
		h.OnStop(t, p, rec)
	}
	p.a.give(p, rec)
}
