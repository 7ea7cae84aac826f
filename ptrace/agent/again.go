package agent

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// A process may have the agent of a supervisor that was killed, or has let it go:
// its jumps are in place, and calls may be open. Another one takes all of that
// over.

// Offsets in struct hook of what is for the next supervisor only.
const (
	hookAt   = 24 + MaxDerefs*derefSize // where the jump is
	hookFunc = hookAt + 8               // address of the function
	hookBack = hookAt + 16
	hookLen  = hookAt + 24 // of what was replaced
	hookKind = hookAt + 32 // 1: of hooks, 2: of detours, 3: of hooks behind one
)

const (
	kindHook = 1 + iota
	kindDetour
	kindBehind
)

// errOther says that there is somebody else's code.
var errOther = errors.New("there is the agent of another version of nvtrace, or something else, at its addresses")

// present reports whether this agent's code is in the process.
func (p *Process) present(t *ptrace.Task) bool {
	code := make([]byte, len(p.a.blob.code))
	n, _ := t.ReadMem(baseAddr, code)
	return n == len(code) && bytes.Equal(code, p.a.blob.code)
}

// takeOver makes the agent of a supervisor that is gone this one's. All threads
// are stopped. What they are just recording goes nowhere.
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
	if t.StopsAtAll() { // the other one has rerouted calls, perhaps
		if err := p.write64(confAddr+confStops, 1); err != nil {
			return err
		}
	}
	if err := p.write64(confAddr+confDead, 0); err != nil {
		return err
	}
	le := binary.LittleEndian
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
		if kind != kindBehind {
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
	return p.keepCalls(t)
}

// keepCalls remembers which threads have calls of hooked functions open. They keep
// their slots: nothing that they need to return is changed.
func (p *Process) keepCalls(t *ptrace.Task) error {
	le := binary.LittleEndian
	keys := make([]byte, numKeys*keySize)
	if n, _ := t.ReadMem(keysAddr, keys); n < len(keys) {
		return errOther
	}
	p.inherited = make(map[uint64]int)
	for ; len(keys) > 0; keys = keys[keySize:] {
		tp, slot := le.Uint64(keys), le.Uint64(keys[8:])
		i := (slot - slotAddr) / slotSize
		if tp == 0 || slot < slotAddr || i >= maxSlots || slot != slotAddr+i*slotSize {
			continue
		}
		var b [8]byte
		if n, _ := t.ReadMem(slot+slotDepth, b[:]); n == len(b) && le.Uint64(b[:]) != 0 {
			p.inherited[tp] = int(i)
		}
	}
	return nil
}

// mapFlags are those of mmap for memory at the agent's addresses.
func (p *Process) mapFlags() uint64 {
	if p.again {
		return unix.MAP_FIXED // in place of what the other supervisor has mapped
	}
	return unix.MAP_FIXED_NOREPLACE
}
