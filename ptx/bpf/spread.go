package bpf

import (
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptx"
)

// spread finds the atomic additions in which the threads of a warp add the same number. The
// assembler makes one addition of those that it sees to be at one address, and of a number
// that it knows; where addresses can be different, and where it can't tell that the number is
// the same, as it comes from outside, there has to be code for that.
//
// That an address varies is a guess, and the code is right either way. That a number, or an
// address, is the same must be true of all threads of a warp that can be at the operation
// together; only of values by multiprocessor, which are added up, any will do.
func (l *lowering) spread() {
	if l.a.env.Elected || !slices.ContainsFunc(l.nodes, func(n node) bool { return n.adds() || n.kind == nOwn && !n.dead }) {
		return
	}
	l.varying(true, func(_ int, n *node, varies func(arg) bool) {
		switch {
		case n.adds():
			n.apart, n.sum = varies(n.base), varies(n.args[0])
		case n.kind == nOwn:
			n.apart = varies(n.args[0])
		}
	})
	l.varying(false, func(_ int, n *node, varies func(arg) bool) {
		if n.adds() {
			n.apart = n.apart && !varies(n.args[0])
			n.alike = !varies(n.base) && !varies(n.args[0])
		}
	})
}

// adds reports whether a node is an atomic addition whose result nobody reads.
func (n *node) adds() bool {
	return !n.dead && n.kind == nAtomic && n.dst == noReg && strings.HasPrefix(n.op, "add.")
}

// mostVarying bounds the memory of varying: registers times pieces of code.
const mostVarying = 1 << 22

// varying calls see for every node that is not dead, with its span and a function that says
// whether an operand may be different in the threads of a warp, and returns the spans. With at set, clocks count as the
// same: threads that read one together see the same, and the assembler builds on that.
// Code that is too long is not looked at; nil is returned then.
func (l *lowering) varying(at bool, see func(span int, n *node, varies func(arg) bool)) []span {
	return l.varyingIn(0, at, see)
}

// varyingIn is varying for the threads of a block or a grid.
func (l *lowering) varyingIn(extent Extent, at bool, see func(span int, n *node, varies func(arg) bool)) []span {
	spans, ok := splitNodes(l.nodes)
	if !ok || len(spans) == 0 {
		return nil
	}
	global, index := crossing(l.nodes, spans, &l.coder)
	if len(spans)*global > mostVarying {
		return nil
	}
	all := global
	for _, k := range index {
		all = max(all, k+1)
	}
	v := &varying{l: l, at: at, extent: extent, global: global, index: index, loops: looping(l.nodes, spans), now: newDefined(all)}
	v.run(spans)
	if v.parts { // and again, with what that means for the rest
		v.parted = true
		v.run(spans)
	}
	for i := range spans {
		if v.in[i].reg == nil {
			continue
		}
		v.walk(&spans[i], i, see)
	}
	return spans
}

// defined is where registers got what they hold, and which may vary.
type defined struct {
	reg  []int32 // the node; of a register that has one thing or another, less than 0
	vary []bool
}

func newDefined(n int) defined { return defined{make([]int32, n), make([]bool, n)} }

// varying is the registers that may be different in the threads of a warp.
type varying struct {
	l      *lowering
	at     bool
	extent Extent // the threads of a block or a grid are meant, not those of a warp
	global int
	index  map[reg]int
	loops  []bool // by span: it is part of a loop
	in     []defined
	now    defined
	parts  bool // some branch parts threads
	parted bool
}

// run follows the code until nothing changes.
func (v *varying) run(spans []span) {
	v.in = make([]defined, len(spans))
	v.in[0] = newDefined(v.global)
	todo := []int{0}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		v.walk(&spans[i], i, nil)
		for _, t := range spans[i].succ {
			if v.join(t) {
				todo = append(todo, t)
			}
		}
	}
}

// join brings what is known now to the beginning of span t, and reports whether
// something new is known there.
func (v *varying) join(t int) bool {
	in := &v.in[t]
	if in.reg == nil {
		*in = defined{slices.Clone(v.now.reg[:v.global]), slices.Clone(v.now.vary[:v.global])}
		return true
	}
	changed := false
	for r := range v.global {
		def, vary := in.reg[r], in.vary[r] || v.now.vary[r]
		if def != v.now.reg[r] {
			// Which of the two it is, is up to the way that a thread took.
			def, vary = int32(-1-t), vary || v.parted
		}
		if def != in.reg[r] || vary != in.vary[r] {
			in.reg[r], in.vary[r], changed = def, vary, true
		}
	}
	return changed
}

