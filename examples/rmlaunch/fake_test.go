package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvtrace/rm"
	"nvtrace/rm/channel"
)

// fake is a driver with one GPU. It has the rules that a program must keep: objects under objects
// of the right class, memory that is mapped before it is used, and everything given back. Its GPU
// fetches the ring when the doorbell is written, reads pushbuffer, QMD and constants where they say
// they are, by package rm/channel, and adds vectors if the code there is vectorAdd's.
type fake struct {
	t                       *testing.T
	abi                     *rm.ABI
	version                 string
	usermode, fifo, compute uint32
	smVersion               uint32
	behaviour               behaviour
	refuse                  string // what call fails, by a part of its name

	nextFD  int
	fds     map[int]*openFile
	objects map[uint32]*object
	mapped  map[*byte]*object // what mmap returned
	placed  []placement       // in the GPU's address space
	nextVA  uint64

	attached, scheduled bool
	launches            []channel.Launch
	qmd                 []byte
	constants           []byte
	program             []byte
	releases            int
}

// behaviour is what the GPU does.
type behaviour int

const (
	works     behaviour = iota
	sleeps              // it never looks at the ring
	errs                // the driver stops the channel
	addsWrong           // one element is not what it should be
	faults              // the kernel faults: nothing is added, and the driver stops the channel afterwards
)

type openFile struct {
	path       string
	registered bool
	tied       *object
	length     int
}

type object struct {
	handle, parent uint32
	class          *rm.Class
	params         record
	mem            []byte
}

type placement struct {
	at     uint64
	object *object
}

const fakeClient = 0xc1d00001

func newFake(t *testing.T, version string, fifo, compute, smVersion uint32) *fake {
	v, err := rm.ParseVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{
		t: t, abi: rm.Load(v), version: version, usermode: 0xc461, fifo: fifo, compute: compute, smVersion: smVersion, nextFD: 3, nextVA: 0x1_2000_0000,
		fds: map[int]*openFile{}, objects: map[uint32]*object{}, mapped: map[*byte]*object{},
	}
	if fifo >= 0xc86f {
		f.usermode = 0xc661
	}
	return f
}

func (f *fake) open(path string) (int, error) {
	if f.refuse == path || path != "/dev/nvidiactl" && path != "/dev/nvidia0" {
		return -1, unix.ENOENT
	}
	f.nextFD++
	f.fds[f.nextFD] = &openFile{path: path, registered: path == "/dev/nvidiactl"}
	return f.nextFD, nil
}

func (f *fake) close(fd int) error {
	if f.fds[fd] == nil {
		return unix.EBADF
	}
	delete(f.fds, fd)
	return nil
}

func (f *fake) mmap(fd, length, prot int) ([]byte, error) {
	file := f.fds[fd]
	if file == nil || file.tied == nil || file.length != length {
		return nil, unix.EINVAL
	}
	isBAR := file.path != "/dev/nvidiactl"
	if isMachine := strings.HasPrefix(file.tied.class.Name, "NV01_MEMORY_SYSTEM"); isMachine == isBAR {
		return nil, unix.ENXIO
	}
	if prot&unix.PROT_READ != 0 && file.tied.class.Kind == rm.Usermode {
		return nil, unix.EACCES
	}
	f.mapped[&file.tied.mem[0]] = file.tied
	return file.tied.mem[:length], nil
}

func (f *fake) munmap(b []byte) error {
	if f.mapped[&b[0]] == nil {
		return unix.EINVAL
	}
	delete(f.mapped, &b[0])
	return nil
}

// at returns bytes that a structure points to.
func at(address, size uint64) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), size) // the caller's memory is this process's
}

func (f *fake) ioctl(fd int, nr uint32, arg []byte) error {
	file := f.fds[fd]
	if file == nil {
		return unix.EBADF
	}
	e := f.abi.Escape(nr)
	if e == nil {
		return unix.EINVAL
	}
	name, layout := e.Name, e.Layout(len(arg))
	if layout == nil {
		return fmt.Errorf("%s with %d bytes", name, len(arg))
	}
	if onGPU := file.path != "/dev/nvidiactl"; !onGPU && e.Scope == rm.ScopeGPU || onGPU && nr != rm.EscRegisterFD {
		return fmt.Errorf("%s on %s", name, file.path)
	}
	r := record{layout, arg}
	status := uint32(0x56) // NV_ERR_NOT_SUPPORTED
	if f.refuse == "" || !strings.Contains(f.what(nr, r), f.refuse) {
		var err error
		if status, err = f.answer(nr, file, r); err != nil {
			return err
		}
	}
	for _, path := range []string{"status", "params.status"} {
		if r.has(path) {
			f.set(r, fields{path: status})
		}
	}
	return nil
}

