package emu

import (
	"math/bits"

	"nvtrace/ptx"
)

func barrierBuilders() map[string]builder {
	return map[string]builder{"bar": buildBarrier, "barrier": buildBarrier}
}

// buildBarrier compiles bar, barrier and barrier.cluster.
func buildBarrier(x *insn) error {
	x.ignore(".aligned", ".cta")
	switch {
	case x.take(".warp"):
		return buildBarWarp(x)
	case x.take(".cluster"):
		return buildBarCluster(x)
	}
	mode := x.takeOne(".sync", ".arrive", ".red")
	b := &barInst{wait: mode != ".arrive", id: x.constant(0), count: x.constant(0), q: -1}
	args := x.args
	switch mode {
	case ".red":
		if err := x.barRed(b, &args); err != nil {
			return err
		}
	case "":
		return x.badType()
	}
	if len(args) == 0 || len(args) > 2 {
		return x.nargs(1, 2)
	}
	var err error
	if b.id, err = x.src(&args[0], ptx.B32); err != nil {
		return err
	}
	if len(args) == 2 {
		if b.count, err = x.src(&args[1], ptx.B32); err != nil {
			return err
		}
	}
	return x.control(b.control)
}

// barRed reads the operator, destination and predicate of bar.red; args keeps
// the barrier and the count.
func (x *insn) barRed(b *barInst, args *[]ptx.Operand) (err error) {
	b.red = &barRed{op: x.takeOne(".popc", ".and", ".or"), d: -1, p: -1}
	if len(x.args) < 3 {
		return x.nargs(3, 4)
	}
	if b.red.op == ".popc" {
		b.red.d, _, err = x.dst(&x.args[0])
	} else {
		b.red.p, err = x.predDst(&x.args[0])
	}
	if err != nil {
		return err
	}
	last := len(x.args) - 1
	*args = x.args[1:last]
	b.q, b.not, err = x.pred(&x.args[last])
	return err
}

// A barInst is a compiled bar or barrier instruction.
type barInst struct {
	wait      bool
	id, count int32
	red       *barRed
	q         int32 // predicate of a reduction
	not       bool
}

// control lets the lanes arrive, and wait if they must.
func (b *barInst) control(w *warp, active, m uint32) bool {
	if m == 0 {
		w.setPC(w.pc + 1)
		return true
	}
	ids := w.src(b.id)
	i := firstLane(m)
	id, count := int(uint32(ids[i])), int(uint32(w.src(b.count)[i]))
	same := m
	if b.id >= 0 {
		same = sameLanes(ids, ids[i], m)
	}
	if id >= numBarriers || id < 0 {
		w.fail(i, errf(ErrInvalid, "barrier %d, a block has %d", id, numBarriers))
		return false
	}
	bar := &w.block.bars[id]
	bar.used = true
	bar.arrived[w.index] |= same
	bar.expected = max(bar.expected, count)
	if b.red != nil {
		v := w.preds[b.q]
		if b.not {
			v = ^v
		}
		bar.ones += bits.OnesCount32(v & same)
		bar.lanes += bits.OnesCount32(same)
	}
	w.park(active, m, same)
	if b.wait {
		g := &w.groups[w.cur]
		g.state, g.bar, g.red = groupBarrier, id, b.red
	}
	w.block.tryBarrier(id)
	return false
}

// tryBarrier releases barrier id when enough threads have arrived.
func (b *block) tryBarrier(id int) {
	bar := &b.bars[id]
	n, all := 0, true
	for i, w := range b.warps {
		here := bar.arrived[i]
		missing := w.live &^ here
		all = all && missing == 0
		if here != 0 {
			n += bits.OnesCount32(here)
			if missing == 0 { // lanes that have exited or never were count with their warp
				n += warpSize - bits.OnesCount32(here)
			}
		}
	}
	if bar.expected == 0 && !all || bar.expected != 0 && n < bar.expected {
		return
	}
	for _, w := range b.warps {
		for i := range w.groups {
			if g := &w.groups[i]; g.state == groupBarrier && g.bar == id {
				g.state = groupReady
				bar.result(g)
			}
		}
	}
	*bar = barrier{}
	b.epoch++
}

