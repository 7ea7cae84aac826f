package gpu

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/remote"
)

// A program that runs already has loaded its kernels, and what it launches are handles of
// them. So programs get into copies: of each kernel that is launched, its image is looked for
// in the files that the program has mapped, and loaded once more, with programs, beside the one
// that is there. Launches then go on with the copy's handle in place of the kernel's
// (agent.Substitutes). The kernel itself is never touched, and at the end the copies are
// unloaded when the last launch of them is over.
//
// A copy has variables of its own, but is made to use those of the kernel's module; where that
// can't be, the kernel stays as it is. So do launches that want all blocks to run at a time, where
// fewer of the copy fit, and kernels in graphs, which would keep the copies.
//
// The way of a kernel, by what is called:
//
//	foundDriver  the agent is told of the launching functions (begin), and notes handles from now on
//	look, meet   a handle is new: breakpoints are set at launches (arm), which stay until it is known
//	at, ask      a thread is about to launch it: the driver is asked what it is (name)
//	prepare      beside the program: its image is found (images) and a copy with programs is made
//	at, load     a thread is about to call the driver: variables are looked up (bind), the copy is loaded
//	Set          from here on the agent puts the copy's handle in place of the kernel's
//	leave        the agent stops that; when no launch of copies runs any more, unload unloads them
//
// All that holds a thread meanwhile (ask, load, unload) is done a piece at a time, at the pace that Options.Hold
// says: no step of the program's gets much longer.

// LiveMemory is the size of the memory that Tracer.Live wants.
const LiveMemory = maxLive * agent.SubstitutesSize

// maxLive is how many processes can be attached to.
const maxLive = 16

// Live has programs get into kernels of programs that run already, when they are announced,
// with Options.Running. a has Programs, of whose data this memory is a part, zero and at addr
// in the processes. It must be called before tracing begins.
func (tr *Tracer) Live(a *agent.Agent, memory []byte, addr uint64) {
	tr.attached.agent, tr.attached.memory, tr.attached.addr = a, memory, addr
}

// Collect is for [capture.Options], with Options.Running: it keeps images that programs load from
// memory, and leaves them as they are.
func (tr *Tracer) Collect(im *capture.Captured) (image []byte, ok bool) {
	if im.Image.File != "" && fatbin.Sniff(im.Data) == fatbin.FormatContainer {
		return nil, false // which is found there
	}
	tr.mu.Lock()
	var of *live
	for _, l := range tr.attached.all {
		if l.p.pid == im.PID {
			of = l
		}
	}
	tr.mu.Unlock()
	if of != nil {
		of.images.add(im.Image.SHA256, im.Data)
	}
	return nil, false
}

// Times of the tracing of launches.
const (
	liveLook = 5 * time.Millisecond   // between looks at which kernels were launched
	liveRest = 300 * time.Millisecond // of the breakpoints at launches, when they are of no use
	liveHits = 200                    // of these without use, before they rest
	liveWait = 5 * time.Second        // for the end of launches, and for a thread that goes on unloading
)

// liveAsleep is how often a kernel is tried again whose context is not active, liveRest apart at least.
const liveAsleep = 100

// enliven looks for a driver in the code that a process has, or gets.
func (tr *Tracer) enliven(t *ptrace.Task, e *dso.Event) {
	for _, m := range e.Files() {
		if IsDriver(m.Path) {
			tr.foundDriver(t, &m.Mapping)
			return
		}
	}
}

// foundDriver has launches of a process seen; m is its driver's code.
func (tr *Tracer) foundDriver(t *ptrace.Task, m *proc.Mapping) {
	tr.mu.Lock()
	th := tr.threads[t.TID]
	known := slices.ContainsFunc(tr.attached.all, func(l *live) bool { return l.p.pid == t.PID })
	tr.mu.Unlock()
	if th == nil || known {
		return
	}
	tr.work.Go(func() {
		lib, err := tr.library(t.PID, m)
		if err != nil {
			tr.report("no probes run in process %d: the driver's functions: %v", t.PID, err)
			return
		}
		tr.compiler(lib.path)
		t.Interrupt(func(t *ptrace.Task) {
			if err := tr.begin(t, th, lib); err != nil {
				tr.report("no probes run in kernels that process %d has loaded: %v", t.PID, err)
			}
		})
	})
}

