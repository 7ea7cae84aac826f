package ioctl

import (
	"path"

	"nvtrace/rm"
	"nvtrace/traces"
)

// Objects builds the tree of the driver's objects from decoded calls. Give it
// every event, right after the Decoder's Decode: it relies on what that learnt
// of descriptors. A failed call, or one whose end was not seen, makes nothing.
type Objects struct {
	tree *rm.Tree
	dec  *Decoder
	last int64 // times must not go backwards

	freed     rm.Ref // what the latest event freed, and its name: its line still names it
	freedName string
}

// NewObjects returns an empty tree fed by the calls that d decodes; o may be nil.
func NewObjects(d *Decoder, o *rm.TreeOptions) *Objects {
	return &Objects{tree: rm.NewTree(o), dec: d}
}

// Tree returns the tree, which grows with every Add.
func (o *Objects) Tree() *rm.Tree { return o.tree }

// Namer names living objects in lines, as "chan2{c86f}". Add an event before
// its line is printed: then what it makes has a name, and what it frees has one
// still.
func (o *Objects) Namer() Namer {
	return func(dst []byte, client, handle uint32) []byte {
		ref := rm.Ref{Client: client, Handle: handle}
		if obj := o.tree.Object(ref); obj != nil && !obj.Guessed {
			return append(dst, obj.Short()...)
		}
		if ref == o.freed {
			return append(dst, o.freedName...)
		}
		return dst
	}
}

// Add takes in one event and its call.
func (o *Objects) Add(ev *traces.Event, c *Call) {
	o.last = max(o.last, ev.Time+ev.Dur)
	o.freed, o.freedName = rm.Ref{}, ""
	if ofLibrary(ev.Kind) {
		return
	}
	at := rm.At{Time: o.last, PID: ev.PID, File: ev.File}
	switch ev.Kind {
	case traces.KindOpen:
		if c.Errno == 0 && ev.File != 0 {
			o.tree.Open(at, ev.Dev)
		}
	case traces.KindMmap:
		o.mmap(at, ev, c)
	case traces.KindMunmap:
		if c.Errno == 0 {
			o.munmap(at, ev.Args[0])
		}
	case traces.KindFork:
		if ev.Flags&traces.FlagThread == 0 {
			name := ""
			if t := o.tree.Task(ev.PID); t != nil {
				name = t.Name
			}
			o.tree.Process(rm.At{Time: o.last, PID: ev.Child}, ev.PID, name)
		}
	case traces.KindExec:
		o.tree.Process(at, 0, path.Base(ev.Path))
	case traces.KindExit:
		if ev.TID == ev.PID {
			o.tree.Exit(at)
		}
	case traces.KindIoctl:
		if !c.Failed() && ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0 && c.Argument() != nil {
			o.ioctl(at, ev, c)
		}
	}
	for _, file := range o.dec.links.ended {
		o.tree.CloseFile(rm.At{Time: o.last, PID: ev.PID, File: file}, ev.Kind == traces.KindExit)
	}
}

func (o *Objects) mmap(at rm.At, ev *traces.Event, c *Call) {
	switch {
	case c.Errno != 0:
	case c.Device == DeviceUVM:
		o.tree.UVMRangeNew(at, rm.UVMManaged, rm.Span{Base: uint64(ev.Ret), Length: ev.Args[1]})
	default:
		o.tree.Mmap(at, uint64(ev.Ret), ev.Args[1])
	}
}

// munmap ends a mapping of an object, or else a managed range of any of the
// process's UVM files.
func (o *Objects) munmap(at rm.At, addr uint64) {
	if o.tree.Munmap(at, addr) != nil {
		return
	}
	for _, f := range o.dec.links.fds[at.PID] {
		if deviceByName(f.dev) == DeviceUVM && o.tree.UVM(f.id) != nil {
			at.File = f.id
			if o.tree.UVMRangeFree(at, addr) != nil {
				return
			}
		}
	}
}

