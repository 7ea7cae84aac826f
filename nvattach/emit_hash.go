package nvattach

import (
	"encoding/binary"
	"strings"

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

// glance goes to found if the key is in the first slot of its home, as far as the
// multiprocessor's own cache knows. What is there stays there in a map whose keys
// nobody deletes.
func (c *code) glance(p *probeState, found string) {
	if !p.x.stable {
		return
	}
	next := c.label()
	c.f("mov.u32 %s, %s;", p.index, p.first)
	c.locate(p)
	c.other(p, "", "", next)
	c.f("bra %s;", found)
	c.at(next)
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
	c.f("ld%s.global.u64 %s, [%s];", c.order(".acquire.gpu"), word, p.home)
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
	c.other(p, c.order(".acquire.gpu"), ".volatile", next)
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
func (c *code) again(body func(retry string)) {
	retry, q, pause := c.reg(ptx.B32), c.reg(ptx.Pred), ""
	loop := c.label()
	if !c.weak {
		pause = c.reg(ptx.B32)
		c.f("mov.u32 %s, %d;", pause, shortestPause)
	}
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	c.f("mov.u32 %s, 1;", retry)
	body(retry)
	c.f("setp.ne.u32 %s, %s, 0;", q, retry)
	if pause != "" {
		c.f("@%s nanosleep.u32 %s;", q, pause)
		c.f("shl.b32 %s, %s, 1;", pause, pause)
		c.f("min.u32 %s, %s, %d;", pause, pause, longestPause)
	}
	c.f("@%s bra %s;", q, loop)
}

// How long threads wait before they look again, in nanoseconds.
const (
	shortestPause = 64
	longestPause  = 4096
)

// locked runs body with the lock of the key's home, if nothing changed there since the
// search, and goes to busy otherwise. body sets p.reach.
func (c *code) locked(p *probeState, busy string, body func()) {
	q, t, was, want, old := c.reg(ptx.Pred), c.reg(ptx.B32), c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64)
	c.f("setp.lt.s32 %s, %s, 0;", q, p.reach)
	c.f("@%s bra %s;", q, busy)
	c.f("mov.b64 %s, {%s, %s};", was, p.reach, p.lock)
	c.f("or.b32 %s, %s, %#x;", t, p.reach, uint32(homeLock))
	c.f("mov.b64 %s, {%s, %s};", want, t, p.lock)
	c.f("atom%s.global.cas.b64 %s, [%s], %s, %s;", c.atomic(".acquire.gpu"), old, p.home, was, want)
	c.f("setp.ne.u64 %s, %s, %s;", q, old, was)
	c.f("@%s bra %s;", q, busy)
	if c.weak {
		c.f("membar.gl;")
	}
	body()
	c.f("add.u32 %s, %s, 1;", p.lock, p.lock)
	c.f("mov.b64 %s, {%s, %s};", want, p.reach, p.lock)
	if c.weak {
		c.f("membar.gl;")
	}
	c.f("st%s.global.u64 [%s], %s;", c.order(".release.gpu"), p.home, want)
}

// hashUpdate inserts or replaces. used says that somebody looks at the result.
func (c *code) hashUpdate(x *Map, key, value bytesArg, flags string, used bool) string {
	n, known := number32(flags)
	replace := func(p *probeState) { c.copyTo(c.value(p), 0, value, uint64(x.Def.ValueSize)) }
	if c.inserts {
		replace = func(p *probeState) { c.addTo(p, value) }
	}
	if known && n > flagExist {
		return itoa64(errInval)
	}
	words := c.keyWords(x, key)
	r := c.result(errInval)
	end, alone := c.label(), c.label()
	if !known {
		q := c.reg(ptx.Pred)
		c.f("setp.gt.u64 %s, %s, %d;", q, flags, flagExist)
		c.f("@%s bra %s;", q, end)
	}
	var group *team
	if !c.inserts { // each thread's counts
		group = c.group(x, words, value, flags)
	}
	if group != nil {
		c.f("@!%s bra %s;", group.first, alone)
	}
	p := c.newProbe(x, words)
	done, hit := c.label(), c.label()
	// Whether there is such a key is asked by the flags.
	when := func(flag uint32, result int64, label string) {
		switch {
		case known && n == flag:
			c.f("mov.s64 %s, %d;", r, result)
			c.f("bra %s;", label)
		case !known:
			q := c.reg(ptx.Pred)
			c.f("setp.eq.u64 %s, %s, %d;", q, flags, flag)
			c.f("mov.s64 %s, %d;", r, result)
			c.f("@%s bra %s;", q, label)
		}
	}
	// Who only inserts has looked before.
	fast := x.stable && !c.inserts && !(known && n == flagNoExist)
	if fast {
		c.glance(p, hit)
	}
	c.again(func(retry string) {
		found, missing, settled, busy := c.label(), c.label(), c.label(), c.label()
		c.search(p, found, missing)
		c.at(found)
		if fast {
			c.f("bra %s;", hit)
		} else {
			when(flagNoExist, errExist, settled)
		}
		if !fast && (!known || n != flagNoExist) {
			if x.stable {
				replace(p)
			} else {
				c.locked(p, busy, func() { replace(p) })
			}
			c.f("mov.s64 %s, 0;", r)
			c.f("bra %s;", settled)
		}
		c.at(missing)
		when(flagExist, errNoEnt, settled)
		if !known || n != flagExist {
			c.locked(p, busy, func() { c.insert(p, value, r) })
		}
		c.at(settled)
		c.f("mov.u32 %s, 0;", retry)
		c.at(busy)
	})
	if fast {
		c.f("bra %s;", done)
		c.at(hit)
		when(flagNoExist, errExist, done)
		if !known || n != flagNoExist {
			replace(p)
			c.f("mov.s64 %s, 0;", r)
		}
		c.at(done)
	}
	c.at(alone)
	if group != nil && used {
		c.tell(group, r, flags)
	}
	c.at(end)
	return r
}

// addTo adds what would be the first value of a key to the value that it has.
func (c *code) addTo(p *probeState, value bytesArg) {
	a := c.value(p)
	for _, f := range p.x.sums {
		if v := value.Load(uint64(f.Offset), int(f.Size)); v != "0" {
			c.f("red.global.add.u%d [%s+%d], %s;", 8*f.Size, a, f.Offset, v)
		}
	}
}

// insert takes a free slot for a key, with its home's lock held. Those that insert keys
// of other homes may take the same slot first: then the next is tried.
func (c *code) insert(p *probeState, value bytesArg, r string) {
	x, h := p.x, &p.x.hash
	old, count, base := c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B64)
	q := c.reg(ptx.Pred)
	full, try, next, taken, end := c.label(), c.label(), c.label(), c.label(), c.label()
	c.f("mov.u64 %s, %#x;", base, x.base)
	c.f("atom%s.global.add.u32 %s, [%s], 1;", c.atomic(".relaxed.gpu"), count, base)
	c.f("setp.ge.u32 %s, %s, %d;", q, count, x.Def.MaxEntries)
	c.f("@%s bra %s;", q, full)
	c.f("mov.u32 %s, 0;", p.n)
	c.f(".pragma \"nounroll\";")
	c.at(try)
	c.f("add.u32 %s, %s, %s;", p.index, p.first, p.n)
	c.f("add.u32 %s, %s, 1;", p.n, p.n)
	c.f("and.b32 %s, %s, %d;", p.index, p.index, h.slots-1)
	c.locate(p)
	c.f("ld.volatile.global.u32 %s, [%s];", p.state, p.slot)
	c.f("setp.ne.u32 %s, %s, %d;", q, p.state, slotEmpty)
	c.f("@%s bra %s;", q, next)
	c.f("atom%s.global.cas.b32 %s, [%s], %d, %d;", c.atomic(".acquire.gpu"), old, p.slot, slotEmpty, slotBusy)
	c.f("setp.eq.u32 %s, %s, %d;", q, old, slotEmpty)
	c.f("@%s bra %s;", q, taken)
	c.at(next)
	c.f("setp.lt.u32 %s, %s, %d;", q, p.n, h.slots)
	c.f("@%s bra %s;", q, try)
	c.at(full)
	c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed.gpu"), base)
	c.count(x.counter)
	c.f("mov.s64 %s, %d;", r, errTooBig)
	c.f("bra %s;", end)
	c.at(taken)
	for i, w := range p.words {
		c.f("st.global.u32 [%s+%d], %s;", p.slot, h.keyOff+4*uint64(i), w)
	}
	c.store(p, value)
	c.fence()
	c.f("st%s.global.u32 [%s], %s;", c.order(".relaxed.gpu"), p.slot, p.tag)
	c.f("max.u32 %s, %s, %s;", p.reach, p.reach, p.n)
	c.f("mov.s64 %s, 0;", r)
	c.at(end)
}

