package ioctl

import (
	"nvtrace/rm"
	"nvtrace/traces"
)

// Mapping says which object an open file maps: RM ties them one to one, by
// NV_ESC_RM_MAP_MEMORY, or NV_ESC_RM_ALLOC_MEMORY with a descriptor, for the
// file's whole life.
type Mapping struct {
	Managed   bool // unified memory of nvidia-uvm: no RM object
	Client    uint32
	Device    uint32 // handle of the device or subdevice
	Memory    uint32 // handle of the mapped object
	Class     *rm.Class
	Kind      rm.MapKind
	Offset    uint64
	Length    uint64
	Cookie    uint64 // what MAP_MEMORY returned as pLinearAddress
	Confirmed bool   // NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO named object and address
}

// linker keeps what links mappings to objects.
type linker struct {
	fds     map[int32]map[int32]openFile // by process and descriptor
	refs    map[uint32]int32             // descriptors per open file
	ended   []uint32                     // open files whose last descriptor the latest event took
	byFile  map[uint32]*Mapping
	waiting map[cookieKey]*Mapping // not yet confirmed
	classes map[uint64]*rm.Class   // client and handle of objects that can be mapped
	managed Mapping
}

type cookieKey struct {
	object uint64 // client and handle
	cookie uint64
}

// maxWaiting bounds the mappings that wait for their confirmation.
const maxWaiting = 1 << 14

type openFile struct {
	id  uint32
	dev string
}

func (l *linker) init() {
	l.fds = make(map[int32]map[int32]openFile)
	l.refs = make(map[uint32]int32)
	l.byFile = make(map[uint32]*Mapping)
	l.waiting = make(map[cookieKey]*Mapping)
	l.classes = make(map[uint64]*rm.Class)
	l.managed = Mapping{Managed: true}
}

// FDName returns the device node behind a descriptor as far as the events told,
// "" if it is not known.
func (d *Decoder) FDName(pid, fd int32) string { return d.links.fds[pid][fd].dev }

// track takes in what an event says about descriptors and mappings, and links
// an mmap.
func (l *linker) track(d *Decoder, ev *traces.Event, c *Call) {
	l.ended = l.ended[:0]
	switch ev.Kind {
	case traces.KindOpen:
		if c.Errno == 0 && ev.FD >= 0 {
			l.open(ev.PID, ev.FD, openFile{ev.File, ev.Dev})
		}
	case traces.KindDup:
		if c.Errno == 0 && ev.Ret >= 0 {
			l.open(ev.PID, int32(ev.Ret), openFile{ev.File, ev.Dev})
		}
	case traces.KindClose:
		l.close(ev.PID, ev.FD)
	case traces.KindFork:
		if ev.Flags&traces.FlagThread == 0 {
			for fd, f := range l.fds[ev.PID] {
				l.open(ev.Child, fd, f)
			}
		}
	case traces.KindExit:
		if ev.TID == ev.PID {
			for fd := range l.fds[ev.PID] {
				l.close(ev.PID, fd)
			}
			delete(l.fds, ev.PID)
		}
	case traces.KindMmap:
		l.mmap(ev, c)
	case traces.KindIoctl:
		if (c.Device == DeviceCtl || c.Device == DeviceGPU) && len(c.Parts) > 0 {
			l.escape(d.ABI(ev.PID), ev, c)
		}
	}
}

// maxFDs bounds the descriptors that are remembered of one process.
const maxFDs = 1 << 16

func (l *linker) open(pid, fd int32, f openFile) {
	l.close(pid, fd)
	m := l.fds[pid]
	if m == nil {
		m = make(map[int32]openFile)
		l.fds[pid] = m
	}
	if len(m) < maxFDs {
		m[fd] = f
		l.refs[f.id]++
	}
}

func (l *linker) close(pid, fd int32) {
	if old, ok := l.fds[pid][fd]; ok {
		delete(l.fds[pid], fd)
		l.drop(old.id)
	}
}

// drop takes one descriptor from an open file. With the last known one the
// file's mapping context is forgotten.
func (l *linker) drop(file uint32) {
	if l.refs[file]--; l.refs[file] <= 0 {
		delete(l.refs, file)
		delete(l.byFile, file)
		l.ended = append(l.ended, file)
	}
}

func (l *linker) mmap(ev *traces.Event, c *Call) {
	if c.Device == DeviceUVM {
		c.Link = &l.managed
		return
	}
	c.Link = l.byFile[ev.File]
}

// escape notes what escapes say about mappings.
func (l *linker) escape(abi *rm.ABI, ev *traces.Event, c *Call) {
	if c.Failed() || !c.HasStatus {
		return
	}
	p := c.Argument()
	if p == nil {
		return
	}
	switch c.Nr {
	case escAlloc, escAllocObject:
		l.object(c)
	case escDupObject: // NVOS55: the copy is what its source is
		if class := l.classes[key64(load32(p.In, 12), load32(p.In, 16))]; class != nil {
			l.classes[key64(c.Client, c.New)] = class
		}
	case escAllocMemory: // NVOS02: limit at 32; fd at 48 of the wrapper
		l.object(c)
		if len(p.In) >= 52 {
			l.bind(ev.PID, int32(load32(p.In, 48)), Mapping{
				Client: c.Client, Device: c.Parent, Memory: c.New, Class: c.Class,
				Length: load64(p.In, 32) + 1, Cookie: load64(p.Out, 24),
			})
		}
	case escMapMemory: // NVOS33: offset 16, length 24, pLinearAddress 32; fd at 48 of the wrapper
		if len(p.In) >= 52 {
			l.bind(ev.PID, int32(load32(p.In, 48)), Mapping{
				Client: c.Client, Device: c.Parent, Memory: c.Object, Class: l.classes[key64(c.Client, c.Object)],
				Offset: load64(p.In, 16), Length: load64(p.In, 24), Cookie: load64(p.Out, 32),
			})
		}
	case escUpdateMapping: // NVOS56: pOldCpuAddress 16
		l.confirm(c.Client, c.Object, load64(p.In, 16))
	case escVidHeap:
		l.heap(abi, c, p)
	case escFree:
		delete(l.classes, key64(c.Client, c.Object))
	}
}

