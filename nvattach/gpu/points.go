package gpu

import (
	"errors"
	"slices"
	"strings"
	"time"

	"nvtrace/ptrace"
)

// visitHeld holds a thread, which is where it may call the driver, until f has
// run on a goroutine.
func (tr *Tracer) visitHeld(t *ptrace.Task, p *process, f func(v *visit)) {
	th := tr.thread(t.TID)
	if th == nil || th.visiting {
		return
	}
	t.Hold()
	p.visit(th, func(v *visit) func(*ptrace.Task) {
		f(v)
		return nil
	})
}

// visit runs f on a goroutine, for a thread that is held, and releases the thread.
// What f returns is called, on the tracing thread, before it goes on.
func (p *process) visit(th *thread, f func(v *visit) func(t *ptrace.Task)) {
	tr := p.tr
	th.visiting = true
	tr.work.Go(func() {
		var then func(t *ptrace.Task)
		defer func() {
			th.task.Release(func(t *ptrace.Task) {
				th.visiting = false
				if then != nil {
					then(t)
				}
			})
		}()
		began := time.Now()
		p.visits.Lock()
		defer p.visits.Unlock()
		v := &visit{p: p, th: th, limit: stuckTime, stuck: p.stuck}
		tr.log.Debug("visit", "pid", p.pid)
		then = f(v)
		tr.log.Debug("visited", "pid", p.pid, "took", time.Since(began))
		p.stuck = v.stuck
		tr.count(func(s *Stats) {
			s.Visits++
			s.Visiting += time.Since(began)
		})
	})
}

// watch sets the breakpoints at which the maps' memory is about to go.
func (p *process) watch(t *ptrace.Task, e ends) error {
	if p.watched {
		return nil
	}
	p.watched = true
	for _, addr := range slices.Concat(e.exit, e.last) {
		if _, err := t.SetBreakpoint(addr, p.atExit); err != nil {
			p.tr.log.Debug("no breakpoint at the exit", "pid", p.pid, "err", err)
			continue
		}
		p.exits = p.exits || slices.Contains(e.exit, addr)
	}
	ends := map[string]func(r *ptrace.Regs, c *context) (concerned, gone bool){
		"cuCtxDestroy":                 destroys,
		"cuCtxDestroy_v2":              destroys,
		"cuDevicePrimaryCtxReset":      resets,
		"cuDevicePrimaryCtxReset_v2":   resets,
		"cuDevicePrimaryCtxRelease":    releases,
		"cuDevicePrimaryCtxRelease_v2": releases,
	}
	seen := make(map[uint64]bool)
	for name, ends := range ends {
		addr := p.driver.syms[name]
		if addr == 0 || seen[addr] {
			continue
		}
		seen[addr] = true
		if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) { p.tr.atEnd(t, ends) }); err != nil {
			return err
		}
	}
	return nil
}

// What becomes of a context at the functions that end one.
func destroys(r *ptrace.Regs, c *context) (concerned, gone bool) {
	return r.Arg(0) == c.handle, r.Arg(0) == c.handle
}

func resets(r *ptrace.Regs, c *context) (concerned, gone bool) {
	same := c.primary && uint32(r.Arg(0)) == c.device
	return same, same && !c.lasting
}

func releases(r *ptrace.Regs, c *context) (concerned, gone bool) {
	return c.primary && uint32(r.Arg(0)) == c.device, false // it may be retained by others
}

// atExit is called at libc's exit, and at _exit, which comes after it or alone. A forked child has its parent's breakpoints,
// and no contexts.
func (p *process) atExit(t *ptrace.Task, _ *ptrace.Breakpoint) {
	tr := p.tr
	q := tr.process(t)
	if q == nil || !tr.isActive(q) || q.exiting || tr.calling(t) {
		return
	}
	q.exiting = true
	q.watchLate(t)
	tr.visitHeld(t, q, func(v *visit) { v.keepAll(true) })
}

// watchLate finds out whether a program that ends launches anything more, as it may
// in what it does at exit.
func (p *process) watchLate(t *ptrace.Task) {
	seen := make(map[uint64]bool)
	for name, addr := range p.driver.syms {
		if seen[addr] || !strings.HasPrefix(name, "cuLaunch") && !strings.HasPrefix(name, "cuGraphLaunch") {
			continue
		}
		seen[addr] = true
		if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
			if p.tr.process(t) == p && !p.tr.calling(t) {
				p.late = true
			}
		}); err != nil {
			p.late = true // it can't be told
		}
	}
}

