package bpf

import "slices"

// An atom is a part of a stack that is never accessed in part: it is one
// register, zero-extended to 64 bits.
type atom struct {
	off, size int
	reg       reg
}

// A layout is how the stack of the functions at one depth is kept.
type layout struct {
	used  [StackSize]bool     // bytes that are accessed at all
	cut   [StackSize + 1]bool // an access begins or ends here
	mem   [StackSize]bool     // bytes that need memory
	atoms []atom
	lo    int         // first byte in memory, a multiple of 8
	hi    int         // behind the last; lo when there is none
	comps map[int]reg // offset of a spilled pointer to the register with its offset
}

// touch notes an access at a constant offset.
func (l *layout) touch(off, size int, cut bool) {
	for i := off; i < off+size; i++ {
		l.used[i] = true
	}
	if cut {
		l.cut[off], l.cut[off+size] = true, true
	}
}

// spread notes an access somewhere in [lo, hi).
func (l *layout) spread(lo, hi int) {
	for i := lo; i < hi; i++ {
		l.used[i], l.mem[i] = true, true
	}
}

// chooseRegisters decides what becomes a register. An access that needs memory for one
// byte needs it for all.
func (l *layout) chooseRegisters(accesses [][2]int, newReg func() reg) {
	for changed := true; changed; {
		changed = false
		for _, x := range accesses {
			part := l.mem[x[0] : x[0]+x[1]]
			if slices.Contains(part, true) && slices.Contains(part, false) {
				for i := range part {
					part[i] = true
				}
				changed = true
			}
		}
	}
	l.lo, l.hi = StackSize, 0
	for i := 0; i < StackSize; {
		if l.mem[i] {
			l.lo, l.hi = min(l.lo, i&^7), i+1
		}
		if !l.used[i] || l.mem[i] {
			i++
			continue
		}
		end := i + 1
		for end < StackSize && end%8 != 0 && !l.cut[end] && l.used[end] && !l.mem[end] {
			end++
		}
		l.atoms = append(l.atoms, atom{i, end - i, newReg()})
		i = end
	}
	l.hi = max(l.hi, l.lo)
	if l.hi == 0 || l.lo == StackSize {
		l.lo, l.hi = 0, 0
	}
}

// A coder writes nodes: into a program at first, later for helpers at once into
// a site's text.
type coder struct {
	layouts *[MaxCallDepth]layout
	maps    []Map
	add     func(n node)
	next    [classes]int32 // numbers of new registers
}

func (c *coder) fresh(k class) reg {
	c.next[k]++
	return reg{k, c.next[k] - 1}
}

// inst writes an instruction without memory.
func (c *coder) inst(op string, dst reg, args ...arg) {
	c.add(node{kind: nInst, op: op, dst: dst, guard: noReg, args: args})
}

// inst64 writes an instruction with a new 64-bit result.
func (c *coder) inst64(op string, args ...arg) arg {
	d := c.fresh(c64)
	c.inst(op, d, args...)
	return d.arg()
}

// touched calls fn for the register of every atom with bytes of an argument's
// memory.
func (c *coder) touched(a *callArg, fn func(reg)) {
	p := &a.place
	if p.kind != kStack || !p.fixed {
		return
	}
	for _, t := range c.layouts[p.depth].between(p.off, p.off+a.size) {
		fn(t.reg)
	}
}

// shifted returns x shifted left (or, for a negative count, right) by bits.
func (c *coder) shifted(x arg, bits int) arg {
	switch {
	case bits == 0:
		return x
	case x.kind == aImm && bits > 0:
		return imm(uint64(x.v) << bits)
	case x.kind == aImm:
		return imm(uint64(x.v) >> -bits)
	case bits > 0:
		return c.inst64("shl.b64", x, imm(uint64(bits)))
	}
	return c.inst64("shr.u64", x, imm(uint64(-bits)))
}

// masked returns the low size bytes of x.
func (c *coder) masked(x arg, size int) arg {
	switch {
	case size >= 8:
		return x
	case x.kind == aImm:
		return imm(uint64(x.v) & (1<<(8*size) - 1))
	case size == 4:
		t := c.fresh(c32)
		c.inst("cvt.u32.u64", t, x)
		return c.inst64("cvt.u64.u32", t.arg())
	}
	return c.inst64("and.b64", x, imm(1<<(8*size)-1))
}

func (c *coder) or(x, y arg) arg {
	switch {
	case x.kind == aImm && x.v == 0:
		return y
	case y.kind == aImm && y.v == 0:
		return x
	case x.kind == aImm && y.kind == aImm:
		return imm(uint64(x.v | y.v))
	}
	return c.inst64("or.b64", x, y)
}

// load returns size bytes at offset off of p as a number.
func (c *coder) load(p *place, off, size int) arg {
	switch {
	case p.kind == kText && p.fixed:
		return arg{kind: aText, n: uint8(size), v: int64(p.off + off)}
	case c.own(p):
		return c.loadOwn(p, int(p.base.v)+int(p.boff)+off, size)
	case p.kind != kStack:
		return c.loadMem(nLoad, p, p.base, p.boff+int64(off), min(p.align, lowBit(off)), size)
	case !p.fixed:
		return c.loadMem(nLocal, p, p.base, p.boff+int64(off), min(p.align, lowBit(off)), size)
	}
	l := &c.layouts[p.depth]
	lo, hi := p.off+off, p.off+off+size
	if l.mem[lo] {
		return c.loadMem(nLocal, p, arg{kind: aLocal, m: int32(p.depth)}, int64(lo-l.lo), min(8, lowBit(lo)), size)
	}
	parts := l.between(lo, hi)
	if len(parts) == 2 && parts[0].off == lo && parts[0].size == 4 && parts[1].size == 4 && size == 8 {
		return c.pair(parts[0].reg.arg(), parts[1].reg.arg())
	}
	x := imm(0)
	for _, t := range parts {
		from, to := max(lo, t.off), min(hi, t.off+t.size)
		v := c.shifted(t.reg.arg(), -8*(from-t.off))
		if to < t.off+t.size {
			v = c.masked(v, to-from)
		}
		x = c.or(x, c.shifted(v, 8*(from-lo)))
	}
	return x
}

