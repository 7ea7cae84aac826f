package sass

import "slices"

// hiddenRegisters is by how much the number of registers in .nv.info is larger than
// that of those that code can name: seen on sm_90, where a register that is not
// below ends the kernel with an illegal instruction.
const hiddenRegisters = 2

// maxRegisterCount is the largest number of registers in .nv.info.
const maxRegisterCount = 255

// warpsPerPartition are the warps that a quarter of a multiprocessor holds.
func warpsPerPartition(a Arch) int {
	switch {
	case a < 80:
		return 8
	case a == 86, a == 87, a == 89, a == 110, a >= 120:
		return 12
	}
	return 16
}

// occupancyLimit returns how many registers a kernel may have with as many warps on a
// multiprocessor as with n: a quarter of it has 16,384, which warps get in units of 8
// for each of their 32 threads.
func occupancyLimit(a Arch, n int) int {
	warps := func(n int) int { return min(16384/32/((n+7)&^7), warpsPerPartition(a)) }
	limit := (n + 7) &^ 7
	for limit+8 <= 256 && warps(limit+8) == warps(n) {
		limit += 8
	}
	return min(limit, maxRegisterCount)
}

// registerRoom finds out which registers there are.
func (w *Weaver) registerRoom() {
	w.fresh = max(w.facts.Registers-hiddenRegisters, w.a.Used.highest(GPR)+1)
	limit := w.facts.MaxRegisters
	if limit == 0 {
		limit = occupancyLimit(w.arch, w.facts.Registers)
	}
	w.usable = max(min(limit, maxRegisterCount), w.facts.Registers) - hiddenRegisters
	if n := w.a.MinRegisters; n > 0 {
		// Warps change how many they have: what all have in any case remains.
		w.usable = min(w.usable, n-hiddenRegisters)
	}
}

// noBarrier is one more than the highest number of a convergence barrier.
const noBarrier = 16

// place chooses registers from the one called from on for a probe at a place where busy
// must not be changed.
func (w *Weaver) place(i int, p *probe, busy *Set, from int) error {
	body := p.body
	groups := p.groups()
	pl := &placement{high: -1, meet: noBarrier}
	for j := range pl.r {
		pl.r[j] = uint8(j)
	}
	for j := range pl.p {
		pl.p[j] = uint8(j)
	}
	for j := range pl.b {
		pl.b[j] = uint8(j)
	}
	taken := *busy
	// Convergence barriers are of a warp, so that those which the kernel uses
	// anywhere may be in use by other threads of it.
	b := uint8(0)
	for j := range uint8(noBarrier + 1) {
		// The last round is for the barrier behind the body.
		if j < noBarrier && !body.used.Has(Barrier, j) || j == noBarrier && (!body.parts || p.atExit) {
			continue
		}
		for ; b < noBarrier && w.a.Used.Has(Barrier, b); b++ {
		}
		switch {
		case b == noBarrier:
			return siteError(i, "no convergence barrier is free for the probe")
		case j == noBarrier:
			pl.meet = b
		default:
			pl.b[j] = b
		}
		pl.used.Add(Barrier, b, 1)
		b++
	}
	// Predicates: free ones first, then those that are saved.
	var free, others []uint8
	for j := range uint8(7) {
		switch {
		case !taken.Has(Pred, j) && from == 0:
			free = append(free, j)
		case w.savable(i, j):
			others = append(others, j)
		}
	}
	for j := range uint8(7) {
		if !body.used.Has(Pred, j) {
			continue
		}
		switch {
		case len(free) > 0:
			pl.p[j], free = free[0], free[1:]
		case len(others) > 0:
			pl.p[j], others = others[0], others[1:]
			pl.save |= 1 << pl.p[j]
		default:
			return siteError(i, "no predicate is free for the probe")
		}
		pl.used.Add(Pred, pl.p[j], 1)
	}
	// Registers, in groups that have to stay together.
	// find looks for a run of registers of which the fewest have to be saved.
	find := func(n, align, phase int) (int, bool) {
		best, cost := -1, n+1
		for r := from; r+n <= w.usable && cost > 0; r++ {
			if r%align != phase || r < 2 && n > 1 {
				continue
			}
			saved := 0
			for k := r; k < r+n; k++ {
				switch {
				case !taken.Has(GPR, uint8(k)):
				case p.spill.Has(GPR, uint8(k)) && !pl.used.Has(GPR, uint8(k)):
					saved++
				default:
					saved = n + 1
				}
			}
			if saved < cost {
				best, cost = r, saved
			}
		}
		for k := best; cost > 0 && best >= 0 && k < best+n; k++ {
			if taken.Has(GPR, uint8(k)) {
				pl.spilled = append(pl.spilled, uint8(k))
			}
		}
		return best, best >= 0
	}
	for _, g := range groups {
		r, ok := find(g.n, g.align, g.first%g.align)
		if !ok {
			return w.noRegisters(i, body, busy, from)
		}
		for k := range g.n {
			pl.r[g.first+k] = uint8(r + k)
		}
		taken.Add(GPR, uint8(r), uint8(g.n))
		pl.used.Add(GPR, uint8(r), uint8(g.n))
	}
	if pl.save != 0 {
		r, ok := find(1, 1, 0)
		if !ok {
			return w.noRegisters(i, body, busy, from)
		}
		pl.keep = uint8(r)
		pl.used.Add(GPR, uint8(r), 1)
	}
	pl.high = pl.used.highest(GPR)
	if err := w.variables(i, p, pl); err != nil {
		return err
	}
	p.regs = *pl
	w.top = max(w.top, pl.high)
	return nil
}

