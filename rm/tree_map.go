package rm

// Mapping is an object's memory in a program's address space. The driver hands
// out a cookie and remembers the mapping in an open file; the program then maps
// that file, and tells the driver the address. Exactly one mapping lives on an
// open file, ever, so the mmap of the file is the mmap of the object.
type Mapping struct {
	Object         *Object
	Device         uint32 // device or subdevice through which it was made
	Offset, Length uint64 // of the object's memory
	Cookie         uint64
	Through        uint32 // open file that was mapped, 0 none
	Flags          uint32
	PID            int32  // process that has it, once it has an address
	Addr           uint64 // user address, 0 before mmap
	Size           uint64 // mapped bytes
	Born           int64  // NV_ESC_RM_MAP_MEMORY
	Mapped         int64  // mmap, Alive if it has not happened
	Unmapped       int64  // munmap, Alive if it has not happened
	Died           int64  // NV_ESC_RM_UNMAP_MEMORY or the object's end, Alive if it has not
}

// Shows says what the mapping exposes, by the object's class.
func (m *Mapping) Shows() MapKind {
	if m.Object.Class == nil {
		return MapNone
	}
	return m.Object.Class.Map
}

// DMAMapping is memory in a GPU address space.
type DMAMapping struct {
	Object         *Object
	Space          *Object // address space or virtual memory that holds it
	Offset, Length uint64
	Addr           uint64 // GPU address
	Born, Died     int64
}

type cookieKey struct {
	Ref
	addr uint64
}

type dmaKey struct {
	client, space uint32
	addr          uint64
}

// mapTable finds mappings by everything that later calls name them by.
type mapTable struct {
	byCookie map[cookieKey]*Mapping        // cookie, and user address once it is known
	byFile   map[uint32]*Mapping           // not yet mapped
	byAddr   map[int32]map[uint64]*Mapping // by process and address
	inside   map[int32]*spanSet[*Mapping]  // by process
	dma      map[dmaKey]*DMAMapping
}

func (x *mapTable) init() {
	x.byCookie, x.byFile = map[cookieKey]*Mapping{}, map[uint32]*Mapping{}
	x.byAddr, x.dma = map[int32]map[uint64]*Mapping{}, map[dmaKey]*DMAMapping{}
	x.inside = map[int32]*spanSet[*Mapping]{}
}

// locate notes where a mapping is.
func (x *mapTable) locate(m *Mapping) {
	at := x.byAddr[m.PID]
	if at == nil {
		at = make(map[uint64]*Mapping)
		x.byAddr[m.PID] = at
	}
	if old := at[m.Addr]; old != nil && old != m {
		old.Unmapped = m.Mapped
	}
	at[m.Addr] = m
	in := x.inside[m.PID]
	if in == nil {
		in = &spanSet[*Mapping]{}
		x.inside[m.PID] = in
	}
	in.put(Span{m.Addr, m.Size}, m)
}

func (t *Tree) known(at At, r Ref) *Object {
	if o := t.live[r]; o != nil {
		return o
	}
	return t.guess(at, r, Other)
}

// Map notes a mapping of an object (NV_ESC_RM_MAP_MEMORY).
func (t *Tree) Map(op *MapOp) *Mapping {
	o := t.known(op.At, op.Ref)
	m := &Mapping{
		Object: o, Device: op.Device, Offset: op.Offset, Length: op.Length, Cookie: op.Cookie, Through: op.Through,
		Flags: op.Flags, Born: op.Time, Mapped: Alive, Unmapped: Alive, Died: Alive,
	}
	if o.mappings == nil {
		o.mappings = map[*Mapping]struct{}{}
	}
	o.mappings[m] = struct{}{}
	t.maps.byCookie[cookieKey{op.Ref, op.Cookie}] = m
	if op.Through != 0 {
		t.maps.byFile[op.Through] = m
	}
	return m
}

// Mmap notes that the program mapped an open file (At.File) at addr. It returns
// the mapping that lives on the file, nil if none is known.
func (t *Tree) Mmap(at At, addr, length uint64) *Mapping {
	m := t.maps.byFile[at.File]
	if m == nil || at.File == 0 {
		return nil
	}
	delete(t.maps.byFile, at.File)
	m.PID, m.Addr, m.Size, m.Mapped = at.PID, addr, length, at.Time
	t.maps.locate(m)
	t.maps.byCookie[cookieKey{m.Object.Ref, addr}] = m
	return m
}

