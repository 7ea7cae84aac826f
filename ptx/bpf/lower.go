package bpf

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// lower compiles the analysed program.
func lower(a *analysis) *lowering {
	l := &lowering{a: a, fields: map[int]bool{}, recs: map[int32]reg{}}
	l.layouts, l.maps = new([MaxCallDepth]layout), a.env.Maps
	l.add = func(n node) { l.nodes = append(l.nodes, n) }
	for d := range l.regs {
		for r := range l.regs[d] {
			l.regs[d][r], l.comps[d][r] = l.fresh(c64), l.fresh(c64)
		}
	}
	l.fuel, l.why = l.fresh(c32), l.fresh(c32)
	l.plan()
	l.prologue()
	for b := range a.cfg.blocks {
		l.block(b)
	}
	for k := range l.ends {
		l.label(labelEnd - k)
		l.inst("mov.u32", l.why, imm(uint64(k)))
		l.branch(labelFail, noReg, false)
	}
	l.label(labelFail)
	if l.fails {
		l.nodes[len(l.nodes)-1].args = []arg{l.why.arg()} // Site.Failed may read it
		for _, id := range l.recOf {
			l.release(id)
		}
	}
	l.label(labelDone)
	l.slots()
	sweep(l.nodes, &l.coder)
	l.once()
	l.spread()
	return l
}

// plan finds out how the stack is used, and which records there are.
func (l *lowering) plan() {
	a := l.a
	var accesses [MaxCallDepth][][2]int
	note := func(acc *access, cut bool) {
		if acc.kind != kStack || acc.size == 0 {
			return
		}
		y := &l.layouts[acc.depth]
		if acc.fixed {
			y.touch(acc.off, acc.size, cut)
			accesses[acc.depth] = append(accesses[acc.depth], [2]int{acc.off, acc.size})
		} else {
			y.spread(acc.lo, acc.hi)
		}
	}
	var fx effect
	for i, s := range a.states() {
		l.a.replay(s, i, &fx)
		o := &a.ops[i]
		note(&fx.acc, true)
		for k := range fx.args {
			note(&fx.args[k].acc, false)
		}
		if o.kind == opHelper && o.helper.Ret == RetRecord {
			l.recs[int32(i)+1] = l.fresh(c64)
		}
		if o.kind == opLoad && fx.acc.kind == kCtx {
			l.fields[a.env.Context.field(int64(fx.acc.off), fx.acc.size)] = true
		}
	}
	l.recOf = slices.Sorted(maps.Keys(l.recs))
	for d := range l.layouts {
		l.layouts[d].comps = map[int]reg{}
		l.layouts[d].chooseRegisters(accesses[d], func() reg { return l.fresh(c64) })
	}
}

func (l *lowering) label(n int) {
	l.add(node{kind: nLabel, label: n, dst: noReg, guard: noReg})
}

func (l *lowering) branch(label int, guard reg, neg bool) {
	l.fails = l.fails || label <= labelEnd
	l.add(node{kind: nBranch, label: label, guard: guard, neg: neg, dst: noReg})
}

// end ends the run, where guard is set, for a reason that op at has.
func (l *lowering) end(kind EndKind, at int, guard reg) {
	e := End{Kind: kind, Insn: l.a.ops[at].at}
	e.Source, e.Position = l.a.p.source(e.Insn)
	k := slices.Index(l.ends, e)
	if k < 0 {
		k = len(l.ends)
		l.ends = append(l.ends, e)
	}
	l.branch(labelEnd-k, guard, false)
	if kind != EndLoop {
		l.report.Checks++
	}
}

// takeFuel takes what loop i executes in a round, none for -1, and sets p where there
// is not enough.
func (l *lowering) takeFuel(i int) (p reg, take func()) {
	cost := uint64(1)
	if i >= 0 {
		cost = min(max(l.a.cfg.loops[i].cost, 1), math.MaxUint32)
	}
	p = l.fresh(cPred)
	l.inst("setp.lt.u32", p, l.fuel.arg(), imm(cost))
	return p, func() { l.inst("sub.u32", l.fuel, l.fuel.arg(), imm(cost)) }
}

// prologue sets what must have a value before it is read.
func (l *lowering) prologue() {
	l.clearStack(0)
	for _, id := range l.recOf {
		l.inst("mov.b64", l.recs[id], imm(0))
	}
	may := slices.ContainsFunc(l.a.ops, func(o op) bool { return o.kind == opMay })
	for i := range l.a.cfg.loops {
		may = may || l.fueled(i)
	}
	if may {
		l.inst("mov.u32", l.fuel, imm(uint64(l.a.left)))
	}
}

// fueled reports whether loop i takes fuel.
func (l *lowering) fueled(i int) bool {
	lp := &l.a.cfg.loops[i]
	return lp.counted && l.a.in[lp.head] != nil
}

