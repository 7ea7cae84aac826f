package bpf

import (
	"strings"

	"nvtrace/ptx"
)

// spread finds the atomic additions whose addresses can be different in the threads of
// a warp while all add the same number. The assembler makes one addition of those
// that it sees to be at one address; these need code for that.
//
// That an address varies is a guess, and the code is right either way. That a number is
// the same must be true of all threads of a warp that can be at the operation together.
func (l *lowering) spread() {
	v := varying{l: l, regs: map[reg]bool{}, sets: map[reg]int{}}
	for i := range l.nodes {
		if n := &l.nodes[i]; !n.dead {
			n.sets(&l.coder, func(r reg) { v.sets[r]++ })
		}
	}
	for v.grown = true; v.grown; {
		v.grown = false
		for i := range l.nodes {
			if n := &l.nodes[i]; !n.dead {
				v.node(n)
			}
		}
	}
	for i := range l.nodes {
		n := &l.nodes[i]
		if n.kind == nAtomic && n.dst == noReg && strings.HasPrefix(n.op, "add.") {
			n.apart = v.arg(n.base) && !v.arg(n.args[0])
		}
	}
}

// varying is the registers that may be different in the threads of a warp.
type varying struct {
	l     *lowering
	regs  map[reg]bool
	sets  map[reg]int // places where a register is written
	parts bool        // some branch parts threads
	grown bool
}

func (v *varying) add(r reg) {
	if !v.regs[r] {
		v.regs[r], v.grown = true, true
	}
}

// arg reports whether an operand varies.
func (v *varying) arg(x arg) bool {
	switch x.kind {
	case aReg:
		return v.regs[x.r]
	case aField:
		return !v.l.a.env.Context.Fields[x.m].Uniform
	case aOwn:
		return true
	}
	return false
}

// node follows one node.
func (v *varying) node(n *node) {
	differs := n.kind == nLoad || n.kind == nLocal || n.kind == nAtomic
	for _, x := range n.args {
		differs = differs || v.arg(x)
	}
	if n.call != nil {
		differs = v.call(n)
	}
	if n.kind == nBranch && n.guard != noReg && v.regs[n.guard] && !v.parts {
		v.parts, v.grown = true, true
	}
	n.sets(&v.l.coder, func(r reg) {
		// Which of several values it has is up to the way that a thread took.
		if differs || v.parts && v.sets[r] > 1 {
			v.add(r)
		}
	})
}

// call reports whether what a helper gives varies.
func (v *varying) call(n *node) bool {
	c := n.call
	if h := c.op.helper; n.label > 0 || h.Uniform == nil || !h.Uniform(&c.info) {
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
			v.l.touched(a, func(r reg) { differs = differs || v.regs[r] })
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

// together writes an atomic addition that one thread makes for all of its warp that
// add to the same address. It reports whether the target can do that. Threads that
// are not there are not waited for.
func (g *Gen) together(n *node, at, value ptx.Arg, mods string) bool {
	if !ptx.Needs("match.any.sync.b64").Met(g.site.Version, g.site.Target) || !ptx.Needs("activemask.b32").Met(g.site.Version, g.site.Target) {
		return false
	}
	p := g.last
	if p == nil || p.base != n.base {
		p = &peers{base: n.base, first: g.Reg(ptx.Pred), count: g.Reg(ptx.B32)}
		all, same, before := g.Reg(ptx.B32), g.Reg(ptx.B32), g.Reg(ptx.B32)
		g.Line("activemask.b32 " + all.String() + ";")
		g.Line("match.any.sync.b64 " + same.String() + ", " + g.operand(n.base).String() + ", " + all.String() + ";")
		g.Line("mov.u32 " + before.String() + ", %lanemask_lt;")
		g.Line("and.b32 " + before.String() + ", " + before.String() + ", " + same.String() + ";")
		g.Line("setp.eq.u32 " + p.first.String() + ", " + before.String() + ", 0;")
		g.Line("popc.b32 " + p.count.String() + ", " + same.String() + ";")
		g.last = p
	}
	sum := p.count
	if strings.HasSuffix(n.op, "64") {
		sum = g.Reg(ptx.B64)
		g.Line("cvt.u64.u32 " + sum.String() + ", " + p.count.String() + ";")
	}
	if value.String() != "1" {
		product := g.Reg(ptx.B64)
		op := "mul.lo.u64 "
		if strings.HasSuffix(n.op, "32") {
			product, op = g.Reg(ptx.B32), "mul.lo.u32 "
		}
		g.Line(op + product.String() + ", " + sum.String() + ", " + value.String() + ";")
		sum = product
	}
	g.Line("@" + p.first.String() + " red" + mods + ".global." + n.op + " " + at.String() + ", " + sum.String() + ";")
	return true
}
