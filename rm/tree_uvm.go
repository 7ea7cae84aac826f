package rm

import "fmt"

// UVMSpace is a managed address space: an open file of nvidia-uvm.
type UVMSpace struct {
	File       uint32
	PID        int32
	Born, Died int64
	Flags      uint64 // UVM_INITIALIZE_PARAMS.flags
	GPUs       map[UUID]*UVMGPU
	Ranges     map[uint64]*UVMRange // living ones, by base
	Total      UVMTotal

	external spanSet[*UVMRange]
}

// UVMGPU is a GPU that is registered with a managed address space.
type UVMGPU struct {
	UUID       UUID
	Born, Died int64
	Space      *Object           // GPU address space given by REGISTER_GPU_VASPACE, nil none
	Channels   map[Ref]*Object   // registered channels that live
	Spans      map[uint64]uint64 // bases and lengths of the channels' buffers
}

// UVMKind says what a range of managed addresses is.
type UVMKind uint8

// The kinds.
const (
	UVMManaged   UVMKind = iota // migrates between CPU and GPUs (an mmap of the file)
	UVMExternal                 // maps memory that the resource manager allocated
	UVMSemaphore                // a semaphore pool
	UVMP2P                      // a device's memory for peers
	UVMDynamic                  // a dynamic parallelism region
)

// UVMRange is a range of a managed address space.
type UVMRange struct {
	Span
	Kind   UVMKind
	Born   int64
	Died   int64
	Mapped map[uint64]*UVMMapping // external: what lies in it, by base
}

// UVMMapping is memory of the resource manager in an external range.
type UVMMapping struct {
	Span
	Object *Object
	Offset uint64
	GPUs   []UUID
	Born   int64
}

// UVMTotal counts the bytes of ranges.
type UVMTotal struct {
	Managed, External         uint64
	PeakManaged, PeakExternal uint64
}

// UVM returns the managed address space of an open file, nil if there is none.
func (t *Tree) UVM(file uint32) *UVMSpace { return t.uvm[file] }

// UVMSpaces returns all managed address spaces, ended ones too, by file.
func (t *Tree) UVMSpaces() map[uint32]*UVMSpace { return t.uvm }

func (t *Tree) space(at At) *UVMSpace {
	s := t.uvm[at.File]
	if s == nil || s.Died != Alive {
		s = &UVMSpace{File: at.File, PID: at.PID, Born: at.Time, Died: Alive, GPUs: map[UUID]*UVMGPU{}, Ranges: map[uint64]*UVMRange{}}
		t.uvm[at.File] = s
	}
	return s
}

// UVMInit notes UVM_INITIALIZE on the file.
func (t *Tree) UVMInit(at At, flags uint64) { t.space(at).Flags = flags }

// UVMRegisterGPU notes UVM_REGISTER_GPU.
func (t *Tree) UVMRegisterGPU(at At, id UUID) { t.space(at).gpu(at, id) }

func (s *UVMSpace) gpu(at At, id UUID) *UVMGPU {
	g := s.GPUs[id]
	if g == nil || g.Died != Alive {
		g = &UVMGPU{UUID: id, Born: at.Time, Died: Alive, Channels: map[Ref]*Object{}, Spans: map[uint64]uint64{}}
		s.GPUs[id] = g
	}
	return g
}

// UVMUnregisterGPU notes UVM_UNREGISTER_GPU.
func (t *Tree) UVMUnregisterGPU(at At, id UUID) { t.space(at).gpu(at, id).Died = at.Time }

// UVMRegisterSpace notes UVM_REGISTER_GPU_VASPACE.
func (t *Tree) UVMRegisterSpace(at At, id UUID, r Ref) {
	t.space(at).gpu(at, id).Space = t.known(at, r)
}

// UVMUnregisterSpace notes UVM_UNREGISTER_GPU_VASPACE.
func (t *Tree) UVMUnregisterSpace(at At, id UUID) { t.space(at).gpu(at, id).Space = nil }

// UVMRegisterChannel notes UVM_REGISTER_CHANNEL; the span is where its buffers
// are mapped.
func (t *Tree) UVMRegisterChannel(at At, id UUID, r Ref, span Span) {
	g := t.space(at).gpu(at, id)
	g.Channels[r] = t.known(at, r)
	g.Spans[span.Base] = span.Length
}

