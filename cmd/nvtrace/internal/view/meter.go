package view

import (
	"cmp"
	"maps"
	"strings"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// Counters are what a process has done.
type Counters struct {
	Calls, Ioctls, Failed       uint64
	unended                     uint64 // calls whose return is not recorded; calls has them not
	Launches, Graphs            uint64
	ToGPU, FromGPU, onGPU       Copies
	allocs, frees, loads, syncs uint64
	callTime, ioctlTime         int64
	Waited                      int64 // time in which at least one thread waited for a GPU
	Busy                        int64 // time in which a GPU worked, where GPUs are timed
}

// Copies are those of one direction.
type Copies struct {
	N, Bytes uint64
}

// timesSpent are the times in which at least one thread was in a call of a kind, as the times of
// a summary are: sums over threads can be more than there was.
type timesSpent struct{ toGPU, fromGPU, onGPU, Syncs, loads busy }

// Sub returns what was counted since.
func (c Counters) Sub(o *Counters) Counters {
	c.Calls -= o.Calls
	c.Ioctls -= o.Ioctls
	c.Failed -= o.Failed
	c.unended -= o.unended
	c.Launches -= o.Launches
	c.Graphs -= o.Graphs
	for _, p := range []struct{ a, b *Copies }{{&c.ToGPU, &o.ToGPU}, {&c.FromGPU, &o.FromGPU}, {&c.onGPU, &o.onGPU}} {
		p.a.N -= p.b.N
		p.a.Bytes -= p.b.Bytes
	}
	c.allocs -= o.allocs
	c.frees -= o.frees
	c.loads -= o.loads
	c.syncs -= o.syncs
	c.callTime -= o.callTime
	c.ioctlTime -= o.ioctlTime
	c.Waited -= o.Waited
	c.Busy -= o.Busy
	return c
}

// A Meter counts what processes do, for stat and top.
type Meter struct {
	All     Counters
	Of      map[int32]*Counters
	Exe     map[int32]string
	Kernels map[KernelKey]uint64 // launches
	Calls   map[KernelKey]uint64 // of functions and device calls, by name
	Stacks  map[KernelKey]uint64 // calls with a stack, by that
	Gone    []int32              // processes that have ended since forget
	Timed   bool                 // GPUs are timed
	driver  bool                 // calls of it are counted
	runtime bool                 // and of the runtime, of a process that calls no driver
	Outside bool                 // nothing is known but what looks from outside show
	worked  map[int32]*busy      // when GPUs did
	waits   map[int32]*busy      // when threads waited for them
	Live    map[MemoryKey]uint64 // bytes that calls have allocated
	Held    map[int32]uint64     // their sum, of a process
	Spent   timesSpent
}

// MemoryKey is an allocation on a GPU, by its address.
type MemoryKey struct {
	Pid  int32
	Addr uint64
}

// KernelKey is a kernel, a call or a stack of a process.
type KernelKey struct {
	Pid  int32
	Name string
}

// Bounds of what a meter keeps of an endless program.
const (
	maxMetered = 1 << 12 // processes
	maxNamed   = 1 << 14 // kernels; calls; stacks
	maxHeld    = 1 << 18 // allocations
)

// NewMeter makes one that has counted nothing.
func NewMeter() *Meter {
	return &Meter{Of: make(map[int32]*Counters), Exe: make(map[int32]string), Kernels: make(map[KernelKey]uint64), Calls: make(map[KernelKey]uint64), Stacks: make(map[KernelKey]uint64), worked: make(map[int32]*busy), waits: make(map[int32]*busy), Live: make(map[MemoryKey]uint64), Held: make(map[int32]uint64)}
}

// named counts under a name, if there is room for it.
func named(m map[KernelKey]uint64, pid int32, name string) {
	k := KernelKey{pid, name}
	if _, ok := m[k]; ok || len(m) < maxNamed {
		m[k]++
	}
}

// Observe implements observe.Observer.
func (m *Meter) Observe(e *observe.Event) {
	ev, f := e.Event, e.Frame
	p := m.Of[ev.PID]
	isNew := p == nil
	if isNew {
		p = new(Counters)
	}
	before := *p
	switch ev.Kind {
	case traces.KindIoctl:
		p.Ioctls++
		p.ioctlTime += ev.Dur
		if e.Call.Failed() {
			p.Failed++
		}
		named(m.Calls, ev.PID, string(e.Call.AppendName(nil)))
	case traces.KindCall:
		if f != nil {
			m.call(p, e)
		}
	case traces.KindReturn:
		if f != nil {
			m.returned(p, e)
		}
	case traces.KindStack:
		if ev.Flags&traces.FlagUnfinished == 0 {
			frames := ev.Stack()
			named(m.Stacks, ev.PID, ev.Name+" < "+cmp.Or(pythonText(frames), nativeText(frames)))
		}
	case traces.KindGPU:
		if ev.Flags&traces.FlagUnfinished == 0 {
			m.Work(p, ev)
		}
	case traces.KindSampled:
		m.sampled(p, ev)
	case traces.KindExec:
		m.Exe[ev.PID] = ev.Path
	case traces.KindExit:
		if ev.TID == ev.PID {
			m.Gone = append(m.Gone, ev.PID)
		}
	}
	if isNew && *p != before && len(m.Of) < maxMetered { // what has nothing to do with a GPU is left out
		m.Of[ev.PID] = p
	}
	d := p.Sub(&before)
	m.All = m.All.Plus(&d)
}

// Work counts what GPUs did: works of a process at a time once. They are told of in no order: those
// of one stream, or of one GPU, may all come behind those of another.
func (m *Meter) Work(p *Counters, ev *traces.Event) {
	m.Timed = true
	w := ev.Work()
	p.Busy += m.busyOf(m.worked, ev.PID).add(w.Start, w.Start+w.Dur)
	if w.By == traces.ByChannel || w.By == traces.ByLook {
		m.Outside = true
		named(m.Kernels, ev.PID, cmp.Or(w.Kernel, "copy"))
	}
}

// sampled counts what looks from outside have found so far.
func (m *Meter) sampled(p *Counters, ev *traces.Event) {
	r := ev.Sampled()
	if r == nil {
		return
	}
	m.Outside, m.Timed = true, true
	done := uint64(0)
	for _, c := range r.Channels {
		done += c.Done
	}
	p.Launches = max(p.Launches, done)
}

// busyOf returns the times of a process, nil where there is no room for one more.
func (m *Meter) busyOf(of map[int32]*busy, pid int32) *busy {
	if of[pid] == nil && len(of) < maxMetered {
		of[pid] = new(busy)
	}
	return of[pid]
}

// Forget drops what is known of processes that have ended.
func (m *Meter) Forget() {
	for _, pid := range m.Gone {
		delete(m.Of, pid)
		delete(m.Exe, pid)
		delete(m.worked, pid)
		delete(m.waits, pid)
		delete(m.Held, pid)
		maps.DeleteFunc(m.Live, func(k MemoryKey, _ uint64) bool { return k.Pid == pid })
		for _, named := range []map[KernelKey]uint64{m.Kernels, m.Calls, m.Stacks} {
			maps.DeleteFunc(named, func(k KernelKey, _ uint64) bool { return k.Pid == pid })
		}
	}
	m.Gone = nil
}

// Plus returns a sum.
func (c Counters) Plus(d *Counters) Counters {
	zero := Counters{}
	n := zero.Sub(d) // what is taken away twice is added
	return c.Sub(&n)
}

// outermost reports whether a call is the program's own: not one that the library makes of
// itself on the way.
func outermost(f *api.Frame) bool {
	return f.Function != nil && f.Module.Library == api.Driver && (f.Parent == nil || f.Parent.Module.Library != api.Driver)
}

// call counts a call of the driver's when it is entered.
func (m *Meter) call(p *Counters, e *observe.Event) {
	f := e.Frame
	if e.Flags&traces.FlagNoExit != 0 && (outermost(f) || f.Alone()) {
		p.unended++
	}
	if outermost(f) {
		m.driver = true
		m.launched(p, e)
	}
}

// launched counts a call if it launches kernels.
func (m *Meter) launched(p *Counters, e *observe.Event) {
	if kernel, _, ok := e.Frame.Launch(e.Event, &e.Tracker.Names); ok {
		if kernel == "(graph)" {
			p.Graphs++
		} else {
			p.Launches++
		}
		named(m.Kernels, e.PID, kernel)
	}
}

// returned counts a call that has returned.
func (m *Meter) returned(p *Counters, e *observe.Event) {
	ev, f := e.Event, e.Frame
	switch {
	case outermost(f):
	case f.Alone():
		m.runtime = true
		m.launched(p, e)
	default:
		return
	}
	p.Calls++
	p.callTime += ev.Dur
	named(m.Calls, ev.PID, f.Name)
	if e.Call.Returned.Failed {
		p.Failed++
		return
	}
	switch name := f.Name; {
	case strings.Contains(name, "Synchronize"):
		p.syncs++
		p.Waited += m.busyOf(m.waits, ev.PID).add(f.Start, f.End)
		m.Spent.Syncs.add(f.Start, f.End)
	case strings.HasPrefix(name, "cuMemcpy"), strings.HasPrefix(name, "cudaMemcpy"):
		const toDevice, toHost = 1, 2 // cudaMemcpyKind
		kind, _ := f.Arg("kind", ev)
		to, spent := &p.onGPU, &m.Spent.onGPU
		switch {
		case strings.Contains(name, "HtoD"), strings.Contains(name, "HtoA"), kind == toDevice:
			to, spent = &p.ToGPU, &m.Spent.toGPU
		case strings.Contains(name, "DtoH"), strings.Contains(name, "AtoH"), kind == toHost:
			to, spent = &p.FromGPU, &m.Spent.fromGPU
		}
		to.N++
		spent.add(f.Start, f.End)
		for _, param := range []string{"ByteCount", "count"} {
			if n, ok := f.Arg(param, ev); ok {
				to.Bytes += n
			}
		}
	case strings.HasPrefix(name, "cuModuleLoad"), strings.HasPrefix(name, "cuLibraryLoad"), name == "cuLinkComplete", name == "__cudaRegisterFatBinary":
		p.loads++
		m.Spent.loads.add(f.Start, f.End)
	}
	for _, x := range f.Memory() {
		switch {
		case x.Failed || x.Host:
		case x.Freed:
			p.frees++
			m.Hold(MemoryKey{ev.PID, x.Addr}, 0)
		default:
			p.allocs++
			m.Hold(MemoryKey{ev.PID, x.Addr}, x.Size)
		}
	}
}

// Hold notes what lies at an address from now on: size bytes, 0 for nothing.
func (m *Meter) Hold(k MemoryKey, size uint64) {
	m.Held[k.Pid] -= m.Live[k]
	delete(m.Live, k)
	if size > 0 && len(m.Live) < maxHeld {
		m.Live[k] = size
		m.Held[k.Pid] += size
	}
}

// KernelText is a kernel's name as it is shown.
func KernelText(name string) string {
	if name == "" {
		return "(not known)"
	}
	return fatbin.Demangle(name)
}
