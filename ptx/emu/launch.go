package emu

import (
	"context"
	"math/bits"
	"runtime"
	"sync"
)

// residentLimit is how many clusters a worker keeps running in turn unless the
// launch is cooperative, and passLimit for how many passes a cluster runs before
// another one is started beside it.
//
// After spinLimit passes in which all warps only polled, the next cluster's turn
// comes at once.
const (
	residentLimit = 64
	passLimit     = 64
	spinLimit     = 2
)

// run executes the whole grid.
func (l *launch) run(ctx context.Context) (Stats, error) {
	n := l.machine.opts.Workers
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	if l.cfg.Race != nil {
		n = 1 // accesses are compared in one order
	}
	n = int(min(uint64(n), l.clusters.count()))
	unregister := context.AfterFunc(ctx, func() { l.stop.Store(true) })
	defer unregister()
	// As on a GPU, blocks begin in their order: no thread has left before the first warp is under way.
	begun := make(chan struct{})
	l.begun = sync.OnceFunc(func() { close(begun) })
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if i > 0 {
				<-begun
			}
			(&worker{launch: l, ctx: ctx, race: newRaceState(l.cfg.Race)}).run()
			l.begun()
		})
	}
	wg.Wait()
	blocks := l.cfg.Grid.count()
	return Stats{
		Threads: blocks * l.cfg.Block.count(), Blocks: blocks, SharedBytes: l.sharedLen,
		ThreadInstructions: l.count.Load(), WarpInstructions: l.warps.Load(),
	}, l.err
}

// fail keeps the first error and stops the launch.
func (l *launch) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.stop.Store(true)
}

// run executes clusters until there are no more.
func (wk *worker) run() {
	var resident []*cluster
	limit, passes := residentLimit, passLimit
	if wk.launch.cfg.Cooperative {
		limit, passes = 1<<16, 1
	}
	for !wk.launch.stop.Load() {
		if len(resident) < limit {
			if c := wk.take(); c != nil {
				resident = append(resident, c)
			}
		}
		if len(resident) == 0 {
			return
		}
		moved := false
		for i := 0; i < len(resident) && !wk.launch.stop.Load(); {
			done, progress := wk.runCluster(resident[i], passes)
			moved = moved || progress
			if !done {
				i++
				continue
			}
			for _, b := range resident[i].blocks {
				wk.launch.machine.leaveShared(b)
			}
			wk.spare = append(wk.spare, resident[i])
			resident[i] = resident[len(resident)-1]
			resident = resident[:len(resident)-1]
		}
		if !moved && len(resident) != 0 && !wk.launch.stop.Load() { // else they had no turn
			wk.deadlock(resident[0])
		}
	}
	if wk.ctx.Err() != nil {
		wk.interrupted(resident)
	}
}

// interrupted says where a thread is that has not ended, or would have begun.
func (wk *worker) interrupted(resident []*cluster) {
	if c := wk.take(); c != nil {
		resident = append(resident, c) // behind those that have begun, which may all be over
	}
	for _, c := range resident {
		for _, b := range c.blocks {
			for _, w := range b.warps {
				if w.live != 0 {
					wk.launch.fail(w.fault(w.someLane(), context.Cause(wk.ctx)))
					return
				}
			}
		}
	}
}

// take starts the next cluster of the grid; nil when all have been started.
func (wk *worker) take() *cluster {
	l := wk.launch
	n := l.next.Add(1) - 1
	if n >= l.clusters.count() {
		l.next.Store(l.clusters.count())
		return nil
	}
	var c *cluster
	if k := len(wk.spare); k != 0 {
		c, wk.spare = wk.spare[k-1], wk.spare[:k-1]
	} else {
		c = wk.newCluster()
	}
	wk.reset(c, n)
	return c
}

// newCluster makes the blocks and warps of a cluster.
func (wk *worker) newCluster() *cluster {
	c := &cluster{}
	threads := wk.launch.cfg.Block.count()
	for r := range wk.launch.cfg.Cluster.count() {
		b := &block{cluster: c, rank: int(r), shared: alignedBytes(int(wk.launch.sharedLen))}
		for i := range int(threads+warpSize-1) / warpSize {
			b.warps = append(b.warps, &warp{wk: wk, block: b, index: i, free: map[*function][]*frame{}})
		}
		c.blocks = append(c.blocks, b)
	}
	return c
}

// reset prepares c to be the n'th cluster of the grid.
func (wk *worker) reset(c *cluster, n uint64) {
	l := wk.launch
	c.id, c.serial = l.clusters.at(n), n
	c.barrier = clusterBarrierState{}
	threads := int(l.cfg.Block.count())
	for r, b := range c.blocks {
		in, k := l.cfg.Cluster.at(uint64(r)), l.cfg.Cluster
		b.inCluster = in
		b.id = Dim3{c.id.X*k.X + in.X, c.id.Y*k.Y + in.Y, c.id.Z*k.Z + in.Z}
		linear := uint64(b.id.X) + uint64(l.cfg.Grid.X)*(uint64(b.id.Y)+uint64(l.cfg.Grid.Y)*uint64(b.id.Z))
		b.sm = int(linear % uint64(l.machine.dev.SMs))
		b.live, b.epoch = threads, 0
		b.bars = [numBarriers]barrier{}
		l.machine.enterShared(b)
		for i, w := range b.warps {
			w.reset(min(threads-i*warpSize, warpSize))
		}
	}
	if wk.race != nil {
		wk.race.newBlock()
	}
}