// begin hooks the launching functions of a process.
func (tr *Tracer) begin(t *ptrace.Task, th *thread, lib *library) error {
	at := tr.attached
	if len(at.memory) < agent.SubstitutesSize {
		return fmt.Errorf("probes run in %d processes already", maxLive)
	}
	p, err := tr.enroll(th)
	if err != nil {
		return err
	}
	ap, err := at.agent.Process(t)
	if err != nil {
		return err
	}
	l := &live{
		p: p, subst: agent.NewSubstitutes(at.memory, at.addr), kernels: make(map[uint64]*liveKernel),
		marks: make(map[*context]uint64), left: make(chan struct{}), pace: pace{hold: cmp.Or(tr.o.Hold, DefaultHold)},
	}
	funcs := handleFuncs(lib)
	missed, err := ap.Substitute(t, l.subst, funcs)
	if err == nil {
		err = l.missing(t, funcs, missed)
	}
	if err != nil {
		return err
	}
	at.memory, at.addr = at.memory[agent.SubstitutesSize:], at.addr+agent.SubstitutesSize
	lib.jit = jitOf(dso.Environ(p.pid))
	p.live, p.driver = l, lib
	maps, _ := proc.Maps(p.pid) // without, its end is seen later
	if err := p.watch(t, findEnds(p.pid, maps)); err != nil {
		tr.log.Debug("the ends of contexts are not seen", "pid", p.pid, "err", err)
	}
	l.watchCaptures(t)
	l.subst.On(true)
	tr.mu.Lock()
	at.all = append(at.all, l)
	tr.mu.Unlock()
	tr.o.Session.LooksAtLaunches()
	tr.work.Go(func() { l.look(th) })
	return nil
}

// missing sees to functions that could not be hooked, for some reasons: what they launch has no programs, which is told when
// they are called. It is an error if they are the ones by which nearly all programs launch.
func (l *live) missing(t *ptrace.Task, funcs []agent.HandleFunc, why []error) error {
	for i, err := range why {
		if err == nil {
			continue
		}
		name, told := funcs[i].Name, false
		if name == "cuLaunchKernel" || name == "cuLaunchKernelEx" {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.p.tr.log.Debug("not hooked", "function", name, "pid", l.p.pid, "err", err)
		_, berr := t.SetBreakpoint(funcs[i].Addr, func(t *ptrace.Task, b *ptrace.Breakpoint) {
			if told || l.p.tr.process(t) != l.p || l.p.tr.calling(t) {
				return
			}
			told = true
			l.p.tr.report("process %d launches kernels by %s, which run without probes: %v", l.p.pid, name, err)
			if err := b.Remove(); err != nil {
				l.p.tr.log.Debug("a breakpoint stays", "pid", l.p.pid, "err", err)
			}
		})
		if berr != nil {
			l.p.tr.log.Debug("not watched", "function", name, "pid", l.p.pid, "err", berr)
			l.p.tr.report("process %d: what is launched by %s runs without probes: %v", l.p.pid, name, err)
		}
	}
	return nil
}

// handleFuncs are the functions of a driver that launch kernels, or graphs.
func handleFuncs(lib *library) (list []agent.HandleFunc) {
	seen := make(map[uint64]bool)
	add := func(name string, form agent.HandleForm) {
		if addr := lib.syms[name]; addr != 0 && !seen[addr] {
			seen[addr] = true
			list = append(list, agent.HandleFunc{Name: name, Addr: addr, Form: form})
		}
	}
	for name, f := range launchers() {
		switch {
		case f.kernel == 1:
			add(name, agent.HandleConfig)
		case f.all:
			add(name, agent.HandleAll)
		default:
			add(name, agent.HandleFirst)
		}
	}
	add("cuGraphLaunch", agent.HandleGraph)
	add("cuGraphLaunch_ptsz", agent.HandleGraph)
	return list
}

// watchCaptures has copies take no part in graphs, which would go on with them when nvtrace has
// left; and kernels forgotten whose module is unloaded.
func (l *live) watchCaptures(t *ptrace.Task) {
	seen := make(map[uint64]bool)
	set := func(name string, fn func(t *ptrace.Task, r *ptrace.Regs)) {
		addr := l.p.driver.syms[name]
		if addr == 0 || seen[addr] {
			return
		}
		seen[addr] = true
		if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
			t.Why(name)
			if r, err := t.Regs(); err == nil && l.p.tr.process(t) == l.p && !l.p.tr.calling(t) {
				fn(t, r)
			}
		}); err != nil {
			l.p.tr.log.Debug("not watched", "function", name, "pid", l.p.pid, "err", err)
		}
	}
	for _, suffix := range []string{"", "_ptsz", "_v2", "_v2_ptsz"} {
		set("cuStreamBeginCapture"+suffix, func(*ptrace.Task, *ptrace.Regs) { l.capturing(1) })
		set("cuStreamEndCapture"+suffix, func(t *ptrace.Task, _ *ptrace.Regs) {
			if err := t.OnReturn(func(*ptrace.Task, uint64) { l.capturing(-1) }); err != nil {
				l.capturing(-1)
			}
		})
	}
	for _, suffix := range []string{"", "_ptsz"} {
		set("cuStreamBeginCaptureToGraph"+suffix, func(*ptrace.Task, *ptrace.Regs) { l.capturing(1) })
	}
	set("cuModuleUnload", func(_ *ptrace.Task, r *ptrace.Regs) { l.forget(r.Arg(0)) })
	set("cuLibraryUnload", func(_ *ptrace.Task, r *ptrace.Regs) { l.forget(r.Arg(0)) })
}