// what names a call in full.
func (f *fake) what(nr uint32, r record) string {
	name := f.abi.Escape(nr).Name
	switch nr {
	case rm.EscRMAlloc:
		if c := f.abi.Class(uint32(f.get(r, "hClass"))); c != nil {
			name += " " + c.Name
		}
	case rm.EscRMControl:
		if c := f.abi.Control(uint32(f.get(r, "cmd"))); c != nil {
			name += " " + c.Name
		}
	}
	return name
}

func (f *fake) get(r record, path string) uint64 {
	f.t.Helper()
	v, err := r.get(path)
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f *fake) set(r record, what fields) {
	f.t.Helper()
	if err := r.set(what); err != nil {
		f.t.Fatal(err)
	}
}

// answer does a call and returns the status.
func (f *fake) answer(nr uint32, file *openFile, r record) (uint32, error) {
	const invalid = 0x1f // NV_ERR_INVALID_ARGUMENT
	switch nr {
	case rm.EscCheckVersionStr:
		if f.get(r, "cmd") != '2' {
			return 0, unix.EINVAL
		}
		f.set(r, fields{"reply": 1, "versionString": []byte(f.version)})
	case rm.EscCardInfo:
		f.set(r, fields{"valid": 1, "gpu_id": 0x600, "minor_number": 0})
	case rm.EscRegisterFD:
		if ctl := f.fds[int(f.get(r, "ctl_fd"))]; ctl == nil || ctl.path != "/dev/nvidiactl" || file.path == ctl.path {
			return 0, unix.EINVAL
		}
		file.registered = true
	case rm.EscRMAlloc:
		return f.alloc(r), nil
	case rm.EscRMFree:
		return f.free(uint32(f.get(r, "hObjectParent")), uint32(f.get(r, "hObjectOld"))), nil
	case rm.EscRMControl:
		return f.control(r), nil
	case rm.EscRMMapMemory:
		o, to := f.objects[uint32(f.get(r, "params.hMemory"))], f.fds[int(f.get(r, "fd"))]
		length := int(f.get(r, "params.length"))
		if o == nil || to == nil || !to.registered || to.tied != nil || length > len(o.mem) {
			return invalid, nil
		}
		if parent := uint32(f.get(r, "params.hDevice")); parent != o.parent && f.objects[parent].parent != o.parent {
			return invalid, nil
		}
		to.tied, to.length = o, length
		f.set(r, fields{"params.pLinearAddress": uint64(o.handle) << 12})
	case rm.EscRMUnmapMemory:
		o := f.objects[uint32(f.get(r, "hMemory"))]
		if o == nil || f.get(r, "pLinearAddress") != uint64(o.handle)<<12 {
			return invalid, nil
		}
	case rm.EscRMMapMemoryDMA:
		o, space := f.objects[uint32(f.get(r, "hMemory"))], f.objects[uint32(f.get(r, "hDma"))]
		if o == nil || space == nil || space.class.Name != "NV01_MEMORY_VIRTUAL" || f.get(r, "length") > uint64(len(o.mem)) {
			return invalid, nil
		}
		f.placed = append(f.placed, placement{f.nextVA, o})
		f.set(r, fields{"dmaOffset": f.nextVA})
		f.nextVA += (uint64(len(o.mem)) + 0x1fffff) &^ 0x1fffff
	case rm.EscRMUnmapMemoryDMA:
		n := len(f.placed)
		f.placed = slices.DeleteFunc(f.placed, func(p placement) bool { return p.at == f.get(r, "dmaOffset") })
		if len(f.placed) == n {
			return invalid, nil
		}
	default:
		return 0, fmt.Errorf("%s isn't known to the fake", f.abi.Escape(nr).Name)
	}
	return 0, nil
}

