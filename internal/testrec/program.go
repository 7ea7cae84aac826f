package testrec

import (
	"maps"
	"strings"

	"nvtrace/rm"
	"nvtrace/traces"
)

// Program is a process of a recording.
type Program struct {
	R   *Recording
	PID int32
	TID int32 // thread that makes the next calls
	// Ctl is the descriptor that RM calls are made on: of the first nvidiactl
	// that was opened.
	Ctl   int32
	files map[int32]openFile
	maps  uint64
}

type openFile struct {
	id  uint32
	dev string
}

// Program adds a process of that id. The first one should have the header's.
func (r *Recording) Program(pid int32) *Program {
	return &Program{R: r, PID: pid, TID: pid, Ctl: -1, files: map[int32]openFile{}, maps: 0x7f0000000000 + uint64(pid)<<32}
}

// Exec records that the process started a program.
func (p *Program) Exec(path string, args ...string) {
	p.add(&traces.Event{Kind: traces.KindExec, FD: -1, Path: path, Argv: append([]string{path}, args...)})
}

// Fork records a child and returns it; it has its parent's descriptors.
func (p *Program) Fork(pid int32) *Program {
	p.add(&traces.Event{Kind: traces.KindFork, FD: -1, Child: pid})
	c := p.R.Program(pid)
	maps.Copy(c.files, p.files)
	c.Ctl = p.Ctl
	return c
}

// Exit records the end of the process.
func (p *Program) Exit(status int64) {
	p.add(&traces.Event{Kind: traces.KindExit, FD: -1, Ret: status << 8})
	p.files = nil
}

func (p *Program) add(e *traces.Event) *traces.Event {
	e.PID, e.TID = p.PID, p.TID
	return p.R.add(e)
}

func rdev(dev string) uint64 {
	switch {
	case dev == "nvidiactl":
		return 195<<8 | 255
	case dev == "nvidia-uvm":
		return 235 << 8
	case strings.HasPrefix(dev, "nvidia") && len(dev) == len("nvidia0"):
		return 195<<8 | uint64(dev[len(dev)-1]-'0')
	}
	return 0
}

// Open opens a device node as descriptor fd.
func (p *Program) Open(fd int32, dev string) *traces.Event {
	p.R.file++
	p.files[fd] = openFile{p.R.file, dev}
	if dev == "nvidiactl" && p.Ctl < 0 {
		p.Ctl = fd
	}
	return p.add(&traces.Event{
		Kind: traces.KindOpen, FD: fd, File: p.R.file, Dev: dev, Rdev: rdev(dev), Ret: int64(fd), Path: "/dev/" + dev,
		Args: [6]uint64{0xffffff9c, 0x5000, 0o2000002},
	})
}

// OpenFails records an open that failed with that errno.
func (p *Program) OpenFails(dev string, errno int64) *traces.Event {
	return p.add(&traces.Event{Kind: traces.KindOpen, FD: -1, Path: "/dev/" + dev, Ret: -errno, Args: [6]uint64{0xffffff9c, 0x5000, 2}})
}

// Receive records a descriptor that came from another process: of the file that
// is from's descriptor other.
func (p *Program) Receive(fd int32, from *Program, other int32) {
	f := from.files[other]
	p.files[fd] = f
	p.add(&traces.Event{
		Kind: traces.KindDup, Flags: traces.FlagImplicit, FD: fd, File: f.id, Dev: f.dev, Rdev: rdev(f.dev), Ret: int64(fd),
	})
}

// Close closes a descriptor.
func (p *Program) Close(fd int32) {
	f := p.files[fd]
	delete(p.files, fd)
	p.add(&traces.Event{Kind: traces.KindClose, FD: fd, File: f.id, Dev: f.dev, Rdev: rdev(f.dev), Args: [6]uint64{uint64(uint32(fd))}})
}

// Mmap maps a descriptor at addr, 0 anywhere, and returns where it is.
func (p *Program) Mmap(fd int32, addr, length uint64) uint64 {
	f := p.files[fd]
	want := addr
	if addr == 0 {
		addr = p.maps
		p.maps += (length + 0xfff) &^ 0xfff
	}
	off := uint64(0)
	if f.dev == "nvidia-uvm" {
		off = addr
	}
	p.add(&traces.Event{
		Kind: traces.KindMmap, FD: fd, File: f.id, Dev: f.dev, Rdev: rdev(f.dev), Ret: int64(addr),
		Args: [6]uint64{want, length, 3, 1, uint64(fd), off},
	})
	return addr
}

