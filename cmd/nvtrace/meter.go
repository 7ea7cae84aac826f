package main

import (
	"cmp"
	"maps"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/rm"
	"nvtrace/traces"
)

// counters are what a process has done.
type counters struct {
	calls, ioctls, failed       uint64
	unended                     uint64 // calls whose return is not recorded; calls has them not
	launches, graphs            uint64
	toGPU, fromGPU, onGPU       copies
	allocs, frees, loads, syncs uint64
	callTime, ioctlTime         int64
	waited                      int64 // time in which at least one thread waited for a GPU
	busy                        int64 // time in which a GPU worked, where GPUs are timed
}

// copies are those of one direction.
type copies struct {
	n, bytes uint64
}

// timesSpent are the times in which at least one thread was in a call of a kind, as the times of
// a summary are: sums over threads can be more than there was.
type timesSpent struct{ toGPU, fromGPU, onGPU, syncs, loads busy }

// sub returns what was counted since.
func (c counters) sub(o *counters) counters {
	c.calls -= o.calls
	c.ioctls -= o.ioctls
	c.failed -= o.failed
	c.unended -= o.unended
	c.launches -= o.launches
	c.graphs -= o.graphs
	for _, p := range []struct{ a, b *copies }{{&c.toGPU, &o.toGPU}, {&c.fromGPU, &o.fromGPU}, {&c.onGPU, &o.onGPU}} {
		p.a.n -= p.b.n
		p.a.bytes -= p.b.bytes
	}
	c.allocs -= o.allocs
	c.frees -= o.frees
	c.loads -= o.loads
	c.syncs -= o.syncs
	c.callTime -= o.callTime
	c.ioctlTime -= o.ioctlTime
	c.waited -= o.waited
	c.busy -= o.busy
	return c
}

// A meter counts what processes do, for stat and top.
type meter struct {
	all     counters
	of      map[int32]*counters
	exe     map[int32]string
	kernels map[kernelKey]uint64 // launches
	calls   map[kernelKey]uint64 // of functions and device calls, by name
	stacks  map[kernelKey]uint64 // calls with a stack, by that
	gone    []int32              // processes that have ended since forget
	timed   bool                 // GPUs are timed
	driver  bool                 // calls of it are counted
	runtime bool                 // and of the runtime, of a process that calls no driver
	outside bool                 // nothing is known but what looks from outside show
	worked  map[int32]*busy      // when GPUs did
	waits   map[int32]*busy      // when threads waited for them
	live    map[memoryKey]uint64 // bytes that calls have allocated
	held    map[int32]uint64     // their sum, of a process
	spent   timesSpent
}

// memoryKey is an allocation on a GPU, by its address.
type memoryKey struct {
	pid  int32
	addr uint64
}

type kernelKey struct {
	pid  int32
	name string
}

// Bounds of what a meter keeps of an endless program.
const (
	maxMetered = 1 << 12 // processes
	maxNamed   = 1 << 14 // kernels; calls; stacks
	maxHeld    = 1 << 18 // allocations
)

func newMeter() *meter {
	return &meter{of: make(map[int32]*counters), exe: make(map[int32]string), kernels: make(map[kernelKey]uint64), calls: make(map[kernelKey]uint64), stacks: make(map[kernelKey]uint64), worked: make(map[int32]*busy), waits: make(map[int32]*busy), live: make(map[memoryKey]uint64), held: make(map[int32]uint64)}
}

// named counts under a name, if there is room for it.
func named(m map[kernelKey]uint64, pid int32, name string) {
	k := kernelKey{pid, name}
	if _, ok := m[k]; ok || len(m) < maxNamed {
		m[k]++
	}
}

// add counts an event that was decoded as c; f is the library call that it is or happened in.
func (m *meter) add(ev *traces.Event, c *ioctl.Call, f *api.Frame, names *api.Names) {
	p := m.of[ev.PID]
	isNew := p == nil
	if isNew {
		p = new(counters)
	}
	before := *p
	switch ev.Kind {
	case traces.KindIoctl:
		p.ioctls++
		p.ioctlTime += ev.Dur
		if c.Failed() {
			p.failed++
		}
		named(m.calls, ev.PID, string(c.AppendName(nil)))
	case traces.KindCall:
		if f != nil {
			m.call(p, ev, f, names)
		}
	case traces.KindReturn:
		if f != nil {
			m.returned(p, ev, c, f, names)
		}
	case traces.KindStack:
		if ev.Flags&traces.FlagUnfinished == 0 {
			frames := ev.Stack()
			named(m.stacks, ev.PID, ev.Name+" < "+cmp.Or(pythonText(frames), nativeText(frames)))
		}
	case traces.KindGPU:
		if ev.Flags&traces.FlagUnfinished == 0 {
			m.work(p, ev)
		}
	case traces.KindSampled:
		m.sampled(p, ev)
	case traces.KindExec:
		m.exe[ev.PID] = ev.Path
	case traces.KindExit:
		if ev.TID == ev.PID {
			m.gone = append(m.gone, ev.PID)
		}
	}
	if isNew && *p != before && len(m.of) < maxMetered { // what has nothing to do with a GPU is left out
		m.of[ev.PID] = p
	}
	d := p.sub(&before)
	m.all = m.all.plus(&d)
}

// work counts what GPUs did: works of a process at a time once. They are told of in no order: those
// of one stream, or of one GPU, may all come behind those of another.
func (m *meter) work(p *counters, ev *traces.Event) {
	m.timed = true
	w := ev.Work()
	p.busy += m.busyOf(m.worked, ev.PID).add(w.Start, w.Start+w.Dur)
	if w.By == traces.ByChannel || w.By == traces.ByLook {
		m.outside = true
		named(m.kernels, ev.PID, cmp.Or(w.Kernel, "copy"))
	}
}

