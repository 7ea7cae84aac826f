package capture

import (
	"cmp"
	"maps"
	"strings"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// origin is where a handle comes from.
type origin struct {
	image   *traces.Image // of the module; nil: not known
	name    string        // of the kernel; "" for modules
	lookups Lookups       // of the module
}

// maxHandles bounds the handles that are remembered of a process; more are a gap.
const maxHandles = 1 << 20

// noteModule remembers the image of a module or library, and who is told of what is looked up in it.
func (p *process) noteModule(handle uint64, m *traces.Image, l Lookups) {
	if handle != 0 && len(p.modules) < maxHandles {
		p.modules[handle] = &origin{image: m, lookups: l}
	}
}

// noteKernel remembers where a kernel or function comes from. A handle that was
// given out before means something else now.
func (p *process) noteKernel(handle uint64, o *origin) {
	if handle == 0 || len(p.kernels) >= maxHandles {
		return
	}
	if old := p.kernels[handle]; old != nil && !old.same(o) {
		for _, f := range p.renewed {
			f()
		}
	}
	p.kernels[handle] = o
}

// unloaded is called when a module, a library or a linker was ended.
func (c *Capture) unloaded(t *ptrace.Task, k *call, result int32) {
	// Slot 7 of CUDART_INTERFACE returns nothing.
	if result != 0 && k.h.slot.table == "" {
		return
	}
	p, handle := c.process(t), k.arg(t, k.h.fn.owner)
	c.forgetFound(t)
	for _, place := range p.kept[handle] {
		c.drop(t, place)
	}
	delete(p.kept, handle)
	delete(p.libraries, handle)
	p.retire(handle)
	if k.h.fn.act == actUnload {
		if m := p.modules[handle]; m != nil && m.lookups != nil {
			m.lookups.Unloaded(t)
			maps.DeleteFunc(p.modules, func(_ uint64, o *origin) bool { return o.lookups == m.lookups }) // those of a library
		}
		delete(p.modules, handle)
	}
	// Kernels stay: a graph may hold them, and a handle that is given out again
	// is noted anew.
}

// lookedUp is called when kernels of a module were asked for.
func (c *Capture) lookedUp(t *ptrace.Task, k *call, result int32) {
	if result != 0 {
		return
	}
	p, fn := c.process(t), &k.h.fn
	owner := k.arg(t, fn.owner)
	from := p.modules[owner]
	if k.h.name() == kernelGetFunction {
		from = p.kernels[owner]
	}
	if from == nil {
		from = &origin{}
	}
	out := k.arg(t, fn.out)
	if fn.act == actEnumerate {
		c.enumerated(t, k, out, k.arg(t, fn.count), from)
		return
	}
	handle, err := readWord(t, out)
	if err != nil {
		return
	}
	if fn.alias {
		p.noteModule(handle, from.image, from.lookups)
		k.know(handle, handle)
		return
	}
	o := &origin{image: from.image, name: from.name}
	if fn.label != none {
		if s, err := t.ReadString(k.arg(t, fn.label), maxKernelName); err == nil {
			o.name = s
		}
		if from.lookups != nil && o.name != "" {
			c.found(t, k, out, &Found{Name: o.name, Handles: []uint64{handle}}, from)
			return
		}
	}
	p.noteKernel(handle, o)
	k.know(handle, handle)
}

// know says that a look-up that finds a handle need not stop the program again, which is given another one for it.
func (k *call) know(handle, given uint64) {
	if k.known != nil {
		k.known(handle, given)
	}
}

// found tells of kernels of a module that were looked up, whose handles the call has written to out.
func (c *Capture) found(t *ptrace.Task, k *call, out uint64, f *Found, from *origin) {
	f.PID, f.TID, f.Owner, f.Library = t.PID, t.TID, k.arg(t, k.h.fn.owner), k.h.fn.lib
	f.Names = make([]string, len(f.Handles))
	t.Hold()
	c.work.Go(func() {
		others := from.lookups.Found(f)
		t.Release(func(t *ptrace.Task) {
			for i, h := range others {
				found := f.Handles[i]
				if h == found {
					continue
				}
				if _, err := t.WriteMem(out+8*uint64(i), le.AppendUint64(nil, h)); err == nil {
					f.Handles[i] = h
					k.know(found, h)
					c.given(t, h, cmp.Or(f.Name, f.Names[i]))
				}
			}
			p := c.process(t)
			for _, h := range f.Handles {
				if f.Settled && others == nil {
					k.know(h, h)
				}
				if f.Name != "" || p.kernels[h] == nil {
					p.noteKernel(h, &origin{image: from.image, name: f.Name})
				}
			}
		})
	})
}

// given tells that the program has another handle of a kernel than its call returned, which is recorded.
func (c *Capture) given(t *ptrace.Task, handle uint64, name string) {
	if name == "" {
		return
	}
	ev := c.event(t, traces.KindProbe)
	ev.Name, ev.Args[0] = name, handle
	c.emit(ev)
}

// maxKernelName bounds a kernel's mangled name. Those of CUTLASS have up to
// about 4,000 characters.
const maxKernelName = 64 << 10

func (c *Capture) enumerated(t *ptrace.Task, k *call, out, count uint64, from *origin) {
	p := c.process(t)
	var list []uint64
	for i := range min(count&0xffffffff, maxHandles) {
		handle, err := readWord(t, out+8*i)
		if err != nil {
			break
		}
		list = append(list, handle)
		if p.kernels[handle] == nil && from.lookups == nil {
			p.noteKernel(handle, &origin{image: from.image})
		}
	}
	if from.lookups != nil && len(list) > 0 {
		c.found(t, k, out, &Found{Handles: list}, from)
	}
}

// Offsets in structures of cuda.h.
const (
	kernNodeFunc   = 0  // CUDA_KERNEL_NODE_PARAMS.func
	kernNodeKern   = 56 // CUDA_KERNEL_NODE_PARAMS_v2.kern
	graphNodeType  = 0  // CUgraphNodeParams.type
	graphNodeUnion = 16 // CUgraphNodeParams.kernel
	launchParamLen = 56 // sizeof(CUDA_LAUNCH_PARAMS), whose function is first
	nodeTypeKernel = cuda.CU_GRAPH_NODE_TYPE_KERNEL
)

// launchAt is called at the entry of a launch.
func (c *Capture) launchAt(t *ptrace.Task, k *call) {
	fn := &k.h.fn
	arg := k.arg(t, fn.out)
	if fn.how == launchArray {
		for i := range min(k.arg(t, fn.extra)&0xffffffff, 1<<10) {
			if h, err := readWord(t, arg+i*launchParamLen); err == nil {
				c.launchedNow(t, h, k.h.name())
			}
		}
	} else if handle, ok := kernelOf(t, fn.how, arg); ok {
		c.launchedNow(t, handle, k.h.name())
	}
	if c.o.Replace == nil { // otherwise see checkpoints
		c.ask(t, c.process(t))
	}
}

// maxEarly is how many launches in a row, all of kernels that were seen, end the
// breakpoint at a launching function whose calls are recorded, too.
const maxEarly = 256

// earlyLaunch is called at the entry of a launching function whose calls also
// come as records: those may be read when the program has ended, and nobody is
// there to be asked any more. So the first launches are looked at right away.
func (c *Capture) earlyLaunch(t *ptrace.Task, b *ptrace.Breakpoint, k *call) {
	p := c.process(t)
	n := len(p.launched)
	c.launchAt(t, k)
	if len(p.launched) != n {
		k.h.idle = 0
		return
	}
	if k.h.idle++; k.h.idle < maxEarly {
		return
	}
	delete(p.hooks, k.addr)
	c.remove(b)
}

// remove takes a breakpoint away that has nothing more to say.
func (c *Capture) remove(b *ptrace.Breakpoint) {
	if err := b.Remove(); err != nil {
		c.log.Debug("a breakpoint stays", "err", err)
	}
}

// kernelOf finds the kernel's handle in the arguments of a launch.
func kernelOf(t *ptrace.Task, how launchForm, arg uint64) (uint64, bool) {
	switch how {
	case launchHandle:
		return arg, arg != 0
	case launchNode:
		if kind, err := readWord(t, arg+graphNodeType); err != nil || kind&0xffffffff != nodeTypeKernel {
			return 0, false
		}
		arg += graphNodeUnion
	}
	handle, err := readWord(t, arg+kernNodeFunc)
	if err == nil && handle == 0 && how != launchParams {
		handle, err = readWord(t, arg+kernNodeKern)
	}
	return handle, err == nil && handle != 0
}

// A finding is a call of cuKernelGetFunction.
type finding struct{ sp, kernel uint64 }

// hookLookup has calls of cuKernelGetFunction recorded by code in the program, which does not stop
// for them: what they returned is asked for when a launch is looked at. It reports false where there must be a
// breakpoint.
func (c *Capture) hookLookup(t *ptrace.Task, addr uint64, h *hook) bool {
	if c.o.Audit != AuditHooks || c.o.Agent == nil || c.o.Flush == nil || h.slot.table != "" {
		return false
	}
	if c.o.LaunchesShared { // others have hooked it
		return c.o.LookupsShared
	}
	k := &agent.Hook{Name: h.name(), Library: h.lib, Quiet: true, Derefs: []agent.Deref{{Arg: uint8(h.fn.out), Len: 8, Out: true}}}
	k.OnRecord = func(_ *agent.Process, r *agent.Record) { c.lookupRecord(r) }
	p, err := c.o.Agent.Process(t)
	if err == nil {
		err = p.Hook(t, addr, k)
	}
	if err != nil {
		c.log.Debug("look-ups stop the program", "function", h.name(), "pid", t.PID, "err", err)
	}
	return err == nil
}

// hookNew has look-ups stop the program only where they find what was not found before; it answers the others
// itself. It reports false where there must be a breakpoint.
func (c *Capture) hookNew(t *ptrace.Task, addr uint64, h *hook) bool {
	if c.o.Audit == AuditBreakpoints || c.o.Agent == nil || h.slot.table != "" || t.MovesReturns() {
		return false
	}
	k := &agent.Hook{Name: h.name(), Library: h.lib, Quiet: true, Beside: true}
	k.New = func(t *ptrace.Task, p *agent.Process, r *agent.Record) {
		regs, err := t.Regs()
		if err != nil {
			return // it died
		}
		c.author.stats.Hits++
		found := &call{h: h, addr: addr, entry: *regs, start: c.now(), known: func(handle, given uint64) { p.Know(k, handle, given) }}
		found.entry.SetSP(r.SP)
		for i := range 3 {
			found.entry.SetArg(i, r.Args[i])
		}
		c.lookedUp(t, found, 0)
	}
	p, err := c.o.Agent.Process(t)
	if err == nil {
		err = p.Hook(t, addr, k)
	}
	if err != nil {
		c.log.Debug("look-ups stop the program", "function", h.name(), "pid", t.PID, "err", err)
		return false
	}
	s := c.process(t)
	s.finders = append(s.finders, k)
	return true
}

// lookupRecord takes a call of cuKernelGetFunction from the agent's records.
func (c *Capture) lookupRecord(r *agent.Record) {
	p := c.pids[r.PID]
	switch {
	case p == nil:
	case r.Kind == agent.KindCall:
		delete(p.finding, r.TID)
		if !r.NoReturn && !agent.CalledByUs(r.Caller) && len(p.finding) < maxHandles {
			p.finding[r.TID] = finding{r.SP, r.Args[1]}
		}
	case r.Kind == agent.KindReturn:
		f, ok := p.finding[r.TID]
		if !ok || f.sp != r.SP {
			return
		}
		delete(p.finding, r.TID)
		if r.Unfinished || int32(r.Ret) != 0 || len(r.Segs) == 0 || len(r.Segs[0].Out) != 8 {
			return
		}
		if from := p.kernels[f.kernel]; from != nil {
			p.noteKernel(le.Uint64(r.Segs[0].Out), &origin{image: from.image, name: from.name})
		}
	}
}

// frequent reports whether a launching function is what programs launch most kernels by:
// a stop at each of its calls would be felt.
func frequent(name string) bool {
	return strings.HasPrefix(name, "cuLaunchKernel")
}

// LaunchRecord takes the record of a call of a launching function from whoever
// has hooked it, with Options.LaunchesShared, and of cuKernelGetFunction, with Options.LookupsShared. Others
// are ignored. It runs on the tracing thread.
func (c *Capture) LaunchRecord(r *agent.Record) {
	if r.Hook != nil && r.Hook.Name == kernelGetFunction {
		c.lookupRecord(r)
		return
	}
	if r.Kind != agent.KindCall || r.Hook == nil {
		return
	}
	fn, ok := c.funcs[r.Hook.Name]
	if ok && fn.act == actLaunch && fn.how == launchHandle {
		c.launchedLate(r, r.Args[fn.out], fn.name)
	}
}

// launchedLate takes a launch from the agent's records. Handles are not forgotten,
// so that it doesn't matter that the program has gone on.
func (c *Capture) launchedLate(r *agent.Record, handle uint64, name string) {
	if agent.CalledByUs(r.Caller) {
		return // made for probes, not by the program
	}
	if p := c.pids[r.PID]; p != nil && handle != 0 {
		if when, ok := p.retired[handle]; ok && r.Begin < when {
			return // of a kernel that is gone; its first launch was looked at
		}
		if c.o.Counted != nil {
			p.counts[handle]++
		}
		c.launched(r.PID, r.TID, p, handle, name)
	}
}

// A counter counts launches in a process.
type counter struct {
	p *agent.Process
	h *agent.Hook
}

// tally tells of the launches that were counted so far, while handles mean what they did.
func (c *Capture) tally(p *process) {
	if c.o.Counted == nil {
		return
	}
	for _, k := range p.counters {
		list, err := k.p.Repeated(k.h)
		if err != nil {
			c.tellCounted("", 0)
			continue
		}
		k.p.Forget(k.h)
		for handle, n := range list {
			p.counts[handle] += n
		}
	}
	c.tellCounts(p, false)
}

// tellCounts tells of the launches in p.counts, with last also of those of kernels that
// nobody could name.
func (c *Capture) tellCounts(p *process, last bool) {
	for handle, n := range p.counts {
		o := p.launched[handle]
		if o == nil {
			o = p.kernels[handle]
		}
		switch {
		case o != nil:
			c.tellCounted(o.name, n)
		case last:
			c.tellCounted("", n)
		default:
			continue
		}
		delete(p.counts, handle)
	}
}

// Ending tells of a process's launches. It must be called when a thread of it, which is
// stopped, is about to end the process, or, if it is not the last that happens to it, to run
// another program there.
func (c *Capture) Ending(t *ptrace.Task, last bool) {
	if p := c.procs[t.Proc]; p != nil {
		c.tally(p)
		if last {
			p.counters = nil
		}
	}
}

// uncounted says that launches of a process that is gone were not counted.
func (c *Capture) uncounted(p *process) {
	if p == nil || c.o.Counted == nil {
		return
	}
	if len(p.counters) > 0 && len(p.launched) > 0 {
		c.tellCounted("", 0)
	}
	p.counters = nil
}

func (c *Capture) tellCounted(kernel string, n uint64) {
	if c.o.Counted != nil {
		c.o.Counted(kernel, n)
	}
}

// same reports whether two handles mean the same kernel of the same image.
func (o *origin) same(b *origin) bool {
	return o == b || o != nil && b != nil && o.name == b.name && o.image != nil && b.image != nil && o.image.SHA256 == b.image.SHA256
}

// launchedNow is launched at a launch that stops the program: what the agent has recorded before, look-ups among
// it, counts.
func (c *Capture) launchedNow(t *ptrace.Task, handle uint64, name string) {
	p := c.process(t)
	if p.kernels[handle] == nil && c.o.Agent != nil && c.o.Flush != nil {
		c.o.Flush()
	}
	c.launched(t.PID, t.TID, p, handle, name)
}

// launched notes the first launch of a kernel.
func (c *Capture) launched(pid, tid int, p *process, handle uint64, name string) {
	o := p.kernels[handle]
	if old, seen := p.launched[handle]; seen && old.same(o) {
		return
	}
	if len(p.launched) < maxHandles {
		p.launched[handle] = o
	}
	if len(c.started) < maxHandles {
		c.started[kernelKey{pid, handle}] = true
	}
	q := question{pid: pid, tid: tid, handle: handle, by: name}
	if o == nil && c.question(q, p) {
		return
	}
	c.firstLaunch(q, p, o)
}

// firstLaunch reports a kernel that was not launched before; o is nil if nobody
// knows where it comes from.
func (c *Capture) firstLaunch(q question, p *process, o *origin) {
	if o != nil && o.image != nil { // a kernel may have several handles, and new ones with each context
		id := o.name + " " + o.image.SHA256
		if p.said[id] {
			return
		}
		if len(p.said) < maxHandles {
			p.said[id] = true
		}
	}
	name := ""
	if o != nil {
		name = o.name
	}
	c.tellLaunched(name)
	ev := c.event(nil, traces.KindKernel)
	ev.PID, ev.TID, ev.Args[0] = int32(q.pid), int32(q.tid), q.handle
	if o != nil {
		ev.Name = o.name
	}
	if o != nil && o.image != nil {
		image := *o.image
		ev.Image = &image
	}
	c.author.kernel(ev)
	if (o == nil || o.image == nil) && !p.before { // otherwise a gap was told of when nvtrace attached
		c.gap(nil, "%s", o.explain(&q))
	}
}

func (c *Capture) tellLaunched(kernel string) {
	if c.o.Launched != nil {
		c.o.Launched(kernel)
	}
}
