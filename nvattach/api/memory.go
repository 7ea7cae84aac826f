package api

import (
	"encoding/binary"
	"slices"
	"strings"

	"nvtrace/traces"
)

// An allocator is a function that allocates memory: the parameters that are its size and where its
// address, or handle, is put.
type allocator struct {
	size, addr string
	times      string // a parameter that size is multiplied by: rows of a pitch, which the function writes
	asked      string // stands for such a pitch where the function has failed
	host       bool   // page-locked memory of the host
	managed    bool   // of the host or of a GPU, by who uses it: the resource manager has none of it
	pitched    bool   // addr points to a cudaPitchedPtr, and size is an extent
	desc       string // describes the elements of an array, of the driver also how many; of the runtime, size is an extent, or there are width and height
	levels     string // of a mipmapped array
}

// The functions that allocate memory for GPUs, and those that give it back, by their names without versions:
// what tools, stacks, reports and exports know of them is from here. Those of the runtime count where no function of the
// driver that counts was called in them, as on a simulated GPU. Memory that is mapped (cuMemCreate) is given back by
// cuMemRelease or, if it is mapped then, by cuMemUnmap; see (*mappings).changed.
var (
	allocators = map[Library]map[string]allocator{
		Driver: {
			"cuMemAlloc": {size: "bytesize", addr: "dptr"}, "cuMemAllocManaged": {size: "bytesize", addr: "dptr", managed: true},
			"cuMemAllocAsync": {size: "bytesize", addr: "dptr"}, "cuMemAllocFromPoolAsync": {size: "bytesize", addr: "dptr"},
			"cuMemAllocPitch": {size: "pPitch", times: "Height", asked: "WidthInBytes", addr: "dptr"}, "cuMemCreate": {size: "size", addr: "handle"},
			"cuMemAllocHost": {size: "bytesize", addr: "pp", host: true}, "cuMemHostAlloc": {size: "bytesize", addr: "pp", host: true},
			"cuArrayCreate": {desc: "pAllocateArray", addr: "pHandle"}, "cuArray3DCreate": {desc: "pAllocateArray", addr: "pHandle"},
			"cuMipmappedArrayCreate": {desc: "pMipmappedArrayDesc", levels: "numMipmapLevels", addr: "pHandle"},
		},
		Runtime: {
			"cudaMalloc": {size: "size", addr: "devPtr"}, "cudaMallocManaged": {size: "size", addr: "devPtr", managed: true},
			"cudaMallocAsync": {size: "size", addr: "devPtr"}, "cudaMallocFromPoolAsync": {size: "size", addr: "ptr"},
			"cudaMallocPitch": {size: "pitch", times: "height", asked: "width", addr: "devPtr"}, "cudaMalloc3D": {size: "extent", addr: "pitchedDevPtr", pitched: true},
			"cudaMallocHost": {size: "size", addr: "ptr", host: true}, "cudaHostAlloc": {size: "size", addr: "pHost", host: true},
			"cudaMallocArray": {desc: "desc", addr: "array"}, "cudaMalloc3DArray": {desc: "desc", size: "extent", addr: "array"},
			"cudaMallocMipmappedArray": {desc: "desc", size: "extent", levels: "numLevels", addr: "mipmappedArray"},
		},
	}
	frees = map[Library]map[string]string{
		Driver: {
			"cuMemFree": "dptr", "cuMemFreeAsync": "dptr", "cuMemRelease": "handle", "cuMemUnmap": "", "cuMemFreeHost": "p",
			"cuArrayDestroy": "hArray", "cuMipmappedArrayDestroy": "hMipmappedArray",
		},
		Runtime: {
			"cudaFree": "devPtr", "cudaFreeAsync": "devPtr", "cudaFreeHost": "ptr",
			"cudaFreeArray": "array", "cudaFreeMipmappedArray": "mipmappedArray",
		},
	}
	hostFrees = map[string]bool{"cuMemFreeHost": true, "cudaFreeHost": true}
)

// stemOf is a function's name without what tells versions apart.
func stemOf(name string) string { return strings.TrimSuffix(baseName(name), "_v2") }

