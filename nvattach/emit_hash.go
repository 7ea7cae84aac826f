package nvattach

import (
	"encoding/binary"

	"nvtrace/ptx"
)

// hashWord writes the hash of a key: hashKey in PTX. That of a key that is known is a
// number.
func (c *code) hashWord(words []string) string {
	var key []byte
	for _, w := range words {
		if n, ok := number32(w); ok {
			key = binary.LittleEndian.AppendUint32(key, n)
		}
	}
	h, t := c.reg(ptx.B32), c.reg(ptx.B32)
	if len(key) == 4*len(words) {
		c.f("mov.b32 %s, %#x;", h, hashKey(key))
		return h
	}
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
	x     *Map
	words []string
	first string // the home: index of the slot where the search begins
	tag   string // the key's slot's state when it is there
	slot  string // 64 bits: address of the slot
	state string // of the slot, as it was read
	index string // of the slot
	n     string // slots from the home to it
	home  string // 64 bits: address of the home's word
	reach string // the home's word, as it was read
	lock  string // and its other half
}

func (c *code) newProbe(x *Map, words []string) *probeState {
	hash := c.hashWord(words)
	p := &probeState{x: x, words: words, first: c.reg(ptx.B32), tag: c.reg(ptx.B32), slot: c.reg(ptx.B64), state: c.reg(ptx.B32), index: c.reg(ptx.B32)}
	c.f("and.b32 %s, %s, %d;", p.first, hash, x.hash.slots-1)
	c.f("or.b32 %s, %s, %#x;", p.tag, hash, uint32(slotValid))
	return p
}

// locate sets p.slot to the slot with number p.index.
func (c *code) locate(p *probeState) {
	c.f("mul.wide.u32 %s, %s, %d;", p.slot, p.index, p.x.hash.slotSize)
	c.f("add.s64 %s, %s, %#x;", p.slot, p.slot, p.x.base+p.x.hash.slotOff)
}

// other goes to label if the slot that was located does not have the key; mods are
// those of the loads.
func (c *code) other(p *probeState, state, key, label string) {
	q, w := c.reg(ptx.Pred), c.reg(ptx.B32)
	c.f("ld%s.global.u32 %s, [%s];", state, p.state, p.slot)
	c.f("setp.ne.u32 %s, %s, %s;", q, p.state, p.tag)
	if key == "" { // as cheap as one
		for i, word := range p.words {
			c.f("ld.global.u32 %s, [%s+%d];", w, p.slot, p.x.hash.keyOff+4*uint64(i))
			c.f("setp.ne.or.u32 %s, %s, %s, %s;", q, w, word, q)
		}
		c.f("@%s bra %s;", q, label)
		return
	}
	c.f("@%s bra %s;", q, label)
	for i, word := range p.words {
		c.f("ld%s.global.u32 %s, [%s+%d];", key, w, p.slot, p.x.hash.keyOff+4*uint64(i))
		c.f("setp.ne.u32 %s, %s, %s;", q, w, word)
		c.f("@%s bra %s;", q, label)
	}
}

// mostGlances is how many slots are looked at in the cache.
const mostGlances = 16

// glance goes to found if the key is in one of the first slots of its home, as far as
// the multiprocessor's own cache knows. What is there stays there in a map whose keys
// nobody deletes, and behind a slot that is free none was put.
func (c *code) glance(p *probeState, found string) {
	if !p.x.stable {
		return
	}
	q, n := c.reg(ptx.Pred), c.reg(ptx.B32)
	loop, next := c.label(), c.label()
	c.f("mov.u32 %s, 0;", n)
	c.f("mov.u32 %s, %s;", p.index, p.first)
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	c.locate(p)
	c.other(p, "", "", next)
	c.f("bra %s;", found)
	c.at(next)
	c.f("add.u32 %s, %s, 1;", n, n)
	c.f("add.u32 %s, %s, 1;", p.index, p.index)
	c.f("and.b32 %s, %s, %d;", p.index, p.index, p.x.hash.slots-1)
	c.f("setp.lt.u32 %s, %s, %d;", q, n, min(mostGlances, p.x.hash.slots))
	c.f("setp.ne.and.u32 %s, %s, %d, %s;", q, p.state, slotEmpty, q)
	c.f("@%s bra %s;", q, loop)
}

