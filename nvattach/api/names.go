package api

import (
	"bytes"
	"maps"
	"strings"

	"nvtrace/traces"
)

// Bounds of what is remembered of a process's kernels.
const (
	// A training with PyTorch registers 80,000 kernels of its libraries.
	maxNames     = 1 << 18 // of a process
	maxProcesses = 1 << 12 // with names
	maxName      = 4096    // bytes of one
)

// Names knows which kernel a handle stands for, in each process, from the calls
// that looked it up, and on which GPU a context is. The zero value knows none.
type Names struct {
	of      map[int32]map[uint64]string
	devices map[contextKey]int32 // of contexts
}

// kernel returns the name, as the image has it (mangled as a rule), of the
// kernel that a CUfunction, CUkernel, or the address of a kernel's host stub stands for.
// It is "" where that is not known.
func (n *Names) kernel(pid int32, handle uint64) string { return n.of[pid][handle] }

// Set notes a kernel's name. The empty name and the handle 0 are none.
func (n *Names) Set(pid int32, handle uint64, name string) {
	if handle == 0 || name == "" {
		return
	}
	if n.of == nil {
		n.of = make(map[int32]map[uint64]string)
	}
	m := n.of[pid]
	if m == nil {
		if len(n.of) >= maxProcesses {
			return
		}
		m = make(map[uint64]string)
		n.of[pid] = m
	}
	if _, known := m[handle]; known || len(m) < maxNames {
		m[handle] = name
	}
}

// inherit takes in a launch inside of another, of the driver by the runtime: both are of one
// kernel, and the driver's handle of it may come from a call that the library keeps to itself.
func (n *Names) inherit(f *Frame) {
	handle := f.kernelHandle()
	if handle == 0 || n.kernel(f.PID, handle) != "" {
		return
	}
	for p := f.Parent; p != nil; p = p.Parent {
		if name := n.kernel(p.PID, p.kernelHandle()); name != "" {
			n.Set(f.PID, handle, name)
			return
		}
	}
}

// kernelHandle returns the handle of the kernel that a call launches, 0 if there is none.
func (f *Frame) kernelHandle() uint64 {
	if !f.launches {
		return 0
	}
	for i := range f.Function.Params {
		if p := &f.Function.Params[i]; isKernel(p) {
			v, _ := f.word(p, 0)
			return v
		}
	}
	return 0
}

// add follows what events do to processes: a forked one has its parent's
// addresses, a started program none.
func (n *Names) add(ev *traces.Event) {
	switch ev.Kind {
	case traces.KindFork:
		if m := n.of[ev.PID]; ev.Flags&(traces.FlagThread|traces.FlagAttached) == 0 && m != nil && ev.Child != ev.PID && len(n.of) < maxProcesses {
			n.of[ev.Child] = maps.Clone(m)
		}
	case traces.KindKernel, traces.KindProbe: // the handle's, which the program may have been given in place of another
		if n.kernel(ev.PID, ev.Args[0]) == "" || ev.Kind == traces.KindProbe {
			n.Set(ev.PID, ev.Args[0], ev.Name)
		}
	case traces.KindExec:
		n.forget(ev.PID)
	case traces.KindExit:
		if ev.TID == ev.PID {
			n.forget(ev.PID)
		}
	}
}

// forget drops what is known of a process.
func (n *Names) forget(pid int32) {
	delete(n.of, pid)
	maps.DeleteFunc(n.devices, func(k contextKey, _ int32) bool { return k.pid == pid })
}

// madeContext takes in the return of a call that makes a context, or takes a device's own.
func (n *Names) madeContext(f *Frame, ev *traces.Event) {
	if f.Module.Library != Driver || !strings.HasPrefix(f.Name, "cuCtxCreate") && !strings.HasPrefix(f.Name, "cuDevicePrimaryCtxRetain") || f.Function.Failed(ev.Ret) {
		return
	}
	context, ok := f.Arg("pctx", ev)
	device, ok2 := f.Arg("dev", ev)
	k := contextKey{f.PID, context}
	if _, known := n.devices[k]; !ok || !ok2 || !known && len(n.devices) >= maxContexts {
		return
	}
	if n.devices == nil {
		n.devices = make(map[contextKey]int32)
	}
	n.devices[k] = int32(device)
}

