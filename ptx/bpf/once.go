package bpf

import (
	"strings"

	"nvtrace/ptx"
)

// An Extent says how many threads are meant.
type Extent uint8

// The extents.
const (
	OfThread Extent = iota
	OfBlock
	OfGrid
)

// once finds out whether the program does the same in all threads of a block, or a grid, and nothing that to do
// again would change, but for additions without a look at the result: then one thread can run it for all, if it adds as
// many times as much. A map whose values are shown for each multiprocessor shows where it ran.
func (l *lowering) once() {
	if l.fails || l.a.env.Elected {
		return
	}
	for _, extent := range []Extent{OfGrid, OfBlock} {
		same, effects := true, false
		spans := l.varyingIn(extent, false, func(_ int, n *node, varies func(arg) bool) {
			ok, effect := l.alike(n, extent, varies)
			same, effects = same && ok, effects || effect
		})
		if spans != nil && same && effects {
			l.report.Once = extent
			return
		}
	}
}

// alike reports whether a node does the same in some threads, and whether it does anything that is seen.
func (l *lowering) alike(n *node, extent Extent, varies func(arg) bool) (ok, effect bool) {
	for _, m := range n.maps {
		if e := &l.a.env.Maps[m]; e.Each || e.Block || e.Thread {
			return false, false
		}
	}
	switch n.kind {
	case nBranch:
		return n.guard == noReg || !varies(n.guard.arg()), false
	case nStore, nOwn:
		return false, true
	case nAtomic:
		if !n.adds() && !(n.dst == noReg && strings.HasPrefix(n.op, "or.b")) {
			return false, true
		}
		return !varies(n.base) && !varies(n.args[0]), true
	case nCall:
		h := n.call.op.helper
		if n.label > 0 || h.Ret == RetNever || h.Collective || !h.Pure && !h.Repeats {
			return false, true
		}
		if h.Pure && !h.Repeats {
			return true, false
		}
		for k := range n.call.args {
			a := &n.call.args[k]
			if a.spec == nil {
				continue
			}
			differs := varies(a.value)
			if a.size > 0 && !a.known {
				switch {
				case a.spec.Kind == ArgWrite:
					differs = false
				case a.place.kind == kStack && a.place.fixed:
					l.touched(a, func(r reg) { differs = differs || varies(r.arg()) })
				default:
					differs = differs || a.place.base.kind != aImm && varies(a.place.base)
				}
			}
			for _, m := range a.place.maps {
				if e := &l.a.env.Maps[m]; e.Each || e.Block || e.Thread {
					differs = true
				}
			}
			if differs {
				return false, true
			}
		}
		return true, h.Ret == RetVoid || h.Slot
	}
	return true, false
}

// once writes what keeps all threads but one from running the program, and how many these are.
func (g *Gen) once() {
	if g.site.Once == OfThread {
		return
	}
	// Few registers: how many a kernel has can decide how many of its blocks fit on a GPU.
	x, y := g.Reg(ptx.B32), g.Reg(ptx.B32)
	special := func(r ptx.Arg, name string) { g.Mov(ptx.U32, r, ptx.Name(name)) }
	place := []string{"%tid.x", "%tid.y", "%tid.z"}
	if g.site.Once == OfGrid { // most blocks are none that has anything to do
		place = append([]string{"%ctaid.x", "%ctaid.y", "%ctaid.z"}, place...)
	}
	other := g.Reg(ptx.Pred)
	for len(place) > 0 {
		special(x, place[0])
		for _, name := range place[1:3] {
			special(y, name)
			g.Or(ptx.B32, x, x, y)
		}
		g.Setp("ne", ptx.U32, other, x, ptx.Imm(0))
		g.On(other).Bra(g.labelName(labelDone))
		place = place[3:]
	}
	wide := g.Reg(ptx.B64)
	product := func(name string) ptx.Arg {
		p := g.Reg(ptx.B64)
		special(x, name+".x")
		special(y, name+".y")
		g.Line("mul.wide.u32 " + p.String() + ", " + x.String() + ", " + y.String() + ";")
		special(x, name+".z")
		g.Line("cvt.u64.u32 " + wide.String() + ", " + x.String() + ";")
		g.Line("mul.lo.u64 " + p.String() + ", " + p.String() + ", " + wide.String() + ";")
		return p
	}
	g.times = product("%ntid")
	if g.site.Once == OfGrid {
		g.Line("mul.lo.u64 " + g.times.String() + ", " + g.times.String() + ", " + product("%nctaid").String() + ";")
	}
}

// addTimes writes an addition for all threads that the program runs for.
func (g *Gen) addTimes(n *node, value ptx.Arg, mods string) {
	space, at := g.shared(n)
	sum, times := g.Reg(ptx.B64), g.times
	switch wide := strings.HasSuffix(n.op, "64"); {
	case value.String() == "1" && wide:
		sum = times
	case wide:
		g.Line("mul.lo.u64 " + sum.String() + ", " + times.String() + ", " + value.String() + ";")
	default:
		low := g.Reg(ptx.B32)
		g.Line("cvt.u32.u64 " + low.String() + ", " + times.String() + ";")
		sum = g.Reg(ptx.B32)
		g.Line("mul.lo.u32 " + sum.String() + ", " + low.String() + ", " + value.String() + ";")
	}
	g.Line("red" + mods + space + "." + n.op + " " + at.String() + ", " + sum.String() + ";")
}
