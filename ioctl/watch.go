package ioctl

import (
	"bytes"
	"encoding/binary"

	"nvtrace/rm"
	"nvtrace/traces"
)

// Memory reads a traced program's memory.
type Memory interface {
	// ReadMem fills buf from addr and returns how many bytes could be read: fewer
	// than len(buf), with an error, where the range runs into a fault.
	ReadMem(addr uint64, buf []byte) (int, error)
}

// Vec is one range to be read.
type Vec struct {
	Addr uint64
	Buf  []byte
}

// VectorMemory is a Memory that reads several ranges in one system call, as
// process_vm_readv does. A [Watcher] uses it where it is there.
type VectorMemory interface {
	Memory
	// ReadMemV fills the ranges in order up to the first byte that can't be read,
	// and returns how many bytes it read in all.
	ReadMemV(v []Vec) (int, error)
}

// Limits on what is copied of one call. The first three are the driver's own
// (nv-linux.h NV_ESC_IOCTL_XFER's and rmapi's caps); the rest keep a hostile
// program from filling the recording.
const (
	maxEscape   = 16 << 10  // NV_ESC_*: an escape's argument, nested NV_ESC_IOCTL_XFER_CMD included
	maxParams   = 1 << 20   // parameters of one control command, or one list that they point to
	maxModeset  = 256 << 10 // NvKmsIoctlParams.address: the largest struct has 171,936 bytes
	maxUnknown  = 256       // an argument whose size neither the request nor the tables say
	maxRequest  = 16 << 10  // _IOC_SIZE has 14 bits
	maxCall     = 3 << 20   // all of one call
	maxSegments = 48        // parts of one call
	maxNesting  = 3         // XFER > escape > params > list
)

// modesetRequest is the one request of nvidia-modeset (nvkms-ioctl.h), and
// modesetArg the layout of its argument: cmd, size, address.
const (
	modesetType    = 'm'
	modesetNr      = 0
	modesetArgSize = 16
)

// Watcher says which memory a device call refers to, and copies it: the
// argument, the parameters that it points to, and the lists that those point
// to, by the driver's own rules. It follows only pointers that the driver
// follows. Sizes and pointers are the program's word: all are bounded.
//
// A Watcher is for one goroutine; in the steady state it allocates nothing.
type Watcher struct {
	abi   *rm.ABI
	known bool // the version is the machine's, not a guess
	vecs  []Vec
	left  int // bytes that the call may still copy
	brief bool
}

// NewWatcher returns a Watcher for a driver of that version ("580.159.04"). If
// it is empty or malformed, the newest known layouts serve until the program's
// version handshake says more.
func NewWatcher(driver string) *Watcher {
	w := &Watcher{vecs: make([]Vec, 0, maxSegments)}
	if v, err := rm.ParseVersion(driver); err == nil {
		w.abi, w.known = rm.Load(v), true
	} else {
		w.abi = rm.Newest()
	}
	return w
}

// SetBrief makes Enter copy only what it takes to name a call, its control
// command or class and its objects: the argument of an escape, but no
// parameters, and nothing of other devices' requests. For recordings that only
// count (traces.FlagNoExit).
func (w *Watcher) SetBrief(on bool) { w.brief = on }

// ABI returns the tables in use.
func (w *Watcher) ABI() *rm.ABI { return w.abi }

// Enter appends to ev.Mem the memory that the ioctl refers to, as it is at the
// entry of the call. ev's Kind, Args, Dev and Rdev must be set; events of other
// kinds are left alone. What can't be read is left out of In, and the event
// flagged as truncated.
func (w *Watcher) Enter(ev *traces.Event, mem Memory) {
	if ev.Kind != traces.KindIoctl {
		return
	}
	ev.Mem = ev.Mem[:0]
	w.left = maxCall
	req, arg := ev.Request(), ev.Arg()
	dev := DeviceOf(ev.Dev, ev.Rdev)
	if arg == 0 || isGeneric(req) {
		return
	}
	switch dev {
	case DeviceUVM, DeviceUVMTools, DeviceNVSwitch, DeviceNVSwitchCtl, DeviceNVLink, DeviceDRM:
		if w.brief {
			return // the request says it all
		}
	}
	switch dev {
	case DeviceCtl, DeviceGPU:
		w.escape(ev, mem, iocNr(req), arg, uint64(iocSize(req)), 0)
	case DeviceUVM, DeviceUVMTools:
		w.uvm(ev, mem, req, arg)
	case DeviceModeset:
		w.modeset(ev, mem, req, arg)
	default:
		if n := uint64(iocSize(req)); n > 0 {
			w.read(ev, mem, arg, n, maxRequest)
		}
	}
}

// escape copies the argument of an escape on nvidiactl or nvidiaN, and what it
// points to. The driver looks at the request's number and size only.
func (w *Watcher) escape(ev *traces.Event, mem Memory, nr uint32, arg, size uint64, depth int) {
	b := w.read(ev, mem, arg, size, maxEscape)
	esc := w.abi.Escape(nr)
	if esc == nil || b == nil {
		return
	}
	layout := esc.Layout(int(size))
	if layout == nil {
		return
	}
	for i := range esc.Embedded {
		e := &esc.Embedded[i]
		if e.In == layout {
			w.follow(ev, mem, e, b, depth)
		}
	}
}

