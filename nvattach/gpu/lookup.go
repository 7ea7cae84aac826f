package gpu

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
)

// Code of many kernels is loaded as it is ([nvattach.Plan.ByKernel]). When the program looks one
// of them up, that kernel is loaded once more, alone and with programs, and the program is given the
// handle of this one: what it launches, puts into graphs, asks for and sets is the kernel with programs.
// When it unloads the module, what was loaded for it is unloaded, too.

// later is a module whose kernels get their programs when they are looked up.
type later struct {
	p       *process
	alone   func(kernel string) ([]byte, error)
	from    string // for a reader
	context *context
	library bool
	current uint64 // the CUcontext of a module that is no library

	finding sync.Mutex // guards what follows
	modules []*liveModule
	kernels map[string]uint64 // CUkernels with programs, where it is a library, or CUfunctions; 0: it can't have any
}

// mostLater is how many bytes of code are kept for later in a process. What it loads after that gets its
// programs at once.
const mostLater = 2 << 30

// lazyLoading is CU_MODULE_LAZY_LOADING (cuda.h). Otherwise CUDA's runtime looks up all kernels that there are.
const lazyLoading = 2

// laterLoaders are the functions whose images can be left for later.
var laterLoaders = []string{"cuLibraryLoadData", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary"}

// leave has an image that a thread is about to load loaded as it is, if its kernels can get their programs
// when they are looked up; false if not.
func (tr *Tracer) leave(th *thread, im *capture.Captured, c *context, o *session.RewriteOptions) bool {
	p := tr.process(th.task)
	if p == nil || tr.o.Session.Verify() || im.Linked || o.JIT.Forced != "" || !slices.Contains(laterLoaders, im.Function) {
		return false
	}
	p.known.Lock()
	key := laterKey{im.Image.SHA256, c.arch}
	alone, full := p.laters[key], p.laterBytes > mostLater
	p.known.Unlock()
	size := 0
	if alone == nil && !full {
		alone, size = c.session.ByKernel(im.Data, o)
	}
	if alone == nil {
		return false
	}
	l := &later{p: p, alone: alone, from: origin(im), context: c, library: im.Function == "cuLibraryLoadData", kernels: make(map[string]uint64)}
	if !l.lazily(th) {
		return false
	}
	im.Lookups = l
	p.known.Lock()
	defer p.known.Unlock()
	if p.laters[key] == nil {
		p.laters[key] = alone
		p.laterBytes += uint64(size)
	}
	return true
}

// lazily reports whether the driver loads kernels when they are needed, and asks for what else must be
// known of the load.
func (l *later) lazily(th *thread) bool {
	p := l.p
	p.visits.Lock()
	defer p.visits.Unlock()
	v := newVisit(p, th)
	v.stuck = p.stuck
	if p.loading == 0 {
		p.loading = -1
		if p.driver.syms["cuModuleGetLoadingMode"] != 0 {
			if mode, err := v.ask("cuModuleGetLoadingMode"); err == nil {
				p.loading = int32(mode)
			}
		}
	}
	var err error
	if !l.library && p.loading == lazyLoading {
		l.current, err = v.ask("cuCtxGetCurrent")
	}
	return p.loading == lazyLoading && err == nil
}

// Found implements [capture.Lookups].
func (l *later) Found(f *capture.Found) (handles []uint64) {
	tr := l.p.tr
	th := tr.thread(f.TID)
	if th == nil || tr.process(th.task) != l.p { // a child after fork
		return nil
	}
	l.finding.Lock()
	defer l.finding.Unlock()
	n, err := len(f.Handles), error(nil)
	f.Settled = true
	if f.Name == "" {
		n, err = l.count(newVisit(l.p, th), f)
	}
	for i, handle := range f.Handles[:min(n, len(f.Handles))] {
		var other uint64
		if err == nil {
			other, f.Names[i], err = l.found(newVisit(l.p, th), f, handle)
		}
		switch {
		case isGone(err):
			return nil
		case err != nil && tr.o.Session.Required():
			tr.refuse(th, fmt.Errorf("process %d: a kernel can't be probed: %w", l.p.pid, err))
			return nil
		case err != nil || other == 0:
			f.Settled = f.Settled && err == nil
			err = nil
			continue
		case handles == nil:
			handles = slices.Clone(f.Handles)
		}
		handles[i] = other
	}
	return handles
}

// isGone reports whether an error says that the driver can't be called any more: the thread, or tracing, has
// ended, or it does not answer.
func isGone(err error) bool {
	return errors.Is(err, ptrace.ErrGone) || errors.Is(err, errEnded) || errors.Is(err, errStuck)
}

// count returns how many kernels there are in the module of a list, 0 if the driver does not say: programs
// say how many they have room for.
func (l *later) count(v *visit, f *capture.Found) (n int, err error) {
	fn := "cuModuleGetFunctionCount"
	if f.Library {
		fn = "cuLibraryGetKernelCount"
	}
	if l.p.driver.syms[fn] == 0 {
		return 0, nil
	}
	err = l.visit(v, func() error {
		got, err := v.ask(fn, f.Owner)
		n = int(uint32(got))
		return err
	})
	if isDriverError(err) {
		return 0, nil
	}
	return n, err
}

// found returns the handle of a kernel with programs, in the place of one that was found; 0 if none wants
// it, and its name. Why it has none, which the error says, was noted.
func (l *later) found(v *visit, f *capture.Found, handle uint64) (k uint64, name string, err error) {
	name = f.Name
	if name == "" {
		if name, err = l.nameOf(v, f, handle); err != nil && !isDriverError(err) {
			return 0, "", err
		}
	}
	if name == "" || !l.p.tr.o.Session.Wants(name) {
		return 0, name, nil
	}
	k, known := l.kernels[name]
	if !known {
		if k, err = l.load(v, name); err != nil && isGone(err) {
			return 0, name, err
		}
		l.kernels[name] = k
	}
	if err != nil || k == 0 {
		return 0, name, err
	}
	if l.library && !f.Library {
		k, err = l.functionOf(v, k)
		f.Settled = f.Settled && k != 0 // else it depends on the context that is current
	}
	return k, name, err
}

// functionOf returns the CUfunction of a library's kernel, which was found in a context's module of the
// library; 0 where that may be another context than the current one.
func (l *later) functionOf(v *visit, k uint64) (function uint64, err error) {
	err = l.visit(v, func() error {
		current, err := v.ask("cuCtxGetCurrent")
		if err == nil && len(l.p.contexts) == 1 && l.p.contexts[current] != nil {
			function, err = v.ask("cuKernelGetFunction", k)
		}
		return err
	})
	return function, err
}

// load returns the handle of a kernel with programs, which it loads.
func (l *later) load(v *visit, name string) (k uint64, err error) {
	began, tr := time.Now(), l.p.tr
	defer func() {
		if err != nil && !isGone(err) {
			tr.o.Session.Unprobed(name, err.Error())
		}
	}()
	compiling := tr.progress(slowAfter, fmt.Sprintf("process %d waits for %s", l.p.pid, fatbin.Demangle(name)))
	defer compiling.end()
	compiling.add(1, 0)
	code, err := l.alone(name)
	if err != nil {
		return 0, err
	}
	image, err := l.context.session.Alone(code, name, l.from, tr.rewriteOptions(l.p.driver, l.context))
	if err != nil {
		return 0, err
	}
	compiling.end()
	tr.count(func(s *Stats) {
		s.Images++
		s.Rewriting += time.Since(began)
	})
	m := &liveModule{context: l.context, library: l.library}
	err = l.visit(v, func() (err error) {
		if l.context.ended {
			return errGone // and so is the memory for maps
		}
		if err = v.loadModule(m, image); err == nil {
			k, err = v.kernelIn(m, name)
		}
		if err != nil {
			err = errors.Join(err, v.drop(m))
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("loading it with programs: %w", err)
	}
	l.modules = append(l.modules, m)
	tr.log.Debug("kernel loaded", "kernel", name, "bytes", m.size, "took", time.Since(began))
	return k, nil
}

// visit has f call the driver where the module's kernels are.
func (l *later) visit(v *visit, f func() error) error {
	l.p.visits.Lock()
	defer l.p.visits.Unlock()
	v.stuck = l.p.stuck
	return v.relaxed(func() error {
		if l.library {
			return f()
		}
		if err := v.run(call("cuCtxPushCurrent_v2", l.current)); err != nil {
			return err
		}
		return errors.Join(f(), v.run(try("cuCtxPopCurrent_v2", v.word(wordPopped))))
	})
}

// nameOf asks for the name of a kernel, "" if the driver does not say.
func (l *later) nameOf(v *visit, f *capture.Found, handle uint64) (name string, err error) {
	fn := "cuFuncGetName"
	if f.Library {
		fn = "cuKernelGetName"
	}
	if l.p.driver.syms[fn] == 0 {
		return "", nil
	}
	err = l.visit(v, func() error {
		at, err := v.ask(fn, handle)
		if err == nil {
			name, err = v.text(at)
		}
		return err
	})
	return name, err
}

// Unloaded implements [capture.Lookups].
func (l *later) Unloaded(t *ptrace.Task) {
	p := l.p
	th := p.tr.thread(t.TID)
	if th == nil || p.tr.process(t) != p {
		return
	}
	t.Hold()
	p.tr.work.Go(func() {
		defer t.Release(nil)
		l.finding.Lock()
		defer l.finding.Unlock()
		if len(l.modules) == 0 {
			return
		}
		v := newVisit(p, th)
		err := l.visit(v, func() (err error) {
			for _, m := range l.modules {
				err = errors.Join(err, v.drop(m))
			}
			return err
		})
		if err != nil {
			p.tr.log.Debug("kernels stay loaded", "pid", p.pid, "err", err)
		}
		l.modules = nil
		clear(l.kernels)
	})
}