// atEnd is called where a context may end.
func (tr *Tracer) atEnd(t *ptrace.Task, ends func(r *ptrace.Regs, c *context) (concerned, gone bool)) {
	q := tr.process(t)
	if q == nil || !tr.isActive(q) || tr.calling(t) {
		return
	}
	r, err := t.Regs()
	if err != nil {
		return
	}
	regs := *r
	over := q.exiting && !q.late
	tr.visitHeld(t, q, func(v *visit) {
		for _, c := range q.order {
			if over && c.settled { // read at exit: the driver, which has ended perhaps, could say nothing else
				continue
			}
			if concerned, gone := ends(&regs, c); concerned && !c.ended {
				// Some programs retain and release for every thing that they do.
				if c.lasting && time.Since(c.read) < 10*c.took {
					c.unread = true
					continue
				}
				v.keepOne(c, gone)
				if gone {
					c.end(errNoVisit)
				}
			}
		}
	})
}

// keepAll reads the maps of all contexts, keepOne those of one.
func (v *visit) keepAll(last bool) {
	for _, c := range v.p.order {
		if !c.ended {
			v.keepOne(c, last)
		}
	}
}

func (v *visit) keepOne(c *context, last bool) {
	if c.ended {
		return
	}
	began := time.Now()
	err := v.keep(c, last)
	if errors.Is(err, errAsleep) {
		return
	}
	c.read = time.Now()
	c.took = c.read.Sub(began)
	if err == nil {
		c.kept, c.unread = true, false
		return
	}
	if c.kept {
		v.p.tr.report("the maps of process %d, device %d, are those of an earlier moment: %v", v.p.pid, c.device, err)
		return
	}
	c.lost = err // told when the process has ended
}

// stuckTime is how long a function of the driver may take. They wait for nothing
// of the program's, unless the driver is locked: by a thread that was ended in it,
// or because it is the driver itself that came to the breakpoint.
const stuckTime = 30 * time.Second

// moments are functions at whose entries rings and intervals are served: most
// programs come to one often.
func moments() []string {
	return []string{
		"cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize", "cuEventSynchronize", "cuStreamQuery",
		"cuStreamQuery_ptsz", "cuEventQuery", "cuStreamWaitEvent", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds",
		"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpy", "cuMemcpyAsync", "cuMemcpyAsync_ptsz",
		"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernel",
		"cuGraphLaunch", "cuGraphLaunch_ptsz", "cuMemFree_v2", "cuMemAlloc_v2",
	}
}

// attend has a context looked at from time to time. Between, no breakpoint costs
// the program anything.
func (tr *Tracer) attend(proc *ptrace.Process, c *context) {
	tick := time.NewTicker(c.session.LookEvery())
	defer tick.Stop()
	for {
		select {
		case <-tr.quit:
			return
		case <-tick.C:
		}
		tr.mu.Lock()
		var any *thread
		for _, th := range tr.threads {
			if th.task.Proc == proc {
				any = th
				break
			}
		}
		p := tr.procs[proc]
		tr.mu.Unlock()
		if any == nil || p == nil {
			return
		}
		any.task.Post(func() { p.arm(any.task) })
	}
}

// arm sets the breakpoints for the next look.
func (p *process) arm(t *ptrace.Task) {
	if len(p.armed) > 0 || p.exiting || p.tr.process(t) != p {
		return
	}
	seen := make(map[uint64]bool)
	for _, name := range moments() {
		addr := p.driver.syms[name]
		if addr == 0 || seen[addr] {
			continue
		}
		seen[addr] = true
		if b, err := t.SetBreakpoint(addr, p.atMoment); err == nil {
			p.armed = append(p.armed, b)
		}
	}
}

// atMoment is called at the first such function after that.
func (p *process) atMoment(t *ptrace.Task, _ *ptrace.Breakpoint) {
	tr := p.tr
	if tr.process(t) != p || tr.calling(t) {
		return
	}
	for _, b := range p.armed {
		if err := b.Remove(); err != nil {
			tr.log.Debug("breakpoint stays", "pid", p.pid, "err", err)
		}
	}
	p.armed = nil
	tr.visitHeld(t, p, func(v *visit) {
		now := time.Now()
		defer func() { tr.log.Debug("looked", "pid", p.pid, "took", time.Since(now)) }()
		for _, c := range p.order {
			if !c.session.Live() || c.ended {
				continue
			}
			if err := v.look(c, now); err != nil {
				tr.report("the maps of process %d, device %d, can't be read: %v", p.pid, c.device, err)
			}
		}
	})
}