// clearStack makes the stack at depth d read as 0.
func (l *lowering) clearStack(d int) {
	y := &l.layouts[d]
	for i := range y.atoms {
		l.inst("mov.b64", y.atoms[i].reg, imm(0))
	}
	for off := y.lo; off < y.hi; off += 8 {
		l.add(node{kind: nLocal, op: "u64", dst: noReg, guard: noReg, base: arg{kind: aLocal, m: int32(d)}, off: int64(off - y.lo), args: []arg{imm(0)}})
	}
}

// block lowers block b.
func (l *lowering) block(b int) {
	a := l.a
	if a.in[b] == nil {
		return
	}
	blk := &a.cfg.blocks[b]
	l.label(b)
	for i := range a.cfg.loops {
		if a.cfg.loops[i].head == b && l.fueled(i) && !a.cfg.loops[i].may {
			p, take := l.takeFuel(i)
			l.end(EndLoop, blk.first, p)
			take()
		}
	}
	s := a.in[b].clone()
	for i := blk.first; i <= blk.last; i++ {
		l.at = i
		l.op(s)
	}
	l.report.Insns += blk.last - blk.first + 1
	switch a.ops[blk.last].kind {
	case opJump, opGoto, opMay, opExit, opLeave:
	default:
		if len(blk.succ) == 1 {
			l.goTo(b, blk.succ[0])
		}
	}
}

// goTo branches to block t unless it is the next that is lowered.
func (l *lowering) goTo(b, t int) {
	if !l.a.follows(b, t) {
		l.branch(t, noReg, false)
	}
}

// op lowers op l.at, in front of which s holds, and moves s behind it.
func (l *lowering) op(s *state) {
	o := &l.a.ops[l.at]
	l.here = &state{frames: slices.Clone(s.frames)} // its registers are looked at, not its cells
	var fx effect
	l.a.replay(s, l.at, &fx)
	d := o.depth
	b := l.a.cfg.of[l.at]
	switch o.kind {
	case opConst, opMap:
		l.define(s, d, o.dst)
	case opDirect:
		l.define(s, d, o.dst)
		l.inst("mov.b64", l.comps[d][o.dst], imm(uint64(o.imm)))
	case opALU:
		l.alu(s, o, &fx)
	case opLoad:
		l.load1(s, o, &fx)
	case opStore:
		l.check(o.dst, int64(o.off), &fx.acc)
		l.store1(o, &fx.acc)
	case opAtomic:
		l.check(o.dst, int64(o.off), &fx.acc)
		l.atomic(o, &fx.acc)
	case opHelper:
		l.helper(o, &fx)
	case opEnter:
		for r := uint8(1); r <= 5; r++ {
			l.copyReg(d, r, d+1, r)
		}
		l.clearStack(int(d) + 1)
	case opLeave:
		if v := l.here.reg(d, 0); v.kind != kNone {
			l.copyReg(d, 0, d-1, 0)
		}
		l.goTo(b, l.a.cfg.of[o.target])
	case opExit:
		l.exit(o)
	case opGoto:
		l.goTo(b, l.a.cfg.of[o.target])
	case opJump, opMay:
		l.jump(s, o, b)
	}
}

// exit ends the program.
func (l *lowering) exit(o *op) {
	r0 := imm(0)
	switch v := l.here.reg(o.depth, 0); v.kind {
	case kScalar:
		r0 = l.value(&v, o.depth, 0)
	case kNone, kMixed:
		l.vague = true
	}
	l.add(node{kind: nResult, dst: noReg, guard: noReg, args: []arg{r0}})
	l.branch(labelDone, noReg, false)
}

// copyReg copies a register and the offset of the pointer in it.
func (l *lowering) copyReg(fromD int8, from uint8, toD int8, to uint8) {
	v := l.here.reg(fromD, from)
	if v.kind == kNone {
		return
	}
	l.inst("mov.b64", l.regs[toD][to], l.value(&v, fromD, from))
	if v.kind == kValue || v.kind == kRecord {
		l.inst("mov.b64", l.comps[toD][to], l.offset(&v, fromD, from))
	}
}

// value returns the run-time value of register r, which holds v.
func (l *lowering) value(v *val, d int8, r uint8) arg {
	if x, ok := constant(v); ok {
		return x
	}
	return l.regs[d][r].arg()
}

// constant returns the operand for v if its run-time value is the same on every
// path.
func constant(v *val) (arg, bool) {
	switch v.kind {
	case kScalar, kCtx, kText, kStack:
		if v.n.isConst() {
			return imm(v.n.umin), true
		}
	case kMap, kNone:
		return imm(0), true
	case kValue:
		if v.direct && v.n.isConst() && !v.null {
			return arg{kind: aMap, m: v.maps[0], v: int64(v.n.umin)}, true
		}
	}
	return arg{}, false
}