// capturing notes that a stream begins to be captured, or that it has been.
func (l *live) capturing(change int) {
	l.captures = max(l.captures+change, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subst.On(l.captures == 0 && !l.off)
}

// forget forgets the kernels of a module, or library, that is being unloaded: their handles may
// mean something else soon.
func (l *live) forget(owner uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := func(k *liveKernel) bool { return k.owner == owner || k.owner == 0 }
	for _, s := range l.subst.All() {
		if k := l.kernels[s.Handle]; k != nil && gone(k) {
			l.tell(k, s)
			l.subst.Forget(s.Handle)
			delete(l.kernels, s.Handle)
		}
	}
	l.ready = slices.DeleteFunc(l.ready, gone)
}

// look waits for kernels that are launched, until the process has ended or is left. Breakpoints at
// launches cost the program a stop for each. So they are set only while there is something to
// do, and are taken away for a while (liveRest) when many launches came by that were of no use.
func (l *live) look(th *thread) {
	tick := time.NewTicker(liveLook)
	defer tick.Stop()
	var rest time.Time
	for {
		select {
		case <-l.p.tr.quit:
			return
		case <-l.left:
			return
		case <-tick.C:
		}
		if l.p.gone() {
			return
		}
		if l.subst.Changed() {
			l.meet()
		}
		if !l.busy() || time.Now().Before(rest) || !l.may() {
			continue
		}
		any := l.p.anyThread()
		if any == nil {
			return
		}
		done := make(chan bool, 1)
		any.task.Interrupt(func(t *ptrace.Task) {
			fresh := len(l.armed) > 0 && l.hits < liveHits
			if !fresh {
				l.disarm()
				if l.hits < liveHits {
					l.arm(t)
				}
				l.hits = 0
			}
			done <- len(l.armed) > 0
		})
		select {
		case on := <-done:
			if rest = time.Now().Add(20 * time.Millisecond); !on {
				rest = time.Now().Add(liveRest)
			}
		case <-any.gone:
		case <-l.p.tr.quit:
			return
		}
	}
}

// meet notes the kernels that were launched for the first time.
func (l *live) meet() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.subst.All() {
		if l.kernels[s.Handle] == nil && !s.Graph {
			l.kernels[s.Handle] = &liveKernel{handle: s.Handle}
		}
	}
}

// busy reports whether there is something to be done where a thread launches.
func (l *live) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving || len(l.ready) > 0 {
		return true
	}
	for _, k := range l.kernels {
		if !k.asked {
			return true
		}
	}
	return false
}

// arm has launches stop the program; where it is to be left, other calls, too.
func (l *live) arm(t *ptrace.Task) {
	var names []string
	for name := range launchers() {
		names = append(names, name)
	}
	l.mu.Lock()
	if l.leaving || len(l.ready) > 0 {
		names = append(names, l.p.tr.moments()...)
	}
	l.mu.Unlock()
	seen := make(map[uint64]bool)
	for _, name := range names {
		addr := l.p.driver.syms[name]
		if addr == 0 || seen[addr] {
			continue
		}
		seen[addr] = true
		f, launches := launchers()[name]
		if !launches {
			f.args = 0
		}
		b, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
			t.Why(name)
			l.at(t, name, f)
		})
		if err != nil {
			l.p.tr.log.Debug("no breakpoint", "function", name, "pid", l.p.pid, "err", err)
			continue
		}
		l.armed = append(l.armed, b)
	}
}

