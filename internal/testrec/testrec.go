// Package testrec builds recordings in code, from the layouts of package rm: a
// program, a driver and a recorder in one. It is for tests of what reads
// recordings, and for benchmarks; nothing else imports it.
//
// Its methods panic on mistakes of the caller: an unknown struct or member.
package testrec

import (
	"bytes"
	"fmt"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// Recording is a recording in the making.
type Recording struct {
	Header traces.Header
	Events []*traces.Event
	Step   int64 // time between events, ns

	abi   *rm.ABI
	watch *ioctl.Watcher
	mem   memory
	now   int64
	next  uint64
	file  uint32
}

// memory is the programs' memory, one space for all.
type memory struct {
	addrs []uint64
	data  map[uint64][]byte
}

// ReadMem implements ioctl.Memory.
func (m *memory) ReadMem(addr uint64, buf []byte) (int, error) {
	if b, ok := m.data[addr]; ok {
		if n := copy(buf, b); n < len(buf) {
			return n, fmt.Errorf("fault at %#x", addr+uint64(n))
		}
		return len(buf), nil
	}
	return 0, fmt.Errorf("fault at %#x", addr)
}

// New begins a recording of a program under that driver version.
func New(driver string) *Recording {
	v, err := rm.ParseVersion(driver)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &Recording{
		Header: traces.Header{
			Schema: traces.SchemaVersion, Tool: "test", Start: 1_760_000_000_000_000_000, Arch: "amd64", Kernel: "6.8.0",
			Driver: driver, Argv: []string{"./app"}, PID: 100, UVMMajor: 235,
		},
		Step: 1_000_000, abi: rm.Load(v), watch: ioctl.NewWatcher(driver), mem: memory{data: map[uint64][]byte{}}, next: 0x7ffd00000000,
	}
}

// Bytes is the recording as a file's content, uncompressed, with its end record.
func (r *Recording) Bytes() []byte {
	var buf bytes.Buffer
	w, err := traces.NewWriter(&buf, &r.Header, nil)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	for _, e := range r.Events {
		w.Write(e)
	}
	w.Write(&traces.Event{Kind: traces.KindEnd, FD: -1, Time: r.now, Cost: &traces.Cost{Events: uint64(len(r.Events))}})
	if err := w.Close(); err != nil {
		panic("BUG: " + err.Error())
	}
	return buf.Bytes()
}

// place lays data out in memory.
func (r *Recording) place(data []byte) uint64 {
	addr := r.next
	r.next += uint64(len(data)+0x1fff) &^ 0xfff
	r.mem.data[addr] = data
	r.mem.addrs = append(r.mem.addrs, addr)
	return addr
}

// forget empties memory: calls do not share any.
func (r *Recording) forget() {
	for _, a := range r.mem.addrs {
		delete(r.mem.data, a)
	}
	r.mem.addrs = r.mem.addrs[:0]
}

func (r *Recording) add(e *traces.Event) *traces.Event {
	r.now += r.Step
	e.Time = r.now
	r.Events = append(r.Events, e)
	return e
}

// Note adds an event as it is, save for its time.
func (r *Recording) Note(e *traces.Event) *traces.Event { return r.add(e) }

// Struct is the bytes of one of the driver's structs.
type Struct struct {
	S *rm.Struct
	B []byte
}

// New returns a zero struct of that name.
func (r *Recording) New(name string) Struct {
	s := r.abi.Struct(name)
	if s == nil {
		panic("BUG: driver " + r.abi.Version().String() + " has no struct " + name)
	}
	return Struct{s, make([]byte, s.Size)}
}

// Set writes a number into the member at path: "params.hClient",
// "perGpuAttributes[0].gpuMappingType".
func (s Struct) Set(path string, v uint64) Struct {
	off, size := s.find(path)
	for i := range size {
		s.B[off+i] = byte(v >> (8 * i))
	}
	return s
}

// SetText writes bytes at the member at path.
func (s Struct) SetText(path, text string) Struct {
	off, _ := s.find(path)
	copy(s.B[off:], text)
	return s
}

func (s Struct) find(path string) (off, size int) {
	l := s.S
	for {
		name, rest := path, ""
		for i, c := range path {
			if c == '.' || c == '[' {
				name, rest = path[:i], path[i:]
				break
			}
		}
		var f *rm.Field
		for i := range l.Fields {
			if l.Fields[i].Name == name {
				f = &l.Fields[i]
			}
		}
		if f == nil {
			panic("BUG: " + l.Name + " has no member " + name)
		}
		off += f.Offset
		size = f.Elem
		if rest != "" && rest[0] == '[' {
			i := 0
			if _, err := fmt.Sscanf(rest, "[%d]", &i); err != nil {
				panic("BUG: " + path + ": " + err.Error())
			}
			off += i * f.Elem
			rest = rest[bytes.IndexByte([]byte(rest), ']')+1:]
		}
		if rest == "" {
			return off, size
		}
		path, l = rest[1:], f.Struct
	}
}