func key64(client, handle uint32) uint64 { return uint64(client)<<32 | uint64(handle) }

// object remembers the class of an object that can be mapped.
func (l *linker) object(c *Call) {
	if c.Class != nil && c.Class.Map != rm.MapNone && c.New != 0 {
		l.classes[key64(c.Client, c.New)] = c.Class
	}
}

// Classes of memory and the NVOS32 members that tell them apart (nvos.h:
// NVOS32_FUNCTION_ALLOC_SIZE, NVOS32_ATTR_LOCATION 26:25).
const (
	classMemorySystem    = 0x3e
	classMemoryLocalUser = 0x40
	heapAllocSize        = 2
	heapFree             = 3
	locationVidmem       = 0
)

// heap notes memory that NV_ESC_RM_VID_HEAP_CONTROL allocated. In every layout
// data.AllocSize begins at 40 with owner, hMemory, type, flags, attr.
func (l *linker) heap(abi *rm.ABI, c *Call, p *Part) {
	if c.SubNr != heapAllocSize || len(p.Out) < 60 {
		return
	}
	if cl := abi.Class(heapClass(p.Out)); cl != nil {
		l.classes[key64(c.Client, load32(p.Out, 44))] = cl
	}
}

// heapClass returns the class that memory of NVOS32's ALLOC_SIZE amounts to.
func heapClass(b []byte) uint32 {
	if load32(b, 56)>>25&3 == locationVidmem {
		return classMemoryLocalUser
	}
	return classMemorySystem
}

// bind ties an object to the open file that its mapping goes through.
func (l *linker) bind(pid, fd int32, m Mapping) {
	f, ok := l.fds[pid][fd]
	if !ok || f.id == 0 {
		return
	}
	if m.Class != nil {
		m.Kind = m.Class.Map
	}
	l.byFile[f.id] = &m
	if len(l.waiting) < maxWaiting {
		l.waiting[cookieKey{key64(m.Client, m.Memory), m.Cookie}] = &m
	}
}

// confirm marks the mapping of an object as proven. The file that it went
// through may be closed by then.
func (l *linker) confirm(client, memory uint32, cookie uint64) {
	k := cookieKey{key64(client, memory), cookie}
	if m := l.waiting[k]; m != nil {
		m.Confirmed = true
		delete(l.waiting, k)
	}
}

// isOwn reports whether a call is nvtrace's own work: because the event says so, or because it gives back
// what such a call has made.
func (d *Decoder) isOwn(ev *traces.Event, c *Call) bool {
	own := ev.Flags&traces.FlagOwn != 0
	if ev.Kind > traces.KindIoctl || !own && len(d.own.made) == 0 {
		return false
	}
	done := !c.Failed() && ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0
	if k, ok := makes(ev, c); ok && done {
		d.own.taken(k, own)
	}
	if k, ends, ok := endsWhat(ev, c); ok && d.own.given(k, ends && done) {
		return true
	}
	return own
}

// makes returns what a call has made, if it is something that another call ends.
func makes(ev *traces.Event, c *Call) (k ownKey, ok bool) {
	if ev.Kind == traces.KindMmap {
		return ownKey{ownMapping, uint32(ev.PID), uint64(ev.Ret)}, true
	}
	if c.Escape != nil && c.New != 0 {
		return ownKey{ownObject, c.Client, uint64(c.New)}, true
	}
	switch c.Name {
	case "UVM_CREATE_EXTERNAL_RANGE", "UVM_ALLOC_SEMAPHORE_POOL", "UVM_ALLOC_DEVICE_P2P", "UVM_MAP_DYNAMIC_PARALLELISM_REGION":
		return uvmKey(ev, c, ownRange, "base")
	case "UVM_CREATE_RANGE_GROUP":
		return uvmKey(ev, c, ownGroup, "rangeGroupId")
	}
	return k, false
}

// endsWhat returns what a call ends, or (ends is false) a part of.
func endsWhat(ev *traces.Event, c *Call) (k ownKey, ends, ok bool) {
	if ev.Kind == traces.KindMunmap {
		return ownKey{ownMapping, uint32(ev.PID), ev.Args[0]}, true, true
	}
	if c.Escape != nil {
		switch c.Nr {
		case escFree, escUnmapMemory:
			return ownKey{ownObject, c.Client, uint64(c.Object)}, c.Nr == escFree, true
		}
		return k, false, false
	}
	switch c.Name {
	case "UVM_FREE", "UVM_UNMAP_EXTERNAL":
		k, ok = uvmKey(ev, c, ownRange, "base")
	case "UVM_DESTROY_RANGE_GROUP":
		k, ok = uvmKey(ev, c, ownGroup, "rangeGroupId")
	}
	return k, c.Name != "UVM_UNMAP_EXTERNAL", ok
}

// uvmKey names what a member of a call of the UVM driver does.
func uvmKey(ev *traces.Event, c *Call, kind ownKind, member string) (k ownKey, ok bool) {
	p := c.Argument()
	if p == nil || p.Struct == nil {
		return k, false
	}
	id, ok := p.Struct.Uint(member, p.Latest())
	return ownKey{kind, uint32(ev.PID), id}, ok
}
