package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// SetOwn says how a stopped thread's process learns where the stack lies of functions that are
// called for nvtrace: programs on the host do not run at these. It must be called before a
// program begins; own is called on the tracing thread.
func (tr *Tracer) SetOwn(own func(t *ptrace.Task, addr uint64) error) { tr.own = own }

// SetShare says how the memory of maps on the host is mapped into a stopped thread's process,
// if it is not there yet, and what of it serves to compare clocks. It must be called before a
// program begins; share is called on the tracing thread.
func (tr *Tracer) SetShare(share func(t *ptrace.Task) error, clock *mapmem.ClockLine) {
	tr.share = share
	if clock != nil {
		tr.clock = &clockLine{ClockLine: clock}
	}
}

// Stats returns what was done so far. It may be called from any goroutine.
func (tr *Tracer) Stats() Stats {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.stats
}

// New makes a Tracer whose system calls have classes from class on.
func New(o *Options, class uint16) *Tracer {
	tr := &Tracer{
		o: *o, class: class, log: o.Logger, quit: make(chan struct{}), threads: make(map[int]*thread),
		procs: make(map[*ptrace.Process]*process), follows: make(map[*ptrace.Process]*follow), holdings: make(map[*ptrace.Process]holding), compilers: make(map[string]*compiler), files: make(map[proc.FileKey]*symbolFile), said: make(map[string]bool),
	}
	tr.code = dso.Watcher{Class: class + 1, Mapped: tr.mapped}
	if tr.log == nil {
		tr.log = slog.New(slog.DiscardHandler)
	}
	if o.Running {
		tr.attached, tr.code.Mapped = new(attached), tr.enliven
	}
	return tr
}

// Rules select the calls that end a program.
func (tr *Tracer) Rules() []ptrace.Rule {
	rules := []ptrace.Rule{{Names: []string{"exit_group", "execve", "execveat"}, Class: tr.class}}
	if tr.o.Session.Verify() || tr.o.Session.ReadsMemory() || tr.attached != nil {
		rules = append(rules, tr.code.Rules()...)
	}
	return rules
}

// Enter implements [ptrace.Handler].
func (tr *Tracer) Enter(t *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	if s.Class == tr.code.Class {
		return tr.code.Enter(t, s)
	}
	if s.Class != tr.class || s.Compat {
		return ptrace.Skip
	}
	last := s.Name() == "exit_group"
	if tr.o.Ending != nil {
		tr.o.Ending(t, last)
	}
	p := tr.process(t)
	if p == nil || !tr.isActive(p) || p.exiting || !p.exits || tr.calling(t) {
		return ptrace.Skip
	}
	p.exiting = last
	tr.visitHeld(t, p, func(v *visit) { v.keepAll(true) })
	return ptrace.Skip
}

// Exit implements [ptrace.Handler].
func (tr *Tracer) Exit(t *ptrace.Task, s *ptrace.Syscall) {
	if s.Class == tr.code.Class {
		tr.code.Exit(t, s)
	}
}

// Task implements [ptrace.Handler].
func (tr *Tracer) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	tr.task(t, e)
	if tr.attached != nil {
		tr.code.Task(t, e)
	}
}

