package bpf

import (
	"math/bits"
	"strconv"

	"github.com/cilium/ebpf/asm"
)

// place returns the memory of an access behind register r plus off.
func (l *lowering) place(r uint8, off int64, acc *access) place {
	d := l.a.ops[l.at].depth
	v := l.here.reg(d, r)
	p := place{kind: acc.kind, fixed: acc.fixed, depth: acc.depth, off: acc.off, align: acc.align, maps: acc.maps}
	switch acc.kind {
	case kStack:
		if acc.fixed {
			return p
		}
		base := l.inst64("mov.b64", arg{kind: aLocal, m: int32(acc.depth)})
		p.base, p.boff = l.inst64("add.s64", base, l.value(&v, d, r)), off-int64(l.layouts[acc.depth].lo)
	case kText:
		if acc.fixed {
			return p
		}
		l.report.TextInMemory = true
		base := l.inst64("mov.b64", arg{kind: aTextAddr})
		p.base, p.boff = l.inst64("add.s64", base, l.value(&v, d, r)), off
	default:
		p.base, p.boff = l.value(&v, d, r), off
		if p.base.kind == aMap {
			p.base.v, p.boff = p.base.v+off, 0
		}
	}
	return p
}

// load1 lowers a load; s is the state behind it.
func (l *lowering) load1(s *state, o *op, fx *effect) {
	acc, dst := &fx.acc, l.regs[o.depth][o.dst]
	l.check(o.src, int64(o.off), acc)
	after := s.reg(o.depth, o.dst)
	if acc.kind == kStack && acc.fixed && (after.kind == kValue || after.kind == kRecord) {
		l.inst("mov.b64", l.comps[o.depth][o.dst], l.spilled(acc).arg())
	}
	if l.define(s, o.depth, o.dst) {
		return
	}
	var x arg
	switch {
	case acc.kind == kCtx:
		x = l.field(acc)
	case o.sync && acc.kind != kStack && acc.kind != kText && !l.a.env.ownOf(acc.maps):
		p := l.place(o.src, int64(o.off), acc)
		t := l.fresh(c64)
		l.add(node{kind: nLoad, op: loadTypes[acc.size], mods: "acquire", sys: l.system(acc.maps), dst: t, guard: noReg, base: p.base, off: p.boff, maps: p.maps})
		x = t.arg()
	default:
		p := l.place(o.src, int64(o.off), acc)
		x = l.load(&p, 0, acc.size)
	}
	if o.signed {
		l.inst(map[int]string{1: "cvt.s64.s8", 2: "cvt.s64.s16", 4: "cvt.s64.s32"}[acc.size], dst, x)
		return
	}
	l.inst("mov.b64", dst, x)
}

// field returns a part of a field of the context.
func (l *lowering) field(acc *access) arg {
	c := l.a.env.Context
	i := c.field(int64(acc.off), acc.size)
	f := &c.Fields[i]
	x := l.shifted(l.inst64("mov.b64", arg{kind: aField, m: int32(i)}), -8*(acc.off-f.Offset))
	if acc.off+acc.size < f.Offset+f.Size {
		x = l.masked(x, acc.size)
	}
	return x
}

// spilled is the register with the offset of a pointer on the stack.
func (l *lowering) spilled(acc *access) reg {
	y := &l.layouts[acc.depth]
	r, ok := y.comps[acc.off]
	if !ok {
		r = l.fresh(c64)
		y.comps[acc.off] = r
	}
	return r
}

func (l *lowering) store1(o *op, acc *access) {
	v := l.a.operand(l.here, o)
	x := l.value(&v, o.depth, o.src)
	if acc.kind == kStack && (v.kind == kValue || v.kind == kRecord) {
		l.inst("mov.b64", l.spilled(acc), l.offset(&v, o.depth, o.src))
	}
	p := l.place(o.dst, int64(o.off), acc)
	if o.sync && acc.kind != kStack && !l.own(&p) {
		l.add(node{kind: nStore, op: loadTypes[acc.size], mods: "release", sys: l.system(acc.maps), dst: noReg, guard: noReg, base: p.base, off: p.boff, args: []arg{x}, maps: p.maps})
		return
	}
	l.store(&p, 0, acc.size, x)
}

// system reports whether one of the maps needs system scope.
func (l *lowering) system(maps []int32) bool {
	for _, m := range maps {
		if l.a.env.Maps[m].System {
			return true
		}
	}
	return false
}

var atomicNames = map[asm.AtomicOp]string{
	asm.AddAtomic: "add.u", asm.FetchAdd: "add.u", asm.AndAtomic: "and.b", asm.FetchAnd: "and.b",
	asm.OrAtomic: "or.b", asm.FetchOr: "or.b", asm.XorAtomic: "xor.b", asm.FetchXor: "xor.b",
	asm.Xchg: "exch.b", asm.CmpXchg: "cas.b",
}

