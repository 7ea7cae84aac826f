package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// A process may have the agent of a supervisor that was killed, or has let it go:
// its jumps are in place, and calls may be open. Another one takes all of that
// over. That goes only if the code is the same to the byte, as the layout of all memory is then, too.
//
// Threads may stand anywhere in the agent's code, with a ring's address in a register. So their slots,
// places in the table and open calls stay; rings get new memory at the same addresses, and positions
// in them begin far beyond any of before (ringTurn), so that what is still being written for the
// other supervisor is taken for nothing. Hooks stay, too, but do nothing until they are claimed.

// Offsets in struct hook of what is for the next supervisor only.
const (
	hookAt   = 24 + MaxDerefs*derefSize // where the jump is
	hookFunc = hookAt + 8               // address of the function
	hookBack = hookAt + 16
	hookLen  = hookAt + 24 // of what was replaced
	hookKind = hookAt + 32 // 1: of hooks, 2: of detours, 3: of hooks behind one, 4, 5: of probes, 6, 7: with returns

	// And of what a probe has.
	hookPrograms = hookAt + 40
	hookEntry    = hookAt + 48
	hookSubject  = hookAt + 56
	hookEvery    = hookAt + 64
	hookPause    = hookAt + 72
	hookBurst    = hookAt + 80
	hookNext     = hookAt + 88
)

const (
	kindHook = 1 + iota
	kindDetour
	kindBehind
	kindProbe
	kindProbeBehind
	kindWatch
	kindWatchBehind
)

// errOther says that there is somebody else's code.
var errOther = errors.New("there is the agent of another version of nvtrace, or something else, at its addresses")

// present reports whether this agent's code is in the process.
func (p *Process) present(t *ptrace.Task) bool {
	if !p.a.begins(t) {
		return false
	}
	code := make([]byte, len(p.a.blob.code))
	n, _ := t.ReadMem(baseAddr, code)
	return n == len(code) && bytes.Equal(code, p.a.blob.code)
}

// begins reports whether there is what the agent's code begins with in t's memory.
func (a *Agent) begins(t *ptrace.Task) bool {
	var head [64]byte
	n, _ := t.ReadMem(baseAddr, head[:])
	return n == len(head) && bytes.Equal(head[:], a.blob.code[:len(head)])
}

// takeOver makes the agent of a supervisor that is gone this one's. All threads
// are stopped, and may be anywhere in its code. What they are just recording goes
// nowhere.
func (p *Process) takeOver(t *ptrace.Task) error {
	clock, err := findClock(t, p.a.vdso)
	if err != nil {
		return err
	}
	if err := p.write64(gateAddr, 0); err != nil {
		return err
	}
	if err := p.writePrivate(clock); err != nil {
		return err
	}
	if err := p.protect(t); err != nil { // the other one may not have got that far
		return err
	}
	if err := p.write64(confAddr+confScale, 0); err != nil { // until threads have forgotten what they reckoned by the other one's
		return err
	}
	if t.StopsAtAll() { // the other one has rerouted calls, perhaps
		if err := p.write64(confAddr+confStops, 1); err != nil {
			return err
		}
	}
	le := binary.LittleEndian
	var b [8]byte
	if n, _ := t.ReadMem(confAddr+confDead, b[:]); n < len(b) {
		return errOther
	}
	if err := p.write(callsAddr, make([]byte, 8*numCalls)); err != nil {
		return err
	}
	p.number = le.Uint64(b[:])/2 + 1
	if err := p.write64(confAddr+confDead, 2*p.number); err != nil {
		return err
	}
	table := make([]byte, maxHooks*hookSize)
	if n, _ := t.ReadMem(hookAddr, table); n < len(table) {
		return errOther
	}
	for i := range maxHooks {
		b := table[i*hookSize:][:hookSize]
		kind := le.Uint64(b[hookKind:])
		if kind == 0 {
			break
		}
		s := &hookSite{
			at: le.Uint64(b[hookAt:]), addr: le.Uint64(b[hookFunc:]), back: le.Uint64(b[hookBack:]), size: le.Uint64(b[hookLen:]),
			orig: le.Uint64(b), once: le.Uint64(b[8:]), stop: kind == kindDetour, hook: &Hook{Quiet: true}, free: true,
		}
		if kind >= kindProbe {
			s.hook.Probe, s.hook.Returns = le.Uint64(b[hookPrograms:]), kind >= kindWatch
		}
		if kind != kindBehind && kind != kindProbeBehind && kind != kindWatchBehind {
			s.jump = make([]byte, jumpLen)
			if n, _ := t.ReadText(s.at, s.jump); n < jumpLen || s.jump[0] != 0xe9 {
				s.gone = true
			}
		}
		if s.once != 0 {
			p.onces++
		}
		p.hooks = append(p.hooks, s)
		if err := p.write(uint64(hookAddr+i*hookSize+16), make([]byte, 6)); err != nil { // until it is wanted again
			return err
		}
	}
	return nil
}

