package bpf

import "slices"

// A block is a run of ops with one way in and one way out.
type block struct {
	first, last int   // ops
	succ        []int // blocks: for a conditional jump the target, then what follows
	pred        []int
	order       int // position in reverse postorder; -1: cannot be reached
	idom        int // its dominator; -1 for none
	head        bool
	in          int // numbers of a walk over the dominator tree: what the block dominates
	out         int // has an "in" from in up to out
	loop        int // innermost loop, -1 for none
}

// A loop is a set of blocks that can be run again.
type loop struct {
	head   int
	blocks map[int]bool
	back   []int  // blocks that jump back to the head
	outer  int    // the loop around it, -1 for none
	messy  bool   // entered elsewhere than at its head
	may    bool   // every round comes by a may_goto of its own, which takes the fuel
	rounds uint64 // at most, each time that it is entered; 0: not proven

	counted bool   // its rounds take fuel, each cost
	cost    uint64 // instructions that a round executes at most, apart from counted loops in it
}

// A cfg is the control flow of the ops.
type cfg struct {
	blocks []block
	of     []int // op to block
	rpo    []int // blocks in reverse postorder
	loops  []loop
}

func buildCFG(ops []op) *cfg {
	lead := make([]bool, len(ops)+1)
	lead[0] = true
	for i := range ops {
		switch ops[i].kind {
		case opJump, opGoto, opMay, opLeave:
			lead[ops[i].target], lead[i+1] = true, true
		case opExit:
			lead[i+1] = true
		case opHelper:
			if ops[i].helper.Ret == RetNever {
				lead[i+1] = true
			}
		}
	}
	c := &cfg{of: make([]int, len(ops))}
	for i := range ops {
		if lead[i] {
			c.blocks = append(c.blocks, block{first: i, order: -1, idom: -1, loop: -1})
		}
		b := len(c.blocks) - 1
		c.of[i], c.blocks[b].last = b, i
	}
	for b := range c.blocks {
		for _, to := range successors(ops, c.blocks[b].last) {
			t := c.of[to]
			c.blocks[b].succ = append(c.blocks[b].succ, t)
		}
	}
	c.sort()
	for _, b := range c.rpo {
		for _, t := range c.blocks[b].succ {
			c.blocks[t].pred = append(c.blocks[t].pred, b)
		}
	}
	c.dominators()
	c.numberTree()
	c.findLoops(ops)
	return c
}

// successors returns the ops that may run after op i; for a conditional jump its
// target comes first.
func successors(ops []op, i int) []int {
	switch o := &ops[i]; o.kind {
	case opJump, opMay:
		return []int{o.target, i + 1}
	case opGoto, opLeave:
		return []int{o.target}
	case opExit:
		return nil
	case opHelper:
		if o.helper.Ret == RetNever {
			return nil
		}
	}
	return []int{i + 1}
}

// sort finds the reverse postorder and marks the targets of backward edges.
func (c *cfg) sort() {
	type item struct{ b, next int }
	const onPath, done = 1, 2
	mark := make([]uint8, len(c.blocks))
	stack := []item{{0, 0}}
	mark[0] = onPath
	var post []int
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		succ := c.blocks[top.b].succ
		if top.next == len(succ) {
			mark[top.b] = done
			post = append(post, top.b)
			stack = stack[:len(stack)-1]
			continue
		}
		t := succ[top.next]
		top.next++
		switch mark[t] {
		case onPath:
			c.blocks[t].head = true
		case 0:
			mark[t] = onPath
			stack = append(stack, item{t, 0})
		}
	}
	slices.Reverse(post)
	c.rpo = post
	for i, b := range post {
		c.blocks[b].order = i
	}
}

// dominators fills idom, by Cooper, Harvey and Kennedy's iteration.
func (c *cfg) dominators() {
	c.blocks[0].idom = 0
	for changed := true; changed; {
		changed = false
		for _, b := range c.rpo[1:] {
			dom := -1
			for _, p := range c.blocks[b].pred {
				switch {
				case c.blocks[p].idom < 0:
				case dom < 0:
					dom = p
				default:
					dom = c.common(dom, p)
				}
			}
			if dom != c.blocks[b].idom {
				c.blocks[b].idom, changed = dom, true
			}
		}
	}
}

func (c *cfg) common(x, y int) int {
	for x != y {
		for c.blocks[x].order > c.blocks[y].order {
			x = c.blocks[x].idom
		}
		for c.blocks[y].order > c.blocks[x].order {
			y = c.blocks[y].idom
		}
	}
	return x
}

// numberTree numbers the dominator tree so that dominates need not walk it.
func (c *cfg) numberTree() {
	children := make([][]int, len(c.blocks))
	for _, b := range c.rpo[1:] {
		children[c.blocks[b].idom] = append(children[c.blocks[b].idom], b)
	}
	type item struct{ b, next int }
	n, stack := 0, []item{{0, 0}}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if top.next == 0 {
			c.blocks[top.b].in = n
			n++
		}
		if top.next == len(children[top.b]) {
			c.blocks[top.b].out = n
			stack = stack[:len(stack)-1]
			continue
		}
		top.next++
		stack = append(stack, item{children[top.b][top.next-1], 0})
	}
}

// dominates reports whether every way to y goes through x.
func (c *cfg) dominates(x, y int) bool {
	return c.blocks[x].in <= c.blocks[y].in && c.blocks[y].in < c.blocks[x].out
}

// maxLoopWork limits the search for loop bodies; loops beyond it take fuel.
const maxLoopWork = 1 << 20

// findLoops finds the natural loop of every head, outer loops first.
func (c *cfg) findLoops(ops []op) {
	work := 0
	for _, h := range c.rpo {
		if !c.blocks[h].head {
			continue
		}
		l := loop{head: h, blocks: map[int]bool{h: true}, outer: c.blocks[h].loop}
		for _, p := range c.blocks[h].pred {
			if c.blocks[p].order < c.blocks[h].order {
				continue
			}
			if !c.dominates(h, p) {
				l.messy = true
				continue
			}
			l.back = append(l.back, p)
		}
		for queue := slices.Clone(l.back); len(queue) > 0; {
			b := queue[len(queue)-1]
			queue = queue[:len(queue)-1]
			if l.blocks[b] {
				continue
			}
			if work++; work > maxLoopWork {
				l.messy = true
				break
			}
			l.blocks[b] = true
			queue = append(queue, c.blocks[b].pred...)
		}
		for b := range l.blocks {
			c.blocks[b].loop = len(c.loops)
		}
		c.loops = append(c.loops, l)
	}
	for i := range c.loops {
		l := &c.loops[i]
		for b := range l.blocks {
			l.may = l.may || !l.messy && c.blocks[b].loop == i && c.endsWithMay(ops, b) && c.dominatesAll(b, l.back)
		}
	}
}

func (c *cfg) endsWithMay(ops []op, b int) bool { return ops[c.blocks[b].last].kind == opMay }

// dominatesAll reports whether every way to any of the blocks goes through b.
func (c *cfg) dominatesAll(b int, blocks []int) bool {
	for _, t := range blocks {
		if !c.dominates(b, t) {
			return false
		}
	}
	return true
}
