package nvattach

import "nvtrace/ptx"

// hashWord writes the hash of a key: hashKey in PTX.
func (c *code) hashWord(words []string) string {
	h, t := c.reg(ptx.B32), c.reg(ptx.B32)
	c.f("mov.b32 %s, %#x;", h, uint32(hashSeed))
	for _, w := range words {
		c.f("xor.b32 %s, %s, %s;", h, h, w)
		c.f("mul.lo.u32 %s, %s, %#x;", h, h, uint32(hashMul1))
		c.f("shr.u32 %s, %s, %d;", t, h, hashShift)
		c.f("xor.b32 %s, %s, %s;", h, h, t)
	}
	c.f("mul.lo.u32 %s, %s, %#x;", h, h, uint32(hashMul2))
	c.f("shr.u32 %s, %s, 16;", t, h)
	c.f("xor.b32 %s, %s, %s;", h, h, t)
	return h
}

// probeState is what the search for a key works with.
type probeState struct {
	words []string
	hash  string // the key's hash
	tag   string // its slot's state when it is there
	slot  string // 64 bits: address of the slot
	state string // of the slot, as it was read
	index string // of the slot
}

func (c *code) newProbe(x *Map, words []string) *probeState {
	p := &probeState{words: words, hash: c.hashWord(words), tag: c.reg(ptx.B32), slot: c.reg(ptx.B64), state: c.reg(ptx.B32), index: c.reg(ptx.B32)}
	c.f("and.b32 %s, %s, %#x;", p.tag, p.hash, ^uint32(3))
	c.f("or.b32 %s, %s, %d;", p.tag, p.tag, slotValid)
	return p
}

// search writes a loop over the slots of a key. It goes to found with p.slot and
// p.index set, or to missing when no slot has it: after an empty one, or after all.
// If free is not "", it gets the address of the first slot that was deleted or is
// empty, 0 if there is none, and freeIndex its index.
func (c *code) search(x *Map, p *probeState, found, missing, free, freeIndex string) {
	h := &x.hash
	n, q, other := c.reg(ptx.B32), c.reg(ptx.Pred), c.reg(ptx.B32)
	loop, next := c.label(), c.label()
	c.f("mov.u32 %s, 0;", n)
	if free != "" {
		c.f("mov.u64 %s, 0;", free)
		c.f("mov.u32 %s, 0;", freeIndex)
	}
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	c.f("add.u32 %s, %s, %s;", p.index, p.hash, n)
	c.f("and.b32 %s, %s, %d;", p.index, p.index, h.slots-1)
	c.f("mul.wide.u32 %s, %s, %d;", p.slot, p.index, h.slotSize)
	c.f("add.s64 %s, %s, %#x;", p.slot, p.slot, x.base+h.slotOff)
	c.f("ld%s.global.u32 %s, [%s];", c.order(".acquire.gpu"), p.state, p.slot)
	if free != "" {
		// A free slot has state 0 or 3; the first one is kept.
		skip, r := c.label(), c.reg(ptx.Pred)
		c.f("setp.ne.u64 %s, %s, 0;", q, free)
		c.f("@%s bra %s;", q, skip)
		c.f("setp.eq.u32 %s, %s, %d;", q, p.state, slotEmpty)
		c.f("setp.eq.u32 %s, %s, %d;", r, p.state, slotDeleted)
		c.f("or.pred %s, %s, %s;", q, q, r)
		c.f("selp.b64 %s, %s, %s, %s;", free, p.slot, free, q)
		c.f("selp.b32 %s, %s, %s, %s;", freeIndex, p.index, freeIndex, q)
		c.at(skip)
	}
	c.f("setp.eq.u32 %s, %s, %d;", q, p.state, slotEmpty)
	c.f("@%s bra %s;", q, missing)
	c.f("setp.ne.u32 %s, %s, %s;", q, p.state, p.tag)
	c.f("@%s bra %s;", q, next)
	for i, w := range p.words {
		c.f("ld.volatile.global.u32 %s, [%s+%d];", other, p.slot, h.keyOff+4*uint64(i))
		c.f("setp.ne.u32 %s, %s, %s;", q, other, w)
		c.f("@%s bra %s;", q, next)
	}
	c.f("bra %s;", found)
	c.at(next)
	c.f("add.u32 %s, %s, 1;", n, n)
	c.f("setp.lt.u32 %s, %s, %d;", q, n, h.slots)
	c.f("@%s bra %s;", q, loop)
	c.f("bra %s;", missing)
}

