package capture

import (
	"fmt"
	"maps"
	"slices"

	"nvtrace/ptrace"
	"nvtrace/ptrace/remote"
)

// A kernel that was launched, and that no watched function has found, has come
// from a function that nobody knows: a slot of a hidden table, for one. Then the
// driver is asked itself to which module it belongs: a thread that has come to the
// entry of a function of the driver (a door) is held, and calls cuFuncGetModule for
// us. That takes no stream and changes nothing, so that it may be done while a
// stream is captured. Handles that are known cost nothing.

// question is such a launch.
type question struct {
	pid, tid int
	handle   uint64
	by       string // the launching function
	tries    int
}

const (
	maxQuestions = 1 << 12 // that are open in a process
	maxTries     = 16      // by threads other than the one that has launched
)

// helpers are the functions of the driver that are called.
func helpers() []string {
	return []string{"cuFuncGetModule", "cuFuncGetName", "cuKernelGetLibrary", "cuKernelGetName", "cuLibraryGetKernel", "cuKernelGetFunction"}
}

// checkpoints are functions to whose entries most programs come often, and before they
// end. Where probes are attached, others hold threads at some of them; two can't
// make calls in one thread.
func checkpoints(probed bool) []string {
	list := []string{
		"cuEventRecord", "cuEventRecord_ptsz", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoDAsync_v2",
		"cuMemcpyHtoDAsync_v2_ptsz", "cuMemsetD8Async", "cuMemsetD8Async_ptsz", "cuMemFreeAsync", "cuMemFreeAsync_ptsz",
		"cuStreamDestroy_v2", "cuEventDestroy_v2",
	}
	if probed {
		return list
	}
	return append(list,
		"cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize", "cuCtxSynchronize_v2", "cuEventSynchronize", "cuEventQuery",
		"cuStreamQuery", "cuStreamQuery_ptsz", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds", "cuMemcpyDtoHAsync_v2",
		"cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyAsync", "cuMemcpyAsync_ptsz", "cuMemFree_v2", "cuLaunchKernel",
		"cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", "cuDevicePrimaryCtxRelease_v2", "cuCtxDestroy_v2",
	)
}

// others are names that are looked up in a driver besides those that are watched.
func others() []string { return slices.Concat(helpers(), checkpoints(false)) }

// exported returns the address of a function of the process's driver, 0 if
// there is none, or several drivers could be meant.
func (p *process) exported(name string) uint64 {
	var found uint64
	for i := range p.spaces {
		s := &p.spaces[i]
		sym, ok := s.obj.funcs[name]
		if !ok {
			sym, ok = s.obj.others[name]
		}
		if !ok || sym.Indirect() {
			continue
		}
		off, ok := s.obj.file.Offset(sym.Addr)
		if !ok || off < s.off || off-s.off >= s.end-s.start {
			continue
		}
		if found != 0 {
			return 0
		}
		found = s.start + (off - s.off)
	}
	return found
}

// question notes a launch that the driver is to be asked about; false if it can't
// be.
func (c *Capture) question(q question, p *process) bool {
	if len(p.open) >= maxQuestions || p.exported("cuFuncGetModule") == 0 {
		return false
	}
	t := c.tasks[q.tid]
	if t == nil || c.procs[t.Proc] != p {
		t = nil
		for _, o := range c.tasks {
			if c.procs[o.Proc] == p {
				t = o
				break
			}
		}
	}
	if t == nil {
		return false // the process has ended
	}
	p.open = append(p.open, q)
	c.openDoors(t, p)
	return true
}

// openDoors sets the breakpoints at which the driver can be asked.
func (c *Capture) openDoors(t *ptrace.Task, p *process) {
	if len(p.checkpoints) > 0 {
		return
	}
	seen := make(map[uint64]bool)
	for _, name := range checkpoints(c.o.Replace != nil) {
		addr := p.exported(name)
		if addr == 0 || seen[addr] {
			continue
		}
		seen[addr] = true
		b, err := t.SetBreakpoint(addr, c.atDoor)
		if err != nil {
			c.log.Debug("no question at this function", "function", name, "pid", t.PID, "err", err)
			continue
		}
		p.checkpoints = append(p.checkpoints, b)
	}
}

func (c *Capture) closeDoors(p *process) {
	for _, b := range p.checkpoints {
		c.remove(b)
	}
	p.checkpoints = nil
}