// arrayOf returns how a function creates arrays, nil if it does not.
func arrayOf(m Module, name string) *allocator {
	if a, ok := allocators[m.Library][stemOf(name)]; ok && a.desc != "" {
		return &a
	}
	return nil
}

// Allocates reports whether a function of the driver or of the runtime allocates memory.
func Allocates(m Module, name string) bool {
	_, ok := allocators[m.Library][stemOf(name)]
	return ok
}

// Frees reports whether a function of the driver or of the runtime gives memory back.
func Frees(m Module, name string) bool {
	_, ok := frees[m.Library][stemOf(name)]
	return ok
}

// Allocating reports whether a call is open in any of a process's threads that allocates memory or gives it back: what
// the resource manager knows of it and what the calls have said may differ then.
func (t *Tracker) Allocating(pid int32) bool {
	for k, s := range t.threads {
		if k.pid == pid && slices.ContainsFunc(s.open, func(f *Frame) bool {
			return Allocates(f.Module, f.Name) || Frees(f.Module, f.Name)
		}) {
			return true
		}
	}
	return false
}

// MemoryChange is what a call did to the memory of a GPU, or to page-locked memory of the host.
type MemoryChange struct {
	Addr   uint64 // address or handle; 0: it is not known
	Size   uint64 // bytes: that were asked for, of an array those of its elements; of freed memory that was mapped, its own, else 0
	Freed  bool   // it was given back; else allocated
	Failed bool   // it was not
	Host   bool   // page-locked memory of the host
}

// Memory returns what a call did to memory that has just returned: nothing where it is none that allocates or
// frees memory, where a free failed, and where it is the runtime's and had the driver do it. The slice
// is valid as long as the frame.
func (f *Frame) Memory() []MemoryChange { return f.changes }

// remember notes what a call did to memory whose return is ev.
func (t *Tracker) remember(f *Frame, ev *traces.Event) {
	library, stem := f.Module.Library, stemOf(f.Name)
	alloc, allocates := allocators[library][stem]
	param, gives := frees[library][stem]
	if allocates || gives {
		for p := f.Parent; p != nil; p = p.Parent {
			p.inner = true
		}
	}
	if f.inner || ev.Flags&traces.FlagUnfinished != 0 {
		return
	}
	switch {
	case library == Driver && t.mapped.changed(f, ev, stem):
	case allocates:
		if m, ok := alloc.change(f, ev); ok {
			f.changes = append(f.changes, m)
			if stem == "cuMemCreate" && !m.Failed {
				t.mapped.created(allocation{ev.PID, m.Addr}, m.Size)
			}
		}
	case gives && int32(ev.Ret) == 0:
		if addr, ok := f.Arg(param, ev); ok && addr != 0 {
			f.changes = append(f.changes, MemoryChange{Addr: addr, Freed: true, Host: hostFrees[stem]})
		}
	}
}

// change says what an allocating call did; ok is false where that was not recorded.
func (a *allocator) change(f *Frame, ev *traces.Event) (m MemoryChange, ok bool) {
	m = MemoryChange{Failed: int32(ev.Ret) != 0, Host: a.host}
	switch {
	case a.pitched:
		return a.extent(f, ev, m)
	case a.desc != "":
		if m.Size = f.array; m.Size != 0 && !m.Failed {
			m.Addr, _ = f.Arg(a.addr, ev)
		}
		return m, m.Size != 0
	}
	size := a.size
	if m.Failed && a.asked != "" {
		size = a.asked
	}
	if m.Size, ok = f.Arg(size, ev); !ok {
		return m, false
	}
	if a.times != "" {
		n, known := f.Arg(a.times, ev)
		if !known {
			return m, false
		}
		m.Size *= n
	}
	if !m.Failed {
		m.Addr, _ = f.Arg(a.addr, ev) // 0: it could not be read
	}
	return m, true
}