func (o *Objects) ioctl(at rm.At, ev *traces.Event, c *Call) {
	switch c.Device {
	case DeviceCtl, DeviceGPU:
		if c.HasStatus && c.Escape != nil {
			o.escape(at, ev, c)
		}
	case DeviceUVM:
		if c.HasStatus && c.Request != nil {
			o.uvm(at, c)
		}
	}
}

// file returns the open file behind a descriptor of the calling process.
func (o *Objects) file(pid int32, fd uint64) uint32 {
	return o.dec.links.fds[pid][int32(uint32(fd))].id
}

// escape translates the escapes that make, name or end objects. The members'
// places that are written as numbers are the same in every driver version.
func (o *Objects) escape(at rm.At, ev *traces.Event, c *Call) {
	p := c.Argument()
	in, out := p.In, p.Latest()
	ref := rm.Ref{Client: c.Client, Handle: c.Object}
	switch c.Nr {
	case escAlloc, escAllocObject:
		o.alloc(at, c)
	case escAllocMemory: // NVOS02: pMemory 24, limit 32; fd 48
		attr := rm.Attr{FD: -1}
		if c.Class != nil {
			attr = c.Class.Attr(nil, nil)
		}
		attr.Size = load64(in, 32) + 1
		o.tree.Alloc(&rm.AllocOp{At: at, Ref: ref, Parent: c.Parent, ClassID: c.SubNr, Class: c.Class, Attr: attr})
		if file := o.file(ev.PID, uint64(load32(in, 48))); file != 0 && len(in) >= 52 {
			o.tree.Map(&rm.MapOp{At: at, Ref: ref, Device: c.Parent, Length: attr.Size, Cookie: load64(out, 24), Through: file})
		}
	case escAllocCtxDMA2: // NVOS39: hMemory 24, limit 40
		attr := rm.Attr{FD: -1, Size: load64(in, 40) + 1}
		if h := load32(in, 24); h != 0 {
			attr.Deps = []uint32{h}
		}
		o.tree.Alloc(&rm.AllocOp{At: at, Ref: ref, Parent: c.Parent, ClassID: c.SubNr, Class: c.Class, Attr: attr})
	case escDupObject: // NVOS55: hClientSrc 12, hObjectSrc 16
		o.tree.Duplicate(&rm.DupOp{At: at, Ref: ref, Parent: c.Parent, Src: rm.Ref{Client: load32(in, 12), Handle: load32(in, 16)}})
	case escFree:
		if c.Object == c.Client || c.Client == 0 {
			ref.Client = c.Object // a client names itself
		}
		if obj := o.tree.Object(ref); obj != nil && !obj.Guessed {
			o.freed, o.freedName = ref, obj.Short()
		}
		o.tree.Free(at, ref)
	case escVidHeap:
		o.heap(at, c, p)
	case escMapMemory: // NVOS33: offset 16, length 24, pLinearAddress 32, flags 44; fd 48
		o.tree.Map(&rm.MapOp{
			At: at, Ref: ref, Device: c.Parent, Offset: load64(in, 16), Length: load64(in, 24),
			Cookie: load64(out, 32), Through: o.file(ev.PID, uint64(load32(in, 48))), Flags: load32(in, 44),
		})
	case escUnmapMemory: // NVOS34: pLinearAddress 16
		o.tree.Unmap(at, ref, load64(in, 16))
	case escUpdateMapping: // NVOS56: pOldCpuAddress 16, pNewCpuAddress 24
		o.tree.MoveMapping(at, ref, load64(in, 16), load64(in, 24))
	case escMapDMA: // NVOS46: hDma 8, hMemory 12, offset 16, length 24
		addr, _ := p.Struct.Uint("dmaOffset", out)
		o.tree.MapDMA(&rm.DMAOp{
			At: at, Ref: rm.Ref{Client: c.Client, Handle: load32(in, 12)}, Space: load32(in, 8),
			Offset: load64(in, 16), Length: load64(in, 24), Addr: addr,
		})
	case escUnmapDMA: // NVOS47: hDma 8
		addr, _ := p.Struct.Uint("dmaOffset", in)
		o.tree.UnmapDMA(at, c.Client, load32(in, 8), addr)
	case escExportDMABuf:
		o.exportDMABuf(at, p)
	case escControl:
		o.control(at, c)
	}
}