// atDoor is called at the entry of a door.
func (c *Capture) atDoor(t *ptrace.Task, b *ptrace.Breakpoint) {
	t.Why("a question to the driver")
	p := c.process(t)
	if len(p.open) == 0 { // of a forked child, for one
		c.remove(b)
		return
	}
	c.ask(t, p)
}

// ask asks all open questions, before the thread goes on. It is at the entry of a
// function of the driver, where nobody else holds it. One thread asks at a time.
func (c *Capture) ask(t *ptrace.Task, p *process) {
	if t.Calling() || len(p.open) == 0 && p.querier == nil || p.querier == t || slices.Contains(p.waiting, t) {
		return // the last: two breakpoints at one address
	}
	regs, err := t.Regs()
	if err != nil {
		return // it died
	}
	th := c.thread(t)
	th.dropAbandoned(regs.SP())
	if len(th.calls) > 0 {
		return // the driver called itself, and may have locked something
	}
	t.Hold()
	p.waiting = append(p.waiting, t)
	if p.querier == nil {
		c.nextQuerier(p)
	}
}

// nextQuerier lets the first of the threads that are held ask what is open.
func (c *Capture) nextQuerier(p *process) {
	p.querier = nil
	for len(p.waiting) > 0 {
		t := p.waiting[0]
		p.waiting = p.waiting[1:]
		switch {
		case c.tasks[t.TID] != t:
		case len(p.open) > 0:
			p.querier = t
			t.Interrupt(func(t *ptrace.Task) { c.askAll(t, p) })
			return
		default:
			t.Release(nil)
		}
	}
	if len(p.open) == 0 {
		c.closeDoors(p)
	}
}

// askAll asks what is open. The thread is held.
func (c *Capture) askAll(t *ptrace.Task, p *process) {
	var err error
	if !p.scratch.Mapped() {
		p.scratch, err = remote.Map(t)
	}
	round := p.open
	p.open = nil
	if err != nil {
		c.log.Debug("no room for questions", "pid", t.PID, "err", err)
		c.unanswered(p, round)
		round = nil
	}
	c.askNext(t, p, round)
}

// askNext asks the first of the questions, and the others when that is answered.
func (c *Capture) askNext(t *ptrace.Task, p *process, round []question) {
	if len(round) == 0 {
		t.Release(nil)
		c.nextQuerier(p)
		return
	}
	q, rest := round[0], round[1:]
	i := &inquiry{c: c, p: p, handle: q.handle}
	i.done = func(t *ptrace.Task, o *origin, gone bool) {
		switch {
		case gone:
			p.open = append(round, p.open...)
			if p.querier == t {
				c.nextQuerier(p)
			}
			return
		case o != nil:
			if p.kernels[q.handle] == nil {
				p.noteKernel(q.handle, o)
				if len(p.told) < maxHandles {
					p.told[i.holder] = append(p.told[i.holder], q.handle)
				}
			}
			p.launched[q.handle] = o
			c.firstLaunch(q, p, o)
		case q.tid != t.TID && q.tries < maxTries:
			q.tries++ // its thread may have another context
			p.open = append(p.open, q)
		default:
			c.firstLaunch(q, p, nil)
		}
		c.askNext(t, p, rest)
	}
	i.module(t)
}

// retire forgets the kernels of a module that was unloaded, if nobody but the
// driver has named them: nobody will say when their handles mean something else.
func (p *process) retire(module uint64) {
	list := p.told[module]
	if len(list) == 0 {
		return
	}
	delete(p.told, module)
	now := ptrace.Now()
	for _, f := range p.renewed {
		f()
	}
	for _, h := range list {
		delete(p.kernels, h)
		delete(p.launched, h)
		if len(p.retired) < maxHandles {
			p.retired[h] = now
		}
	}
}

// unanswered reports launches that nobody can explain.
func (c *Capture) unanswered(p *process, list []question) {
	for _, q := range list {
		c.firstLaunch(q, p, nil)
	}
}

// giveUp ends asking in a process that has ended.
func (c *Capture) giveUp(p *process) {
	list := p.open
	p.open, p.checkpoints = nil, nil
	c.unanswered(p, list)
}

