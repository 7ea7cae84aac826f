package gpu

import (
	"cmp"
	gocontext "context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/remote"
)

// Options say what to run where.
type Options struct {
	Session *session.Session
	// JIT tunes the compiler of rewritten images.
	JIT *jit.Options
	// MachineCode says whether programs go into machine code, too, where a kernel has no
	// PTX.
	MachineCode MachineCode
	// Running: programs that run already are attached to, and Live is called.
	Running bool
	// Refuse is told, once, of an image that the session refuses: the program is to
	// be ended before it can go on. It may be called from any goroutine.
	Refuse func(err error)
	// Report is told what keeps probes from running, the same once; nil for nobody.
	// It may be called from any goroutine.
	Report func(text string)
	// Ending, if not nil, is told on the tracing thread of a thread that is about to end its
	// process, or to run another program there.
	Ending func(t *ptrace.Task, last bool)
	// KeepEvery is how often maps are read in a program that runs, for the case that it
	// is killed; 0: every 5 s.
	KeepEvery time.Duration
	Logger    *slog.Logger // nil discards
}

// Tracer runs a session's probes in the programs of a run. Its Replace is for
// [capture.Options]; it is a [ptrace.Handler] for the calls that [Tracer.Rules]
// select.
//
// Its methods as a handler, Refused and all that breakpoints call run on the tracing thread; Replace
// and Found run on a goroutine, with the loading thread held. Locks are taken in the order later.finding, process.visits,
// context.clocksMu, clockLine.mu, live.mu, process.known, Tracer.mu. The first four are held while
// the tracing thread is asked for something, so that it takes none of these itself.
type Tracer struct {
	o     Options
	class uint16
	code  dso.Watcher // of mapped drivers
	log   *slog.Logger
	quit  chan struct{} // closed by Close
	share func(t *ptrace.Task) error
	clock *clockLine
	own   func(t *ptrace.Task, addr uint64) error
	work  sync.WaitGroup // goroutines: visits, compilations, watches of contexts

	mu        sync.Mutex // guards what follows
	threads   map[int]*thread
	procs     map[*ptrace.Process]*process
	follows   map[*ptrace.Process]*follow
	holdings  map[*ptrace.Process]holding
	compilers map[string]*compiler // by the path of the driver
	files     map[proc.FileKey]*symbolFile
	said      map[string]bool
	stats     Stats
	closed    bool
	attached  *attached // of Live; nil: programs are started
	// How often goroutines had the tracing thread do something, and how long they
	// waited for it to begin, for those who want to know where time goes.
	handovers int
	handing   time.Duration
}

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

// Stats say what probes cost besides what they cost in kernels.
type Stats struct {
	Images      int           // that were rewritten
	Rewriting   time.Duration // threads that loaded them waited so long
	Compiled    int           // modules
	Cached      int           // of these, that were in the cache
	Visits      int           // of threads that were held to read maps
	Visiting    time.Duration // they waited so long
	Kept        int           // times that all maps of a context were read
	DriverCalls int           // that threads of programs made for us
	Copies      int           // kernels whose launches have gone on with copies, see Live
}

// Stats returns what was done so far. It may be called from any goroutine.
func (tr *Tracer) Stats() Stats {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.stats
}

// count changes the statistics.
func (tr *Tracer) count(f func(s *Stats)) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	f(&tr.stats)
}

// handed notes that the tracing thread has begun what a goroutine wanted.
func (tr *Tracer) handed(after time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.handovers++
	tr.handing += after
}

// process is a process that loads code.
//
// It is made when the process loads its first image, or when nvtrace attaches to it, and ends with
// the process, or its image: an exec makes another one. A child after fork has none of its parent's
// contexts, which CUDA can't use there, and begins with a process of its own.
type process struct {
	tr  *Tracer
	pid int

	visits    sync.Mutex     // one at a time; guards what follows
	live      *live          // of programs that were attached to; of the tracing thread
	scratch   remote.Scratch // for calls of the driver
	driver    *library
	contexts  map[uint64]*context
	order     []*context       // those with maps, in the order in which they came
	comparers map[uint64]tools // kernels of ours, by context; guarded by known
	stuck     bool             // a function of the driver did not return

	late atomic.Uint64 // counts launches, and returns from them, since exit was reached

	known   sync.Mutex
	kernels map[uint64]*kernel  // that were launched, by handle; guarded by known
	asides  map[asideKey]uint64 // modules without programs; guarded by known

	loading    int32                                            // CUmoduleLoadingMode, 0 if it was not asked for, -1 if the driver does not say; guarded by visits
	laters     map[laterKey]func(kernel string) ([]byte, error) // see later.alone; guarded by known
	laterBytes uint64                                           // of their code; guarded by known

	// Of the tracing thread.
	launching bool // launches are looked at
	watched   bool // breakpoints are set
	exits     bool // at libc's exit, too
	exiting   bool // it was reached: the driver must not be called any more when exit_group is
	rereads   int  // how often maps were read since, as something was launched
	reread    time.Time
	armed     []*ptrace.Breakpoint
	active    bool // there are contexts; guarded by Tracer.mu
}