// walk follows span i.
func (v *varying) walk(s *span, i int, see func(span int, n *node, varies func(arg) bool)) {
	clear(v.now.reg)
	clear(v.now.vary)
	copy(v.now.reg, v.in[i].reg)
	copy(v.now.vary, v.in[i].vary)
	for k := s.from; k < s.to; k++ {
		n := &v.l.nodes[k]
		if n.dead {
			continue
		}
		if see != nil {
			see(i, n, v.arg)
		}
		differs := v.node(n) || v.parted && v.loops[i] // threads leave a loop with what it was then
		n.sets(&v.l.coder, func(r reg) {
			v.now.reg[v.index[r]], v.now.vary[v.index[r]] = int32(k+1), differs
		})
	}
}

// looping says of each span whether it lies between a label and a branch back to it.
func looping(nodes []node, spans []span) []bool {
	in := make([]bool, len(spans))
	for i := range spans {
		for _, t := range spans[i].succ {
			for k := t; k <= i; k++ {
				in[k] = true
			}
		}
	}
	return in
}

// arg reports whether an operand varies.
func (v *varying) arg(x arg) bool {
	switch x.kind {
	case aReg:
		return v.now.vary[v.index[x.r]]
	case aField:
		f := &v.l.a.env.Context.Fields[x.m]
		if v.extent > 0 {
			return f.Alike < v.extent
		}
		return !f.Uniform && !(v.at && f.Clock)
	case aText:
		return false
	case aOwn:
		return v.extent > 0 || !(v.at && v.l.a.env.Maps[x.m].Together)
	}
	return false
}

// node reports whether what a node writes varies.
func (v *varying) node(n *node) bool {
	if n.kind == nBranch && n.guard != noReg && v.now.vary[v.index[n.guard]] {
		v.parts = true
	}
	if n.call != nil {
		return v.call(n)
	}
	if n.kind == nLoad || n.kind == nLocal || n.kind == nAtomic {
		return true
	}
	return slices.ContainsFunc(n.args, v.arg)
}

// call reports whether what a helper gives varies.
func (v *varying) call(n *node) bool {
	c := n.call
	if c.op.helper.Common && n.label == 0 {
		return v.extent > 0
	}
	switch h := c.op.helper; {
	case n.label > 0:
		return true
	case v.extent > 0 && (h.Ret != RetValue || h.Slot):
		if h.Alike < v.extent {
			return true
		}
	case h.Uniform == nil || !h.Uniform(&c.info):
		return true
	}
	for k := range c.args {
		a := &c.args[k]
		if a.spec == nil {
			continue
		}
		differs := v.arg(a.value)
		if a.size > 0 && !a.known {
			differs = differs || a.place.kind != kStack || !a.place.fixed
			v.l.touched(a, func(r reg) { differs = differs || v.now.vary[v.index[r]] })
		}
		if differs {
			return true
		}
	}
	return false
}

// peers is how the threads that are at an atomic operation together are grouped by
// its address.
type peers struct {
	base  arg
	first ptx.Arg // the first of its group
	count ptx.Arg // threads of the group, 32 bits
}

// pieceBits is how many bits of a number 32 threads can add up in 32.
const pieceBits = 27