// enterShared gives a block that begins its shared memory.
func (m *Machine) enterShared(b *block) {
	clear(b.shared)
	if m.opts.KeepShared {
		m.sharedMu.Lock()
		defer m.sharedMu.Unlock()
		copy(b.shared, m.shared[b.sm])
	}
}

// leaveShared keeps what a block that has ended left there.
func (m *Machine) leaveShared(b *block) {
	if !m.opts.KeepShared || len(b.shared) == 0 {
		return
	}
	m.sharedMu.Lock()
	defer m.sharedMu.Unlock()
	if have := m.shared[b.sm]; len(have) < len(b.shared) {
		m.shared[b.sm] = append(have, make([]byte, len(b.shared)-len(have))...)
	}
	copy(m.shared[b.sm], b.shared)
}

// reset puts n threads of the warp at the start of the kernel.
func (w *warp) reset(n int) {
	l := w.wk.launch
	w.live = uint32(uint64(1)<<n - 1)
	w.fair, w.err, w.turns = false, nil, 0
	f := w.newFrame(l.prog.entry)
	f.lanes, f.local = n, (l.kernel.mod.localLen+15)&^15
	f.top = f.local + l.prog.entry.localSize
	if err := w.growLocal(f.top); err != nil {
		w.fail(0, err)
	}
	clear(w.local)
	clear(w.groups[:cap(w.groups)])
	w.groups = append(w.groups[:0], group{frame: f, mask: w.live})
	w.frame, w.pc = f, 0
}

// runCluster gives each warp of the cluster up to passes turns. It reports
// whether all threads have ended and whether any executed something.
func (wk *worker) runCluster(c *cluster, passes int) (done, progress bool) {
	spins := 0
	for range passes {
		alive, moved, busy := false, false, false
		for _, b := range c.blocks {
			for _, w := range b.warps {
				if w.live == 0 {
					continue
				}
				alive = true
				if wk.runWarp(w) {
					moved = true
					// A turn that ended early although the warp can go on was spent polling.
					busy = busy || w.warpCount >= sliceFuel/2 || w.fuel > 0
				}
				if wk.launch.stop.Load() {
					return false, true
				}
			}
		}
		progress = progress || moved
		if !alive {
			return true, true
		}
		if spins++; busy {
			spins = 0
		}
		if !moved || spins >= spinLimit {
			return false, progress
		}
	}
	return false, progress
}

// runWarp gives a warp one turn and accounts for it. It reports whether the warp
// executed anything.
func (wk *worker) runWarp(w *warp) bool {
	l := wk.launch
	w.count, w.warpCount, w.sliceStart = 0, 0, 0
	if w.err == nil {
		w.runSlice()
	}
	if l.warps.Load() == 0 {
		l.begun()
	}
	wk.ticks += w.warpCount
	w.turns += w.warpCount
	l.warps.Add(w.warpCount)
	total := l.count.Add(w.count)
	switch {
	case w.err != nil:
		l.fail(w.fault(w.lane, w.err))
	case l.budget != 0 && total > l.budget && w.live != 0:
		l.fail(w.fault(w.someLane(), errf(ErrBudget, "%d thread instructions", l.budget)))
	}
	return w.warpCount != 0
}

// someLane makes the first group of the warp current and returns its first lane.
func (w *warp) someLane() int {
	if len(w.groups) == 0 {
		return 0
	}
	g := &w.groups[0]
	w.frame, w.pc = g.frame, g.pc
	return firstLane(g.mask)
}

// fault describes err as happening to lane at the current instruction.
func (w *warp) fault(lane int, err error) *Fault {
	f := &Fault{Kernel: w.wk.launch.kernel.name, Err: err, Block: w.block.id, Thread: w.tid(lane)}
	fn := w.frame.fn
	f.Func = fn.name
	if w.pc < len(fn.code) {
		st := &fn.file.Stmts[fn.code[w.pc].stmt]
		f.Pos = fn.file.Position(st.Pos)
		f.Text = fn.file.Text(st.Span())
	}
	return f
}

// deadlock fails the launch because no thread of any resident cluster can go on.
func (wk *worker) deadlock(c *cluster) {
	for _, b := range c.blocks {
		for _, w := range b.warps {
			if w.live != 0 {
				lane := w.someLane()
				waiting := 0
				for _, o := range b.warps {
					waiting += bits.OnesCount32(o.live)
				}
				wk.launch.fail(w.fault(lane, errf(ErrDeadlock, "all %d threads of the block that are left wait", waiting)))
				return
			}
		}
	}
}