// compiler compiles for one driver.
type compiler struct {
	once sync.Once
	c    *jit.Compiler
	err  error
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
			tr.work.Go(func() { p.abandon(errors.New("it ran another program"), true) })
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
			why := errors.New("it ended without calling exit")
			switch {
			case e.Kind == ptrace.TaskDetach:
				why = errors.New("it goes on without nvtrace")
			case e.Status.Signaled():
				why = fmt.Errorf("it was killed by %s", cmp.Or(unix.SignalName(e.Status.Signal()), e.Status.Signal().String()))
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

// process returns what is known of a task's process, nil if it has loaded no code.
func (tr *Tracer) process(t *ptrace.Task) *process {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.procs[t.Proc]
}

// isActive reports whether a process has contexts with maps: without any there is nothing to read.
func (tr *Tracer) isActive(p *process) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return p.active
}

// thread returns a thread that is traced, nil if there is none of that number.
func (tr *Tracer) thread(tid int) *thread {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.threads[tid]
}

// calling says whether a thread runs a function for nvtrace, or is not known.
func (tr *Tracer) calling(t *ptrace.Task) bool {
	th := tr.thread(t.TID)
	return th == nil || t.Calling()
}

// report says something once.
func (tr *Tracer) report(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	tr.mu.Lock()
	known := tr.said[text]
	tr.said[text] = true
	tr.mu.Unlock()
	if !known && tr.o.Report != nil {
		tr.o.Report(text)
	}
}

// MachineCode says into which machine code programs are put.
type MachineCode uint8

// The values.
const (
	// NoMachineCode leaves machine code alone.
	NoMachineCode MachineCode = iota
	// TestedMachineCode is that of architectures on which this was seen to work.
	TestedMachineCode
	// AnyMachineCode is that of all architectures whose instructions are known.
	AnyMachineCode
)

// testedArch is the architecture of the GPUs (H100, H200) on which woven machine code was
// run against counts by other means.
const testedArch = 90

// Without says why the machine code of an architecture gets no programs, "" if it does.
func (m MachineCode) Without(arch fatbin.Arch) string {
	switch {
	case m == NoMachineCode:
		return "--machine-code=false leaves it alone"
	case m == TestedMachineCode && arch.SM != testedArch:
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
	defer tr.sayAfter(slowAfter, fmt.Sprintf("process %d: programs are being put into an image of %d kB (%s), and compiled; the program waits", im.PID, len(im.Data)>>10, cmp.Or(origin(im), "memory")))()
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
		o.Compile, o.CompileBody, o.NoBody = nil, nil, "it is to be linked with others" // what is to be linked may lack what other inputs have: the driver's linker compiles it
	}
	if im.Linked {
		o.Except = c.linked.list()
	}
	tr.log.Debug("compiler found", "pid", im.PID, "took", time.Since(began))
	if !linking && tr.leave(th, im, c, o) {
		tr.attendTo(th, c)
		return nil, false
	}
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

// slowAfter is how long a program waits for an image before that is told.
const slowAfter = 3 * time.Second

// sayAfter has text reported if the function that is returned is not called within d.
func (tr *Tracer) sayAfter(d time.Duration, text string) (done func()) {
	timer := time.AfterFunc(d, func() { tr.report("%s", text) })
	return func() { timer.Stop() }
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
		Arch: c.arch, Twins: nvattach.TwinsNeeded, Compile: tr.compileFor(lib, c.arch, c.mem.addr), NoBody: tr.o.MachineCode.Without(c.arch),
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

// compileFor returns what compiles for the program's driver; nil, or nothing as a
// result, leaves that to the driver itself.
//
// base is where the maps are that the code uses; options are the compiler's. It is the
// compiler library that belongs to this driver, in a process of nvtrace's (package jit): compiling
// is the larger part of what rewriting costs, and there its results can be kept.
func (tr *Tracer) compileFor(lib *library, arch fatbin.Arch, base uint64, options ...string) func(text string) ([]byte, error) {
	c := tr.compiler(lib.path)
	if c.c == nil {
		return nil
	}
	return func(text string) ([]byte, error) {
		began := time.Now()
		ctx, cancel := gocontext.WithCancel(gocontext.Background())
		defer cancel()
		go func() {
			select {
			case <-tr.quit:
				cancel()
			case <-ctx.Done():
			}
		}()
		compile := func(text string) (*jit.Result, error) {
			return c.c.Compile(ctx, []byte(text), target(text, arch), options...)
		}
		r, moved, err := compileMoved(compile, text, base)
		if !moved {
			r, err = compile(text)
		}
		if errors.Is(err, jit.ErrUnusable) {
			tr.log.Info("the driver compiles in the program", "err", err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		tr.count(func(s *Stats) {
			s.Compiled++
			if r.Cached {
				s.Cached++
			}
		})
		tr.log.Debug("compiled", "bytes", len(text), "took", time.Since(began), "cached", r.Cached, "moved", moved)
		return r.Cubin, nil
	}
}

// compiler returns the compiler that belongs to a driver.
func (tr *Tracer) compiler(driver string) *compiler {
	tr.mu.Lock()
	c := tr.compilers[driver]
	if c == nil {
		c = new(compiler)
		tr.compilers[driver] = c
	}
	tr.mu.Unlock()
	c.once.Do(func() {
		var path string
		if path, c.err = jit.Find(driver); c.err == nil {
			c.c, c.err = jit.Open(path, tr.o.JIT)
		}
		if c.err != nil {
			tr.log.Info("the driver compiles in the program", "err", c.err)
		}
	})
	return c
}

// target names what to compile a module for: the GPU, with the suffix that the
// module's own target has.
func target(text string, arch fatbin.Arch) string {
	suffix := ""
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), ".target")
		if !ok {
			continue
		}
		word, _, _ := strings.Cut(strings.TrimSpace(rest), ",")
		word = strings.TrimSpace(strings.SplitN(word, "/", 2)[0])
		if n := len(word); n > 0 && (word[n-1] == 'a' || word[n-1] == 'f') {
			suffix = word[n-1:]
		}
		break
	}
	return fmt.Sprintf("sm_%d%s", arch.SM, suffix)
}