// task keeps threads and processes up to date. What a process leaves is shown on a goroutine, since
// that may have to wait for a visit that is still under way.
func (tr *Tracer) task(t *ptrace.Task, e *ptrace.TaskEvent) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch e.Kind {
	case ptrace.TaskNew:
		tr.threads[t.TID] = &thread{task: t, gone: make(chan struct{})}
	case ptrace.TaskExec:
		if th := tr.threads[e.OldTID]; th != nil && e.OldTID != t.TID {
			delete(tr.threads, e.OldTID)
			tr.threads[t.TID] = th
		}
		delete(tr.follows, t.Proc)
		delete(tr.holdings, t.Proc)
		if p := tr.procs[t.Proc]; p != nil {
			delete(tr.procs, t.Proc)
			if tr.attached != nil {
				tr.attached.all = slices.DeleteFunc(tr.attached.all, func(l *live) bool { return l.p == p })
			}
			tr.work.Go(func() { p.abandon(errors.New("the process ran another program (exec)"), true) })
		}
	case ptrace.TaskExit, ptrace.TaskDetach:
		if th := tr.threads[t.TID]; th != nil && th.task == t {
			close(th.gone)
			delete(tr.threads, t.TID)
			if f := tr.follows[t.Proc]; f != nil {
				f.gone(th)
			}
		}
		if t.TID == t.PID && !e.Replaced {
			delete(tr.follows, t.Proc)
			delete(tr.holdings, t.Proc)
		}
		if p := tr.procs[t.Proc]; p != nil && t.TID == t.PID && !e.Replaced {
			delete(tr.procs, t.Proc)
			why := errors.New("the process ended without calling exit")
			switch {
			case e.Kind == ptrace.TaskDetach:
				why = errors.New("the process goes on without nvtrace")
			case e.Status.Signaled():
				why = fmt.Errorf("the process was killed by %s", cmp.Or(unix.SignalName(e.Status.Signal()), e.Status.Signal().String()))
			}
			over := p.exiting
			tr.work.Go(func() { p.abandon(why, over) })
		}
	}
}

// abandon ends what is left of a process that is gone. over says that it came to its
// end by itself.
func (p *process) abandon(why error, over bool) {
	p.visits.Lock()
	defer p.visits.Unlock()
	if p.live != nil {
		p.live.tellAll()
		p.live.images.close()
	}
	for _, c := range p.order {
		c.end(p, why, over)
	}
}

// Close ends all work. It must be called when tracing has ended, before the
// session is closed.
func (tr *Tracer) Close() {
	tr.mu.Lock()
	if !tr.closed {
		tr.closed = true
		close(tr.quit)
	}
	tr.mu.Unlock()
	tr.work.Wait()
	tr.log.Debug("probes", "handovers", tr.handovers, "waited", tr.handing, "calls", tr.stats.DriverCalls)
}

// Without says why the machine code of an architecture gets no programs, "" if it does.
func (m MachineCode) Without(arch fatbin.Arch) string {
	switch {
	case m == NoMachineCode:
		return "--machine-code=false leaves it alone"
	case m == TestedMachineCode && !sass.Arch(arch.SM).Ran():
		return fmt.Sprintf("probes in the machine code of sm_%d were never run on such a GPU; --untested-arch tries them", arch.SM)
	}
	return ""
}

// Replace is for [capture.Options]: it rewrites an image that a program is about
// to load, for the context that is current in the thread. The thread is held at the entry of the
// loading function meanwhile.
//
// The context must be known before: code has addresses of its maps in it, and is compiled
// for its GPU. If nothing is changed, false is returned and the program's own image is loaded, as it is if
// the loader is going to fail anyway.
func (tr *Tracer) Replace(im *capture.Captured) (image []byte, ok bool) {
	th := tr.thread(im.TID)
	if th == nil {
		return nil, false
	}
	began := time.Now()
	compiling := tr.progress(slowAfter, fmt.Sprintf("process %d waits for an image of %d kB (%s)", im.PID, len(im.Data)>>10, cmp.Or(origin(im), "memory")))
	defer compiling.end()
	tr.log.Debug("image", "pid", im.PID, "function", im.Function, "bytes", len(im.Data))
	c, lib, err := tr.contextOf(th, strings.HasPrefix(im.Function, "cuLibrary"))
	tr.log.Debug("image's context found", "pid", im.PID, "took", time.Since(began))
	switch {
	case errors.Is(err, ptrace.ErrGone), errors.Is(err, errEnded):
		return nil, false
	case err != nil:
		var de *DriverError
		if errors.As(err, &de) && (de.Code == errNotInitialized || de.Code == errDeinitialized || de.Code == errInvalidContext) {
			return nil, false // the loader will fail, too
		}
		tr.refuse(th, fmt.Errorf("no probes run in process %d: %w", im.PID, err))
		return nil, false
	}
	o := tr.rewriteOptions(lib, c)
	linking := strings.HasPrefix(im.Function, "cuLinkAdd")
	if linking {
		// What is to be linked may lack what other inputs have: the driver's linker compiles it, and it can't be loaded alone.
		o.Compile, o.CompileBody, o.NoBody, o.Beside = nil, nil, "it is to be linked with others", false
	}
	if im.Linked {
		o.Except = c.linked.list()
	}
	tr.log.Debug("compiler found", "pid", im.PID, "took", time.Since(began))
	if !linking && tr.leave(th, im, c, o) {
		tr.attendTo(th, c)
		return nil, false
	}
	o.Progress = compiling.add
	out, kernels, err := c.session.Rewrite(im.Data, origin(im), o)
	if linking {
		c.linked.add(kernels)
	}
	if slices.ContainsFunc(kernels, func(k nvattach.KernelReport) bool { return k.Twin }) {
		tr.lookAtLaunches(th)
	}
	tr.attendTo(th, c)
	if err != nil {
		tr.refuse(th, fmt.Errorf("process %d: %w", im.PID, err))
		return nil, false
	}
	if len(out) == len(im.Data) && &out[0] == &im.Data[0] {
		return nil, false
	}
	tr.log.Debug("image rewritten", "pid", im.PID, "bytes", len(out), "took", time.Since(began))
	tr.count(func(s *Stats) {
		s.Images++
		s.Rewriting += time.Since(began)
	})
	return out, true
}