// disarm takes away the breakpoints that arm has set.
func (l *live) disarm() {
	for _, b := range l.armed {
		if err := b.Remove(); err != nil {
			l.p.tr.log.Debug("a breakpoint stays", "pid", l.p.pid, "err", err)
		}
	}
	l.armed = nil
}

// at is called where a thread is about to call a function of the driver; f has no arguments if
// that is no launch.
func (l *live) at(t *ptrace.Task, name string, f launcher) {
	tr := l.p.tr
	th := tr.thread(t.TID)
	if tr.process(t) != l.p || th == nil || t.Calling() || th.visiting || len(l.armed) == 0 {
		return
	}
	l.hits++
	l.mu.Lock()
	if !l.pace.since.IsZero() { // another thread is held
		l.mu.Unlock()
		return
	}
	now := time.Now()
	if !l.pace.may(now) {
		l.mu.Unlock()
		l.hits = 0
		l.disarm() // look sets them again when there is time
		return
	}
	leaving, ready := l.leaving, len(l.ready) > 0
	var k *liveKernel
	var stream uint64
	if f.args > 0 {
		if c, err := readCall(t, name, f); err == nil {
			k, stream = l.kernels[c.argv[f.kernel]], c.streamOf(t)
		}
	}
	ask := k != nil && !k.asked
	if ask && !leaving {
		k.asked, k.all = true, f.all
	}
	l.mu.Unlock()
	switch {
	case leaving:
		l.hold(t, now, l.unload)
	case ask:
		l.hold(t, now, func(v *visit) { l.ask(v, k, stream) })
	case ready:
		l.hold(t, now, l.load)
	}
	if !l.busy() {
		l.disarm()
	}
}

// hold holds a thread for a visit, at the pace.
func (l *live) hold(t *ptrace.Task, now time.Time, f func(v *visit)) {
	l.hits = 0
	l.mu.Lock()
	l.pace.begin(now)
	l.mu.Unlock()
	l.p.tr.visitHeld(t, l.p, func(v *visit) {
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.pace.end(time.Now())
		}()
		f(v)
	})
}

// may reports whether there is time for another piece of work.
func (l *live) may() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pace.may(time.Now())
}

// piece begins a piece of work; done must be called at its end.
func (l *live) piece() (done func()) {
	began := time.Now()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pace.took(time.Since(began))
	}
}

// streamOf is the stream that a launch is for.
func (c *launchCall) streamOf(t *ptrace.Task) uint64 {
	if c.stream != inConfig {
		return c.argv[c.stream]
	}
	s, _ := readWord(t, c.argv[0]+configStream)
	return s
}

// gone reports whether a process has ended.
func (p *process) gone() bool { return p.anyThread() == nil }

// anyThread returns one of a process's threads, nil if there is none.
func (p *process) anyThread() *thread {
	p.tr.mu.Lock()
	defer p.tr.mu.Unlock()
	for proc, q := range p.tr.procs {
		if q != p {
			continue
		}
		for _, th := range p.tr.threads {
			if th.task.Proc == proc {
				return th
			}
		}
	}
	return nil
}

// ask asks the driver about a kernel that the thread is about to launch on a stream, and has
// its copy made. Where there is no time left for the second half, that is done at another launch.
func (l *live) ask(v *visit, k *liveKernel, stream uint64) {
	o := l.p.tr.o.Session
	if k.name == "" {
		if !l.identify(v, k, stream) {
			return
		}
		o.Ran(k.name)
		if !o.Wants(k.name) {
			return
		}
		// Making a context's maps takes longer than all other pieces.
		if len(l.p.contexts) == 0 || !l.may() {
			l.mu.Lock()
			k.asked = false
			l.mu.Unlock()
			return
		}
	}
	done := l.piece()
	c, _, err := v.contextHere(k.library)
	done()
	if err != nil {
		o.Unprobed(k.name, err.Error())
		return
	}
	k.context = c
	if c.attended.CompareAndSwap(false, true) {
		l.p.tr.work.Go(func() { l.p.tr.attend(v.th.task.Proc, c) })
	}
	l.compiles(1, 0)
	l.p.tr.work.Go(func() {
		defer l.compiles(0, 1)
		l.prepare(k)
	})
}

// compiles takes note of copies that are being made, and of those that were.
func (l *live) compiles(more, done int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.making == 0 {
		l.compiling = l.p.tr.progress(slowAfter, fmt.Sprintf("process %d runs on meanwhile", l.p.pid))
	}
	l.compiling.add(more, done)
	if l.making += more - done; l.making == 0 {
		l.compiling.end()
	}
}

