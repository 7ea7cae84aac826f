package nvattach

import (
	"strings"

	"nvtrace/ptx"
)

// put is one update of a hash.
type put struct {
	*code
	p     *probeState
	value bytesArg
	r     string // the result
	flags string
	known bool   // that is a number:
	n     uint32 // it
}

// hashUpdate inserts or replaces. used says that somebody looks at the result.
func (c *code) hashUpdate(x *Map, key, value bytesArg, flags string, used bool) string {
	u := &put{code: c, value: value, flags: flags}
	if u.n, u.known = number32(flags); u.known && u.n > flagExist {
		return itoa64(errInval)
	}
	words := c.keyWords(x, key)
	u.r = c.result(errInval)
	end, alone := c.label(), c.label()
	if !u.known {
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
	u.p = c.newProbe(x, words)
	// Who only inserts has looked before.
	if x.stable && !c.inserts && !(u.known && u.n == flagNoExist) {
		u.quick()
	} else {
		c.again(x, u.r, func(retry string) { u.attempt(retry, "") })
	}
	c.at(alone)
	if group != nil && used {
		c.tell(group, u.r, flags)
	}
	c.at(end)
	return u.r
}

// quick looks at the cache before anything else.
func (u *put) quick() {
	done, hit := u.label(), u.label()
	u.glance(u.p, hit)
	u.again(u.p.x, u.r, func(retry string) { u.attempt(retry, hit) })
	u.f("bra %s;", done)
	u.at(hit)
	u.when(flagNoExist, errExist, done)
	u.replace()
	u.at(done)
}

// attempt searches the key, and inserts it or replaces its value; retry stays set if
// others were quicker. With hit set, it goes there where the key is found.
func (u *put) attempt(retry, hit string) {
	found, missing, settled, busy := u.label(), u.label(), u.label(), u.label()
	u.search(u.p, found, missing)
	u.at(found)
	if hit != "" {
		u.f("bra %s;", hit)
	} else {
		u.when(flagNoExist, errExist, settled)
		if u.p.x.stable {
			u.replace()
		} else if !u.known || u.n != flagNoExist {
			u.locked(u.p, busy, u.replace)
		}
		u.f("bra %s;", settled)
	}
	u.at(missing)
	u.when(flagExist, errNoEnt, settled)
	if !u.known || u.n != flagExist {
		u.locked(u.p, busy, func() { u.insert(u.p, u.value, u.r) })
	}
	u.at(settled)
	u.f("mov.u32 %s, 0;", retry)
	u.at(busy)
}

// when goes to a label with a result if the flags are so.
func (u *put) when(flag uint32, result int64, label string) {
	switch {
	case u.known && u.n == flag:
		u.f("mov.s64 %s, %d;", u.r, result)
		u.f("bra %s;", label)
	case !u.known:
		q := u.reg(ptx.Pred)
		u.f("setp.eq.u64 %s, %s, %d;", q, u.flags, flag)
		u.f("mov.s64 %s, %d;", u.r, result)
		u.f("@%s bra %s;", q, label)
	}
}

// replace gives a key that was found its value.
func (u *put) replace() {
	if u.known && u.n == flagNoExist {
		return
	}
	u.use(u.p)
	switch {
	case u.inserts:
		u.addTo(u.p, u.value)
	default:
		u.copyTo(".global", u.code.value(u.p), 0, u.value, uint64(u.p.x.Def.ValueSize))
	}
	u.f("mov.s64 %s, 0;", u.r)
}

// addTo adds what would be the first value of a key to the value that it has.
func (c *code) addTo(p *probeState, value bytesArg) {
	a, mods := c.value(p), ""
	if p.x.shared {
		mods = c.atomic(".relaxed.sys")
	}
	for _, f := range p.x.sums {
		if v := value.Load(uint64(f.Offset), int(f.Size)); v != "0" {
			c.f("red%s.global.add.u%d [%s+%d], %s;", mods, 8*f.Size, a, f.Offset, v)
		}
	}
}

// insert takes a free slot for a key, with its home's lock held. Those that insert keys
// of other homes may take the same slot first: then the next is tried.
func (c *code) insert(p *probeState, value bytesArg, r string) {
	x, h := p.x, &p.x.hash
	old, base := c.reg(ptx.B32), c.reg(ptx.B64)
	q := c.reg(ptx.Pred)
	full, try, next, taken, end := c.label(), c.label(), c.label(), c.label(), c.label()
	c.f("mov.u64 %s, %#x;", base, x.base)
	c.room(p, base, full)
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
	c.f("atom%s.global.cas.b32 %s, [%s], %d, %d;", c.atomic(".acquire"+x.scope()), old, p.slot, slotEmpty, slotBusy)
	c.f("setp.eq.u32 %s, %s, %d;", q, old, slotEmpty)
	c.f("@%s bra %s;", q, taken)
	c.at(next)
	c.f("setp.lt.u32 %s, %s, %d;", q, p.n, h.slots)
	c.f("@%s bra %s;", q, try)
	c.at(full)
	c.f("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+x.scope()), base)
	c.count(x.counter)
	c.f("mov.s64 %s, %d;", r, errTooBig)
	c.f("bra %s;", end)
	c.at(taken)
	for i, w := range p.words {
		c.f("st.global.u32 [%s+%d], %s;", p.slot, h.keyOff+4*uint64(i), w)
	}
	if x.Def.lru() {
		c.f("st.volatile.global.u32 [%s+%d], 0;", p.slot, usedOff)
	}
	c.store(p, value)
	c.fence(x)
	c.f("st%s.global.u32 [%s], %s;", c.order(".relaxed"+x.scope()), p.slot, p.tag)
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
	c.copyTo(".global", c.value(p), 0, value, uint64(x.Def.ValueSize))
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