// inquiry is asking for one handle. Each of its steps makes a call, and
// goes on in the next step when that has returned.
type inquiry struct {
	c      *Capture
	p      *process
	handle uint64
	owner  uint64 // module or library
	holder uint64 // what is unloaded at the end: the owner, or its library
	name   string
	// done is called once; o is nil if the driver doesn't know, and gone means that
	// the thread has died.
	done func(t *ptrace.Task, o *origin, gone bool)
}

// call has the driver's function called. Its first argument is a place for the result,
// which is 0 if the function fails, or is not there.
func (i *inquiry) call(t *ptrace.Task, name string, then func(t *ptrace.Task, result uint64), args ...uint64) {
	addr := i.p.exported(name)
	if addr == 0 {
		then(t, 0)
		return
	}
	out := i.p.scratch.Word(0)
	if _, err := t.WriteMem(out, make([]byte, 8)); err != nil {
		then(t, 0)
		return
	}
	args = append([]uint64{out}, args...)
	err := i.p.scratch.Call(t, addr, args, func(t *ptrace.Task, ret uint64, err error) {
		if err != nil {
			i.done(t, nil, true)
			return
		}
		var v uint64
		if int32(ret) == 0 {
			v, _ = readWord(t, out) // 0, if the program has unmapped it
		}
		i.c.log.Debug("asked the driver", "function", name, "handle", args[1], "status", int32(ret), "result", v)
		then(t, v)
	})
	if err != nil {
		i.c.log.Debug("the driver can't be asked", "function", name, "pid", t.PID, "err", err)
		then(t, 0)
	}
}

// module asks for the module of a CUfunction, or the library of a CUkernel.
func (i *inquiry) module(t *ptrace.Task) {
	i.call(t, "cuFuncGetModule", func(t *ptrace.Task, v uint64) {
		if i.owner = v; v != 0 {
			i.label(t, "cuFuncGetName", true)
			return
		}
		i.call(t, "cuKernelGetLibrary", func(t *ptrace.Task, v uint64) {
			if i.owner = v; v == 0 {
				i.done(t, nil, false)
				return
			}
			i.label(t, "cuKernelGetName", false)
		}, i.handle)
	}, i.handle)
}

// label asks for the name.
func (i *inquiry) label(t *ptrace.Task, fn string, search bool) {
	i.holder = i.owner
	i.call(t, fn, func(t *ptrace.Task, at uint64) {
		if at != 0 {
			i.name, _ = t.ReadString(at, maxKernelName) // "" if it can't be read
		}
		if m := i.p.modules[i.owner]; m != nil {
			i.done(t, &origin{image: m.image, name: i.name}, false)
			return
		}
		if search && i.name != "" && len(i.name) < remote.StageBytes {
			if _, err := t.WriteMem(i.p.scratch.Stage(), append([]byte(i.name), 0)); err == nil {
				i.search(t, slices.Sorted(maps.Keys(i.p.libraries)))
				return
			}
		}
		i.done(t, &origin{name: i.name}, false)
	}, i.handle)
}

// search looks for the library whose module, which nobody has asked for by name,
// the function belongs to: the one whose kernel of that name is this function.
func (i *inquiry) search(t *ptrace.Task, list []uint64) {
	if len(list) == 0 {
		i.done(t, &origin{name: i.name}, false)
		return
	}
	library := list[0]
	i.call(t, "cuLibraryGetKernel", func(t *ptrace.Task, kernel uint64) {
		if kernel == 0 {
			i.search(t, list[1:])
			return
		}
		i.call(t, "cuKernelGetFunction", func(t *ptrace.Task, f uint64) {
			m := i.p.modules[library]
			if f != i.handle || m == nil {
				i.search(t, list[1:])
				return
			}
			i.p.noteModule(i.owner, m.image, nil)
			i.holder = library
			i.done(t, &origin{image: m.image, name: i.name}, false)
		}, kernel)
	}, library, i.p.scratch.Stage())
}

// explain says what is wrong with a launch whose image is not known.
func (o *origin) explain(q *question) string {
	switch {
	case o == nil:
		return fmt.Sprintf("process %d launched a kernel by %s, with handle %#x, that no watched function had found", q.pid, q.by, q.handle)
	case o.name == "":
		return fmt.Sprintf("process %d launched a kernel by %s, with handle %#x, of a module that was not captured", q.pid, q.by, q.handle)
	}
	return fmt.Sprintf("process %d launched the kernel %s by %s, of a module that was not captured", q.pid, o.name, q.by)
}
