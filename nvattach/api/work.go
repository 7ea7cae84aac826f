package api

import (
	"slices"
	"strings"
)

// Work is what a function of the driver has a GPU do, on which stream.
type Work struct {
	// Stream is 1 + the argument (counted as [Deref].Arg) that is the stream; 0: there is none, it
	// is the default one. If StreamAt is not 0, the argument points to a structure that has the
	// stream there.
	Stream, StreamAt uint8
	// Subject is 1 + the argument that says what is done: the function, graph or number of bytes;
	// 0: there is none.
	Subject   uint8
	Launch    bool // of kernels, alone or in a graph; else it copies or sets memory
	PerThread bool // the default stream is the thread's own
	Early     bool // the GPU may begin long before the call returns, as that copies pageable memory itself
	Orders    bool // it has the stream wait, for other streams, memory, the host or other processes
}

// orders are the functions of the driver, by what their names begin with, that have a stream wait.
var orders = []string{
	"cuStreamWaitEvent", "cuStreamWaitValue32", "cuStreamWaitValue64", "cuStreamBatchMemOp", "cuStreamAddCallback",
	"cuLaunchHostFunc", "cuWaitExternalSemaphoresAsync",
}

// Work returns what a function has a GPU do; ok is false where that is nothing that takes
// time on a stream. f may be nil.
func (f *Function) Work() (w Work, ok bool) {
	if f == nil || f.Library != Driver {
		return w, false
	}
	purpose := purposeOf(Module{Library: Driver}, f.Name)
	w.Orders = slices.ContainsFunc(orders, func(name string) bool { return strings.HasPrefix(f.Name, name) })
	if purpose != Launching && purpose != Copying && !w.Orders {
		return w, false
	}
	w.Launch = purpose == Launching && !w.Orders
	w.PerThread = strings.HasSuffix(f.Name, "_ptsz") || strings.HasSuffix(f.Name, "_ptds")
	w.Early = strings.HasPrefix(f.Name, "cuMemcpy")
	for i := range f.Params {
		p := &f.Params[i]
		arg := p.Loc.Index + 1
		switch p.Loc.Place {
		case PlaceStack:
			arg += 6
		case PlaceInt:
		default:
			continue
		}
		switch {
		case p.Type.Name == "CUstream":
			w.Stream = arg
		case p.Name == "config" && p.Type.Elem != nil:
			for _, field := range p.Type.Elem.Fields {
				if field.Type.Name == "CUstream" && field.Offset%8 == 0 {
					w.Stream, w.StreamAt = arg, uint8(field.Offset)
				}
			}
		case p.Type.Name == "CUfunction" || p.Type.Name == "CUgraphExec" || p.Name == "ByteCount":
			w.Subject = arg
		}
	}
	return w, purpose == Copying && !w.Orders || w.Stream != 0
}

// Waits reports whether a function of the driver has waited for a GPU when it returns.
func (f *Function) Waits() bool {
	if f == nil || f.Library != Driver {
		return false
	}
	w, works := f.Work()
	return works && w.Stream == 0 || purposeOf(Module{Library: Driver}, f.Name) == Waiting && strings.Contains(f.Name, "Synchronize")
}

// EndsContext reports whether a function of the driver may end a context; arg is 1 + the
// argument that is the context, 0 where it is any of a device.
func (f *Function) EndsContext() (arg uint8, ok bool) {
	if f == nil || f.Library != Driver {
		return 0, false
	}
	switch strings.TrimSuffix(f.Name, "_v2") {
	case "cuCtxDestroy":
		return 1, true
	case "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease":
		return 0, true
	}
	return 0, false
}