// follow copies what a pointer in the struct b refers to.
func (w *Watcher) follow(ev *traces.Event, mem Memory, e *rm.Embedded, b []byte, depth int) {
	if depth >= maxNesting {
		ev.Flags |= traces.FlagTruncated
		return
	}
	if w.brief && e.Of != rm.TargetEscape {
		return
	}
	t := resolve(w.abi, e, b)
	if !t.ok {
		return
	}
	switch e.Of {
	case rm.TargetEscape:
		w.escape(ev, mem, t.cmd, t.addr, t.size, depth+1)
	case rm.TargetControl:
		p := w.read(ev, mem, t.addr, t.size, maxParams)
		if t.control == nil || t.finn {
			return // opaque, or packed: the pointers in it are not at the struct's offsets
		}
		for i := range t.control.Embedded {
			w.follow(ev, mem, &t.control.Embedded[i], p, depth+1)
		}
	default:
		w.read(ev, mem, t.addr, t.size, maxParams)
	}
}

// uvm copies the argument of a request of nvidia-uvm, whose number says nothing
// about its size.
func (w *Watcher) uvm(ev *traces.Event, mem Memory, req uint32, arg uint64) {
	r := w.abi.UVM(req)
	switch {
	case r == nil:
		// Unknown: enough to see what it might be.
		w.read(ev, mem, arg, maxUnknown, maxUnknown)
		ev.Flags |= traces.FlagTruncated
	case r.Size > 0:
		w.read(ev, mem, arg, uint64(r.Size), maxEscape)
	}
}

func (w *Watcher) modeset(ev *traces.Event, mem Memory, req uint32, arg uint64) {
	b := w.read(ev, mem, arg, uint64(iocSize(req)), maxRequest)
	if iocType(req) != modesetType || iocNr(req) != modesetNr || len(b) < modesetArgSize {
		return
	}
	size, addr := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])
	if addr != 0 && size != 0 && !w.brief {
		w.read(ev, mem, addr, uint64(size), maxModeset)
	}
}

// read appends a segment of n bytes at addr, copied up to the limit, and
// returns what could be read.
func (w *Watcher) read(ev *traces.Event, mem Memory, addr, n uint64, limit int) []byte {
	if len(ev.Mem) >= maxSegments {
		ev.Flags |= traces.FlagTruncated
		return nil
	}
	limit = min(limit, w.left)
	want := int(min(n, uint64(limit)))
	seg := traces.Seg{Addr: addr, Len: uint32(min(n, 1<<32-1))}
	buf := ev.Alloc(want)
	got := 0
	if want > 0 {
		got, _ = mem.ReadMem(addr, buf) // how far it came says all
		got = max(0, min(got, want))
	}
	if got < want || uint64(want) < n {
		ev.Flags |= traces.FlagTruncated
	}
	seg.In = buf[:got:got]
	w.left -= got
	ev.Mem = append(ev.Mem, seg)
	return seg.In
}

// Exit fills in the segments' Out: the same ranges, read again with the
// pointers of the entry, as the driver wrote through those. Unchanged bytes
// share memory with In.
func (w *Watcher) Exit(ev *traces.Event, mem Memory) {
	if ev.Kind == traces.KindIoctl {
		w.reread(ev, mem)
		w.handshake(ev)
	}
}

// reread reads all segments a second time, in one system call where mem can.
func (w *Watcher) reread(ev *traces.Event, mem Memory) {
	w.vecs = w.vecs[:0]
	for i := range ev.Mem {
		// What faulted at the entry is not tried again: the driver stopped there too.
		s := &ev.Mem[i]
		b := ev.Alloc(len(s.In))
		s.Out = b
		if len(b) > 0 {
			w.vecs = append(w.vecs, Vec{s.Addr, b})
		}
	}
	got := 0
	if vm, ok := mem.(VectorMemory); ok && len(w.vecs) > 1 {
		got, _ = vm.ReadMemV(w.vecs)
		got = max(0, got)
	}
	w.finish(ev, mem, got)
}

// finish reads one by one what lies behind the first got bytes, and lets
// unchanged segments share.
func (w *Watcher) finish(ev *traces.Event, mem Memory, got int) {
	for i := range ev.Mem {
		s := &ev.Mem[i]
		n := len(s.Out)
		if n == 0 {
			s.Out = s.In
			continue
		}
		if got >= n {
			got -= n
		} else {
			// Here the vector read stopped, or it never happened.
			got = 0
			m, _ := mem.ReadMem(s.Addr, s.Out)
			if m = max(0, min(m, n)); m < n {
				s.Out = s.Out[:m:m]
				ev.Flags |= traces.FlagTruncated
			}
		}
		if bytes.Equal(s.In, s.Out) {
			s.Out = s.In
		}
	}
	clear(w.vecs)
}

// handshake takes the driver's version from NV_ESC_CHECK_VERSION_STR while it
// is not known.
func (w *Watcher) handshake(ev *traces.Event) {
	if w.known || iocNr(ev.Request()) != escCheckVersion || len(ev.Mem) == 0 {
		return
	}
	if d := DeviceOf(ev.Dev, ev.Rdev); d != DeviceCtl && d != DeviceGPU {
		return
	}
	if v, ok := handshakeVersion(&ev.Mem[0]); ok {
		w.abi, w.known = rm.Load(v), true
	}
}