// identify finds out what a kernel is that a thread is about to launch on a stream, and reports whether it could.
func (l *live) identify(v *visit, k *liveKernel, stream uint64) bool {
	defer l.piece()()
	err := v.relaxed(func() error {
		captured, err := v.ask("cuStreamIsCapturing", stream)
		if err == nil && uint32(captured) != 0 { // since before nvtrace attached
			err = v.do(func(_ *ptrace.Task, done func(error)) {
				if l.captures == 0 {
					l.capturing(1)
				}
				done(nil)
			})
		}
		if err != nil && !isDriverError(err) {
			return err
		}
		return l.name(v, k)
	})
	if err == nil && k.name == "" {
		err = errors.New("the driver does not say the names of kernels (before 12.3)")
	}
	if err != nil && (isDriverError(err) || k.name == "") {
		l.p.tr.report("a kernel of process %d runs without probes: %v", l.p.pid, err)
	}
	return err == nil
}

// name finds out what a kernel is.
func (l *live) name(v *visit, k *liveKernel) error {
	getName := "cuFuncGetName"
	owner, err := v.ask("cuFuncGetModule", k.handle)
	k.function = k.handle
	if isDriverError(err) {
		if owner, err = v.ask("cuKernelGetLibrary", k.handle); err != nil {
			return err
		}
		k.library, getName = true, "cuKernelGetName"
		k.function, err = v.ask("cuKernelGetFunction", k.handle)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	k.owner = owner
	l.mu.Unlock()
	if v.p.driver.syms[getName] == 0 {
		return nil
	}
	at, err := v.ask(getName, k.handle)
	if err != nil {
		return err
	}
	if k.name, err = v.text(at); err != nil {
		return err
	}
	n, err := v.ask("cuFuncGetAttribute", funcRegisters, k.function)
	switch {
	case err == nil:
		k.shape.registers = int(uint32(n))
	case !isDriverError(err):
		return err
	}
	return l.params(v, k)
}

// params asks for a kernel's parameters, where the driver says them (from 12.4 on).
func (l *live) params(v *visit, k *liveKernel) error {
	if v.p.driver.syms["cuFuncGetParamInfo"] == 0 {
		return nil
	}
	const most = 4096 // of a kernel's parameters
	for i := range uint64(most) {
		var got [16]byte
		err := v.exchange(got[:], v.word(wordOut), []step{call("cuFuncGetParamInfo", k.function, i, v.word(wordOut), v.word(wordOut)+8)}, v.word(wordOut), got[:])
		if isDriverError(err) {
			k.shape.known = true // there are no more
			return nil
		}
		if err != nil {
			return err
		}
		k.shape.params = append(k.shape.params, fatbin.Param{
			Offset: int(binary.LittleEndian.Uint64(got[:])), Size: int(binary.LittleEndian.Uint64(got[8:])),
		})
	}
	return nil
}

// prepare makes the image of a copy, beside the program.
func (l *live) prepare(k *liveKernel) {
	tr, c := l.p.tr, k.context
	image, err := l.images.find(l.p.pid, k.name, c.arch, &k.shape)
	if err != nil {
		tr.o.Session.Unprobed(k.name, err.Error())
		return
	}
	began := time.Now()
	image = nvattach.Single(image, k.name, c.arch)
	k.copy, err = c.session.Beside(image, k.name, tr.rewriteOptions(l.p.driver, c))
	if err == nil && len(k.copy.Variables) == 0 {
		k.image, err = k.copy.Image(nil)
	}
	tr.log.Debug("copy of a kernel", "kernel", k.name, "took", time.Since(began), "err", err)
	if err != nil {
		return // which the session knows
	}
	tr.count(func(s *Stats) {
		s.Images++
		s.Rewriting += time.Since(began)
	})
	l.enqueue(k)
}

// enqueue has a copy loaded, or the addresses of its variables asked for.
func (l *live) enqueue(k *liveKernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kernels[k.handle] == k {
		l.ready = append(l.ready, k)
	}
}

// bind asks where the variables are that a kernel uses, and has its copy use them. The image is
// made with these addresses on a goroutine, and comes back to the list of what is to be loaded.
func (l *live) bind(v *visit, k *liveKernel) error {
	if _, entered, err := v.enterAnd(k.context, v.reach(k.context, false)); !entered {
		return err
	}
	at := make(map[string]uint64)
	var err error
	for _, name := range k.copy.Variables {
		if at[name], err = v.liveVariable(k, name); err != nil {
			err = fmt.Errorf("where %s is: %w", fatbin.Demangle(name), err)
			break
		}
	}
	if err = errors.Join(err, v.leave(k.context)); err != nil {
		return err
	}
	l.p.tr.work.Go(func() {
		if k.image, err = k.copy.Image(at); err == nil { // else the session knows
			l.enqueue(k)
		}
	})
	return nil
}

// liveVariable asks for the address of a variable of a kernel's module.
func (v *visit) liveVariable(k *liveKernel, name string) (uint64, error) {
	if !k.library {
		return v.named("cuModuleGetGlobal_v2", name, 0, k.owner)
	}
	at, err := v.named("cuLibraryGetGlobal", name, 0, k.owner)
	if isDriverError(err) {
		at, err = v.named("cuLibraryGetManaged", name, 0, k.owner)
	}
	return at, err
}

// load loads copies that are ready, while there is time: the thread has work to do.
func (l *live) load(v *visit) {
	for {
		l.mu.Lock()
		if len(l.ready) == 0 || l.off || !l.pace.may(time.Now()) {
			l.mu.Unlock()
			return
		}
		k := l.ready[0]
		l.ready = l.ready[1:]
		l.mu.Unlock()
		if !k.context.ended {
			l.loadPiece(v, k)
		}
	}
}

// loadPiece does what comes next for a kernel's copy. Before the first of a context, it compares clocks.
func (l *live) loadPiece(v *visit, k *liveKernel) {
	began := time.Now()
	defer l.piece()()
	tr := l.p.tr
	if _, ok := tr.clockDue(k.context); ok && !k.context.clocked {
		k.context.clocked = true
		if err := v.lookAtClock(k.context); err != nil {
			tr.log.Debug("clocks are not compared", "err", err)
		}
		l.enqueue(k)
		return
	}
	if k.image == nil {
		if err := l.bind(v, k); err != nil {
			l.without(k, err)
		}
		return
	}
	other, err := l.loadCopy(v, k)
	if err != nil {
		l.without(k, err)
		return
	}
	l.mu.Lock()
	if l.kernels[k.handle] == k && !l.off {
		k.copied = true
		l.subst.Set(k.handle, other, k.fits)
		tr.count(func(s *Stats) { s.Copies++ })
	}
	l.mu.Unlock()
	tr.log.Debug("launches get programs", "kernel", k.name, "took", time.Since(began))
}

// without is called when a kernel could not get its copy. Where its context was not active, that is
// tried again at a later launch.
func (l *live) without(k *liveKernel, err error) {
	if k.again(err) {
		time.AfterFunc(liveRest, func() { l.enqueue(k) })
		return
	}
	l.p.tr.o.Session.Unprobed(k.name, fmt.Sprintf("its copy with programs: %v", err))
}

// again reports whether to try again what has failed.
func (k *liveKernel) again(err error) bool {
	if !errors.Is(err, errAsleep) || k.context.ended || k.asleep == liveAsleep {
		return false
	}
	k.asleep++
	return true
}

// loadCopy loads a copy into its context, and returns the handle to launch it by. It is of the
// same sort as the kernel's, a CUfunction or a CUkernel. The image's memory stays in the program as
// long as the module does: the driver may read it later.
func (l *live) loadCopy(v *visit, k *liveKernel) (handle uint64, err error) {
	c := k.context
	if _, entered, err := v.enterAnd(c, v.reach(c, false)); !entered {
		return 0, err
	}
	m := &liveModule{context: c, library: k.library}
	defer func() { err = errors.Join(err, v.leave(c)) }()
	err = v.loadModule(m, k.image)
	if m.addr != 0 {
		k.image = nil
		l.mu.Lock()
		l.loaded = append(l.loaded, m)
		l.mu.Unlock()
	}
	if err != nil {
		return 0, err
	}
	handle, err = v.kernelIn(m, k.name)
	function := handle
	if err == nil && k.library {
		function, err = v.ask("cuKernelGetFunction", handle)
	}
	if err == nil {
		err = l.alike(v, k, handle, function)
	}
	return handle, err
}

// alike gives a copy what the program has set for the kernel, or may set later. The error says
// that it can't be launched as the kernel can.
func (l *live) alike(v *visit, k *liveKernel, handle, function uint64) error {
	want, err := v.ask("cuFuncGetAttribute", funcMaxThreads, k.function)
	if err != nil {
		return err
	}
	have, err := v.ask("cuFuncGetAttribute", funcMaxThreads, function)
	if err != nil {
		return err
	}
	if uint32(have) < uint32(want) {
		return fmt.Errorf("%s: %d threads a block at most, instead of %d", session.TooManyRegisters, uint32(have), uint32(want))
	}
	for _, attr := range []uint64{9, 11, 12, 13, 14, 15} { // as in findTwin
		got, err := v.ask("cuFuncGetAttribute", attr, k.function)
		if err == nil && got != 0 {
			err = v.run(try("cuFuncSetAttribute", function, attr, got))
		}
		if err != nil && !isDriverError(err) {
			return err
		}
	}
	// As much shared memory as there may be: a program may ask for more before any launch.
	most, err := v.ask("cuDeviceGetAttribute", attrMaxShared, uint64(k.context.device))
	if err != nil {
		return err
	}
	static, err := v.ask("cuFuncGetAttribute", funcShared, function)
	if err != nil {
		return err
	}
	if k.fits, err = l.fits(v, k, function, uint32(static)); err != nil {
		return err
	}
	dynamic := max(int32(most)-int32(static), 0)
	asked, err := v.ask("cuFuncGetAttribute", funcMaxDynamic, k.function)
	if err != nil {
		return err
	}
	if int32(asked) > dynamic {
		return errors.New(session.TooMuchShared)
	}
	if k.library {
		count, err := v.ask("cuDeviceGetCount")
		if err != nil {
			return err
		}
		for d := range uint64(uint32(count)) {
			if err := v.run(try("cuKernelSetAttribute", funcMaxDynamic, uint64(dynamic), handle, d)); err != nil {
				return err
			}
		}
	}
	return v.run(try("cuFuncSetAttribute", function, funcMaxDynamic, uint64(dynamic)))
}

// fits reports whether as many blocks of a function fit on a GPU as of a kernel, whatever is
// asked of the driver for it: where that is not plain from registers, of which threads get
// multiples of 8, only for kernels that were launched so.
func (l *live) fits(v *visit, k *liveKernel, function uint64, shared uint32) (bool, error) {
	var got [3]uint64
	var err error
	for i, step := range []struct{ attr, function uint64 }{{funcRegisters, k.function}, {funcRegisters, function}, {funcShared, k.function}} {
		if got[i], err = v.ask("cuFuncGetAttribute", step.attr, step.function); err != nil {
			return false, err
		}
	}
	switch {
	case shared > uint32(got[2]):
		return false, nil
	case (uint32(got[1])+7)/8 <= (uint32(got[0])+7)/8:
		return true, nil
	case !k.all:
		return false, nil
	}
	// What shared memory a launch adds bounds both alike.
	const most, warp = 1024, 32
	for threads := uint64(warp); threads <= most; threads += warp {
		var blocks [2]uint64
		for i, f := range []uint64{k.function, function} {
			if blocks[i], err = v.ask("cuOccupancyMaxActiveBlocksPerMultiprocessor", f, threads, 0); isDriverError(err) {
				return false, nil
			} else if err != nil {
				return false, err
			}
		}
		if uint32(blocks[1]) < uint32(blocks[0]) {
			return false, nil
		}
	}
	return true, nil
}

// Leave has all programs that were attached to go on as they were: their launches go on with
// their own kernels, and what was loaded beside is unloaded when it runs no more. It returns
// when that is so, or can't be.
func (tr *Tracer) Leave() {
	if tr.attached == nil {
		return
	}
	tr.mu.Lock()
	all := slices.Clone(tr.attached.all)
	tr.mu.Unlock()
	var wait sync.WaitGroup
	for _, l := range all {
		wait.Go(l.leave)
	}
	wait.Wait()
}

// leave is Leave of one process.
func (l *live) leave() {
	l.mu.Lock()
	l.off, l.worked = true, time.Now()
	l.subst.On(false)
	l.mu.Unlock()
	for l.subst.Open() > 0 && !l.p.gone() { // a launch may still be on its way with a copy
		if l.late() {
			l.stays("launches of it do not return")
			return
		}
		time.Sleep(time.Millisecond)
	}
	l.p.visits.Lock()
	contexts := len(l.p.order)
	l.p.visits.Unlock()
	l.mu.Lock()
	l.leaving = true
	l.mu.Unlock()
	if contexts == 0 {
		return
	}
	for !l.p.gone() {
		if l.late() {
			l.stays(fmt.Sprintf("it has not called the driver for %v", liveWait))
			return
		}
		select {
		case <-l.left:
			return
		case <-l.p.tr.quit:
			return
		case <-time.After(liveLook):
		}
	}
}

// works notes that a process goes on being left.
func (l *live) works() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worked = time.Now()
}