func (o *Objects) alloc(at rm.At, c *Call) {
	attr := rm.Attr{FD: -1}
	if c.Class != nil {
		var passed, params []byte
		if q := c.pointed("pAllocParms"); q != nil && !c.Finn {
			passed, params = q.In, q.Latest()
		}
		attr = c.Class.Attr(passed, params)
	}
	parent := c.Parent
	if c.New == c.Client {
		parent = 0
	}
	o.tree.Alloc(&rm.AllocOp{At: at, Ref: rm.Ref{Client: c.Client, Handle: c.New}, Parent: parent, ClassID: c.SubNr, Class: c.Class, Attr: attr})
}

// heap translates NVOS32: ALLOC_SIZE (hMemory 44, attr 56, size 88) and FREE
// (hMemory 44).
func (o *Objects) heap(at rm.At, c *Call, p *Part) {
	out := p.Latest()
	ref := rm.Ref{Client: c.Client, Handle: load32(out, 44)}
	switch c.SubNr {
	case heapAllocSize:
		id := heapClass(out)
		class := o.dec.ABI(at.PID).Class(id)
		attr := rm.Attr{FD: -1, Size: load64(out, 88), Aperture: rm.AttrAperture(load32(out, 56))}
		o.tree.Alloc(&rm.AllocOp{At: at, Ref: ref, Parent: c.Parent, ClassID: id, Class: class, Attr: attr})
	case heapFree:
		o.tree.Free(at, ref)
	}
}

// exportDMABuf translates nv_ioctl_export_to_dma_buf_fd_t: the first call for a
// dma-buf makes its descriptor (fd -1 before), further ones add objects to it.
func (o *Objects) exportDMABuf(at rm.At, p *Part) {
	s, b := p.Struct, p.Latest()
	f := s.Lookup("handles")
	fd, ok := s.Uint("fd", b)
	n, counted := s.Uint("numObjects", b)
	client, named := s.Uint("hClient", b)
	if f == nil || !ok || !counted || !named || f.Elem != 4 {
		return
	}
	op := &rm.DMABufOp{At: at, Client: uint32(client), FD: int32(uint32(fd))}
	for i := range min(n, uint64(f.Size/f.Elem)) {
		if h := load32(b, f.Offset+int(i)*f.Elem); h != 0 {
			op.Handles = append(op.Handles, h)
		}
	}
	o.tree.ExportDMABuf(op)
}

// control translates the control commands that put objects into files and take
// them out again (ctrl0000unix.h).
func (o *Objects) control(at rm.At, c *Call) {
	q := c.pointed("params")
	if q == nil || q.Struct == nil {
		return
	}
	s, b := q.Struct, q.Latest()
	fd, ok := s.Uint("fd", b)
	if !ok {
		return
	}
	file := o.file(at.PID, fd)
	switch c.Sub {
	case "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD": // object.data.rmObject at 4: hDevice, hParent, hObject
		o.tree.Export(&rm.ExportOp{At: at, Client: c.Client, Handles: []uint32{load32(b, 12)}, Into: file})
	case "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD":
		o.tree.Export(&rm.ExportOp{At: at, Client: c.Client, Handles: handles(s, b), Into: file})
	case "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD": // object.data.rmObject at 8
		o.tree.Import(&rm.ImportOp{At: at, Ref: rm.Ref{Client: c.Client, Handle: load32(b, 16)}, Parent: load32(b, 12), From: file})
	case "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD":
		parent, _ := s.Uint("hParent", b)
		index, _ := s.Uint("index", b)
		for i, h := range handles(s, b) {
			o.tree.Import(&rm.ImportOp{At: at, Ref: rm.Ref{Client: c.Client, Handle: h}, Parent: uint32(parent), From: file, Index: int(index) + i})
		}
	}
}

