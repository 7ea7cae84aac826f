package emit

import (
	"strings"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
)

// put is one update of a hash.
type put struct {
	*Code
	p     *probeState
	value BytesArg
	r     string // the result
	flags string
	known bool   // that is a number:
	n     uint32 // it
}

// hashUpdate inserts or replaces. used says that somebody looks at the result.
func (c *Code) hashUpdate(x *mapmem.Map, key, value BytesArg, flags string, used bool) string {
	u := &put{Code: c, value: value, flags: flags}
	if u.n, u.known = number32(flags); u.known && u.n > helper.FlagExist {
		return itoa64(helper.EINVAL)
	}
	words := c.keyWords(x, key)
	u.r = c.Result(helper.EINVAL)
	end, alone := c.Label(), c.Label()
	if !u.known {
		q := c.Reg(ptx.Pred)
		c.F("setp.gt.u64 %s, %s, %d;", q, flags, helper.FlagExist)
		c.F("@%s bra %s;", q, end)
	}
	var group *team
	if !c.Inserts { // each thread's counts
		group = c.group(x, words, value, flags)
	}
	if group != nil {
		c.F("@!%s bra %s;", group.first, alone)
	}
	u.p = c.newProbe(x, words)
	// Who only inserts has looked before.
	if x.Stable && !c.Inserts && !(u.known && u.n == helper.FlagNoExist) {
		u.quick()
	} else {
		c.again(x, u.r, func(retry string) { u.attempt(retry, "") })
	}
	c.At(alone)
	if group != nil && used {
		c.tell(group, u.r, flags)
	}
	c.At(end)
	return u.r
}

// quick looks at the cache before anything else.
func (u *put) quick() {
	done, hit := u.Label(), u.Label()
	u.glance(u.p, hit)
	u.again(u.p.x, u.r, func(retry string) { u.attempt(retry, hit) })
	u.F("bra %s;", done)
	u.At(hit)
	u.when(helper.FlagNoExist, helper.EEXIST, done)
	u.replace()
	u.At(done)
}

// attempt searches the key, and inserts it or replaces its value; retry stays set if
// others were quicker. With hit set, it goes there where the key is found.
func (u *put) attempt(retry, hit string) {
	found, missing, settled, busy := u.Label(), u.Label(), u.Label(), u.Label()
	u.search(u.p, found, missing)
	u.At(found)
	if hit != "" {
		u.F("bra %s;", hit)
	} else {
		u.when(helper.FlagNoExist, helper.EEXIST, settled)
		if u.p.x.Stable {
			u.replace()
		} else if !u.known || u.n != helper.FlagNoExist {
			u.locked(u.p, busy, u.replace)
		}
		u.F("bra %s;", settled)
	}
	u.At(missing)
	u.when(helper.FlagExist, helper.ENOENT, settled)
	if !u.known || u.n != helper.FlagExist {
		u.locked(u.p, busy, func() { u.insert(u.p, u.value, u.r) })
	}
	u.At(settled)
	u.F("mov.u32 %s, 0;", retry)
	u.At(busy)
}

// when goes to a label with a result if the flags are so.
func (u *put) when(flag uint32, result int64, label string) {
	switch {
	case u.known && u.n == flag:
		u.F("mov.s64 %s, %d;", u.r, result)
		u.F("bra %s;", label)
	case !u.known:
		q := u.Reg(ptx.Pred)
		u.F("setp.eq.u64 %s, %s, %d;", q, u.flags, flag)
		u.F("mov.s64 %s, %d;", u.r, result)
		u.F("@%s bra %s;", q, label)
	}
}

// replace gives a key that was found its value.
func (u *put) replace() {
	if u.known && u.n == helper.FlagNoExist {
		return
	}
	u.use(u.p)
	switch {
	case u.Inserts:
		u.addTo(u.p, u.value)
	default:
		u.copyTo(".global", u.Code.value(u.p), 0, u.value, uint64(u.p.x.Def.ValueSize))
	}
	u.F("mov.s64 %s, 0;", u.r)
}

// addTo adds what would be the first value of a key to the value that it has.
func (c *Code) addTo(p *probeState, value BytesArg) {
	a, mods := c.value(p), ""
	if p.x.OfHost {
		mods = c.atomic(".relaxed.sys")
	}
	for _, f := range p.x.Sums {
		if v := value.Load(uint64(f.Offset), int(f.Size)); v != "0" {
			c.F("red%s.global.add.u%d [%s+%d], %s;", mods, 8*f.Size, a, f.Offset, v)
		}
	}
}