// result gives a released group the barrier's reduction.
func (b *barrier) result(g *group) {
	red := g.red
	if g.red = nil; red == nil {
		return
	}
	yes := red.op == ".and" && b.ones == b.lanes || red.op == ".or" && b.ones > 0
	if red.p >= 0 {
		g.frame.preds[red.p] &^= g.mask
		if yes {
			g.frame.preds[red.p] |= g.mask
		}
	}
	if red.d >= 0 {
		for m := g.mask; m != 0; m &= m - 1 {
			g.frame.regs[red.d][firstLane(m)] = uint64(b.ones)
		}
	}
}

// buildBarWarp compiles bar.warp.sync.
func buildBarWarp(x *insn) error {
	s, err := x.newSync(0)
	if err != nil {
		return err
	}
	if s.plain {
		return x.badType()
	}
	s.exec = func(*syncIO) {}
	return x.control(s.control)
}

// buildBarCluster compiles barrier.cluster.arrive and .wait.
func buildBarCluster(x *insn) error {
	x.ignore(".release", ".relaxed", ".acquire")
	switch x.takeOne(".arrive", ".wait") {
	case ".arrive":
		return x.step(func(w *warp, m uint32) {
			c := w.block.cluster
			for l := m; l != 0; l &= l - 1 {
				w.clusterPhase[firstLane(l)] = c.barrier.phase
			}
			c.barrier.arrived += bits.OnesCount32(m)
			c.tryBarrier()
		})
	case ".wait":
		return x.control(waitCluster)
	}
	return x.badType()
}

// waitCluster parks the lanes whose phase of the cluster's barrier is not over.
func waitCluster(w *warp, active, m uint32) bool {
	var early uint32
	phase := w.block.cluster.barrier.phase
	for l := m; l != 0; l &= l - 1 {
		if i := firstLane(l); w.clusterPhase[i] == phase {
			early |= 1 << i
		}
	}
	if early == 0 {
		w.setPC(w.pc + 1)
		return true
	}
	w.park(active, early, early)
	g := &w.groups[w.cur]
	g.state, g.bar, g.red = groupBarrier, clusterBarrier, nil
	return false
}

// tryBarrier releases the cluster's barrier when all threads that have not
// exited have arrived.
func (c *cluster) tryBarrier() {
	live := 0
	for _, b := range c.blocks {
		live += b.live
	}
	if c.barrier.arrived == 0 || c.barrier.arrived < live {
		return
	}
	c.barrier.phase++
	c.barrier.arrived = 0
	for _, b := range c.blocks {
		b.epoch++
		for _, w := range b.warps {
			for i := range w.groups {
				if g := &w.groups[i]; g.state == groupBarrier && g.bar == clusterBarrier {
					g.state = groupReady
				}
			}
		}
	}
}

// exited accounts for lanes of w that have ended: nothing waits for them.
func (b *block) exited(w *warp, m uint32) {
	b.live -= bits.OnesCount32(m)
	w.retrySync()
	for i := range b.bars {
		if b.bars[i].used {
			b.tryBarrier(i)
		}
	}
	b.cluster.tryBarrier()
}

// exit returns the control of exit, and of ret in a kernel.
func exit() control {
	return func(w *warp, active, m uint32) bool {
		if m == 0 {
			w.setPC(w.pc + 1)
			return true
		}
		for f := w.frame; f != nil; f = f.parent {
			w.release(f, bits.OnesCount32(m))
		}
		if m == active {
			w.drop(w.cur)
		} else {
			w.groups[w.cur].mask &^= m
			w.setPC(w.pc + 1)
		}
		w.live &^= m
		w.block.exited(w, m)
		return false
	}
}