// value returns the address of a slot's value.
func (c *code) value(x *Map, slot, index string) string {
	h := &x.hash
	a := c.reg(ptx.B64)
	if !x.Def.PerSM() {
		c.f("add.s64 %s, %s, %d;", a, slot, h.valOff)
		return a
	}
	c.f("add.s64 %s, %s, %s;", a, c.index(index, x.base+h.valueOff, x.stride), c.perSM(0, h.smBytes))
	return a
}

func (c *code) hashLookup(x *Map, key bytesArg) string {
	p := c.newProbe(x, c.keyWords(x, key))
	a := c.reg(ptx.B64)
	found, missing, end := c.label(), c.label(), c.label()
	c.search(x, p, found, missing, "", "")
	c.at(missing)
	c.f("mov.u64 %s, 0;", a)
	c.f("bra %s;", end)
	c.at(found)
	c.f("mov.u64 %s, %s;", a, c.value(x, p.slot, p.index))
	c.at(end)
	return a
}

// locked runs body with the lock of the key's hash. Threads of a warp that did not
// get the lock wait behind the body for the one that did and then try again, so
// this ends also on GPUs whose warps have one program counter. body must come to
// its end.
func (c *code) locked(x *Map, hash string, body func()) {
	h := &x.hash
	i, lock, old, q := c.reg(ptx.B32), c.reg(ptx.B64), c.reg(ptx.B32), c.reg(ptx.Pred)
	loop, retry := c.label(), c.label()
	c.f("and.b32 %s, %s, %d;", i, hash, h.locks-1)
	c.f("mul.wide.u32 %s, %s, 4;", lock, i)
	c.f("add.s64 %s, %s, %#x;", lock, lock, x.base+h.lockOff)
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	c.f("atom%s.global.cas.b32 %s, [%s], 0, 1;", c.atomic(".acquire.gpu"), old, lock)
	c.f("setp.ne.u32 %s, %s, 0;", q, old)
	c.f("@%s bra %s;", q, retry)
	if c.weak {
		c.f("membar.gl;")
	}
	body()
	if c.weak {
		c.f("membar.gl;")
	}
	c.f("atom%s.global.exch.b32 %s, [%s], 0;", c.atomic(".release.gpu"), old, lock)
	c.at(retry)
	c.f("@%s bra %s;", q, loop)
}

// atomic returns the modifiers of an atomic operation.
func (c *code) atomic(mods string) string {
	if c.weak {
		return ""
	}
	return mods
}

// hashUpdate inserts or replaces.
func (c *code) hashUpdate(x *Map, key, value bytesArg, flags string) string {
	words := c.keyWords(x, key)
	p := c.newProbe(x, words)
	r, q := c.result(0), c.reg(ptx.Pred)
	end := c.label()
	c.f("setp.gt.u64 %s, %s, %d;", q, flags, flagExist)
	c.f("selp.b64 %s, %d, 0, %s;", r, errInval, q)
	c.f("@%s bra %s;", q, end)
	if x.Def.ValueSize <= 8 && x.Def.ValueSize&(x.Def.ValueSize-1) == 0 {
		// One store replaces the value, so a key that is there needs no lock.
		found, missing := c.label(), c.label()
		c.search(x, p, found, missing, "", "")
		c.at(found)
		c.replace(x, p, value, flags, r, end)
		c.at(missing)
	}
	c.locked(x, p.hash, func() {
		found, missing, done := c.label(), c.label(), c.label()
		free, freeIndex := c.reg(ptx.B64), c.reg(ptx.B32)
		c.search(x, p, found, missing, free, freeIndex)
		c.at(found)
		c.replace(x, p, value, flags, r, done)
		c.at(missing)
		c.f("setp.eq.u64 %s, %s, %d;", q, flags, flagExist)
		c.f("selp.b64 %s, %d, 0, %s;", r, errNoEnt, q)
		c.f("@%s bra %s;", q, done)
		c.insert(x, p, value, free, freeIndex, r, done)
		c.at(done)
	})
	c.at(end)
	return r
}

// replace writes the value of a key that was found, and goes to end.
func (c *code) replace(x *Map, p *probeState, value bytesArg, flags, r, end string) {
	q := c.reg(ptx.Pred)
	c.f("setp.eq.u64 %s, %s, %d;", q, flags, flagNoExist)
	c.f("selp.b64 %s, %d, 0, %s;", r, errExist, q)
	c.f("@%s bra %s;", q, end)
	c.copyTo(c.value(x, p.slot, p.index), 0, value, uint64(x.Def.ValueSize))
	c.f("bra %s;", end)
}