// search writes a loop over the slots of a key's home. It goes to found with p.slot,
// p.index and p.n set, or to missing when no slot has the key.
func (c *code) search(p *probeState, found, missing string) {
	if p.n == "" {
		p.n, p.home, p.reach, p.lock = c.reg(ptx.B32), c.reg(ptx.B64), c.reg(ptx.B32), c.reg(ptx.B32)
	}
	q, most, word := c.reg(ptx.Pred), c.reg(ptx.B32), c.reg(ptx.B64)
	loop, next := c.label(), c.label()
	c.f("mul.wide.u32 %s, %s, 8;", p.home, p.first)
	c.f("add.s64 %s, %s, %#x;", p.home, p.home, p.x.base+p.x.hash.homeOff)
	c.f("ld%s.global.u64 %s, [%s];", c.order(".acquire"+p.x.scope()), word, p.home)
	c.f("mov.b64 {%s, %s}, %s;", p.reach, p.lock, word)
	c.f("and.b32 %s, %s, %#x;", most, p.reach, uint32(homeReach))
	c.f("mov.u32 %s, 0;", p.n)
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	c.f("setp.ge.u32 %s, %s, %s;", q, p.n, most)
	c.f("@%s bra %s;", q, missing)
	c.f("add.u32 %s, %s, %s;", p.index, p.first, p.n)
	c.f("and.b32 %s, %s, %d;", p.index, p.index, p.x.hash.slots-1)
	c.locate(p)
	c.other(p, c.order(".acquire"+p.x.scope()), ".volatile", next)
	c.f("bra %s;", found)
	c.at(next)
	c.f("add.u32 %s, %s, 1;", p.n, p.n)
	c.f("bra %s;", loop)
}

// value returns the address of a slot's value.
func (c *code) value(p *probeState) string {
	h := &p.x.hash
	a := c.index(p.index, p.x.base+h.valueOff, p.x.stride)
	if h.copies > 1 {
		c.f("add.s64 %s, %s, %s;", a, a, c.perSM(0, h.smBytes))
	}
	return a
}

func (c *code) hashLookup(x *Map, key bytesArg) string {
	p := c.newProbe(x, c.keyWords(x, key))
	a := c.reg(ptx.B64)
	found, missing, end := c.label(), c.label(), c.label()
	c.glance(p, found)
	c.search(p, found, missing)
	c.at(missing)
	c.f("mov.u64 %s, 0;", a)
	c.f("bra %s;", end)
	c.at(found)
	c.use(p)
	c.f("mov.u64 %s, %s;", a, c.value(p))
	c.at(end)
	return a
}

// atomic returns the modifiers of an atomic operation.
func (c *code) atomic(mods string) string {
	if c.weak {
		return ""
	}
	return mods
}

// again writes body in a loop that runs until body has set the register that it is
// given to 0. All ways through body lead to its end, so that threads of a warp that
// have to try again wait there for one that has the lock: this ends also on GPUs whose
// warps have one program counter.
//
// Threads of one warp that have parted may want the same lock in different probes, and then
// they meet nowhere. In PTX the ones that wait let the others have a turn, by nanosleep. Machine
// code has neither that nor a YIELD, since they would part the kernel's own warps (see
// stayTogether in package sass): threads that wait there can keep a thread of their warp that
// has the lock from ever running, as nothing is known of whom the multiprocessor picks.
// So nobody tries for ever. Nor does anybody where the host uses the map, too: who has the lock
// may have been killed. Who gives up gets an error in result, and is counted as who found no
// room.
func (c *code) again(x *Map, result string, body func(retry string)) {
	retry, tries, q, pause := c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.Pred), ""
	loop, end, most := c.label(), c.label(), mostTries
	if x.shared {
		most = mostWaits
	}
	c.f("mov.u32 %s, 0;", tries)
	if !c.weak {
		pause = c.reg(ptx.B32)
		c.f("mov.u32 %s, %d;", pause, shortestPause)
	}
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	c.f("mov.u32 %s, 1;", retry)
	body(retry)
	c.f("setp.ne.u32 %s, %s, 0;", q, retry)
	c.f("add.u32 %s, %s, 1;", tries, tries)
	c.f("setp.lt.and.u32 %s, %s, %d, %s;", q, tries, most, q)
	if pause != "" {
		c.f("@%s nanosleep.u32 %s;", q, pause)
		c.f("shl.b32 %s, %s, 1;", pause, pause)
		c.f("min.u32 %s, %s, %d;", pause, pause, longestPause)
	}
	c.f("@%s bra %s;", q, loop)
	c.f("setp.eq.u32 %s, %s, 0;", q, retry)
	c.f("@%s bra %s;", q, end)
	c.f("mov.s64 %s, %d;", result, errBusy)
	c.count(x.counter)
	c.at(end)
}

