package nvattach

import "nvtrace/ptx"

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
func (c *code) use(p *probeState) {
	if !p.x.Def.lru() {
		return
	}
	t, q := c.reg(ptx.B32), c.reg(ptx.Pred)
	c.f("ld.volatile.global.u32 %s, [%s+%d];", t, p.slot, usedOff)
	c.f("setp.eq.u32 %s, %s, 0;", q, t)
	c.f("@%s st.volatile.global.u32 [%s+%d], 1;", q, p.slot, usedOff)
}

// room counts an entry more; it goes to full where there is no room for it.
func (c *code) room(p *probeState, base, full string) {
	x := p.x
	count, q := c.reg(ptx.B32), c.reg(ptx.Pred)
	add := func() {
		c.f("atom%s.global.add.u32 %s, [%s], 1;", c.atomic(".relaxed"+x.scope()), count, base)
		c.f("setp.ge.u32 %s, %s, %d;", q, count, x.Def.MaxEntries)
	}
	if !x.Def.lru() {
		add()
		c.f("@%s bra %s;", q, full)
		return
	}
	tries, try, there := c.reg(ptx.B32), c.label(), c.label()
	c.f("mov.u32 %s, 0;", tries)
	c.f(".pragma \"nounroll\";")
	c.at(try)
	add()
	c.f("@!%s bra %s;", q, there)
	c.f("setp.ge.u32 %s, %s, %d;", q, tries, roomTries)
	c.f("@%s bra %s;", q, full)
	c.f("add.u32 %s, %s, 1;", tries, tries)
	c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+x.scope()), base)
	c.evict(p, base)
	c.f("bra %s;", try)
	c.at(there)
}

// evict drops a key that was not used of late: the next one whose home nobody changes, or that
// has the home of p, whose lock is held. It waits for no lock, so that those that hold one
// never wait for each other.
func (c *code) evict(p *probeState, base string) {
	x, h := p.x, &p.x.hash
	hand, home, seen, want, old := c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64)
	index, state, first, reach, lock, n, t := c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32)
	slot := c.reg(ptx.B64)
	q, mine, done := c.reg(ptx.Pred), c.reg(ptx.Pred), c.reg(ptx.Pred)
	loop, drop, kept, next, end := c.label(), c.label(), c.label(), c.label(), c.label()
	c.f("mov.u32 %s, 0;", n)
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	c.f("atom%s.global.add.u64 %s, [%s+%d], 1;", c.atomic(".relaxed"+x.scope()), hand, base, handOff)
	c.f("cvt.u32.u64 %s, %s;", index, hand)
	c.f("and.b32 %s, %s, %d;", index, index, h.slots-1)
	c.f("mul.wide.u32 %s, %s, %d;", slot, index, h.slotSize)
	c.f("add.s64 %s, %s, %#x;", slot, slot, x.base+h.slotOff)
	c.f("ld.volatile.global.u32 %s, [%s];", state, slot)
	c.f("setp.ge.s32 %s, %s, 0;", q, state) // not valid
	c.f("@%s bra %s;", q, next)
	c.f("ld.volatile.global.u32 %s, [%s+%d];", t, slot, usedOff)
	c.f("st.volatile.global.u32 [%s+%d], 0;", slot, usedOff)
	c.f("setp.ne.u32 %s, %s, 0;", q, t)
	c.f("@%s bra %s;", q, next)
	c.f("and.b32 %s, %s, %d;", first, state, h.slots-1)
	c.f("setp.eq.u32 %s, %s, %s;", mine, first, p.first)
	c.f("@%s bra %s;", mine, drop)
	c.f("mul.wide.u32 %s, %s, 8;", home, first)
	c.f("add.s64 %s, %s, %#x;", home, home, x.base+h.homeOff)
	c.f("ld.volatile.global.u64 %s, [%s];", seen, home)
	c.f("mov.b64 {%s, %s}, %s;", reach, lock, seen)
	c.f("setp.lt.s32 %s, %s, 0;", q, reach) // locked
	c.f("@%s bra %s;", q, next)
	c.f("or.b32 %s, %s, %#x;", t, reach, uint32(homeLock))
	c.f("mov.b64 %s, {%s, %s};", want, t, lock)
	c.f("atom%s.global.cas.b64 %s, [%s], %s, %s;", c.atomic(".acquire"+x.scope()), old, home, seen, want)
	c.f("setp.ne.u64 %s, %s, %s;", q, old, seen)
	c.f("@%s bra %s;", q, next)
	if c.weak {
		c.fence(x)
	}
	c.at(drop)
	c.f("ld.volatile.global.u32 %s, [%s];", t, slot)
	c.f("setp.eq.u32 %s, %s, %s;", done, t, state)
	c.f("@!%s bra %s;", done, kept)
	c.f("st%s.global.u32 [%s], %d;", c.order(".release"+x.scope()), slot, slotEmpty)
	c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+x.scope()), base)
	c.at(kept)
	c.f("add.u32 %s, %s, 1;", lock, lock)
	c.f("mov.b64 %s, {%s, %s};", want, reach, lock)
	if c.weak {
		c.fence(x)
	}
	c.f("@!%s st%s.global.u64 [%s], %s;", mine, c.order(".release"+x.scope()), home, want)
	c.f("@%s bra %s;", done, end)
	c.at(next)
	c.f("add.u32 %s, %s, 1;", n, n)
	c.f("setp.lt.u32 %s, %s, %d;", q, n, 2*h.slots)
	c.f("@%s bra %s;", q, loop)
	c.at(end)
}
