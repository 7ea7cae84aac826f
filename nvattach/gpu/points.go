package gpu

import (
	"cmp"
	"errors"
	"maps"
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
		v := newVisit(p, th)
		v.limit, v.stuck = stuckTime, p.stuck
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

// contextEnds are the functions that may end contexts, with what each does to one.
var contextEnds = map[string]func(r *ptrace.Regs, c *context) (e ending, concerned bool){
	"cuCtxDestroy":                 destroys,
	"cuCtxDestroy_v2":              destroys,
	"cuDevicePrimaryCtxReset":      resets,
	"cuDevicePrimaryCtxReset_v2":   resets,
	"cuDevicePrimaryCtxRelease":    releases,
	"cuDevicePrimaryCtxRelease_v2": releases,
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
	seen := make(map[uint64]bool)
	for name, ends := range contextEnds {
		addr := p.driver.syms[name]
		if addr == 0 || seen[addr] {
			continue
		}
		seen[addr] = true
		if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
			t.Why(name)
			p.tr.atEnd(t, ends)
		}); err != nil {
			return err
		}
	}
	return nil
}

// ending is what becomes of a context at a function that ends one. It is told by the
// arguments, before the call is made, and the call is taken to succeed.
type ending struct {
	gone bool // with its memory
	last bool // no kernel of it runs any more
}

// destroys is about cuCtxDestroy, which ends a context for good.
func destroys(r *ptrace.Regs, c *context) (e ending, concerned bool) {
	return ending{gone: true, last: true}, r.Arg(0) == c.handle
}

// resets is about cuDevicePrimaryCtxReset, which the runtime calls for cudaDeviceReset.
func resets(r *ptrace.Regs, c *context) (e ending, concerned bool) {
	return ending{gone: !c.lasting, last: true}, c.primary && uint32(r.Arg(0)) == c.device
}

// releases: others may have retained it, so that kernels go on. Memory that lasts is read
// again at the program's end.
func releases(r *ptrace.Regs, c *context) (e ending, concerned bool) {
	return ending{last: !c.lasting}, c.primary && uint32(r.Arg(0)) == c.device
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

// watchLate has the maps read again where a program launches something after it came to
// exit, as it may in what it does then, or in other threads: at the return of the launch,
// while the driver is there for sure.
func (p *process) watchLate(t *ptrace.Task) {
	seen := make(map[uint64]bool)
	for name, addr := range p.driver.syms {
		if seen[addr] || !strings.HasPrefix(name, "cuLaunch") && !strings.HasPrefix(name, "cuGraphLaunch") {
			continue
		}
		seen[addr] = true
		if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
			t.Why(name)
			if p.tr.process(t) != p || p.tr.calling(t) {
				return
			}
			p.late.Add(1)
			if err := t.OnReturn(func(t *ptrace.Task, _ uint64) { p.launchedLate(t) }); err != nil {
				p.tr.log.Debug("a late launch's return is not seen", "pid", p.pid, "err", err)
			}
		}); err != nil {
			p.tr.log.Debug("late launches are not seen", "function", name, "pid", p.pid, "err", err)
			p.late.Add(1) // it can't be told what was launched
		}
	}
}

// Reading after each launch is as good as reading at the end, and slow: only a program
// that does its work after exit launches more often than that.
const (
	maxRereads = 1000 // in a row
	rereadRest = 10   // later ones rest so many times as long as one takes
)

// launchedLate is called when a launch has returned in a program that ends.
func (p *process) launchedLate(t *ptrace.Task) {
	p.late.Add(1)
	began := time.Now()
	if p.rereads >= maxRereads && began.Before(p.reread) {
		return
	}
	p.rereads++
	p.tr.visitHeld(t, p, func(v *visit) {
		v.keepAll(true)
		rest := time.Now().Add(rereadRest * time.Since(began))
		_ = v.do(func(_ *ptrace.Task, done func(error)) {
			p.reread = rest
			done(nil)
		})
	})
}

// atEnd is called where a context may end.
func (tr *Tracer) atEnd(t *ptrace.Task, ends func(r *ptrace.Regs, c *context) (e ending, concerned bool)) {
	q := tr.process(t)
	if q == nil || !tr.isActive(q) || tr.calling(t) {
		return
	}
	r, err := t.Regs()
	if err != nil {
		return
	}
	regs := *r
	over := q.exiting
	tr.holdingEnds(t)
	tr.visitHeld(t, q, func(v *visit) {
		defer v.showAllReadable()
		for _, c := range q.order {
			e, concerned := ends(&regs, c)
			if !concerned || c.ended {
				continue
			}
			switch {
			case over && c.final && c.late == q.late.Load():
				// Read at exit: the driver, which has ended perhaps, could say nothing else.
			case c.lasting && !e.last && time.Since(c.read) < 10*c.took:
				c.unread = true // some programs retain and release for every thing that they do
				continue
			default:
				v.keepOne(c, e.last)
				c.unread = !e.last
			}
			if e.gone {
				c.end(q, errNoVisit, true)
			}
		}
	})
}

// keepAll reads the maps of all contexts, keepOne those of one.
func (v *visit) keepAll(last bool) {
	for _, c := range v.p.order {
		v.keepOne(c, last)
	}
}

