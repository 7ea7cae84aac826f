package bpf

import (
	"container/heap"
	"slices"
)

// Limits of the analysis. Beyond them a program is refused, so that hostile
// ones cost bounded time and memory.
const (
	maxVisits  = 1 << 20 // ops, each time they are looked at
	maxCells   = 1 << 19 // registers and stack cells of all states that are kept
	widenAfter = 3       // joins at a loop head before bounds are let go
	forgetAll  = 24      // joins before limits are ignored too
	maxLimits  = 48
)

// analyze runs the analysis: once to learn what counts loops, then again with
// what the loops' proofs say of their counters.
func analyze(p *Program, env *Env, ops []op) (*analysis, error) {
	a := &analysis{p: p, env: env, ops: ops, cfg: buildCFG(ops), clamps: map[int][]clamp{}}
	a.findLimits()
	if err := a.fixpoint(); err != nil {
		return nil, err
	}
	a.proveLoops()
	if len(a.clamps) > 0 {
		if err := a.fixpoint(); err != nil {
			return nil, err
		}
	}
	a.spend()
	return a, nil
}

// findLimits collects the numbers that the program compares with.
func (a *analysis) findLimits() {
	limits := []uint64{0, 1, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, StackSize}
	for i := range a.ops {
		if o := &a.ops[i]; o.kind == opJump && !o.reg {
			v := uint64(o.imm)
			limits = append(limits, v-1, v, v+1)
		}
	}
	for i := range a.env.Maps {
		limits = append(limits, uint64(a.env.Maps[i].ValueSize))
	}
	slices.Sort(limits)
	limits = slices.Compact(limits)
	a.limits = limits[:min(len(limits), maxLimits)]
}

// A blockQueue hands out blocks in reverse postorder.
type blockQueue struct {
	order []int // heap of positions
	in    []bool
}

func (q *blockQueue) Len() int           { return len(q.order) }
func (q *blockQueue) Less(i, k int) bool { return q.order[i] < q.order[k] }
func (q *blockQueue) Swap(i, k int)      { q.order[i], q.order[k] = q.order[k], q.order[i] }
func (q *blockQueue) Push(x any)         { q.order = append(q.order, x.(int)) }
func (q *blockQueue) Pop() any {
	x := q.order[len(q.order)-1]
	q.order = q.order[:len(q.order)-1]
	return x
}

func (q *blockQueue) add(pos int) {
	if !q.in[pos] {
		q.in[pos] = true
		heap.Push(q, pos)
	}
}

func (a *analysis) start() *state {
	f := frame{}
	f.regs[1] = val{kind: kCtx, n: constNum(0)}
	if a.env.Context != nil && a.env.Context.Text > 0 {
		f.regs[1].kind = kText
	}
	return &state{frames: []frame{f}}
}

// fixpoint fills in.
func (a *analysis) fixpoint() error {
	a.in = make([]*state, len(a.cfg.blocks))
	joins := make([]int, len(a.cfg.blocks))
	a.in[0] = a.start()
	q := &blockQueue{in: make([]bool, len(a.cfg.blocks))}
	q.add(0)
	cells := 0
	for q.Len() > 0 {
		pos := heap.Pop(q).(int)
		q.in[pos] = false
		b := a.cfg.rpo[pos]
		outs, err := a.flow(b)
		if err != nil {
			return err
		}
		for k, t := range a.cfg.blocks[b].succ {
			s := outs[k]
			if s == nil || !a.clamp(t, s) {
				continue
			}
			if a.in[t] == nil {
				a.in[t] = s.clone()
				cells += s.cells()
				q.add(a.cfg.blocks[t].order)
			} else if a.meetIn(t, s, &joins[t]) {
				q.add(a.cfg.blocks[t].order)
			}
		}
		a.visits += a.cfg.blocks[b].last - a.cfg.blocks[b].first + 1 + a.in[b].cells()/8
		if a.visits > maxVisits || cells > maxCells {
			return a.p.refuse(-1, "make it simpler", "it is too complex: gave up after %d steps of analysis", a.visits)
		}
	}
	return nil
}

func (s *state) cells() (n int) {
	for i := range s.frames {
		n += 10 + len(s.frames[i].cells)
	}
	return n
}

// meetIn merges s into the state at the start of block t.
func (a *analysis) meetIn(t int, s *state, joins *int) bool {
	merge := num.join
	if a.cfg.blocks[t].head {
		switch {
		case *joins >= forgetAll:
			merge = func(x, y num) num { return x.widen(y, nil) }
		case *joins >= widenAfter:
			merge = func(x, y num) num { return x.widen(y, a.limits) }
		}
	}
	changed := a.in[t].join(s, merge)
	if changed {
		*joins++
		a.clamp(t, a.in[t])
	}
	return changed
}

// clamp applies what loop proofs say; false if nothing is left.
func (a *analysis) clamp(b int, s *state) bool {
	for _, c := range a.clamps[b] {
		v := &s.frames[c.depth].regs[c.reg]
		if v.kind != kScalar {
			continue
		}
		n, ok := v.n.meet(c.n)
		if !ok {
			return false
		}
		v.n = n
	}
	return true
}
