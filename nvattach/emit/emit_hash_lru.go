package emit

import (
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
)

// A hash that drops what was not used of late goes by a clock: each slot says behind its state
// whether its key was used since the hand went by, and who finds no room moves the hand on
// until it comes to one that was not. The hand is the second word of 8 bytes in the map.

// handOff is where the hand is in the map, and usedOff the mark in a slot.
const (
	handOff = 8
	usedOff = 4
)

// roomTries is how often who inserts makes room, which others may take meanwhile.
const roomTries = 32

// use marks the key of a slot that was found.
func (c *Code) use(p *probeState) {
	if !p.x.Def.Lru() {
		return
	}
	t, q := c.Reg(ptx.B32), c.Reg(ptx.Pred)
	c.F("ld.volatile.global.u32 %s, [%s+%d];", t, p.slot, usedOff)
	c.F("setp.eq.u32 %s, %s, 0;", q, t)
	c.F("@%s st.volatile.global.u32 [%s+%d], 1;", q, p.slot, usedOff)
}

// room counts an entry more; it goes to full where there is no room for it.
func (c *Code) room(p *probeState, base, full string) {
	x := p.x
	count, q := c.Reg(ptx.B32), c.Reg(ptx.Pred)
	add := func() {
		c.F("atom%s.global.add.u32 %s, [%s], 1;", c.atomic(".relaxed"+scope(x)), count, base)
		c.F("setp.ge.u32 %s, %s, %d;", q, count, x.Def.MaxEntries)
	}
	if !x.Def.Lru() {
		add()
		c.F("@%s bra %s;", q, full)
		return
	}
	tries, try, there := c.Reg(ptx.B32), c.Label(), c.Label()
	c.F("mov.u32 %s, 0;", tries)
	c.F(".pragma \"nounroll\";")
	c.At(try)
	add()
	c.F("@!%s bra %s;", q, there)
	c.F("setp.ge.u32 %s, %s, %d;", q, tries, roomTries)
	c.F("@%s bra %s;", q, full)
	c.F("add.u32 %s, %s, 1;", tries, tries)
	c.F("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+scope(x)), base)
	c.evict(p, base)
	c.F("bra %s;", try)
	c.At(there)
}

// evict drops a key that was not used of late: the next one whose home nobody changes, or that
// has the home of p, whose lock is held. It waits for no lock, so that those that hold one
// never wait for each other.
func (c *Code) evict(p *probeState, base string) {
	x, h := p.x, &p.x.Hash
	hand, home, seen, want, old := c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.B64)
	index, state, first, reach, lock, n, t := c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B32)
	slot := c.Reg(ptx.B64)
	q, mine, done := c.Reg(ptx.Pred), c.Reg(ptx.Pred), c.Reg(ptx.Pred)
	loop, drop, kept, next, end := c.Label(), c.Label(), c.Label(), c.Label(), c.Label()
	c.F("mov.u32 %s, 0;", n)
	c.F(".pragma \"nounroll\";")
	c.At(loop)
	c.F("atom%s.global.add.u64 %s, [%s+%d], 1;", c.atomic(".relaxed"+scope(x)), hand, base, handOff)
	c.F("cvt.u32.u64 %s, %s;", index, hand)
	c.F("and.b32 %s, %s, %d;", index, index, h.Slots-1)
	c.F("mul.wide.u32 %s, %s, %d;", slot, index, h.SlotSize)
	c.F("add.s64 %s, %s, %#x;", slot, slot, x.Base+h.SlotOff)
	c.F("ld.volatile.global.u32 %s, [%s];", state, slot)
	c.F("setp.ge.s32 %s, %s, 0;", q, state) // not valid
	c.F("@%s bra %s;", q, next)
	c.F("ld.volatile.global.u32 %s, [%s+%d];", t, slot, usedOff)
	c.F("st.volatile.global.u32 [%s+%d], 0;", slot, usedOff)
	c.F("setp.ne.u32 %s, %s, 0;", q, t)
	c.F("@%s bra %s;", q, next)
	c.F("and.b32 %s, %s, %d;", first, state, h.Slots-1)
	c.F("setp.eq.u32 %s, %s, %s;", mine, first, p.first)
	c.F("@%s bra %s;", mine, drop)
	c.F("mul.wide.u32 %s, %s, 8;", home, first)
	c.F("add.s64 %s, %s, %#x;", home, home, x.Base+h.HomeOff)
	c.F("ld.volatile.global.u64 %s, [%s];", seen, home)
	c.F("mov.b64 {%s, %s}, %s;", reach, lock, seen)
	c.F("setp.lt.s32 %s, %s, 0;", q, reach) // locked
	c.F("@%s bra %s;", q, next)
	c.F("or.b32 %s, %s, %#x;", t, reach, uint32(mapmem.HomeLock))
	c.F("mov.b64 %s, {%s, %s};", want, t, lock)
	c.F("atom%s.global.cas.b64 %s, [%s], %s, %s;", c.atomic(".acquire"+scope(x)), old, home, seen, want)
	c.F("setp.ne.u64 %s, %s, %s;", q, old, seen)
	c.F("@%s bra %s;", q, next)
	if c.Weak {
		c.fence(x)
	}
	c.At(drop)
	c.F("ld.volatile.global.u32 %s, [%s];", t, slot)
	c.F("setp.eq.u32 %s, %s, %s;", done, t, state)
	c.F("@!%s bra %s;", done, kept)
	c.F("st%s.global.u32 [%s], %d;", c.Order(".release"+scope(x)), slot, mapmem.SlotEmpty)
	c.F("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+scope(x)), base)
	c.At(kept)
	c.F("add.u32 %s, %s, 1;", lock, lock)
	c.F("mov.b64 %s, {%s, %s};", want, reach, lock)
	if c.Weak {
		c.fence(x)
	}
	c.F("@!%s st%s.global.u64 [%s], %s;", mine, c.Order(".release"+scope(x)), home, want)
	c.F("@%s bra %s;", done, end)
	c.At(next)
	c.F("add.u32 %s, %s, 1;", n, n)
	c.F("setp.lt.u32 %s, %s, %d;", q, n, 2*h.Slots)
	c.F("@%s bra %s;", q, loop)
	c.At(end)
}