// handles reads the list of *_OBJECTS_*_FD: objects, numObjects.
func handles(s *rm.Struct, b []byte) []uint32 {
	f := s.Lookup("objects")
	n, ok := s.Uint("numObjects", b)
	if f == nil || !ok {
		return nil
	}
	var list []uint32
	for i := range min(int(n), f.Size/4) {
		list = append(list, load32(b, f.Offset+4*i))
	}
	return list
}

// uvm translates the requests of nvidia-uvm that register objects and make or
// end ranges.
func (o *Objects) uvm(at rm.At, c *Call) {
	p := c.Argument()
	s, b := p.Struct, p.In
	if s == nil {
		return
	}
	num := func(name string) uint64 { v, _ := s.Uint(name, b); return v }
	ref := func(name string) rm.Ref {
		return rm.Ref{Client: uint32(num("hClient")), Handle: uint32(num(name))}
	}
	span := rm.Span{Base: num("base"), Length: num("length")}
	switch c.Name {
	case "UVM_INITIALIZE":
		o.tree.UVMInit(at, num("flags"))
	case "UVM_REGISTER_GPU":
		o.tree.UVMRegisterGPU(at, uuidOf(s, b, "gpu_uuid"))
	case "UVM_UNREGISTER_GPU":
		o.tree.UVMUnregisterGPU(at, uuidOf(s, b, "gpu_uuid"))
	case "UVM_REGISTER_GPU_VASPACE":
		o.tree.UVMRegisterSpace(at, uuidOf(s, b, "gpuUuid"), ref("hVaSpace"))
	case "UVM_UNREGISTER_GPU_VASPACE":
		o.tree.UVMUnregisterSpace(at, uuidOf(s, b, "gpuUuid"))
	case "UVM_REGISTER_CHANNEL":
		o.tree.UVMRegisterChannel(at, uuidOf(s, b, "gpuUuid"), ref("hChannel"), span)
	case "UVM_UNREGISTER_CHANNEL":
		o.tree.UVMUnregisterChannel(at, ref("hChannel"))
	case "UVM_CREATE_EXTERNAL_RANGE":
		o.tree.UVMRangeNew(at, rm.UVMExternal, span)
	case "UVM_ALLOC_SEMAPHORE_POOL":
		o.tree.UVMRangeNew(at, rm.UVMSemaphore, span)
	case "UVM_ALLOC_DEVICE_P2P":
		o.tree.UVMRangeNew(at, rm.UVMP2P, span)
	case "UVM_MAP_DYNAMIC_PARALLELISM_REGION":
		o.tree.UVMRangeNew(at, rm.UVMDynamic, span)
	case "UVM_FREE":
		o.tree.UVMRangeFree(at, span.Base)
	case "UVM_MAP_EXTERNAL_ALLOCATION":
		o.tree.UVMMapExternal(at, span, ref("hMemory"), num("offset"), externalGPUs(s, b))
	case "UVM_UNMAP_EXTERNAL":
		o.tree.UVMUnmapExternal(at, span.Base)
	}
}

func uuidOf(s *rm.Struct, b []byte, name string) (id rm.UUID) {
	if f := s.Lookup(name); f != nil && len(b) >= f.Offset+16 {
		copy(id[:], b[f.Offset:])
	}
	return id
}

// externalGPUs reads UVM_MAP_EXTERNAL_ALLOCATION's perGpuAttributes, each of
// which begins with a UUID.
func externalGPUs(s *rm.Struct, b []byte) []rm.UUID {
	f := s.Lookup("perGpuAttributes")
	n, ok := s.Uint("gpuAttributesCount", b)
	if f == nil || !ok || f.Elem < 16 {
		return nil
	}
	var ids []rm.UUID
	for i := range min(n, uint64(f.Size/f.Elem)) {
		off := f.Offset + int(i)*f.Elem
		if len(b) < off+16 {
			break
		}
		ids = append(ids, rm.UUID(b[off:off+16]))
	}
	return ids
}