func (f *fake) alloc(r record) uint32 {
	const invalidClass, invalidParent, invalidHandle = 0x22, 0x36, 0x33
	c := f.abi.Class(uint32(f.get(r, "hClass")))
	if c == nil || !c.Listed {
		return invalidClass
	}
	o := &object{handle: uint32(f.get(r, "hObjectNew")), parent: uint32(f.get(r, "hObjectParent")), class: c}
	if c.Kind == rm.Client {
		o.handle = fakeClient
		f.set(r, fields{"hObjectNew": o.handle})
	} else {
		parent := f.objects[o.parent]
		if parent == nil || !slices.Contains(c.Parents, parent.class.Internal) && !slices.Contains(c.Parents, "RS_ANY_PARENT") {
			return invalidParent
		}
	}
	if f.objects[o.handle] != nil || o.handle == 0 {
		return invalidHandle
	}
	if address := f.get(r, "pAllocParms"); address != 0 {
		if r.has("paramsSize") && int(f.get(r, "paramsSize")) != c.Alloc.Size {
			f.t.Errorf("%s: %d bytes of parameters, not %d", c.Name, f.get(r, "paramsSize"), c.Alloc.Size)
		}
		o.params = record{c.Alloc, slices.Clone(at(address, uint64(c.Alloc.Size)))}
	} else if c.Need == rm.NeedRequired {
		return 0x3d // NV_ERR_INVALID_PARAM_STRUCT
	}
	switch {
	case c.Kind == rm.Usermode:
		o.mem = make([]byte, doorbellPage)
	case c.Name == "NV01_MEMORY_LOCAL_USER" || c.Name == "NV01_MEMORY_SYSTEM":
		o.mem = make([]byte, f.get(o.params, "size"))
		for i := range o.mem { // what was in it before
			o.mem[i] = 0xa5
		}
		if f.get(o.params, "type") == 2 { // a notifier comes empty
			clear(o.mem)
		}
		if o.class.Name == "NV01_MEMORY_SYSTEM" {
			clear(o.mem) // the kernel clears its pages
		}
	case c.Kind == rm.Channel && c.ID != f.fifo, c.Kind == rm.Compute && c.ID != f.compute:
		return invalidClass
	}
	f.objects[o.handle] = o
	return 0
}

func (f *fake) free(parent, handle uint32) uint32 {
	o := f.objects[handle]
	if o == nil || o.parent != parent {
		return 0x57 // NV_ERR_OBJECT_NOT_FOUND
	}
	for _, child := range f.objects {
		if child.parent == handle {
			f.t.Errorf("%s is freed before %s, which is below it", o.class.Name, child.class.Name)
		}
	}
	delete(f.objects, handle)
	return 0
}

func (f *fake) control(r record) uint32 {
	o := f.objects[uint32(f.get(r, "hObject"))]
	c := f.abi.Control(uint32(f.get(r, "cmd")))
	if o == nil || c == nil || int(f.get(r, "paramsSize")) != c.Size {
		return 0x1f
	}
	p := record{c.Params, at(f.get(r, "params"), uint64(c.Size))}
	switch c.Name {
	case "NV0000_CTRL_CMD_GPU_ATTACH_IDS":
		f.attached = f.get(p, "gpuIds[0]") == 0x600 && f.get(p, "gpuIds[1]") == 0xffffffff
	case "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2":
		f.set(p, fields{"deviceInstance": 3})
	case "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2":
		// An older class of each kind comes along, as drivers have it.
		list := []uint32{0x0080, 0xc361, f.usermode, 0xc36f, f.fifo, 0xc3c0, f.compute, 0xffff}
		f.set(p, fields{"numClasses": len(list)})
		for i, class := range list {
			f.set(p, fields{fmt.Sprintf("classList[%d]", i): class})
		}
	case "NV2080_CTRL_CMD_GR_GET_INFO":
		info := record{f.abi.Struct("NV2080_CTRL_GR_INFO"), at(f.get(p, "grInfoList"), 8)}
		if f.get(info, "index") != 12 {
			return 0x1f
		}
		f.set(info, fields{"data": f.smVersion})
	case "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN":
		f.set(p, fields{"workSubmitToken": 0x10007})
	case "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE":
		f.scheduled = o.class.Kind == rm.ChannelGroup && f.get(p, "bEnable") == 1
	default:
		f.t.Errorf("%s isn't known to the fake", c.Name)
		return 0x56
	}
	return 0
}

// kind returns the one object of a kind.
func (f *fake) kind(k rm.Kindred) *object {
	for _, o := range f.objects {
		if o.class.Kind == k {
			return o
		}
	}
	return nil
}

// gpuBytes returns what is at an address of the GPU.
func (f *fake) gpuBytes(address, size uint64) []byte {
	for _, p := range f.placed {
		if address >= p.at && address+size <= p.at+uint64(len(p.object.mem)) {
			return p.object.mem[address-p.at:][:size]
		}
	}
	f.t.Fatalf("the GPU finds nothing at %#x, %d bytes", address, size)
	return nil
}