// late reports whether a process that is being left has given no opportunity for that for too long.
func (l *live) late() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.worked) > liveWait
}

// stays says that copies could not be unloaded.
func (l *live) stays(why string) {
	l.p.tr.report("process %d runs its own kernels again, but their copies with probes stay in its memory: %s", l.p.pid, why)
}

// unload unloads the copies when the last launch of them is over.
func (l *live) unload(v *visit) {
	l.mu.Lock()
	loaded := l.loaded
	l.mu.Unlock()
	over := true
	select {
	case <-l.left:
		return // another thread has done it
	default:
	}
	for _, c := range l.p.order {
		if c.ended {
			continue
		}
		done, err := l.end(v, c, loaded)
		if err != nil {
			l.p.tr.log.Debug("a context is not left", "pid", l.p.pid, "err", err)
			if !isDriverError(err) {
				return
			}
			c.end(l.p, err, false)
			continue
		}
		over = over && done
	}
	if over {
		l.free(v, loaded)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.leaving, l.loaded = false, nil
		close(l.left)
	}
}

// end has a context end that only probes know of. It returns false if launches of copies may
// run there.
func (l *live) end(v *visit, c *context, loaded []*liveModule) (done bool, err error) {
	event := l.marks[c]
	var first []step
	if event == 0 {
		first = []step{call("cuEventCreate", v.word(wordEvent), eventNoTiming), choose(func(w results) ([]step, error) {
			event = w[wordEvent]
			return []step{call("cuCtxRecordEvent", c.handle, event)}, nil
		})}
	}
	_, entered, err := v.enterAnd(c, v.reach(c, false), append(first, choose(func(results) ([]step, error) {
		return []step{call("cuEventQuery", event)}, nil
	}))...)
	if !entered {
		if errors.Is(err, errAsleep) {
			return true, nil // it has ended
		}
		return false, err
	}
	l.marks[c] = event
	if de, ok := errors.AsType[*DriverError](err); ok && de.Function == "cuEventQuery" && de.Code == errNotReady {
		return false, v.leave(c)
	}
	steps := []step{try("cuEventDestroy_v2", event)}
	if err == nil {
		for _, m := range loaded {
			if m.context != c || m.handle == 0 {
				continue
			}
			if !l.may() {
				return false, v.leave(c) // the others in another visit
			}
			done := l.piece()
			err = errors.Join(err, v.run(try(m.unloader(), m.handle)))
			m.handle = 0
			done()
			l.works()
		}
		if !l.may() {
			return false, errors.Join(err, v.leave(c))
		}
		defer l.piece()()
		c.mem.open(v)
		err = errors.Join(err, c.session.Keep(true), c.mem.close())
		if c.shared > 0 {
			steps = append(steps, try("cuMemHostUnregister", c.sharedAt))
		}
		steps = append(steps, c.free...)
	}
	if err = errors.Join(err, v.leave(c, steps...)); err == nil {
		c.ended = true
		c.session.Abandon(nil)
	}
	return true, err
}