// insert takes a free slot for a key, with its home's lock held. Those that insert keys
// of other homes may take the same slot first: then the next is tried.
func (c *Code) insert(p *probeState, value BytesArg, r string) {
	x, h := p.x, &p.x.Hash
	old, base := c.Reg(ptx.B32), c.Reg(ptx.B64)
	q := c.Reg(ptx.Pred)
	full, try, next, taken, end := c.Label(), c.Label(), c.Label(), c.Label(), c.Label()
	c.F("mov.u64 %s, %#x;", base, x.Base)
	c.room(p, base, full)
	c.F("mov.u32 %s, 0;", p.n)
	c.F(".pragma \"nounroll\";")
	c.At(try)
	c.F("add.u32 %s, %s, %s;", p.index, p.first, p.n)
	c.F("add.u32 %s, %s, 1;", p.n, p.n)
	c.F("and.b32 %s, %s, %d;", p.index, p.index, h.Slots-1)
	c.locate(p)
	c.F("ld.volatile.global.u32 %s, [%s];", p.state, p.slot)
	c.F("setp.ne.u32 %s, %s, %d;", q, p.state, mapmem.SlotEmpty)
	c.F("@%s bra %s;", q, next)
	c.F("atom%s.global.cas.b32 %s, [%s], %d, %d;", c.atomic(".acquire"+scope(x)), old, p.slot, mapmem.SlotEmpty, mapmem.SlotBusy)
	c.F("setp.eq.u32 %s, %s, %d;", q, old, mapmem.SlotEmpty)
	c.F("@%s bra %s;", q, taken)
	c.At(next)
	c.F("setp.lt.u32 %s, %s, %d;", q, p.n, h.Slots)
	c.F("@%s bra %s;", q, try)
	c.At(full)
	c.F("red%s.global.add.u32 [%s], -1;", c.atomic(".relaxed"+scope(x)), base)
	c.count(x.Counter)
	c.F("mov.s64 %s, %d;", r, helper.E2BIG)
	c.F("bra %s;", end)
	c.At(taken)
	for i, w := range p.words {
		c.F("st.global.u32 [%s+%d], %s;", p.slot, h.KeyOff+4*uint64(i), w)
	}
	if x.Def.Lru() {
		c.F("st.volatile.global.u32 [%s+%d], 0;", p.slot, usedOff)
	}
	c.store(p, value)
	c.fence(x)
	c.F("st%s.global.u32 [%s], %s;", c.Order(".relaxed"+scope(x)), p.slot, p.tag)
	c.F("max.u32 %s, %s, %s;", p.reach, p.reach, p.n)
	c.F("mov.s64 %s, 0;", r)
	c.At(end)
}

// store writes the value of a new entry; on other multiprocessors it is zero, as it is
// already where no slot was used before.
func (c *Code) store(p *probeState, value BytesArg) {
	x := p.x
	if x.Def.PerSM() && !x.Stable {
		a, n, q := c.index(p.index, x.Base+x.Hash.ValueOff, x.Stride), c.Reg(ptx.B32), c.Reg(ptx.Pred)
		loop := c.Label()
		c.F("mov.u32 %s, 0;", n)
		c.F(".pragma \"nounroll\";")
		c.At(loop)
		for i := uint64(0); i < x.Stride; i += 8 {
			c.F("st.global.u64 [%s+%d], 0;", a, i)
		}
		c.F("add.s64 %s, %s, %d;", a, a, x.Hash.SmBytes)
		c.F("add.u32 %s, %s, 1;", n, n)
		c.F("setp.lt.u32 %s, %s, %d;", q, n, c.M.SMs)
		c.F("@%s bra %s;", q, loop)
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
func (c *Code) group(x *mapmem.Map, words []string, value BytesArg, flags string) *team {
	size := uint64(x.Def.ValueSize)
	if c.Apart || x.Stable || uint64(len(words))+(size+3)/4 > maxTogether {
		return nil
	}
	g := &team{mask: c.Reg(ptx.B32), first: c.Reg(ptx.Pred)}
	all, t := c.Reg(ptx.B32), c.Reg(ptx.B32)
	c.F("activemask.b32 %s;", all)
	c.F("mov.b32 %s, %s;", g.mask, all)
	match := func(bits int, w string) {
		if !strings.HasPrefix(w, "%") { // the same for all
			return
		}
		c.F("match.any.sync.b%d %s, %s, %s;", bits, t, w, all)
		c.F("and.b32 %s, %s, %s;", g.mask, g.mask, t)
	}
	for _, w := range words {
		match(32, w)
	}
	for i := uint64(0); i < size; {
		n := PieceOf(i, size-i)
		match(max(8*n, 32), value.Load(i, n))
		i += uint64(n)
	}
	match(64, flags)
	c.F("mov.u32 %s, %%lanemask_lt;", t)
	c.F("and.b32 %s, %s, %s;", t, t, g.mask)
	c.F("setp.eq.u32 %s, %s, 0;", g.first, t)
	return g
}

// tell gives the result of a team's first thread to all of it. To the others a key that
// the first inserted was there.
func (c *Code) tell(g *team, r, flags string) {
	lead, n, q := c.Reg(ptx.B32), c.Low(r), c.Reg(ptx.Pred)
	c.F("brev.b32 %s, %s;", lead, g.mask)
	c.F("clz.b32 %s, %s;", lead, lead)
	c.F("shfl.sync.idx.b32 %s, %s, %s, 31, %s;", n, n, lead, g.mask)
	c.F("cvt.s64.s32 %s, %s;", r, n)
	if f, known := number32(flags); known && f != helper.FlagNoExist {
		return
	} else if known {
		c.F("setp.eq.s32 %s, %s, 0;", q, n)
	} else {
		p := c.Reg(ptx.Pred)
		c.F("setp.eq.s32 %s, %s, 0;", p, n)
		c.F("setp.eq.and.u64 %s, %s, %d, %s;", q, flags, helper.FlagNoExist, p)
	}
	other := c.Reg(ptx.Pred)
	c.F("not.pred %s, %s;", other, g.first)
	c.F("and.pred %s, %s, %s;", q, q, other)
	c.F("@%s mov.s64 %s, %d;", q, r, helper.EEXIST)
}
