package emit

import (
	"encoding/binary"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
)

// hashWord writes the hash of a key: hashKey in PTX. That of a key that is known is a
// number.
func (c *Code) hashWord(words []string) string {
	var key []byte
	for _, w := range words {
		if n, ok := number32(w); ok {
			key = binary.LittleEndian.AppendUint32(key, n)
		}
	}
	h, t := c.Reg(ptx.B32), c.Reg(ptx.B32)
	if len(key) == 4*len(words) {
		c.F("mov.b32 %s, %#x;", h, mapmem.HashKey(key))
		return h
	}
	c.F("mov.b32 %s, %#x;", h, uint32(mapmem.HashSeed))
	for _, w := range words {
		c.F("xor.b32 %s, %s, %s;", h, h, w)
		c.F("mul.lo.u32 %s, %s, %#x;", h, h, uint32(mapmem.HashMul1))
		c.F("shr.u32 %s, %s, %d;", t, h, mapmem.HashShift)
		c.F("xor.b32 %s, %s, %s;", h, h, t)
	}
	c.F("mul.lo.u32 %s, %s, %#x;", h, h, uint32(mapmem.HashMul2))
	c.F("shr.u32 %s, %s, 16;", t, h)
	c.F("xor.b32 %s, %s, %s;", h, h, t)
	return h
}