// free gives back what was mapped into the program.
func (l *live) free(v *visit, loaded []*liveModule) {
	_ = v.do(func(t *ptrace.Task, done func(error)) {
		for _, m := range loaded {
			_ = remote.Free(t, m.addr, m.size) // the program goes on without nvtrace
		}
		_ = v.p.scratch.Unmap(t)
		done(nil)
	})
}

// tell tells of the launches of a kernel.
func (l *live) tell(k *liveKernel, s agent.Substituted) {
	if k.name == "" {
		return
	}
	o := l.p.tr.o.Session
	o.CountLaunches(k.name, s.Calls)
	if why := "they came before its copy with probes was loaded, or are in a graph"; k.copied {
		if !k.fits {
			why += ", or want all blocks to run at a time, of which fewer fit with probes"
		}
		o.Missed(k.name, why, s.Calls-s.Done)
	}
}

// tellAll tells of the launches of all kernels, once.
func (l *live) tellAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	graphs, calls := 0, uint64(0)
	for _, s := range l.subst.All() {
		switch k := l.kernels[s.Handle]; {
		case s.Graph:
			graphs++
			calls += s.Calls
		case k != nil:
			l.tell(k, s)
		}
	}
	if graphs > 0 {
		l.p.tr.report("process %d launched %d graphs, %d times: their kernels run without probes where nvtrace attaches to a program that runs", l.p.pid, graphs, calls)
	}
	clear(l.kernels)
}