// ringTurn is how far ahead of the last supervisor's the positions in rings begin: what a
// thread is still recording for that one is not taken for a record, nor near to the next.
const ringTurn = 1<<40 + ringSize/8

// takeKeys reads which threads have slots. They keep them, and their places in the
// table: a thread may have found its own just now, and have calls of hooked functions
// open, or be about to.
func (p *Process) takeKeys(t *ptrace.Task) error {
	le := binary.LittleEndian
	b := make([]byte, numKeys*keySize)
	if n, _ := t.ReadMem(keysAddr, b); n < len(b) {
		return errOther
	}
	p.inherited, p.keys = make(map[uint64]int), make(map[uint64]int)
	p.places, p.freed = make([]uint64, numKeys), make(map[int]bool)
	for place := range numKeys {
		tp, slot := le.Uint64(b[place*keySize:]), le.Uint64(b[place*keySize+8:])
		if p.places[place] = tp; tp == 0 {
			continue
		}
		i := (slot - slotAddr) / slotSize
		if slot < slotAddr || i >= maxSlots || slot != slotAddr+i*slotSize {
			p.freed[place] = true
			continue
		}
		p.inherited[tp], p.keys[tp] = int(i), place
	}
	return nil
}

// dropThreads forgets the inherited threads that do not live, now that those that do have
// their slots. Where calls are open, the slot stays that thread's, without a ring: another
// thread may return from them.
func (p *Process) dropThreads() {
	for tp, slot := range p.inherited {
		at := uint64(slotAddr + slot*slotSize)
		var depth [8]byte
		if n, _ := p.mem.ReadAt(depth[:], int64(at+slotDepth)); n == len(depth) && depth != [8]byte{} {
			_ = p.write64(at+slotRing, 0) // fails if the process has ended
			continue
		}
		p.removeKey(tp)
		delete(p.inherited, tp)
	}
}

// left returns how much memory a supervisor that is gone has left at one of the agent's addresses, where
// size bytes are to be mapped; 0: none. It may have been killed between any two of its mappings. The
// error says that something of the program's is in the way.
func (p *Process) left(addr, size uint64) (uint64, error) {
	if !p.again {
		return 0, nil
	}
	list, err := proc.Maps(p.PID)
	if err != nil {
		return 0, err
	}
	end := addr
	var first *proc.Mapping
	for i := range list {
		m := &list[i]
		switch {
		case m.End <= addr:
		case first == nil && m.Start == addr:
			first, end = m, m.End
		case first != nil && m.Start == end && m.Path == first.Path && m.Inode == first.Inode && m.Private == first.Private:
			end = m.End
		case m.Start < addr+size:
			return 0, fmt.Errorf("something else is mapped at %#x", m.Start)
		}
	}
	return end - addr, nil
}

// fixed is the flag of mmap for memory at one of the agent's addresses, of which another supervisor has
// left so much.
func fixed(left uint64) uint64 {
	if left > 0 {
		return unix.MAP_FIXED // in its place
	}
	return unix.MAP_FIXED_NOREPLACE
}