// keepOne notes how a reading went. Its error is shown only if the context ends without another one.
func (v *visit) keepOne(c *context, last bool) {
	if c.ended {
		return
	}
	began, late := time.Now(), v.p.late.Load()
	err := v.keep(c, last)
	if errors.Is(err, errAsleep) {
		c.late = late // nothing is launched in it
		return
	}
	c.read = time.Now()
	c.took = c.read.Sub(began)
	if err == nil {
		v.p.tr.count(func(s *Stats) { s.Kept++ })
		c.kept, c.unread = true, false
		return
	}
	c.final, c.lost = false, err // told when the context has ended
}

// stuckTime is how long a function of the driver may take. They wait for nothing
// of the program's, unless the driver is locked: by a thread that was ended in it,
// or because it is the driver itself that came to the breakpoint.
const stuckTime = 30 * time.Second

// moments are functions at whose entries rings and intervals are served: most
// programs come to one often.
func (tr *Tracer) moments() []string {
	list := []string{
		"cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize", "cuEventSynchronize", "cuStreamQuery",
		"cuStreamQuery_ptsz", "cuEventQuery", "cuStreamWaitEvent", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds",
		"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpy", "cuMemcpyAsync", "cuMemcpyAsync_ptsz",
		"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernel",
		"cuGraphLaunch", "cuGraphLaunch_ptsz",
	}
	if !tr.o.Session.ReadsMemory() { // else there is more to do at these
		list = append(list, "cuMemFree_v2", "cuMemAlloc_v2")
	}
	return list
}

// keepEvery is how often maps are read in a program that runs: what is shown of one that
// is killed.
func (tr *Tracer) keepEvery() time.Duration { return cmp.Or(tr.o.KeepEvery, 5*time.Second) }

// attend has a context looked at from time to time. Between, no breakpoint costs
// the program anything: a timer has them set, and the first thread that comes to one of them takes
// all away again (atMoment). It ends with the process.
func (tr *Tracer) attend(proc *ptrace.Process, c *context) {
	every := tr.keepEvery()
	if c.session.Live() {
		every = min(every, c.session.LookEvery())
	}
	// The interval begins when the last request is done: where the machine is too busy
	// for it, the tracing thread still comes to something else.
	next := func() time.Duration {
		if wait, ok := tr.clockDue(c); ok {
			return min(every, max(wait, time.Millisecond))
		}
		return every
	}
	wait := time.NewTimer(next())
	defer wait.Stop()
	done := make(chan struct{}, 1)
	for {
		select {
		case <-tr.quit:
			return
		case <-wait.C:
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
		any.task.Post(func() {
			p.arm(any.task)
			done <- struct{}{}
		})
		select {
		case <-tr.quit:
			return
		case <-done:
			wait.Reset(next())
		}
	}
}

// arm sets the breakpoints for the next look.
func (p *process) arm(t *ptrace.Task) {
	if len(p.armed) > 0 || p.exiting || p.tr.process(t) != p {
		return
	}
	seen := make(map[uint64]bool)
	for _, name := range p.tr.moments() {
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
	t.Why("reading of maps")
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
			if c.ended {
				continue
			}
			if wait, ok := tr.clockDue(c); ok && wait <= 0 {
				if err := v.lookAtClock(c); err != nil {
					tr.log.Debug("clocks are not compared", "err", err)
				}
			}
			if c.session.Live() {
				if err := v.look(c, now); err != nil {
					tr.report("the maps of process %d, device %d, can't be read: %v", p.pid, c.device, err)
				}
			}
			if time.Since(c.read) >= max(tr.keepEvery(), 100*c.took) {
				v.keepOne(c, false)
			}
		}
	})
}

// watchLaunches has the process's launches looked at, from now on.
func (p *process) watchLaunches(t *ptrace.Task) {
	if p.launching {
		return
	}
	p.launching = true
	seen := make(map[uint64]bool)
	for name, l := range launchers() {
		addr := p.driver.syms[name]
		if addr == 0 || seen[addr] {
			continue
		}
		seen[addr] = true
		if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
			t.Why(name)
			p.tr.atLaunch(t, name, l)
		}); err != nil {
			p.tr.report("launches of process %d can't be looked at: %v", p.pid, err)
			return
		}
	}
	for name, at := range attributeSetters() {
		if addr := p.driver.syms[name]; addr != 0 && !seen[addr] {
			seen[addr] = true
			if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
				t.Why(name)
				p.tr.atAttribute(t, at)
			}); err != nil {
				p.tr.log.Debug("attributes are not seen", "function", name, "err", err)
			}
		}
	}
	for _, name := range slices.AppendSeq([]string{"cuModuleUnload", "cuLibraryUnload"}, maps.Keys(contextEnds)) {
		_, context := contextEnds[name]
		if addr := p.driver.syms[name]; addr != 0 && !seen[addr] {
			seen[addr] = true
			if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
				t.Why(name)
				p.tr.atUnload(t, context)
			}); err != nil {
				p.tr.log.Debug("unloading is not seen", "function", name, "err", err)
			}
		}
	}
}
