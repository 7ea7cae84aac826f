package gpu

import (
	"slices"
	"strings"

	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// To run a launch several times, all memory that it may change must be known: what
// the program has allocated since the driver was mapped, which is what breakpoints
// at the functions that allocate see.

// allocation is memory of a GPU, or managed memory.
type allocation struct{ base, size uint64 }

// allocator is a function that allocates: its arguments with the address, and where
// that goes, or is; the size, a factor that is one more argument, or a place.
type allocator struct {
	out, at      int // where the address goes; where it is
	size         int
	pitch        bool // the size is the value at argument 1 times argument size
	variable     bool // of a module; argument size points to its size
	pinned, free bool
	shared       bool
}

// absent is an argument that a function does not have.
const absent = -1

// allocators returns the functions of the driver that give memory to kernels, or take it away, by name
// (prototypes of cuda.h). Of those by which memory is shared with others, nothing more is known than
// that: launches are not tried any more then.
func allocators() map[string]allocator {
	alloc := allocator{out: 0, at: absent, size: 1}
	list := map[string]allocator{
		"cuMemAlloc_v2": alloc, "cuMemAllocManaged": alloc, "cuMemAllocAsync": alloc, "cuMemAllocAsync_ptsz": alloc,
		"cuMemAllocFromPoolAsync": alloc, "cuMemAllocFromPoolAsync_ptsz": alloc,
		"cuMemAllocPitch_v2":   {out: 0, at: absent, size: 3, pitch: true},
		"cuMemMap":             {out: absent, at: 0, size: 1},
		"cuMemHostAlloc":       {out: 0, at: absent, size: 1, pinned: true},
		"cuMemAllocHost_v2":    {out: 0, at: absent, size: 1, pinned: true},
		"cuMemHostRegister":    {out: absent, at: 0, size: 1, pinned: true},
		"cuMemHostRegister_v2": {out: absent, at: 0, size: 1, pinned: true},
	}
	for _, name := range []string{"cuModuleGetGlobal_v2", "cuLibraryGetGlobal", "cuLibraryGetManaged"} {
		list[name] = allocator{out: 0, at: absent, size: 1, variable: true}
	}
	for _, name := range []string{"cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemUnmap", "cuMemFreeHost", "cuMemHostUnregister"} {
		list[name] = allocator{out: absent, at: 0, size: absent, free: true}
	}
	for _, name := range []string{
		"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcGetMemHandle", "cuMemImportFromShareableHandle", "cuMemExportToShareableHandle",
		"cuImportExternalMemory", "cuMemPoolImportPointer", "cuMemPoolExportPointer", "cuGraphAddMemAllocNode", "cuMulticastCreate",
		"cuCtxEnablePeerAccess", "cuGraphicsMapResources", "cuGraphicsMapResources_ptsz", "cuMemPoolSetAccess",
	} {
		list[name] = allocator{out: absent, at: absent, size: absent, shared: true}
	}
	return list
}

// changes reports whether a function may change memory of the GPU's, or what is known
// about it, so that it must wait while a launch is tried.
func changes(name string) bool {
	if _, ok := allocators()[name]; ok {
		return true
	}
	if _, ok := launchers()[name]; ok {
		return false // they have their own
	}
	for _, prefix := range []string{
		"cuMemcpy", "cuMemset", "cuLaunch", "cuGraphLaunch", "cuMemPrefetch", "cuMemBatch", "cuMemDiscard", "cuStreamWriteValue", "cuStreamBatchMemOp",
		"cuStreamBeginCapture", "cuStreamEndCapture",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// mapped is called when a process has got code: of a driver, perhaps, before any
// of it was executed.
func (tr *Tracer) mapped(t *ptrace.Task, e *dso.Event) {
	verify, reads := tr.o.Session.Verify(), tr.o.Session.ReadsMemory()
	if verify && reads {
		tr.report("with --verify, programs in kernels read no memory of the GPU")
	}
	if e.Why != dso.ByMap {
		return // of a fork, or of a program that was attached to: allocations before would be missing
	}
	for _, m := range e.Files() {
		if !IsDriver(m.Path) {
			continue
		}
		switch lib := tr.mappedDriver(&m); {
		case lib == nil:
		case verify:
			tr.followDriver(t, lib)
		case reads:
			tr.holdDriver(t, lib)
		}
	}
}

// followDriver has what the process does to memory of its GPUs followed from now on.
func (tr *Tracer) followDriver(t *ptrace.Task, lib *library) {
	all := allocators()
	seen := make(map[uint64]bool)
	for name, addr := range lib.syms {
		a, known := all[name]
		if !changes(name) || seen[addr] && !known {
			continue
		}
		seen[addr] = true
		if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) {
			t.Why(name)
			tr.atChange(t, name, a, known)
		}); err != nil {
			tr.log.Debug("not followed", "function", name, "err", err)
			return
		}
	}
	tr.follow(t).tracked = lib.bias
}

// follow returns what is followed of a task's process.
func (tr *Tracer) follow(t *ptrace.Task) *follow {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	f := tr.follows[t.Proc]
	if f == nil {
		f = &follow{device: make(map[uint64]uint64), pinned: make(map[uint64]uint64), inside: make(map[int]int)}
		tr.follows[t.Proc] = f
	}
	return f
}

// gate holds a thread until the trial of another is over.
func (f *follow) gate(t *ptrace.Task, then func(t *ptrace.Task)) {
	t.Hold()
	f.gated = append(f.gated, func() { t.Release(then) })
}

// open ends a trial: the threads that wait go on.
func (f *follow) open(th *thread) {
	if f.trial != th {
		return
	}
	f.trial, f.begin = nil, nil
	list := f.gated
	f.gated = nil
	for _, release := range list {
		release()
	}
}

// enters and leaves count a thread's calls of functions that change memory.
func (f *follow) enters(t *ptrace.Task) { f.inside[t.TID]++ }

// leaves is called when one has returned. It may be the last that a trial has waited for.
func (f *follow) leaves(t *ptrace.Task) {
	if f.inside[t.TID]--; f.inside[t.TID] <= 0 {
		delete(f.inside, t.TID)
	}
	f.next()
}

// gone forgets a thread that has ended.
func (f *follow) gone(th *thread) {
	delete(f.inside, th.task.TID)
	f.open(th)
	f.next()
}

// next begins a trial that has waited for others.
func (f *follow) next() {
	if f.begin != nil && f.others(f.trial) == 0 {
		begin := f.begin
		f.begin = nil
		begin()
	}
}

// others counts the calls of other threads.
func (f *follow) others(th *thread) (n int) {
	for tid, calls := range f.inside {
		if tid != th.task.TID {
			n += calls
		}
	}
	return n
}

// atChange is called at the entry of a function that changes memory.
func (tr *Tracer) atChange(t *ptrace.Task, name string, a allocator, known bool) {
	if tr.calling(t) {
		return
	}
	f := tr.follow(t)
	r, err := t.Regs()
	if err != nil {
		return
	}
	args := [4]uint64{r.Arg(0), r.Arg(1), r.Arg(2), r.Arg(3)}
	if known && a.free {
		delete(f.device, args[0])
		delete(f.pinned, args[0])
	}
	returned := t.OnReturn(func(t *ptrace.Task, ret uint64) {
		f.leaves(t)
		switch {
		case strings.HasPrefix(name, "cuStreamEndCapture"):
			f.capturing = max(f.capturing-1, 0)
		case int32(ret) != 0:
		case strings.HasPrefix(name, "cuStreamBeginCapture"):
			f.capturing++
		case known:
			f.allocated(t, name, a, args)
		}
	}) == nil
	var arrive func(t *ptrace.Task)
	arrive = func(t *ptrace.Task) {
		switch th := tr.thread(t.TID); {
		case f.trial != nil && f.trial != th:
			f.gate(t, arrive)
		case returned:
			f.enters(t)
		}
	}
	arrive(t)
}

// allocated takes note of memory.
func (f *follow) allocated(t *ptrace.Task, name string, a allocator, args [4]uint64) {
	if a.shared {
		f.shared = name
		return
	}
	if a.size == absent {
		return
	}
	if a.variable && args[a.out] == 0 {
		return
	}
	var base uint64
	if a.at != absent {
		base = args[a.at]
	} else {
		var err error
		if base, err = readWord(t, args[a.out]); err != nil {
			f.shared = name // not known what it is
			return
		}
	}
	size := args[a.size]
	if a.variable {
		if size == 0 {
			return // it is one of its kernel's module, or nobody knows how large it is
		}
		var err error
		if size, err = readWord(t, size); err != nil {
			return
		}
	}
	if a.pitch {
		pitch, err := readWord(t, args[1])
		if err != nil {
			f.shared = name
			return
		}
		size *= pitch
	}
	if a.pinned {
		f.pinned[base] = size
	} else {
		f.device[base] = size
	}
}

// holds reports whether an address is in memory of a GPU.
func (f *follow) holds(addr uint64) bool {
	for base, size := range f.device {
		if addr >= base && addr-base < size {
			return true
		}
	}
	return false
}

// writable are the parts of a program's memory that it can write.
func writable(pid int) []proc.Mapping {
	list, _ := proc.Maps(pid) // none, if it died
	return slices.DeleteFunc(list, func(m proc.Mapping) bool { return !m.Read || !m.Write })
}

// list returns the memory of GPUs, by address.
func (f *follow) list() []allocation {
	list := make([]allocation, 0, len(f.device))
	for base, size := range f.device {
		list = append(list, allocation{base, size})
	}
	slices.SortFunc(list, func(x, y allocation) int {
		if x.base < y.base {
			return -1
		}
		return 1
	})
	return list
}