// Device returns the number, as the program counts, of the GPU that a context is on; -1 where
// that is not known.
func (n *Names) Device(pid int32, context uint64) int32 {
	if d, ok := n.devices[contextKey{pid, context}]; ok {
		return d
	}
	return -1
}

// naming says how a function gives a kernel a name: the handle that it returns
// through one parameter, or is given, is that of the text, or of the kernel, in another.
type naming struct {
	handle, from int
	given        bool // the handle is an argument
	kernel       bool // from is a handle whose name is known
}

// namings are the functions that look kernels up.
var namings = map[string]naming{
	"cuModuleGetFunction":    {handle: 0, from: 2},
	"cuLibraryGetKernel":     {handle: 0, from: 2},
	"cuKernelGetFunction":    {handle: 0, from: 1, kernel: true},
	"cudaLibraryGetKernel":   {handle: 0, from: 2},
	"cudaGetFuncBySymbol":    {handle: 0, from: 1, kernel: true},
	"cudaGetKernel":          {handle: 0, from: 1, kernel: true},
	"__cudaGetKernel":        {handle: 0, from: 1, kernel: true},
	"__cudaRegisterFunction": {handle: 1, from: 3, given: true},
}

// NamesHandles reports whether calls of a function say what handles stand for that other calls have:
// kernels, contexts, modules.
func NamesHandles(function string) bool {
	if _, ok := namings[baseName(function)]; ok {
		return true
	}
	for _, begin := range []string{"cuModuleLoad", "cuLibraryLoad", "cuCtxCreate", "cuDevicePrimaryCtxRetain", "__cudaRegisterFatBinary", "cudaLibraryLoad", "ncclCommInit"} {
		if strings.HasPrefix(function, begin) {
			return true
		}
	}
	return false
}

// entered takes in a call that looks a kernel up.
func (n *Names) entered(f *Frame, ev *traces.Event) {
	if f.Function == nil {
		return
	}
	r, ok := namings[baseName(f.Name)]
	if !ok || r.from >= len(f.Function.Params) {
		return
	}
	from, _ := f.word(&f.Function.Params[r.from], 0)
	if r.kernel {
		f.text = append(f.text[:0], n.kernel(ev.PID, from)...)
	} else if b := segment(ev.Mem, from, false); b != nil {
		if i := bytes.IndexByte(b, 0); i >= 0 {
			b = b[:i]
		}
		f.text = append(f.text[:0], b[:min(len(b), maxName)]...)
	}
	if r.given && len(f.text) > 0 {
		handle, _ := f.word(&f.Function.Params[r.handle], 0)
		n.Set(ev.PID, handle, string(f.text))
	}
}

// returned takes in what a call that looked a kernel up found.
func (n *Names) returned(f *Frame, ev *traces.Event) {
	if f.Function == nil {
		return
	}
	n.madeContext(f, ev)
	if len(f.text) == 0 || f.Function.Failed(ev.Ret) {
		return
	}
	r, ok := namings[baseName(f.Name)]
	if !ok || r.given {
		return
	}
	at, _ := f.word(&f.Function.Params[r.handle], 0)
	if v, ok := load(segment(ev.Mem, at, true), 0, 8); ok {
		n.Set(ev.PID, v, string(f.text))
	}
}

// baseName is a function's name without the suffixes of a stream per thread.
func baseName(name string) string {
	name = strings.TrimSuffix(name, "_ptsz")
	return strings.TrimSuffix(name, "_ptds")
}

// segment returns the bytes copied at an address: those at entry, or at return.
func segment(mem []traces.Seg, addr uint64, out bool) []byte {
	if addr == 0 {
		return nil
	}
	for i := range mem {
		if mem[i].Addr != addr {
			continue
		}
		if out && mem[i].Out != nil {
			return mem[i].Out
		}
		if !out && mem[i].In != nil {
			return mem[i].In
		}
	}
	return nil
}