// pair makes a number of two halves.
func (c *coder) pair(lo, hi arg) arg {
	l, h := c.fresh(c32), c.fresh(c32)
	c.inst("cvt.u32.u64", l, lo)
	c.inst("cvt.u32.u64", h, hi)
	d := c.fresh(c64)
	c.inst("mov.b64 {}", d, l.arg(), h.arg())
	return d.arg()
}

// between returns the atoms with bytes of [lo, hi).
func (l *layout) between(lo, hi int) []atom {
	i := 0
	for i < len(l.atoms) && l.atoms[i].off+l.atoms[i].size <= lo {
		i++
	}
	k := i
	for k < len(l.atoms) && l.atoms[k].off < hi {
		k++
	}
	return l.atoms[i:k]
}

// lowBit is the highest power of two, up to 8, that divides n.
func lowBit(n int) int {
	if n == 0 {
		return 8
	}
	return min(n&-n, 8)
}

var loadTypes = map[int]string{1: "u8", 2: "u16", 4: "u32", 8: "u64"}

// loadMem loads size bytes in parts that are aligned.
func (c *coder) loadMem(k nodeKind, p *place, base arg, off int64, align, size int) arg {
	x := imm(0)
	for at := 0; at < size; {
		n := part(align, at, size)
		d := c.fresh(c64)
		c.add(node{kind: k, op: loadTypes[n], dst: d, guard: noReg, base: base, off: off + int64(at), maps: p.maps})
		x = c.or(x, c.shifted(d.arg(), 8*at))
		at += n
	}
	return x
}

// part is the size of the next access for bytes [at, size) of something aligned
// so.
func part(align, at, size int) int {
	n := min(align, lowBit(at))
	for n > size-at {
		n /= 2
	}
	return n
}

// store puts the low size bytes of x at offset off of p.
func (c *coder) store(p *place, off, size int, x arg) {
	switch {
	case c.own(p):
		c.storeOwn(p, int(p.base.v)+int(p.boff)+off, size, x)
		return
	case p.kind != kStack:
		c.storeMem(nStore, p, p.base, p.boff+int64(off), min(p.align, lowBit(off)), size, x)
		return
	case !p.fixed:
		c.storeMem(nLocal, p, p.base, p.boff+int64(off), min(p.align, lowBit(off)), size, x)
		return
	}
	l := &c.layouts[p.depth]
	lo, hi := p.off+off, p.off+off+size
	if l.mem[lo] {
		c.storeMem(nLocal, p, arg{kind: aLocal, m: int32(p.depth)}, int64(lo-l.lo), min(8, lowBit(lo)), size, x)
		return
	}
	for _, t := range l.between(lo, hi) {
		from, to := max(lo, t.off), min(hi, t.off+t.size)
		v := c.masked(c.shifted(x, -8*(from-lo)), to-from)
		if from > t.off || to < t.off+t.size { // a helper's piece: keep the rest
			keep := ^(^uint64(0) >> (64 - 8*(to-from)) << (8 * (from - t.off)))
			rest := c.inst64("and.b64", t.reg.arg(), imm(keep))
			v = c.or(rest, c.shifted(v, 8*(from-t.off)))
		}
		c.inst("mov.b64", t.reg, v)
	}
}

func (c *coder) storeMem(k nodeKind, p *place, base arg, off int64, align, size int, x arg) {
	for at := 0; at < size; {
		n := part(align, at, size)
		v := c.shifted(x, -8*at)
		if v.kind == aImm {
			v = imm(uint64(v.v) & (^uint64(0) >> (64 - 8*n)))
		}
		c.add(node{kind: k, op: loadTypes[n], dst: noReg, guard: noReg, base: base, off: off + int64(at), args: []arg{v}, maps: p.maps})
		at += n
	}
}

// own reports whether a place is in registers that the site names.
func (c *coder) own(p *place) bool { return p.base.kind == aMap && c.maps[p.base.m].Thread }

// loadOwn returns size bytes at off of a value in registers.
func (c *coder) loadOwn(p *place, off, size int) arg {
	x := imm(0)
	for at := off; at < off+size; {
		word, from := at/8, at%8
		n := min(8-from, off+size-at)
		v := c.shifted(c.inst64("mov.b64", arg{kind: aOwn, m: p.base.m, v: int64(word)}), -8*from)
		if from+n < 8 {
			v = c.masked(v, n)
		}
		x = c.or(x, c.shifted(v, 8*(at-off)))
		at += n
	}
	return x
}

// storeOwn puts the low size bytes of x at off of a value in registers.
func (c *coder) storeOwn(p *place, off, size int, x arg) {
	for at := off; at < off+size; {
		word, from := at/8, at%8
		n := min(8-from, off+size-at)
		to := arg{kind: aOwn, m: p.base.m, v: int64(word)}
		v := c.masked(c.shifted(x, -8*(at-off)), n)
		if n < 8 {
			keep := ^(^uint64(0) >> (64 - 8*n) << (8 * from))
			v = c.or(c.inst64("and.b64", to, imm(keep)), c.shifted(v, 8*from))
		}
		c.add(node{kind: nOwn, dst: noReg, guard: noReg, base: to, args: []arg{v}, maps: p.maps})
		at += n
	}
}