// MoveMapping notes that the program told the driver where a mapping is
// (NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO): proof of what Mmap concluded, and the
// only link if the mmap was not seen.
func (t *Tree) MoveMapping(at At, r Ref, from, to uint64) *Mapping {
	m := t.maps.byCookie[cookieKey{r, from}]
	if m == nil {
		return nil
	}
	if m.Addr != to {
		m.PID, m.Addr = at.PID, to
		if m.Size == 0 {
			m.Size = m.Length
		}
		if m.Mapped == Alive {
			m.Mapped = at.Time
		}
		t.maps.locate(m)
	}
	t.maps.byCookie[cookieKey{r, to}] = m
	return m
}

// Munmap notes that the program unmapped what starts at addr.
func (t *Tree) Munmap(at At, addr uint64) *Mapping {
	m := t.maps.byAddr[at.PID][addr]
	if m != nil {
		m.Unmapped = at.Time
		delete(t.maps.byAddr[at.PID], addr)
		t.maps.inside[at.PID].remove(addr)
	}
	return m
}

// Unmap notes the end of a mapping (NV_ESC_RM_UNMAP_MEMORY); addr is its user
// address, or the cookie if it was never mapped.
func (t *Tree) Unmap(at At, r Ref, addr uint64) *Mapping {
	m := t.maps.byCookie[cookieKey{r, addr}]
	if m != nil {
		t.maps.unmap(m, at.Time)
	}
	return m
}

func (x *mapTable) unmap(m *Mapping, time int64) {
	if m.Died != Alive {
		return
	}
	m.Died = time
	delete(m.Object.mappings, m)
	for _, a := range [2]uint64{m.Cookie, m.Addr} {
		if k := (cookieKey{m.Object.Ref, a}); x.byCookie[k] == m {
			delete(x.byCookie, k)
		}
	}
	if x.byFile[m.Through] == m {
		delete(x.byFile, m.Through)
	}
}

// exit forgets the address space of a process.
func (x *mapTable) exit(pid int32) {
	delete(x.byAddr, pid)
	delete(x.inside, pid)
}

func (x *mapTable) closeFile(at At) { delete(x.byFile, at.File) }

// MappingAt returns the mapping that holds a user address of a process, nil if
// none is known.
func (t *Tree) MappingAt(pid int32, addr uint64) *Mapping {
	if in := t.maps.inside[pid]; in != nil {
		m, _, _ := in.find(addr)
		return m
	}
	return nil
}

// Mappings returns the object's mappings that live, in no particular order.
func (o *Object) Mappings() []*Mapping {
	out := make([]*Mapping, 0, len(o.mappings))
	for m := range o.mappings {
		out = append(out, m)
	}
	return out
}

// MapDMA notes that memory was mapped into a GPU address space
// (NV_ESC_RM_MAP_MEMORY_DMA).
func (t *Tree) MapDMA(op *DMAOp) *DMAMapping {
	o := t.known(op.At, op.Ref)
	k := dmaKey{op.Ref.Client, op.Space, op.Addr}
	if old := t.maps.dma[k]; old != nil {
		t.maps.unmapDMA(old, op.Time)
	}
	m := &DMAMapping{Object: o, Space: t.known(op.At, Ref{op.Ref.Client, op.Space}), Offset: op.Offset, Length: op.Length, Addr: op.Addr, Born: op.Time, Died: Alive}
	t.maps.dma[k] = m
	for _, x := range [2]*Object{o, m.Space} {
		if x.dmas == nil {
			x.dmas = map[*DMAMapping]struct{}{}
		}
		x.dmas[m] = struct{}{}
	}
	return m
}

// UnmapDMA notes the end of such a mapping (NV_ESC_RM_UNMAP_MEMORY_DMA).
func (t *Tree) UnmapDMA(at At, client, space uint32, addr uint64) *DMAMapping {
	m := t.maps.dma[dmaKey{client, space, addr}]
	if m != nil {
		t.maps.unmapDMA(m, at.Time)
	}
	return m
}

func (x *mapTable) unmapDMA(m *DMAMapping, time int64) {
	if m.Died != Alive {
		return
	}
	m.Died = time
	delete(m.Object.dmas, m)
	delete(m.Space.dmas, m)
	k := dmaKey{m.Object.Ref.Client, m.Space.Ref.Handle, m.Addr}
	if x.dma[k] == m {
		delete(x.dma, k)
	}
}

// DMAMappings returns the living mappings of the object's memory, or, for an
// address space, those in it, in no particular order.
func (o *Object) DMAMappings() []*DMAMapping {
	out := make([]*DMAMapping, 0, len(o.dmas))
	for m := range o.dmas {
		out = append(out, m)
	}
	return out
}