// How long threads wait before they look again, in nanoseconds, and how often they try at
// most: some seconds, which all threads of a GPU together that replace one value do not take,
// and a fraction of a second where the lock may be a thread's on the host.
const (
	shortestPause = 64
	longestPause  = 4096
	mostTries     = 1 << 20
	mostWaits     = 1 << 16
)

// gpuOwner is the owner of a lock that a kernel has, on the host: no thread's number.
const gpuOwner = 1<<32 - 1

// locked runs body with the lock of the key's home, if nothing changed there since the
// search, and goes to busy otherwise. body sets p.reach.
func (c *code) locked(p *probeState, busy string, body func()) {
	q, t, was, want, old := c.reg(ptx.Pred), c.reg(ptx.B32), c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64)
	c.f("setp.lt.s32 %s, %s, 0;", q, p.reach)
	c.f("@%s bra %s;", q, busy)
	c.f("mov.b64 %s, {%s, %s};", was, p.reach, p.lock)
	c.f("or.b32 %s, %s, %#x;", t, p.reach, uint32(homeLock))
	owner := p.lock
	if p.x.shared {
		owner = c.reg(ptx.B32)
		c.f("mov.b32 %s, %#x;", owner, uint32(gpuOwner))
	}
	c.f("mov.b64 %s, {%s, %s};", want, t, owner)
	c.f("atom%s.global.cas.b64 %s, [%s], %s, %s;", c.atomic(".acquire"+p.x.scope()), old, p.home, was, want)
	c.f("setp.ne.u64 %s, %s, %s;", q, old, was)
	c.f("@%s bra %s;", q, busy)
	if c.weak {
		c.fence(p.x)
	}
	body()
	c.f("add.u32 %s, %s, 1;", p.lock, p.lock)
	c.f("mov.b64 %s, {%s, %s};", want, p.reach, p.lock)
	if c.weak {
		c.fence(p.x)
	}
	c.f("st%s.global.u64 [%s], %s;", c.order(".release"+p.x.scope()), p.home, want)
}

// hashDelete deletes a key; the reach of its home ends with the last key that is left.
func (c *code) hashDelete(x *Map, key bytesArg) string {
	p := c.newProbe(x, c.keyWords(x, key))
	r := c.result(errNoEnt)
	c.again(x, r, func(retry string) {
		found, missing, busy := c.label(), c.label(), c.label()
		c.search(p, found, missing)
		c.at(found)
		c.locked(p, busy, func() {
			base, q, t := c.reg(ptx.B64), c.reg(ptx.Pred), c.reg(ptx.B32)
			shrink, kept := c.label(), c.label()
			c.f("st%s.global.u32 [%s], %d;", c.order(".release"+x.scope()), p.slot, slotEmpty)
			c.f("mov.u64 %s, %#x;", base, x.base)
			c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+x.scope()), base)
			c.f("mov.s64 %s, 0;", r)
			c.f("add.u32 %s, %s, 1;", t, p.n)
			c.f("setp.ne.u32 %s, %s, %s;", q, t, p.reach)
			c.f("@%s bra %s;", q, kept)
			c.f(".pragma \"nounroll\";")
			c.at(shrink)
			c.f("mov.u32 %s, %s;", p.reach, p.n)
			c.f("setp.eq.u32 %s, %s, 0;", q, p.n)
			c.f("@%s bra %s;", q, kept)
			c.f("sub.u32 %s, %s, 1;", p.n, p.n)
			c.f("add.u32 %s, %s, %s;", p.index, p.first, p.n)
			c.f("and.b32 %s, %s, %d;", p.index, p.index, x.hash.slots-1)
			c.locate(p)
			c.f("ld.volatile.global.u32 %s, [%s];", p.state, p.slot)
			// A state that is valid and of this home, or else the next is looked at.
			c.f("and.b32 %s, %s, %#x;", t, p.state, uint32(slotValid|x.hash.slots-1))
			c.f("xor.b32 %s, %s, %s;", t, t, p.first)
			c.f("setp.ne.u32 %s, %s, %#x;", q, t, uint32(slotValid))
			c.f("@%s bra %s;", q, shrink)
			c.at(kept)
		})
		c.at(missing)
		c.f("mov.u32 %s, 0;", retry)
		c.at(busy)
	})
	return r
}