// sampled counts what looks from outside have found so far.
func (m *meter) sampled(p *counters, ev *traces.Event) {
	r := ev.Sampled()
	if r == nil {
		return
	}
	m.outside, m.timed = true, true
	done := uint64(0)
	for _, c := range r.Channels {
		done += c.Done
	}
	p.launches = max(p.launches, done)
}

// busyOf returns the times of a process, nil where there is no room for one more.
func (m *meter) busyOf(of map[int32]*busy, pid int32) *busy {
	if of[pid] == nil && len(of) < maxMetered {
		of[pid] = new(busy)
	}
	return of[pid]
}

// forget drops what is known of processes that have ended.
func (m *meter) forget() {
	for _, pid := range m.gone {
		delete(m.of, pid)
		delete(m.exe, pid)
		delete(m.worked, pid)
		delete(m.waits, pid)
		delete(m.held, pid)
		maps.DeleteFunc(m.live, func(k memoryKey, _ uint64) bool { return k.pid == pid })
		for _, named := range []map[kernelKey]uint64{m.kernels, m.calls, m.stacks} {
			maps.DeleteFunc(named, func(k kernelKey, _ uint64) bool { return k.pid == pid })
		}
	}
	m.gone = nil
}

// plus returns a sum.
func (c counters) plus(d *counters) counters {
	zero := counters{}
	n := zero.sub(d) // what is taken away twice is added
	return c.sub(&n)
}

// outermost reports whether a call is the program's own: not one that the library makes of
// itself on the way.
func outermost(f *api.Frame) bool {
	return f.Function != nil && f.Module.Library == api.Driver && (f.Parent == nil || f.Parent.Module.Library != api.Driver)
}

// call counts a call of the driver's when it is entered.
func (m *meter) call(p *counters, ev *traces.Event, f *api.Frame, names *api.Names) {
	if ev.Flags&traces.FlagNoExit != 0 && (outermost(f) || f.Alone()) {
		p.unended++
	}
	if outermost(f) {
		m.driver = true
		m.launched(p, ev, f, names)
	}
}

// launched counts a call if it launches kernels.
func (m *meter) launched(p *counters, ev *traces.Event, f *api.Frame, names *api.Names) {
	if kernel, _, ok := f.Launch(ev, names); ok {
		if kernel == "(graph)" {
			p.graphs++
		} else {
			p.launches++
		}
		named(m.kernels, ev.PID, kernel)
	}
}

// returned counts a call that has returned.
func (m *meter) returned(p *counters, ev *traces.Event, c *ioctl.Call, f *api.Frame, names *api.Names) {
	switch {
	case outermost(f):
	case f.Alone():
		m.runtime = true
		m.launched(p, ev, f, names)
	default:
		return
	}
	p.calls++
	p.callTime += ev.Dur
	named(m.calls, ev.PID, f.Name)
	if c.Returned.Failed {
		p.failed++
		return
	}
	switch name := f.Name; {
	case strings.Contains(name, "Synchronize"):
		p.syncs++
		p.waited += m.busyOf(m.waits, ev.PID).add(f.Start, f.End)
		m.spent.syncs.add(f.Start, f.End)
	case strings.HasPrefix(name, "cuMemcpy"), strings.HasPrefix(name, "cudaMemcpy"):
		const toDevice, toHost = 1, 2 // cudaMemcpyKind
		kind, _ := f.Arg("kind", ev)
		to, spent := &p.onGPU, &m.spent.onGPU
		switch {
		case strings.Contains(name, "HtoD"), strings.Contains(name, "HtoA"), kind == toDevice:
			to, spent = &p.toGPU, &m.spent.toGPU
		case strings.Contains(name, "DtoH"), strings.Contains(name, "AtoH"), kind == toHost:
			to, spent = &p.fromGPU, &m.spent.fromGPU
		}
		to.n++
		spent.add(f.Start, f.End)
		for _, param := range []string{"ByteCount", "count"} {
			if n, ok := f.Arg(param, ev); ok {
				to.bytes += n
			}
		}
	case strings.HasPrefix(name, "cuModuleLoad"), strings.HasPrefix(name, "cuLibraryLoad"), name == "cuLinkComplete", name == "__cudaRegisterFatBinary":
		p.loads++
		m.spent.loads.add(f.Start, f.End)
	}
	for _, x := range f.Memory() {
		switch {
		case x.Failed || x.Host:
		case x.Freed:
			p.frees++
			m.hold(memoryKey{ev.PID, x.Addr}, 0)
		default:
			p.allocs++
			m.hold(memoryKey{ev.PID, x.Addr}, x.Size)
		}
	}
}

// hold notes what lies at an address from now on: size bytes, 0 for nothing.
func (m *meter) hold(k memoryKey, size uint64) {
	m.held[k.pid] -= m.live[k]
	delete(m.live, k)
	if size > 0 && len(m.live) < maxHeld {
		m.live[k] = size
		m.held[k.pid] += size
	}
}

// memory returns the GPU memory of a process, of all for 0: what lives, and the most that
// did.
func (s *logSink) memory(pid int32) (now, peak uint64) {
	if s.book == nil {
		return 0, 0
	}
	l := s.book.l
	for id := range l.pids {
		if pid != 0 && id != pid {
			continue
		}
		for _, t := range l.tree.Totals(id) {
			if t.Kind == rm.Memory && t.Aperture == rm.ApertureVidmem {
				now, peak = now+t.Bytes, peak+t.PeakBytes
			}
		}
	}
	return now, peak
}

// kernelText is a kernel's name as it is shown.
func kernelText(name string) string {
	if name == "" {
		return "(not known)"
	}
	return fatbin.Demangle(name)
}