// insert takes a free slot, with the key's lock held. Those that insert other
// keys may take the same slot first: then the next is tried.
func (c *code) insert(x *Map, p *probeState, value bytesArg, free, freeIndex, r, done string) {
	h := &x.hash
	n, old, busy, count := c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32)
	q, q2 := c.reg(ptx.Pred), c.reg(ptx.Pred)
	full, try, next, taken := c.label(), c.label(), c.label(), c.label()
	base := c.reg(ptx.B64)
	c.f("mov.u64 %s, %#x;", base, x.base)
	c.f("atom%s.global.add.u32 %s, [%s], 1;", c.atomic(".relaxed.gpu"), count, base)
	c.f("setp.ge.u32 %s, %s, %d;", q, count, x.Def.MaxEntries)
	c.f("@%s bra %s;", q, full)
	c.f("setp.eq.u64 %s, %s, 0;", q, free)
	c.f("@%s bra %s;", q, full)
	c.f("xor.b32 %s, %s, %d;", busy, p.tag, slotValid^slotBusy)
	c.f("mov.u32 %s, 0;", n)
	c.f(".pragma \"nounroll\";")
	c.at(try)
	c.f("mul.wide.u32 %s, %s, %d;", p.slot, freeIndex, h.slotSize)
	c.f("add.s64 %s, %s, %#x;", p.slot, p.slot, x.base+h.slotOff)
	c.f("ld.volatile.global.u32 %s, [%s];", p.state, p.slot)
	c.f("setp.ne.u32 %s, %s, %d;", q, p.state, slotEmpty)
	c.f("setp.ne.u32 %s, %s, %d;", q2, p.state, slotDeleted)
	c.f("and.pred %s, %s, %s;", q, q, q2)
	c.f("@%s bra %s;", q, next)
	c.f("atom%s.global.cas.b32 %s, [%s], %s, %s;", c.atomic(".acquire.gpu"), old, p.slot, p.state, busy)
	c.f("setp.eq.u32 %s, %s, %s;", q, old, p.state)
	c.f("@%s bra %s;", q, taken)
	c.at(next)
	c.f("add.u32 %s, %s, 1;", freeIndex, freeIndex)
	c.f("and.b32 %s, %s, %d;", freeIndex, freeIndex, h.slots-1)
	c.f("add.u32 %s, %s, 1;", n, n)
	c.f("setp.lt.u32 %s, %s, %d;", q, n, h.slots)
	c.f("@%s bra %s;", q, try)
	c.at(full)
	c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed.gpu"), base)
	c.count(x.counter)
	c.f("mov.s64 %s, %d;", r, errTooBig)
	c.f("bra %s;", done)
	c.at(taken)
	for i, w := range p.words {
		c.f("st.global.u32 [%s+%d], %s;", p.slot, h.keyOff+4*uint64(i), w)
	}
	c.store(x, p, freeIndex, value)
	c.fence()
	c.f("st%s.global.u32 [%s], %s;", c.order(".relaxed.gpu"), p.slot, p.tag)
	c.f("mov.s64 %s, 0;", r)
}

// store writes the value of a new entry; on other multiprocessors it is zero.
func (c *code) store(x *Map, p *probeState, index string, value bytesArg) {
	if x.Def.PerSM() {
		a, n, q := c.index(index, x.base+x.hash.valueOff, x.stride), c.reg(ptx.B32), c.reg(ptx.Pred)
		loop := c.label()
		c.f("mov.u32 %s, 0;", n)
		c.f(".pragma \"nounroll\";")
		c.at(loop)
		for i := uint64(0); i < x.stride; i += 8 {
			c.f("st.global.u64 [%s+%d], 0;", a, i)
		}
		c.f("add.s64 %s, %s, %d;", a, a, x.hash.smBytes)
		c.f("add.u32 %s, %s, 1;", n, n)
		c.f("setp.lt.u32 %s, %s, %d;", q, n, c.m.SMs)
		c.f("@%s bra %s;", q, loop)
	}
	c.copyTo(c.value(x, p.slot, index), 0, value, uint64(x.Def.ValueSize))
}

func (c *code) hashDelete(x *Map, key bytesArg) string {
	p := c.newProbe(x, c.keyWords(x, key))
	r := c.result(errNoEnt)
	c.locked(x, p.hash, func() {
		found, done := c.label(), c.label()
		base := c.reg(ptx.B64)
		c.search(x, p, found, done, "", "")
		c.at(found)
		c.f("st%s.global.u32 [%s], %d;", c.order(".release.gpu"), p.slot, slotDeleted)
		c.f("mov.u64 %s, %#x;", base, x.base)
		c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed.gpu"), base)
		c.f("mov.s64 %s, 0;", r)
		c.at(done)
	})
	return r
}