// probeState is what the search for a key works with.
type probeState struct {
	x     *mapmem.Map
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

func (c *Code) newProbe(x *mapmem.Map, words []string) *probeState {
	hash := c.hashWord(words)
	p := &probeState{x: x, words: words, first: c.Reg(ptx.B32), tag: c.Reg(ptx.B32), slot: c.Reg(ptx.B64), state: c.Reg(ptx.B32), index: c.Reg(ptx.B32)}
	c.F("and.b32 %s, %s, %d;", p.first, hash, x.Hash.Slots-1)
	c.F("or.b32 %s, %s, %#x;", p.tag, hash, uint32(mapmem.SlotValid))
	return p
}

// locate sets p.slot to the slot with number p.index.
func (c *Code) locate(p *probeState) {
	c.F("mul.wide.u32 %s, %s, %d;", p.slot, p.index, p.x.Hash.SlotSize)
	c.F("add.s64 %s, %s, %#x;", p.slot, p.slot, p.x.Base+p.x.Hash.SlotOff)
}

// other goes to label if the slot that was located does not have the key; mods are
// those of the loads.
func (c *Code) other(p *probeState, state, key, label string) {
	q, w := c.Reg(ptx.Pred), c.Reg(ptx.B32)
	c.F("ld%s.global.u32 %s, [%s];", state, p.state, p.slot)
	c.F("setp.ne.u32 %s, %s, %s;", q, p.state, p.tag)
	if key == "" { // as cheap as one
		for i, word := range p.words {
			c.F("ld.global.u32 %s, [%s+%d];", w, p.slot, p.x.Hash.KeyOff+4*uint64(i))
			c.F("setp.ne.or.u32 %s, %s, %s, %s;", q, w, word, q)
		}
		c.F("@%s bra %s;", q, label)
		return
	}
	c.F("@%s bra %s;", q, label)
	for i, word := range p.words {
		c.F("ld%s.global.u32 %s, [%s+%d];", key, w, p.slot, p.x.Hash.KeyOff+4*uint64(i))
		c.F("setp.ne.u32 %s, %s, %s;", q, w, word)
		c.F("@%s bra %s;", q, label)
	}
}

// mostGlances is how many slots are looked at in the cache.
const mostGlances = 16

// glance goes to found if the key is in one of the first slots of its home, as far as
// the multiprocessor's own cache knows. What is there stays there in a map whose keys
// nobody deletes, and behind a slot that is free none was put.
func (c *Code) glance(p *probeState, found string) {
	if !p.x.Stable {
		return
	}
	q, n := c.Reg(ptx.Pred), c.Reg(ptx.B32)
	loop, next := c.Label(), c.Label()
	c.F("mov.u32 %s, 0;", n)
	c.F("mov.u32 %s, %s;", p.index, p.first)
	c.F(".pragma \"nounroll\";")
	c.At(loop)
	c.locate(p)
	c.other(p, "", "", next)
	c.F("bra %s;", found)
	c.At(next)
	c.F("add.u32 %s, %s, 1;", n, n)
	c.F("add.u32 %s, %s, 1;", p.index, p.index)
	c.F("and.b32 %s, %s, %d;", p.index, p.index, p.x.Hash.Slots-1)
	c.F("setp.lt.u32 %s, %s, %d;", q, n, min(mostGlances, p.x.Hash.Slots))
	c.F("setp.ne.and.u32 %s, %s, %d, %s;", q, p.state, mapmem.SlotEmpty, q)
	c.F("@%s bra %s;", q, loop)
}

// search writes a loop over the slots of a key's home. It goes to found with p.slot,
// p.index and p.n set, or to missing when no slot has the key.
func (c *Code) search(p *probeState, found, missing string) {
	if p.n == "" {
		p.n, p.home, p.reach, p.lock = c.Reg(ptx.B32), c.Reg(ptx.B64), c.Reg(ptx.B32), c.Reg(ptx.B32)
	}
	q, most, word := c.Reg(ptx.Pred), c.Reg(ptx.B32), c.Reg(ptx.B64)
	loop, next := c.Label(), c.Label()
	c.F("mul.wide.u32 %s, %s, 8;", p.home, p.first)
	c.F("add.s64 %s, %s, %#x;", p.home, p.home, p.x.Base+p.x.Hash.HomeOff)
	c.F("ld%s.global.u64 %s, [%s];", c.Order(".acquire"+scope(p.x)), word, p.home)
	c.F("mov.b64 {%s, %s}, %s;", p.reach, p.lock, word)
	c.F("and.b32 %s, %s, %#x;", most, p.reach, uint32(mapmem.HomeReach))
	c.F("mov.u32 %s, 0;", p.n)
	c.F(".pragma \"nounroll\";")
	c.At(loop)
	c.F("setp.ge.u32 %s, %s, %s;", q, p.n, most)
	c.F("@%s bra %s;", q, missing)
	c.F("add.u32 %s, %s, %s;", p.index, p.first, p.n)
	c.F("and.b32 %s, %s, %d;", p.index, p.index, p.x.Hash.Slots-1)
	c.locate(p)
	c.other(p, c.Order(".acquire"+scope(p.x)), ".volatile", next)
	c.F("bra %s;", found)
	c.At(next)
	c.F("add.u32 %s, %s, 1;", p.n, p.n)
	c.F("bra %s;", loop)
}

// value returns the address of a slot's value.
func (c *Code) value(p *probeState) string {
	h := &p.x.Hash
	a := c.index(p.index, p.x.Base+h.ValueOff, p.x.Stride)
	if h.Copies > 1 {
		c.F("add.s64 %s, %s, %s;", a, a, c.PerSM(0, h.SmBytes))
	}
	return a
}

func (c *Code) hashLookup(x *mapmem.Map, key BytesArg) string {
	p := c.newProbe(x, c.keyWords(x, key))
	a := c.Reg(ptx.B64)
	found, missing, end := c.Label(), c.Label(), c.Label()
	c.glance(p, found)
	c.search(p, found, missing)
	c.At(missing)
	c.F("mov.u64 %s, 0;", a)
	c.F("bra %s;", end)
	c.At(found)
	c.use(p)
	c.F("mov.u64 %s, %s;", a, c.value(p))
	c.At(end)
	return a
}

// atomic returns the modifiers of an atomic operation.
func (c *Code) atomic(mods string) string {
	if c.Weak {
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
func (c *Code) again(x *mapmem.Map, result string, body func(retry string)) {
	retry, tries, q, pause := c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.Pred), ""
	loop, end, most := c.Label(), c.Label(), mostTries
	if x.OfHost {
		most = mostWaits
	}
	c.F("mov.u32 %s, 0;", tries)
	if !c.Weak {
		pause = c.Reg(ptx.B32)
		c.F("mov.u32 %s, %d;", pause, shortestPause)
	}
	c.F(".pragma \"nounroll\";")
	c.At(loop)
	c.F("mov.u32 %s, 1;", retry)
	body(retry)
	c.F("setp.ne.u32 %s, %s, 0;", q, retry)
	c.F("add.u32 %s, %s, 1;", tries, tries)
	c.F("setp.lt.and.u32 %s, %s, %d, %s;", q, tries, most, q)
	if pause != "" {
		c.F("@%s nanosleep.u32 %s;", q, pause)
		c.F("shl.b32 %s, %s, 1;", pause, pause)
		c.F("min.u32 %s, %s, %d;", pause, pause, longestPause)
	}
	c.F("@%s bra %s;", q, loop)
	c.F("setp.eq.u32 %s, %s, 0;", q, retry)
	c.F("@%s bra %s;", q, end)
	c.F("mov.s64 %s, %d;", result, helper.EBUSY)
	c.count(x.Counter)
	c.At(end)
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

// locked runs body with the lock of the key's home, if nothing changed there since the
// search, and goes to busy otherwise. body sets p.reach.
func (c *Code) locked(p *probeState, busy string, body func()) {
	q, t, was, want, old := c.Reg(ptx.Pred), c.Reg(ptx.B32), c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.B64)
	c.F("setp.lt.s32 %s, %s, 0;", q, p.reach)
	c.F("@%s bra %s;", q, busy)
	c.F("mov.b64 %s, {%s, %s};", was, p.reach, p.lock)
	c.F("or.b32 %s, %s, %#x;", t, p.reach, uint32(mapmem.HomeLock))
	owner := p.lock
	if p.x.OfHost {
		owner = c.Reg(ptx.B32)
		c.F("mov.b32 %s, %#x;", owner, uint32(mapmem.GPUOwner))
	}
	c.F("mov.b64 %s, {%s, %s};", want, t, owner)
	c.F("atom%s.global.cas.b64 %s, [%s], %s, %s;", c.atomic(".acquire"+scope(p.x)), old, p.home, was, want)
	c.F("setp.ne.u64 %s, %s, %s;", q, old, was)
	c.F("@%s bra %s;", q, busy)
	if c.Weak {
		c.fence(p.x)
	}
	body()
	c.F("add.u32 %s, %s, 1;", p.lock, p.lock)
	c.F("mov.b64 %s, {%s, %s};", want, p.reach, p.lock)
	if c.Weak {
		c.fence(p.x)
	}
	c.F("st%s.global.u64 [%s], %s;", c.Order(".release"+scope(p.x)), p.home, want)
}

// hashDelete deletes a key; the reach of its home ends with the last key that is left.
func (c *Code) hashDelete(x *mapmem.Map, key BytesArg) string {
	p := c.newProbe(x, c.keyWords(x, key))
	r := c.Result(helper.ENOENT)
	c.again(x, r, func(retry string) {
		found, missing, busy := c.Label(), c.Label(), c.Label()
		c.search(p, found, missing)
		c.At(found)
		c.locked(p, busy, func() {
			base, q, t := c.Reg(ptx.B64), c.Reg(ptx.Pred), c.Reg(ptx.B32)
			shrink, kept := c.Label(), c.Label()
			c.F("st%s.global.u32 [%s], %d;", c.Order(".release"+scope(x)), p.slot, mapmem.SlotEmpty)
			c.F("mov.u64 %s, %#x;", base, x.Base)
			c.F("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+scope(x)), base)
			c.F("mov.s64 %s, 0;", r)
			c.F("add.u32 %s, %s, 1;", t, p.n)
			c.F("setp.ne.u32 %s, %s, %s;", q, t, p.reach)
			c.F("@%s bra %s;", q, kept)
			c.F(".pragma \"nounroll\";")
			c.At(shrink)
			c.F("mov.u32 %s, %s;", p.reach, p.n)
			c.F("setp.eq.u32 %s, %s, 0;", q, p.n)
			c.F("@%s bra %s;", q, kept)
			c.F("sub.u32 %s, %s, 1;", p.n, p.n)
			c.F("add.u32 %s, %s, %s;", p.index, p.first, p.n)
			c.F("and.b32 %s, %s, %d;", p.index, p.index, x.Hash.Slots-1)
			c.locate(p)
			c.F("ld.volatile.global.u32 %s, [%s];", p.state, p.slot)
			// A state that is valid and of this home, or else the next is looked at.
			c.F("and.b32 %s, %s, %#x;", t, p.state, uint32(mapmem.SlotValid|x.Hash.Slots-1))
			c.F("xor.b32 %s, %s, %s;", t, t, p.first)
			c.F("setp.ne.u32 %s, %s, %#x;", q, t, uint32(mapmem.SlotValid))
			c.F("@%s bra %s;", q, shrink)
			c.At(kept)
		})
		c.At(missing)
		c.F("mov.u32 %s, 0;", retry)
		c.At(busy)
	})
	return r
}