// Ioctl makes a call: answer, which may be nil, does to arg (and to what it
// points to) what the driver would. ret is the system call's result.
func (p *Program) Ioctl(fd int32, req uint32, arg []byte, answer func(), ret int64) *traces.Event {
	f := p.files[fd]
	e := p.add(&traces.Event{
		Kind: traces.KindIoctl, FD: fd, File: f.id, Dev: f.dev, Rdev: rdev(f.dev), Ret: ret, Dur: 20_000,
		Args: [6]uint64{uint64(uint32(fd)), uint64(req), 0},
	})
	if len(arg) > 0 {
		e.Args[2] = p.R.place(arg)
	}
	p.R.watch.Enter(e, &p.R.mem)
	if answer != nil {
		answer()
	}
	p.R.watch.Exit(e, &p.R.mem)
	p.R.forget()
	return e
}

// Request makes the request number of an escape with an argument of size bytes.
func Request(nr uint32, size int) uint32 { return 3<<30 | uint32(size)<<16 | 'F'<<8 | nr }

// Escape makes an NV_ESC_* call on a descriptor.
func (p *Program) Escape(fd int32, nr uint32, arg Struct, answer func()) *traces.Event {
	return p.Ioctl(fd, Request(nr, len(arg.B)), arg.B, answer, 0)
}

// Control makes a control call: answer changes params, then status is set.
func (p *Program) Control(client, object, cmd uint32, params []byte, answer func(), status rm.Status) *traces.Event {
	arg := p.R.New("NVOS54_PARAMETERS").Set("hClient", uint64(client)).Set("hObject", uint64(object)).Set("cmd", uint64(cmd)).
		Set("paramsSize", uint64(len(params)))
	if len(params) > 0 {
		arg.Set("params", p.R.place(params))
	}
	return p.Escape(p.Ctl, 0x2a, arg, func() {
		if answer != nil {
			answer()
		}
		arg.Set("status", uint64(status))
	})
}

// Alloc makes an object with NV_ESC_RM_ALLOC; params may be empty.
func (p *Program) Alloc(client, parent, handle, class uint32, params []byte, status rm.Status) *traces.Event {
	arg := p.R.New("NVOS64_PARAMETERS").Set("hRoot", uint64(client)).Set("hObjectParent", uint64(parent)).
		Set("hObjectNew", uint64(handle)).Set("hClass", uint64(class))
	if len(params) > 0 {
		arg.Set("pAllocParms", p.R.place(params))
	}
	return p.Escape(p.Ctl, 0x2b, arg, func() { arg.Set("status", uint64(status)) })
}

// Client makes a client, which the driver gives that handle.
func (p *Program) Client(handle uint32) *traces.Event {
	arg := p.R.New("NVOS64_PARAMETERS").Set("hClass", 0x41)
	return p.Escape(p.Ctl, 0x2b, arg, func() { arg.Set("hObjectNew", uint64(handle)) })
}

// Memory allocates memory of a class (0x40 vidmem, 0x3e sysmem) of that size.
func (p *Program) Memory(client, parent, handle, class uint32, size uint64) *traces.Event {
	params := p.R.New("NV_MEMORY_ALLOCATION_PARAMS").Set("size", size)
	return p.Alloc(client, parent, handle, class, params.B, rm.OK)
}

// Free frees an object.
func (p *Program) Free(client, parent, handle uint32, status rm.Status) *traces.Event {
	arg := p.R.New("NVOS00_PARAMETERS").Set("hRoot", uint64(client)).Set("hObjectParent", uint64(parent)).Set("hObjectOld", uint64(handle))
	return p.Escape(p.Ctl, 0x29, arg, func() { arg.Set("status", uint64(status)) })
}

// Duplicate makes an object known under another handle.
func (p *Program) Duplicate(client, parent, handle, srcClient, src uint32) *traces.Event {
	arg := p.R.New("NVOS55_PARAMETERS").Set("hClient", uint64(client)).Set("hParent", uint64(parent)).Set("hObject", uint64(handle)).
		Set("hClientSrc", uint64(srcClient)).Set("hObjectSrc", uint64(src))
	return p.Escape(p.Ctl, 0x34, arg, nil)
}

// Map maps an object through descriptor fd, which it must own alone: the call,
// the mmap and the call that tells the driver the address, which it returns.
func (p *Program) Map(client, device, object uint32, length uint64, fd int32, cookie uint64) uint64 {
	m := p.R.New("nv_ioctl_nvos33_parameters_with_fd").Set("params.hClient", uint64(client)).Set("params.hDevice", uint64(device)).
		Set("params.hMemory", uint64(object)).Set("params.length", length).Set("fd", uint64(uint32(fd)))
	p.Escape(p.Ctl, 0x4e, m, func() { m.Set("params.pLinearAddress", cookie) })
	addr := p.Mmap(fd, 0, length)
	up := p.R.New("NVOS56_PARAMETERS").Set("hClient", uint64(client)).Set("hDevice", uint64(device)).Set("hMemory", uint64(object)).
		Set("pOldCpuAddress", cookie).Set("pNewCpuAddress", addr)
	p.Escape(p.Ctl, 0x5e, up, nil)
	return addr
}