// extent is change for cudaMalloc3D: width, height and depth lie on the stack, and address, pitch, width and
// height in what it has written.
func (a *allocator) extent(f *Frame, ev *traces.Event, m MemoryChange) (MemoryChange, bool) {
	extent, at := f.Function.Param(a.size), f.Function.Param(a.addr)
	if extent == nil || at == nil {
		return m, false
	}
	var n [3]uint64
	for i := range n {
		v, ok := f.word(extent, i)
		if !ok {
			return m, false
		}
		n[i] = v
	}
	m.Size = n[0] * n[1] * n[2]
	to, ok := f.word(at, 0)
	if b := segment(ev.Mem, to, true); ok && !m.Failed && len(b) >= 16 {
		m.Addr = binary.LittleEndian.Uint64(b)
		m.Size = binary.LittleEndian.Uint64(b[8:]) * n[1] * n[2]
	}
	return m, true
}

// maxLive bounds the allocations that are followed at once.
const maxLive = 1 << 18

// An allocation is what a process has at an address, or under a handle.
type allocation struct {
	pid  int32
	addr uint64
}

// mappings are memory that is mapped at addresses, by its handles. It lives until nobody holds its handle, and it is mapped
// nowhere (cuMemRelease in cuda.h): frameworks release it at once, when they have mapped it, or at its end.
type mappings struct {
	handles map[allocation]*physical
	places  map[allocation]place // by the address that it is mapped at
}

type physical struct {
	size   uint64
	holds  int // handles, by those who have it
	places int
}

type place struct {
	size   uint64
	handle uint64
}

func (m *mappings) created(k allocation, size uint64) {
	if m.handles == nil {
		m.handles, m.places = make(map[allocation]*physical), make(map[allocation]place)
	}
	if k.addr != 0 && len(m.handles) < maxLive {
		m.handles[k] = &physical{size: size, holds: 1}
	}
}

// changed follows a call that maps memory, takes it away, or releases it, and notes in its frame what that has freed. It
// reports whether the call was one of these, and of memory that was seen to be made.
func (m *mappings) changed(f *Frame, ev *traces.Event, stem string) bool {
	arg := func(name string) uint64 {
		n, _ := f.Arg(name, ev)
		return n
	}
	switch stem {
	case "cuMemMap":
		k := allocation{ev.PID, arg("handle")}
		if x := m.handles[k]; x != nil && int32(ev.Ret) == 0 && len(m.places) < maxLive {
			m.places[allocation{ev.PID, arg("ptr")}] = place{arg("size"), k.addr}
			x.places++
		}
	case "cuMemRetainAllocationHandle":
		k := allocation{ev.PID, arg("handle")}
		if x := m.handles[k]; x != nil && int32(ev.Ret) == 0 {
			x.holds++
		}
	case "cuMemUnmap":
		if int32(ev.Ret) == 0 {
			m.unmap(f, ev.PID, arg("ptr"), arg("size"))
		}
	case "cuMemRelease":
		k := allocation{ev.PID, arg("handle")}
		x := m.handles[k]
		if x == nil || int32(ev.Ret) != 0 {
			return false
		}
		x.holds--
		m.end(f, k, x)
	default:
		return false
	}
	return true
}

// unmap takes away what is mapped in a range.
func (m *mappings) unmap(f *Frame, pid int32, addr, size uint64) {
	away := func(k allocation, p place) {
		delete(m.places, k)
		of := allocation{pid, p.handle}
		if x := m.handles[of]; x != nil {
			x.places--
			m.end(f, of, x)
		}
	}
	if p, ok := m.places[allocation{pid, addr}]; ok && p.size == size { // as it was mapped: most are
		away(allocation{pid, addr}, p)
		return
	}
	for k, p := range m.places {
		if k.pid == pid && k.addr-addr < size {
			away(k, p)
		}
	}
}

// end notes that memory was freed, if nothing holds it any more.
func (m *mappings) end(f *Frame, k allocation, x *physical) {
	if x.holds > 0 || x.places > 0 {
		return
	}
	delete(m.handles, k)
	f.changes = append(f.changes, MemoryChange{Addr: k.addr, Size: x.size, Freed: true})
}