// savable reports whether a predicate that is in use at a place has its value, so
// that it can be saved.
func (w *Weaver) savable(i int, p uint8) bool {
	return !w.a.PendWrite[i].Has(Pred, p) && !w.a.PendRead[i].Has(Pred, p)
}

func (w *Weaver) noRegisters(i int, body *Body, busy *Set, from int) error {
	free := 0
	for r := from; r < w.usable; r++ {
		if !busy.Has(GPR, uint8(r)) {
			free++
		}
	}
	why := "without lowering the kernel's occupancy"
	if w.a.MinRegisters > 0 {
		why = "in a kernel that gives registers back while it runs (setmaxnreg)"
	} else if from > 0 {
		why = "above those of the kernel, of which not all is known: " + w.uncertain
	}
	return siteError(i, "the probe needs %d registers, and %d are free %s", body.used.Len(GPR), free, why)
}

// groups returns the body's groups of registers. An address is computed in a pair, also
// where the body looks at its halves one by one, and a shared copy returns by a pair.
func (p *probe) groups() []group {
	regs, _ := params(p.args)
	ops, used := slices.Clip(p.body.ops), p.body.used
	pair := func(r uint8) {
		used.Add(GPR, r, 2)
		ops = append(ops, Operand{Kind: GPR, Reg: r, Count: 2})
	}
	for j, a := range p.args {
		if a.kind == argAddress && (p.body.live.Has(GPR, regs[j]) || p.body.live.Has(GPR, regs[j]+1)) {
			pair(regs[j])
		}
	}
	if p.shared != nil {
		pair(returnPair)
	}
	if len(ops) == len(p.body.ops) {
		return p.body.groups
	}
	return groupsOf(ops, &used)
}

// A group is a run of a body's registers that some instruction wants side by side.
type group struct{ first, n, align int }

// groupsOf joins registers that operands of several name, largest first.
func groupsOf(ops []Operand, used *Set) []group {
	var parent, align [256]int
	for i := range parent {
		parent[i], align[i] = i, 1
	}
	root := func(i int) int {
		for parent[i] != i {
			i = parent[i]
		}
		return i
	}
	for _, o := range ops {
		if o.Kind != GPR || o.Count < 2 {
			continue
		}
		a := 2
		if o.Count > 2 {
			a = 4
		}
		first := root(int(o.Reg))
		align[first] = max(align[first], a)
		for k := 1; k < int(o.Count) && int(o.Reg)+k < 255; k++ {
			x, y := root(int(o.Reg)), root(int(o.Reg)+k)
			if x > y {
				x, y = y, x
			}
			if x != y {
				parent[y] = x
				align[x] = max(align[x], align[y])
			}
		}
	}
	var groups []group
	at := map[int]int{}
	for r := range 255 {
		if !used.Has(GPR, uint8(r)) {
			continue
		}
		x := root(r)
		g, ok := at[x]
		if !ok {
			g = len(groups)
			at[x] = g
			groups = append(groups, group{first: r, align: align[x]})
		}
		groups[g].n = r - groups[g].first + 1
	}
	slices.SortStableFunc(groups, func(a, b group) int { return b.n - a.n })
	return groups
}