// atomic lowers an atomic operation.
func (l *lowering) atomic(o *op, acc *access) {
	v, d := l.here.reg(o.depth, o.src), o.depth
	x := l.value(&v, d, o.src)
	args := []arg{x}
	if o.atomic == asm.CmpXchg {
		r0 := l.here.reg(d, 0)
		args = []arg{l.value(&r0, d, 0), x}
	}
	p := l.place(o.dst, int64(o.off), acc)
	dst, fetch := o.fetches()
	if acc.kind == kStack || l.own(&p) {
		old := l.plainAtomic(o, &p, args)
		if fetch {
			l.inst("mov.b64", l.regs[d][dst], old)
		}
		return
	}
	if acc.align < acc.size {
		l.checkAligned(&p, acc.size)
	}
	name, k := atomicNames[o.atomic]+"64", c64
	if acc.size <= 4 {
		name, k = atomicNames[o.atomic]+"32", c32
		for i := range args {
			args[i] = l.half(args[i])
		}
	}
	if acc.size < 4 {
		name = narrowOp + name + "." + strconv.Itoa(8*acc.size)
	}
	n := node{
		kind: nAtomic, op: name, mods: "relaxed", sys: l.system(acc.maps), guard: noReg, dst: noReg,
		base: p.base, off: p.boff, args: args, maps: acc.maps, lo: acc.lo, hi: acc.hi, bits: bits.Len64(v.n.umax),
	}
	// Who learns that it is the last thread of a block reads next what the others have left.
	_, block := l.a.env.blocks(acc.maps)
	if o.atomic == asm.Xchg || o.atomic == asm.CmpXchg || fetch && block {
		n.mods = "acq_rel"
	}
	if acc.kind == kRecord {
		n.maps = nil
	}
	old := l.fresh(k)
	n.dst = old
	l.add(n)
	switch {
	case fetch && k == c32:
		l.inst("cvt.u64.u32", l.regs[d][dst], old.arg())
	case fetch:
		l.inst("mov.b64", l.regs[d][dst], old.arg())
	}
}

// checkAligned ends the program if an atomic operation's address is no multiple
// of its size, on which the GPU would stop.
func (l *lowering) checkAligned(p *place, size int) {
	x := p.base
	if p.boff != 0 {
		x = l.inst64("add.s64", x, imm(uint64(p.boff)))
	}
	t, q := l.inst64("and.b64", x, imm(uint64(size-1))), l.fresh(cPred)
	l.inst("setp.ne.u64", q, t, imm(0))
	l.end(EndAlign, l.at, q)
}

// plainAtomic does an atomic operation on what is the thread's own, and returns what was there.
func (l *lowering) plainAtomic(o *op, p *place, args []arg) arg {
	size := int(o.size)
	old := l.inst64("mov.b64", l.load(p, 0, size)) // the store below may change it
	x := args[len(args)-1]
	switch o.atomic {
	case asm.AddAtomic, asm.FetchAdd:
		x = l.inst64("add.s64", old, x)
	case asm.AndAtomic, asm.FetchAnd:
		x = l.inst64("and.b64", old, x)
	case asm.OrAtomic, asm.FetchOr:
		x = l.inst64("or.b64", old, x)
	case asm.XorAtomic, asm.FetchXor:
		x = l.inst64("xor.b64", old, x)
	case asm.CmpXchg:
		q := l.fresh(cPred)
		l.inst("setp.eq.u64", q, old, l.masked(args[0], size))
		x = l.inst64("selp.b64", x, old, q.arg())
	}
	l.store(p, 0, size, x)
	return old
}

// helper lowers a helper's call.
func (l *lowering) helper(o *op, fx *effect) {
	c := &callNode{op: o, info: *fx.info(o)}
	for k := range o.helper.Args {
		a := &fx.args[k]
		r := uint8(k + 1)
		before := l.here.reg(o.depth, r)
		c.args[k] = callArg{spec: a.spec, n: before.n, bytes: a.bytes, known: a.known}
		out := &c.args[k]
		if before.kind == kScalar || (a.spec.Kind == ArgAny || a.spec.Kind == ArgShared) && before.kind == kValue && !l.a.env.ownOf(before.maps) {
			out.value = l.value(&before, o.depth, r)
		}
		if a.spec.Kind == ArgRecord {
			if a.acc.null {
				l.checkNull(&before, o.depth, r)
			}
			out.value = l.value(&before, o.depth, r)
			l.inst("mov.b64", l.recs[before.id], imm(0))
			out.value = l.regs[o.depth][r].arg()
			continue
		}
		if a.acc.size > 0 {
			l.check(r, 0, &a.acc)
			out.size, out.lo, out.hi, out.place = a.acc.size, a.acc.lo, a.acc.hi, l.place(r, 0, &a.acc)
			if out.place.kind == kText && out.place.fixed {
				out.place.off = a.acc.off
			}
		}
	}
	n := node{kind: nCall, dst: noReg, guard: noReg, call: c}
	r0 := l.regs[o.depth][0]
	switch o.helper.Ret {
	case RetScalar, RetValue, RetRecord:
		n.dst = r0
	}
	l.add(n)
	switch o.helper.Ret {
	case RetValue:
		l.inst("mov.b64", l.comps[o.depth][0], imm(0))
	case RetRecord:
		l.inst("mov.b64", l.comps[o.depth][0], imm(0))
		l.inst("mov.b64", l.recs[int32(l.at)+1], r0.arg())
	}
}