// sum writes an atomic addition of numbers that are different: where all threads that are
// there add to the same address, they add their numbers up first, in pieces, and one of
// them makes the addition. mods end with the state space. It reports whether the target can do that.
func (g *Gen) sum(n *node, at, value ptx.Arg, mods string) bool {
	if g.site.ToolsPatch || !ptx.Needs("redux.sync.add.u32").Met(g.site.Version, g.site.Target) || !ptx.Needs("match.all.sync.b64").Met(g.site.Version, g.site.Target) {
		return false
	}
	g.last = nil
	wide := strings.HasSuffix(n.op, "64")
	all, same, p, q := g.Reg(ptx.B32), g.Reg(ptx.B32), g.Reg(ptx.Pred), g.Reg(ptx.Pred)
	alone, end := g.Label(), g.Label()
	g.Line("activemask.b32 " + all.String() + ";")
	g.Line("match.all.sync.b64 " + same.String() + "|" + p.String() + ", " + g.operand(n.base).String() + ", " + all.String() + ";")
	g.OnNot(p).Bra(alone)
	total := g.Reg(ptx.B32)
	if wide {
		total = g.Reg(ptx.B64)
		g.Line("mov.b64 " + total.String() + ", 0;")
	}
	for from := 0; wide && from < n.bits; from += pieceBits {
		piece, part, w := g.Reg(ptx.B64), g.Reg(ptx.B32), g.Reg(ptx.B64)
		g.Line("shr.u64 " + piece.String() + ", " + value.String() + ", " + strconv.Itoa(from) + ";")
		g.Line("cvt.u32.u64 " + part.String() + ", " + piece.String() + ";")
		g.Line("and.b32 " + part.String() + ", " + part.String() + ", " + strconv.Itoa(1<<pieceBits-1) + ";")
		g.Line("redux.sync.add.u32 " + part.String() + ", " + part.String() + ", " + all.String() + ";")
		g.Line("cvt.u64.u32 " + w.String() + ", " + part.String() + ";")
		g.Line("shl.b64 " + w.String() + ", " + w.String() + ", " + strconv.Itoa(from) + ";")
		g.Line("add.s64 " + total.String() + ", " + total.String() + ", " + w.String() + ";")
	}
	if !wide {
		g.Line("redux.sync.add.u32 " + total.String() + ", " + value.String() + ", " + all.String() + ";")
	}
	g.Line("mov.u32 " + same.String() + ", %lanemask_lt;")
	g.Line("and.b32 " + same.String() + ", " + same.String() + ", " + all.String() + ";")
	g.Line("setp.eq.u32 " + q.String() + ", " + same.String() + ", 0;")
	g.Line("@" + q.String() + " red" + mods + "." + n.op + " " + at.String() + ", " + total.String() + ";")
	g.Bra(end)
	g.Builder.Label(alone)
	g.Line("red" + mods + "." + n.op + " " + at.String() + ", " + value.String() + ";")
	g.Builder.Label(end)
	return true
}

// together writes an atomic addition that one thread makes for all of its warp that
// add the same number to the same address; mods are as for sum. It reports whether the target can do that. Threads that
// are not there are not waited for.
func (g *Gen) together(n *node, at, value ptx.Arg, mods string) bool {
	if g.site.Alone() {
		return false
	}
	p := g.last
	if p == nil || p.base != n.base {
		p = &peers{base: n.base, first: g.Reg(ptx.Pred), count: g.Reg(ptx.B32)}
		all, same, before := g.Reg(ptx.B32), g.Reg(ptx.B32), g.Reg(ptx.B32)
		g.Line("activemask.b32 " + all.String() + ";")
		if n.alike {
			same = all
		} else {
			g.Line("match.any.sync.b64 " + same.String() + ", " + g.operand(n.base).String() + ", " + all.String() + ";")
		}
		g.Line("mov.u32 " + before.String() + ", %lanemask_lt;")
		g.Line("and.b32 " + before.String() + ", " + before.String() + ", " + same.String() + ";")
		g.Line("setp.eq.u32 " + p.first.String() + ", " + before.String() + ", 0;")
		g.Line("popc.b32 " + p.count.String() + ", " + same.String() + ";")
		g.last = p
	}
	sum, wide := p.count, strings.HasSuffix(n.op, "64")
	switch once := value.String() == "1"; {
	case once && wide:
		sum = g.Reg(ptx.B64)
		g.Line("cvt.u64.u32 " + sum.String() + ", " + p.count.String() + ";")
	case once:
	case wide && n.bits <= 32:
		low := g.Reg(ptx.B32)
		sum = g.Reg(ptx.B64)
		g.Line("cvt.u32.u64 " + low.String() + ", " + value.String() + ";")
		g.Line("mul.wide.u32 " + sum.String() + ", " + p.count.String() + ", " + low.String() + ";")
	case wide:
		sum = g.Reg(ptx.B64)
		g.Line("cvt.u64.u32 " + sum.String() + ", " + p.count.String() + ";")
		g.Line("mul.lo.u64 " + sum.String() + ", " + sum.String() + ", " + value.String() + ";")
	default:
		sum = g.Reg(ptx.B32)
		g.Line("mul.lo.u32 " + sum.String() + ", " + p.count.String() + ", " + value.String() + ";")
	}
	g.Line("@" + p.first.String() + " red" + mods + "." + n.op + " " + at.String() + ", " + sum.String() + ";")
	return true
}