// offset returns the offset of the pointer v in register r from its object.
func (l *lowering) offset(v *val, d int8, r uint8) arg {
	switch {
	case v.n.isConst():
		return imm(v.n.umin)
	case v.kind == kValue || v.kind == kRecord:
		return l.comps[d][r].arg()
	}
	return l.regs[d][r].arg()
}

// define sets register r to what s knows it to be, if that is one value.
func (l *lowering) define(s *state, d int8, r uint8) bool {
	v := s.reg(d, r)
	x, ok := constant(&v)
	if ok {
		l.inst("mov.b64", l.regs[d][r], x)
	}
	return ok
}

// check writes the tests that an access behind register r needs.
func (l *lowering) check(r uint8, off int64, acc *access) {
	d := l.a.ops[l.at].depth
	v := l.here.reg(d, r)
	if acc.null {
		l.checkNull(&v, d, r)
	}
	if !acc.bound {
		return
	}
	x := l.offset(&v, d, r)
	if off != 0 {
		x = l.inst64("add.s64", x, imm(uint64(off)))
	}
	p := l.fresh(cPred)
	l.inst("setp.gt.u64", p, x, imm(uint64(acc.object-acc.size)))
	l.end(EndBound, l.at, p)
}

func (l *lowering) checkNull(v *val, d int8, r uint8) {
	p := l.fresh(cPred)
	l.inst("setp.eq.u64", p, l.value(v, d, r), imm(0))
	l.end(EndNull, l.at, p)
}

// release gives record id back if it is held, at the program's early end.
func (l *lowering) release(id int32) {
	l.add(node{kind: nCall, dst: noReg, guard: noReg, call: &callNode{op: &l.a.ops[id-1], args: [5]callArg{{
		spec: &ArgSpec{Kind: ArgRecord}, value: l.recs[id].arg(),
	}}}, label: int(id)})
}

// jump lowers a conditional jump or may_goto.
func (l *lowering) jump(s *state, o *op, b int) {
	taken, next := l.a.cfg.blocks[b].succ[0], l.a.cfg.blocks[b].succ[1]
	if o.kind == opMay {
		loop := l.a.cfg.blocks[b].loop
		if loop >= 0 && !l.a.cfg.loops[loop].may {
			loop = -1 // its head takes the fuel
		}
		p, take := l.takeFuel(loop)
		l.branch(taken, p, false)
		take()
		l.goTo(b, next)
		return
	}
	p := l.fresh(cPred)
	t, n, err := l.a.branch(s.clone(), l.at)
	switch {
	case err != nil:
		panic("BUG: a branch that the analysis took fails: " + err.Error())
	case t == nil && n == nil:
		l.branch(labelDone, noReg, false) // no value comes here
	case t == nil:
		l.goTo(b, next)
	case n == nil:
		l.goTo(b, taken)
	default:
		l.report.Branches++
		l.condition(p, o)
		l.branch(taken, p, false)
		l.goTo(b, next)
	}
}

var setps = map[asm.JumpOp]string{
	asm.JEq: "eq.u", asm.JNE: "ne.u", asm.JGT: "gt.u", asm.JGE: "ge.u", asm.JLT: "lt.u", asm.JLE: "le.u",
	asm.JSGT: "gt.s", asm.JSGE: "ge.s", asm.JSLT: "lt.s", asm.JSLE: "le.s", asm.JSet: "ne.u",
}

// condition sets p to whether the jump is taken.
func (l *lowering) condition(p reg, o *op) {
	x := l.here.reg(o.depth, o.dst)
	y := l.a.operand(l.here, o)
	xa, ya := l.value(&x, o.depth, o.dst), l.value(&y, o.depth, o.src)
	bits := "64"
	if o.w32 {
		xa, ya, bits = l.half(xa), l.half(ya), "32"
	} else if xa.kind != aReg { // two constants, or the address of a variable
		xa = l.inst64("mov.b64", xa)
	}
	if ya.kind == aMap {
		ya = l.inst64("mov.b64", ya)
	}
	if o.jump == asm.JSet {
		t := l.fresh(c64)
		if o.w32 {
			t = l.fresh(c32)
		}
		l.inst("and.b"+bits, t, xa, ya)
		xa, ya = t.arg(), imm(0)
	}
	cmp := setps[o.jump]
	if x.kind == kCtx || x.kind == kText || x.kind == kStack { // offsets, which may be negative
		cmp = strings.Replace(cmp, ".u", ".s", 1)
	}
	l.inst("setp."+cmp+bits, p, xa, ya)
}

// half returns the low half of x as a 32-bit operand.
func (l *lowering) half(x arg) arg {
	if x.kind == aImm {
		return imm(uint64(int64(int32(x.v))))
	}
	t := l.fresh(c32)
	l.inst("cvt.u32.u64", t, x)
	return t.arg()
}
