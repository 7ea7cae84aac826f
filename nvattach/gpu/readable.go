package gpu

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/sim"
	"nvtrace/ptrace"
)

// What programs in kernels may read of the GPU's memory: what the program has allocated since the
// driver was mapped, by functions that have it there when they return and until it is freed. Memory
// that is allocated in the order of a stream, mapped from others' or from physical memory of its own
// has moments of its own at which it comes and goes, and is left out.

// keepers are functions that allocate: where the address goes, and the size.
func keepers() map[string]allocator {
	all, list := allocators(), make(map[string]allocator)
	for _, name := range []string{"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz"} {
		list[name] = all[name]
	}
	return list
}

// holdDriver has it known from now on what memory of its GPUs the process has.
func (tr *Tracer) holdDriver(t *ptrace.Task, lib *library) {
	tr.mu.Lock()
	tr.holdings[t.Proc] = make(holding)
	tr.mu.Unlock()
	if err := tr.followHolding(t, lib.syms); err != nil {
		tr.report("memory of process %d can't be read in kernels: %v", t.PID, err)
	}
}

// followHolding sets the breakpoints by which allocations are known. If one can't be had, none
// is: what is freed without a word must not be read.
func (tr *Tracer) followHolding(t *ptrace.Task, syms map[string]uint64) error {
	var set []*ptrace.Breakpoint
	at := func(name string, f func(t *ptrace.Task, _ *ptrace.Breakpoint)) error {
		addr := syms[name]
		if addr == 0 {
			return nil
		}
		b, err := t.SetBreakpoint(addr, f)
		if err != nil {
			for _, b := range set {
				_ = b.Remove()
			}
			return fmt.Errorf("%s: %w", name, err)
		}
		set = append(set, b)
		return nil
	}
	for name := range contextEnds {
		if err := at(name, func(t *ptrace.Task, _ *ptrace.Breakpoint) { tr.holdingEnds(t) }); err != nil {
			return err
		}
	}
	for name, a := range keepers() {
		if err := at(name, func(t *ptrace.Task, _ *ptrace.Breakpoint) { tr.holdingChanges(t, a, name == "cuMemAllocManaged") }); err != nil {
			return err
		}
	}
	return nil
}

// holdingChanges is called at the entry of a function that allocates or frees.
func (tr *Tracer) holdingChanges(t *ptrace.Task, a allocator, managed bool) {
	if tr.calling(t) {
		return
	}
	r, err := t.Regs()
	if err != nil {
		return
	}
	args := [4]uint64{r.Arg(0), r.Arg(1), r.Arg(2), r.Arg(3)}
	if a.free {
		tr.mu.Lock()
		_, known := tr.holdings[t.Proc][args[a.at]]
		delete(tr.holdings[t.Proc], args[a.at])
		tr.mu.Unlock()
		if known {
			tr.showHolding(t) // the memory goes when nobody reads it any more
		}
		return
	}
	if err := t.OnReturn(func(t *ptrace.Task, ret uint64) {
		if int32(ret) != 0 {
			return
		}
		base, err := readWord(t, args[a.out])
		size := args[a.size]
		if err == nil && a.pitch {
			var pitch uint64
			pitch, err = readWord(t, args[1])
			size *= pitch
		}
		if err != nil || base == 0 || base+size < base {
			return
		}
		tr.mu.Lock()
		if tr.holdings[t.Proc] == nil { // it has run another program
			tr.mu.Unlock()
			return
		}
		tr.holdings[t.Proc][base] = &owned{end: base + size, managed: managed}
		tr.mu.Unlock()
		tr.showHolding(t)
	}); err != nil {
		tr.log.Debug("an allocation is not seen", "err", err)
	}
}

// holdingEnds forgets all memory where that of a context may go: what is left is not read. Kernels
// are told by atEnd, at the same function.
func (tr *Tracer) holdingEnds(t *ptrace.Task) {
	if tr.calling(t) {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	clear(tr.holdings[t.Proc])
}

// showHolding tells kernels of a process what memory there is, and holds the thread until none
// of them reads what was there before.
func (tr *Tracer) showHolding(t *ptrace.Task) {
	p, th := tr.process(t), tr.thread(t.TID)
	if p == nil || !tr.isActive(p) {
		return
	}
	if th == nil || th.visiting {
		tr.report("BUG: process %d frees memory that kernels may read, while nvtrace is busy with it", t.PID)
		return
	}
	tr.visitHeld(t, p, (*visit).showAllReadable)
}

// showAllReadable is showReadable for all contexts.
func (v *visit) showAllReadable() {
	for _, c := range v.p.order {
		err := v.showReadable(c)
		if de, ok := errors.AsType[*DriverError](err); ok && de.Code == errDeinitialized {
			continue // the process ends, and no kernel runs any more
		}
		if err != nil {
			v.p.tr.report("process %d, device %d: what kernels may read can't be told: %v", v.p.pid, c.device, err)
		}
	}
}

// readersTime is how long threads are waited for that read memory: each takes microseconds, unless
// the GPU is somebody else's meanwhile.
const readersTime = 20 * time.Second

var errReaders = errors.New("kernels that read memory do not go on")

// showReadable brings a context's table of memory up to date, and waits until no thread reads by
// what it was.
func (v *visit) showReadable(c *context) error {
	if c.ended || c.err != nil || !v.p.tr.o.Session.ReadsMemory() {
		return nil
	}
	tr, proc := v.p.tr, v.th.task.Proc
	tr.mu.Lock()
	all, known := tr.holdings[proc]
	all = maps.Clone(all)
	tr.mu.Unlock()
	if !known && !tr.o.Session.Verify() { // with, mapped has said it
		tr.report("programs in kernels of process %d read no memory of the GPU: what it has allocated is known only of programs that nvtrace has started, not of children that were forked with the driver in their memory", v.p.pid)
	}
	var list []mapmem.Range
	for base, o := range all {
		if !o.managed && o.context == 0 {
			const attrContext = cuda.CU_POINTER_ATTRIBUTE_CONTEXT
			context, err := v.pointerAttribute(attrContext, base)
			if isDriverError(err) {
				continue
			}
			if err != nil {
				return err
			}
			o.context = context
		}
		if o.managed || o.context == c.handle {
			list = append(list, mapmem.Range{Base: base, End: o.end})
		}
	}
	var failed error
	if err := v.ifActive(c, func() { failed = c.session.SetReadable(list) }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	for until, pause := time.Now().Add(readersTime), 20*time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		var n uint64
		if err := v.ifActive(c, func() { n, failed = c.session.Readers() }); err != nil || failed != nil || n == 0 {
			return errors.Join(err, failed)
		}
		if time.Now().After(until) {
			return errReaders
		}
		time.Sleep(pause)
	}
}

// pointerAttribute asks the driver about an address.
func (v *visit) pointerAttribute(attr, addr uint64) (value uint64, err error) {
	err = v.relaxed(func() error {
		value, err = v.ask("cuPointerGetAttribute", attr, addr)
		return err
	})
	return value, err
}

// readable is what the simulated GPU's kernels may read, which it says itself.
func readable(p *sim.Process) (list []mapmem.Range) {
	for _, r := range p.Allocations() {
		list = append(list, mapmem.Range{Base: r.Base, End: r.Base + uint64(len(r.Data))})
	}
	return list
}