// store writes the value of a new entry; on other multiprocessors it is zero, as it is
// already where no slot was used before.
func (c *code) store(p *probeState, value bytesArg) {
	x := p.x
	if x.Def.PerSM() && !x.stable {
		a, n, q := c.index(p.index, x.base+x.hash.valueOff, x.stride), c.reg(ptx.B32), c.reg(ptx.Pred)
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
	c.copyTo(c.value(p), 0, value, uint64(x.Def.ValueSize))
}

// hashDelete deletes a key; the reach of its home ends with the last key that is left.
func (c *code) hashDelete(x *Map, key bytesArg) string {
	p := c.newProbe(x, c.keyWords(x, key))
	r := c.result(errNoEnt)
	c.again(func(retry string) {
		found, missing, busy := c.label(), c.label(), c.label()
		c.search(p, found, missing)
		c.at(found)
		c.locked(p, busy, func() {
			base, q, t := c.reg(ptx.B64), c.reg(ptx.Pred), c.reg(ptx.B32)
			shrink, kept := c.label(), c.label()
			c.f("st%s.global.u32 [%s], %d;", c.order(".release.gpu"), p.slot, slotEmpty)
			c.f("mov.u64 %s, %#x;", base, x.base)
			c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed.gpu"), base)
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

// A team is the threads of a warp that update a hash in the same way together: the
// first of them does it for all.
type team struct {
	mask  string // its threads
	first string // a predicate: this is the first of them
}

// maxTogether bounds the words that are compared to find out who does the same.
const maxTogether = 12

// group groups the threads that are here together by what they would do. It returns nil
// where the target has no means for that, where comparing takes longer than it is worth,
// and where only who inserts a key needs a lock at all.
func (c *code) group(x *Map, words []string, value bytesArg, flags string) *team {
	size := uint64(x.Def.ValueSize)
	if c.apart || x.stable || uint64(len(words))+(size+3)/4 > maxTogether {
		return nil
	}
	g := &team{mask: c.reg(ptx.B32), first: c.reg(ptx.Pred)}
	all, t := c.reg(ptx.B32), c.reg(ptx.B32)
	c.f("activemask.b32 %s;", all)
	c.f("mov.b32 %s, %s;", g.mask, all)
	match := func(bits int, w string) {
		if !strings.HasPrefix(w, "%") { // the same for all
			return
		}
		c.f("match.any.sync.b%d %s, %s, %s;", bits, t, w, all)
		c.f("and.b32 %s, %s, %s;", g.mask, g.mask, t)
	}
	for _, w := range words {
		match(32, w)
	}
	for i := uint64(0); i < size; {
		n := pieceOf(i, size-i)
		match(max(8*n, 32), value.Load(i, n))
		i += uint64(n)
	}
	match(64, flags)
	c.f("mov.u32 %s, %%lanemask_lt;", t)
	c.f("and.b32 %s, %s, %s;", t, t, g.mask)
	c.f("setp.eq.u32 %s, %s, 0;", g.first, t)
	return g
}

// tell gives the result of a team's first thread to all of it. To the others a key that
// the first inserted was there.
func (c *code) tell(g *team, r, flags string) {
	lead, n, q := c.reg(ptx.B32), c.low(r), c.reg(ptx.Pred)
	c.f("brev.b32 %s, %s;", lead, g.mask)
	c.f("clz.b32 %s, %s;", lead, lead)
	c.f("shfl.sync.idx.b32 %s, %s, %s, 31, %s;", n, n, lead, g.mask)
	c.f("cvt.s64.s32 %s, %s;", r, n)
	if f, known := number32(flags); known && f != flagNoExist {
		return
	} else if known {
		c.f("setp.eq.s32 %s, %s, 0;", q, n)
	} else {
		p := c.reg(ptx.Pred)
		c.f("setp.eq.s32 %s, %s, 0;", p, n)
		c.f("setp.eq.and.u64 %s, %s, %d, %s;", q, flags, flagNoExist, p)
	}
	other := c.reg(ptx.Pred)
	c.f("not.pred %s, %s;", other, g.first)
	c.f("and.pred %s, %s, %s;", q, q, other)
	c.f("@%s mov.s64 %s, %d;", q, r, errExist)
}