// attendTo has a context attended to, once, in the process of a thread.
func (tr *Tracer) attendTo(th *thread, c *context) {
	// Trials hold threads at the same functions.
	if (c.session.Live() || !tr.o.Session.Verify()) && c.attended.CompareAndSwap(false, true) {
		tr.work.Go(func() { tr.attend(th.task.Proc, c) })
	}
}

// origin is where an image came from, for a reader.
func origin(im *capture.Captured) string {
	if name := fileName(im.Image.File); name != "" || im.Library == "" {
		return name
	}
	return "memory of " + fileName(im.Library)
}

// fileName is the last part of a path, "" of "".
func fileName(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Base(path)
}

// rewriteOptions says how images are rewritten for a context.
func (tr *Tracer) rewriteOptions(lib *library, c *context) *session.RewriteOptions {
	o := &session.RewriteOptions{
		Arch: c.arch, Twins: nvattach.TwinsNeeded, Beside: true, Compile: tr.compileFor(lib, c.arch, c.mem.addr), NoBody: tr.o.MachineCode.Without(c.arch),
		JIT: lib.jit,
	}
	if o.NoBody == "" {
		tr.machineCode(o, lib, c.mem.addr)
	}
	return o
}

// machineCode has programs put into machine code, for maps in memory at base.
func (tr *Tracer) machineCode(o *session.RewriteOptions, lib *library, base uint64) {
	o.CompileBody = tr.compileFor(lib, o.Arch, 0, "--compile-as-tools-patch")
	o.High = uint16(base >> 32)
	o.Places = func(text string) (a, b string, ok bool) {
		if !strings.Contains(text, fmt.Sprintf("%#x", base>>32)) {
			return text, text, true
		}
		return bothPlaces(text, base)
	}
	if c := tr.compiler(lib.path); c.c != nil {
		o.Store = c.c
	}
}

// lookAtLaunches has the launches of a held thread's process looked at.
func (tr *Tracer) lookAtLaunches(th *thread) {
	p, err := tr.enroll(th)
	if err != nil {
		return
	}
	v := newVisit(p, th)
	if err := v.do(func(t *ptrace.Task, done func(error)) {
		p.watchLaunches(t)
		done(nil)
	}); err != nil {
		tr.log.Debug("launches are not looked at", "err", err)
	}
}

// Refused is for [capture.Options]: the driver did not load what Replace gave.
func (tr *Tracer) Refused(pid, tid int, sum string, result int32) {
	err := tr.o.Session.Refused(sum, fmt.Sprintf("the driver refuses the rewritten image with CUDA error %d", result))
	th := tr.thread(tid)
	if err == nil || th == nil {
		return
	}
	th.task.Hold() // it must not go on
	tr.work.Go(func() {
		tr.refuse(th, fmt.Errorf("process %d: %w", pid, err))
		th.task.Release(nil)
	})
}

