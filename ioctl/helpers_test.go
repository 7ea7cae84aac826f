package ioctl

import (
	"encoding/binary"
	"errors"
	"flag"
	"testing"

	"nvtrace/rm"
	"nvtrace/traces"
)

var update = flag.Bool("update", false, "rewrite golden files")

const testDriver = "580.142"

var errFault = errors.New("fault")

// fakeMem is a program's memory: ranges with nothing between them.
type fakeMem struct {
	regions []region
	reads   int // calls of ReadMem and ReadMemV
}

type region struct {
	addr uint64
	data []byte
}

func (m *fakeMem) ReadMem(addr uint64, buf []byte) (int, error) {
	m.reads++
	return m.read(addr, buf)
}

func (m *fakeMem) read(addr uint64, buf []byte) (int, error) {
	for _, r := range m.regions {
		if addr >= r.addr && addr < r.addr+uint64(len(r.data)) {
			n := copy(buf, r.data[addr-r.addr:])
			if n < len(buf) {
				return n, errFault
			}
			return n, nil
		}
	}
	if len(buf) == 0 {
		return 0, nil
	}
	return 0, errFault
}

// vectorMem reads several ranges at once, as process_vm_readv does.
type vectorMem struct{ *fakeMem }

func (m vectorMem) ReadMemV(v []Vec) (int, error) {
	m.reads++
	total := 0
	for _, x := range v {
		n, err := m.read(x.Addr, x.Buf)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// put lays data out at an address, page-aligned at random ends: nothing follows it.
func (m *fakeMem) put(addr uint64, data []byte) uint64 {
	m.regions = append(m.regions, region{addr, data})
	return addr
}

// world is a recorder, a driver and a reader in one: it makes the events of a
// program as a recording has them.
type world struct {
	t      testing.TB
	abi    *rm.ABI
	w      *Watcher
	mem    *fakeMem
	now    int64
	next   uint64
	file   uint32
	files  map[int32]openFile
	rdevs  map[string]uint64
	events []*traces.Event
}

func newWorld(t testing.TB, driver string) *world {
	v, err := rm.ParseVersion(driver)
	if err != nil {
		t.Fatal(err)
	}
	return &world{
		t: t, abi: rm.Load(v), w: NewWatcher(driver), mem: &fakeMem{}, next: 0x7ffd00000000, now: 1_000_000,
		files: map[int32]openFile{},
		rdevs: map[string]uint64{"nvidiactl": 195<<8 | 255, "nvidia0": 195 << 8, "nvidia-modeset": 195<<8 | 254, "nvidia-uvm": 235 << 8},
	}
}

const testPID = 4711

// header is a recording's header for the world's driver.
func (w *world) header() *traces.Header {
	return &traces.Header{Schema: 1, Driver: w.abi.Asked().String(), PID: testPID, Argv: []string{"./app"}, Start: 1_760_000_000_000_000_000}
}

func (w *world) add(e *traces.Event) *traces.Event {
	e.PID, e.TID = testPID, testPID
	e.Time = w.now
	w.now += 1_234_000
	if e.Kind != traces.KindExec && e.Kind != traces.KindNote {
		e.Dur = 21_000
	}
	w.events = append(w.events, e)
	return e
}

func (w *world) open(fd int32, dev string) {
	w.file++
	w.files[fd] = openFile{w.file, dev}
	w.add(&traces.Event{
		Kind: traces.KindOpen, FD: fd, File: w.file, Dev: dev, Rdev: w.rdevs[dev], Ret: int64(fd), Path: "/dev/" + dev,
		Args: [6]uint64{0xffffff9c, 0x5000, 0o2000002},
	})
}

func (w *world) close(fd int32) {
	f := w.files[fd]
	delete(w.files, fd)
	w.add(&traces.Event{Kind: traces.KindClose, FD: fd, File: f.id, Dev: f.dev, Rdev: w.rdevs[f.dev], Args: [6]uint64{uint64(fd)}})
}

func (w *world) mmap(fd int32, length, addr uint64) {
	f := w.files[fd]
	w.add(&traces.Event{
		Kind: traces.KindMmap, FD: fd, File: f.id, Dev: f.dev, Rdev: w.rdevs[f.dev], Ret: int64(addr),
		Args: [6]uint64{0, length, 3, 1, uint64(fd), 0},
	})
}

// place lays data out in the program's memory.
func (w *world) place(data []byte) uint64 {
	addr := w.next
	w.next += uint64(len(data)+0x1fff) &^ 0xfff
	return w.mem.put(addr, data)
}

// call makes an ioctl: driver, which may be nil, does to the program's memory
// what the driver would.
func (w *world) call(fd int32, req uint32, arg uint64, driver func(), ret int64) *traces.Event {
	f := w.files[fd]
	e := w.add(&traces.Event{
		Kind: traces.KindIoctl, FD: fd, File: f.id, Dev: f.dev, Rdev: w.rdevs[f.dev], Ret: ret,
		Args: [6]uint64{uint64(fd), uint64(req), arg},
	})
	w.w.Enter(e, w.mem)
	if driver != nil {
		driver()
	}
	w.w.Exit(e, w.mem)
	return e
}

// request number of an escape: _IOWR('F', nr, size).
func escReq(nr uint32, size int) uint32 { return 3<<30 | uint32(size)<<16 | 'F'<<8 | nr }

// rmStruct is the bytes of one of the driver's structs, with access by member.
type rmStruct struct {
	t testing.TB
	s *rm.Struct
	b []byte
}

func (w *world) new(name string) rmStruct {
	s := w.abi.Struct(name)
	if s == nil {
		w.t.Fatalf("no struct %s", name)
	}
	return rmStruct{w.t, s, make([]byte, s.Size)}
}

// set writes a member, found by its path: "params.hClient", "list[2].data".
func (r rmStruct) set(path string, v uint64) rmStruct {
	off, size := r.find(path)
	for i := range size {
		r.b[off+i] = byte(v >> (8 * i))
	}
	return r
}

func (r rmStruct) setText(path, text string) rmStruct {
	off, _ := r.find(path)
	copy(r.b[off:], text)
	return r
}

func (r rmStruct) find(path string) (off, size int) {
	s := r.s
	for {
		name := path
		rest := ""
		if i := indexAny(path, ".["); i >= 0 {
			name, rest = path[:i], path[i:]
		}
		f := fieldOf(s, name)
		if f == nil {
			r.t.Fatalf("%s has no %s", s.Name, name)
		}
		off += f.Offset
		size = f.Elem
		if len(rest) > 0 && rest[0] == '[' {
			i, n := 0, 1
			for ; rest[n] != ']'; n++ {
				i = 10*i + int(rest[n]-'0')
			}
			off += i * f.Elem
			rest = rest[n+1:]
		}
		if rest == "" {
			return off, size
		}
		path, s = rest[1:], f.Struct
	}
}

func indexAny(s, chars string) int {
	for i := range s {
		for j := range chars {
			if s[i] == chars[j] {
				return i
			}
		}
	}
	return -1
}

const (
	hClient  = 0xc1d00001
	hDevice  = 0x5c000001
	hSub     = 0x5c000003
	clientFD = 5
)

// control makes an NV_ESC_RM_CONTROL call: driver changes params, then status
// is written.
func (w *world) control(object, cmd uint32, params []byte, driver func(), status rm.Status) *traces.Event {
	p := uint64(0)
	if len(params) > 0 {
		p = w.place(params)
	}
	arg := w.new("NVOS54_PARAMETERS")
	arg.set("hClient", hClient).set("hObject", uint64(object)).set("cmd", uint64(cmd)).set("params", p).set("paramsSize", uint64(len(params)))
	return w.call(clientFD, escReq(escControl, 32), w.place(arg.b), func() {
		if driver != nil {
			driver()
		}
		arg.set("status", uint64(status))
	}, 0)
}

// alloc makes an NV_ESC_RM_ALLOC call with NVOS64.
func (w *world) alloc(client, parent, handle, class uint32, params []byte, status rm.Status) *traces.Event {
	p := uint64(0)
	if len(params) > 0 {
		p = w.place(params)
	}
	arg := w.new("NVOS64_PARAMETERS")
	arg.set("hRoot", uint64(client)).set("hObjectParent", uint64(parent)).set("hObjectNew", uint64(handle)).set("hClass", uint64(class)).set("pAllocParms", p)
	return w.call(clientFD, escReq(escAlloc, len(arg.b)), w.place(arg.b), func() {
		arg.set("status", uint64(status))
		if handle == 0 {
			arg.set("hObjectNew", hClient)
		}
	}, 0)
}

// lines decodes and prints all events of the world.
func (w *world) lines(o *LineOptions) string {
	d := NewDecoder(w.header())
	var out []byte
	for _, e := range w.events {
		out = d.appendLine(out, e, o)
	}
	return string(out)
}

func le32(v ...uint32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}