// UVMUnregisterChannel notes UVM_UNREGISTER_CHANNEL.
func (t *Tree) UVMUnregisterChannel(at At, r Ref) {
	for _, g := range t.space(at).GPUs {
		delete(g.Channels, r)
	}
}

// UVMRangeNew notes a new range: an mmap of the file makes a managed one,
// UVM_CREATE_EXTERNAL_RANGE, UVM_ALLOC_SEMAPHORE_POOL and the like the others.
func (t *Tree) UVMRangeNew(at At, kind UVMKind, span Span) *UVMRange {
	s := t.space(at)
	if old := s.Ranges[span.Base]; old != nil {
		if old.Kind != UVMManaged && kind == UVMManaged && old.Span == span {
			return old // the mmap that gives a pool its CPU pages
		}
		s.drop(old, at.Time)
	}
	r := &UVMRange{Span: span, Kind: kind, Born: at.Time, Died: Alive}
	s.Ranges[span.Base] = r
	switch kind {
	case UVMManaged:
		s.Total.Managed += span.Length
		s.Total.PeakManaged = max(s.Total.PeakManaged, s.Total.Managed)
	case UVMExternal:
		s.external.put(span, r)
		s.Total.External += span.Length
		s.Total.PeakExternal = max(s.Total.PeakExternal, s.Total.External)
	}
	return r
}

func (s *UVMSpace) drop(r *UVMRange, time int64) {
	r.Died = time
	if s.Ranges[r.Base] == r {
		delete(s.Ranges, r.Base)
	}
	switch r.Kind {
	case UVMManaged:
		s.Total.Managed -= r.Length
	case UVMExternal:
		s.external.remove(r.Base)
		s.Total.External -= r.Length
	}
}

// UVMRangeFree notes the end of the range that starts at base: UVM_FREE, or the
// munmap of a managed range. It returns the range, nil if it is not known.
func (t *Tree) UVMRangeFree(at At, base uint64) *UVMRange {
	s := t.space(at)
	r := s.Ranges[base]
	if r != nil {
		s.drop(r, at.Time)
	}
	return r
}

// UVMMapExternal notes UVM_MAP_EXTERNAL_ALLOCATION: memory of the resource
// manager at a place in an external range. A range that was not seen being made
// is made up.
func (t *Tree) UVMMapExternal(at At, span Span, r Ref, offset uint64, gpus []UUID) *UVMMapping {
	s := t.space(at)
	x, _, ok := s.external.find(span.Base)
	if !ok {
		x = t.UVMRangeNew(at, UVMExternal, span)
	}
	m := &UVMMapping{Span: span, Object: t.known(at, r), Offset: offset, GPUs: gpus, Born: at.Time}
	if x.Mapped == nil {
		x.Mapped = map[uint64]*UVMMapping{}
	}
	x.Mapped[span.Base] = m
	return m
}

// UVMUnmapExternal notes UVM_UNMAP_EXTERNAL of what starts at base.
func (t *Tree) UVMUnmapExternal(at At, base uint64) {
	if x, _, ok := t.space(at).external.find(base); ok {
		delete(x.Mapped, base)
	}
}

// External returns the memory that is mapped at an address of the managed
// address space, nil if none is.
func (s *UVMSpace) External(addr uint64) *UVMMapping {
	x, _, ok := s.external.find(addr)
	if !ok {
		return nil
	}
	for _, m := range x.Mapped {
		if addr-m.Base < m.Length {
			return m
		}
	}
	return nil
}

func (t *Tree) closeUVM(at At) {
	s := t.uvm[at.File]
	if s == nil || s.Died != Alive {
		return
	}
	for _, r := range s.Ranges {
		s.drop(r, at.Time)
	}
	for _, g := range s.GPUs {
		if g.Died == Alive {
			g.Died = at.Time
		}
	}
	s.Died = at.Time
}

// String names the kind of range.
func (k UVMKind) String() string {
	switch k {
	case UVMManaged:
		return "managed"
	case UVMExternal:
		return "external"
	case UVMSemaphore:
		return "semaphore pool"
	case UVMP2P:
		return "device p2p"
	case UVMDynamic:
		return "dynamic parallelism"
	}
	return fmt.Sprintf("UVMKind(%d)", uint8(k))
}

// String spells the UUID as nvidia-smi does.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