// refuse deals with an image that can't be rewritten. Where that is not allowed,
// the thread does not go on.
func (tr *Tracer) refuse(th *thread, err error) {
	if tr.o.Session.Required() && tr.o.Refuse != nil {
		tr.o.Refuse(err)
		select {
		case <-th.gone:
		case <-tr.quit:
		}
		return
	}
	tr.report("%v", err)
}

// contextOf returns the context that a thread, which is held at the entry of a
// loader, loads code for, with maps; library says that the loader needs none to be
// current.
func (tr *Tracer) contextOf(th *thread, library bool) (*context, *library, error) {
	p, err := tr.enroll(th)
	if err != nil {
		return nil, nil, err
	}
	p.visits.Lock()
	defer p.visits.Unlock()
	v := newVisit(p, th)
	v.stuck = p.stuck
	return v.contextHere(library)
}

// contextHere is contextOf of a visit. A context that can't have maps is remembered with the
// reason, so that it is not tried again with each image.
func (v *visit) contextHere(library bool) (*context, *library, error) {
	p, tr := v.p, v.p.tr
	if p.driver == nil {
		if err := v.findDriver(); err != nil {
			return nil, nil, err
		}
	}
	handle, err := v.current(library)
	if err == nil && handle == 0 {
		err = &DriverError{Function: "cuCtxGetCurrent", Code: errInvalidContext}
	}
	if err != nil {
		return nil, nil, err
	}
	if c := p.contexts[handle]; c != nil && !c.ended {
		return c, p.driver, c.err
	}
	c, err := v.newContext(handle)
	if c == nil {
		return nil, nil, err
	}
	c.err = err
	p.contexts[handle] = c
	if err != nil {
		return nil, nil, err
	}
	if slices.Contains(p.order, c) {
		return c, p.driver, nil
	}
	p.order = append(p.order, c)
	tr.mu.Lock()
	p.active = true
	tr.mu.Unlock()
	if err := v.showReadable(c); err != nil {
		tr.report("process %d, device %d: what kernels may read can't be told: %v", p.pid, c.device, err)
	}
	return c, p.driver, nil
}

// enroll returns the thread's process.
func (tr *Tracer) enroll(th *thread) (*process, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.threads[th.task.TID] != th {
		return nil, ptrace.ErrGone
	}
	p := tr.procs[th.task.Proc]
	if p == nil {
		p = &process{
			tr: tr, pid: th.task.PID, contexts: make(map[uint64]*context), kernels: make(map[uint64]*kernel), comparers: make(map[uint64]tools), asides: make(map[asideKey]uint64),
			laters: make(map[laterKey]func(string) ([]byte, error)),
		}
		tr.procs[th.task.Proc] = p
	}
	return p, nil
}

// findDriver finds the driver at whose loader's entry the thread is held: the library with the
// code there, whatever its name, as programs may have a libcuda of their own. From now on
// the process is watched for the ends of contexts and its own.
func (v *visit) findDriver() error {
	var at uint64
	if err := v.do(func(t *ptrace.Task, done func(error)) {
		r, err := t.Regs()
		if err == nil {
			at = r.IP()
			err = v.makeRoom(t)
		}
		done(err)
	}); err != nil {
		return err
	}
	began := time.Now()
	maps, err := proc.Maps(v.p.pid)
	var lib *library
	if err == nil {
		lib, err = v.p.tr.libraryAt(v.p.pid, maps, at)
	}
	if err != nil {
		return fmt.Errorf("the driver's functions: %w", err)
	}
	lib.jit = jitOf(dso.Environ(v.p.pid))
	list := findEnds(v.p.pid, maps)
	v.p.tr.log.Debug("driver found", "pid", v.p.pid, "took", time.Since(began))
	return v.do(func(t *ptrace.Task, done func(error)) {
		v.p.driver = lib
		done(v.p.watch(t, list))
	})
}