// pause is when the GPU works.
func (f *fake) pause(d time.Duration) {
	time.Sleep(d)
	ch := f.kind(rm.Channel)
	bell := f.kind(rm.Usermode).mem
	if binary.LittleEndian.Uint32(bell[0x90:]) != 0x10007 || f.behaviour == sleeps {
		return
	}
	if f.behaviour != faults {
		binary.LittleEndian.PutUint32(bell[0x90:], 0)
	}
	if !f.attached || !f.scheduled {
		f.t.Error("the doorbell is rung for a channel that the GPU does not run")
		return
	}
	if f.behaviour == errs || f.behaviour == faults && len(f.launches) > 0 {
		n := f.objects[uint32(f.get(ch.params, "hObjectError"))].mem
		binary.LittleEndian.PutUint32(n[8:], 31) // an MMU fault
		binary.LittleEndian.PutUint16(n[14:], 0xffff)
		return
	}
	page := f.objects[uint32(f.get(ch.params, "hUserdMemory[0]"))].mem[f.get(ch.params, "userdOffset[0]"):]
	u := channel.ParseUserData(page)
	for ; u.GPGet != u.GPPut; u.GPGet = (u.GPGet + 1) % uint32(f.get(ch.params, "gpFifoEntries")) {
		entry := channel.ParseEntry(binary.LittleEndian.Uint64(f.gpuBytes(f.get(ch.params, "gpFifoOffset")+8*uint64(u.GPGet), 8)))
		f.fetch(entry)
	}
	binary.LittleEndian.PutUint32(page[0x88:], u.GPGet)
}

// fetch does what a piece of pushbuffer says.
func (f *fake) fetch(e channel.Entry) {
	words := wordList(f.gpuBytes(e.Address, 4*uint64(e.Words)), int(e.Words))
	r := channel.Reader{
		Subchannels: channel.Subchannels{Host: channel.ClassOf(uint16(f.fifo))},
		ReadQMD: func(address uint64, b []byte) bool {
			f.qmd = slices.Clone(f.gpuBytes(address, uint64(len(b))))
			return copy(b, f.qmd) == len(b)
		},
	}
	r.Read(words, e.Address, func(w channel.Work) bool {
		switch w.Kind {
		case channel.Kernel:
			if w.Unread {
				f.t.Fatal("the QMD can't be read")
			}
			f.execute(w.Launch)
		case channel.Release:
			binary.LittleEndian.PutUint32(f.gpuBytes(w.Semaphore.Address, 4), uint32(w.Semaphore.Payload))
			f.releases++
		default:
			f.t.Errorf("work that no launch needs: %+v", w)
		}
		return true
	})
	if c := r.Subchannels.Engine[computeChannel]; c == nil || uint32(c.Number) != f.compute {
		f.t.Errorf("subchannel %d speaks to %+v", computeChannel, c)
	}
}

// execute runs vectorAdd.
func (f *fake) execute(l channel.Launch) {
	f.launches = append(f.launches, l)
	k, err := kernelFor(uint16(f.compute))
	if err != nil {
		f.t.Fatal(err)
	}
	f.program = f.gpuBytes(l.Program, uint64(len(k.code)))
	f.gpuBytes(l.Program, uint64(len(k.code)+0x1000)) // what the GPU may fetch ahead
	f.constants = slices.Clone(f.gpuBytes(l.Constants, uint64(l.ConstantSize)))
	arguments := f.constants[k.ParamBase:]
	n := uint64(binary.LittleEndian.Uint32(arguments[24:]))
	var v [3][]byte
	for i := range v {
		v[i] = f.gpuBytes(binary.LittleEndian.Uint64(arguments[8*i:]), 4*n)
	}
	float := func(b []byte, i uint64) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])) }
	if f.behaviour == faults {
		return
	}
	for i := range min(n, uint64(l.Grid[0])*uint64(l.Block[0])) {
		binary.LittleEndian.PutUint32(v[2][4*i:], math.Float32bits(float(v[0], i)+float(v[1], i)))
	}
	if f.behaviour == addsWrong {
		v[2][4*(n/2)] ^= 1
	}
}

// left says what was not given back.
func (f *fake) left() error {
	var errs []error
	for _, file := range f.fds {
		errs = append(errs, fmt.Errorf("%s is open", file.path))
	}
	for _, o := range f.objects {
		errs = append(errs, fmt.Errorf("%s is not freed", o.class.Name))
	}
	if len(f.mapped) > 0 || len(f.placed) > 0 {
		errs = append(errs, fmt.Errorf("%d mappings here and %d on the GPU are left", len(f.mapped), len(f.placed)))
	}
	return errors.Join(errs...)
}
