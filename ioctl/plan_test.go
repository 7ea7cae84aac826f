package ioctl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/rm"
	"nvtrace/traces"
)

// planner executes a plan, as the code does that has one.
type planner struct {
	*Plan
	uvm, rm map[uint32]*PlainRequest
	tables  []map[uint32]uint32
}

func newPlanner(p *Plan) *planner {
	x := &planner{Plan: p, uvm: map[uint32]*PlainRequest{}, rm: map[uint32]*PlainRequest{}}
	for i := range p.Requests {
		r := &p.Requests[i]
		if r.UVM {
			x.uvm[r.Request] = r
		} else {
			x.rm[r.Request] = r
		}
	}
	for _, t := range p.Tables {
		m := map[uint32]uint32{}
		for _, e := range t {
			m[e.Value] = e.Length
		}
		x.tables = append(x.tables, m)
	}
	return x
}

// segments returns what a call refers to; ok is false if the plan does not say.
func (x *planner) segments(ev *traces.Event, read func(addr, n uint64) []byte) (segs []traces.Seg, ok bool) {
	table := x.rm
	switch DeviceOf(ev.Dev, ev.Rdev) {
	case DeviceUVM:
		table = x.uvm
	case DeviceCtl, DeviceGPU:
	default:
		return nil, false
	}
	r := table[ev.Request()]
	if r == nil {
		return nil, false
	}
	if ev.Arg() == 0 || r.Size == 0 {
		return nil, true
	}
	arg := read(ev.Arg(), uint64(r.Size))
	if len(arg) < int(r.Size) {
		return nil, false
	}
	segs = append(segs, traces.Seg{Addr: ev.Arg(), Len: r.Size, In: arg})
	if !r.Follow {
		return segs, true
	}
	if r.Flags != noField && binary.LittleEndian.Uint32(arg[r.Flags:])&r.Mask != 0 ||
		r.Null != noField && binary.LittleEndian.Uint64(arg[r.Null:]) != 0 {
		return nil, false
	}
	n, found := x.tables[r.Table][binary.LittleEndian.Uint32(arg[r.Select:])]
	if !found || n == LengthClaimed {
		n = 0
		if r.Len != noField {
			n = binary.LittleEndian.Uint32(arg[r.Len:])
		}
	}
	var deeper *PlainNested
	if found && n >= LengthNested && n < LengthClaimed {
		deeper = &x.Nested[n-LengthNested]
		n = binary.LittleEndian.Uint32(arg[r.Len:])
	}
	if n == LengthUnknown || n > 16<<10 {
		return nil, false
	}
	if ptr := binary.LittleEndian.Uint64(arg[r.Ptr:]); ptr != 0 && n != 0 {
		b := read(ptr, uint64(n))
		if len(b) < int(n) {
			return nil, false
		}
		segs = append(segs, traces.Seg{Addr: ptr, Len: n, In: b})
		if deeper == nil {
			return segs, true
		}
		if n != deeper.Size {
			return nil, false
		}
		for _, q := range deeper.Pointers {
			at, size := binary.LittleEndian.Uint64(b[q.Ptr:]), uint64(binary.LittleEndian.Uint32(b[q.Count:]))*uint64(q.Elem)
			if at == 0 || size == 0 {
				continue
			}
			list := read(at, size)
			if size > 16<<10 || uint64(len(list)) < size {
				return nil, false
			}
			segs = append(segs, traces.Seg{Addr: at, Len: uint32(size), In: list})
		}
	}
	return segs, true
}

// recorded is the memory that an event has.
type recorded []traces.Seg

func (m recorded) at(addr, n uint64) []byte {
	for i := range m {
		if s := &m[i]; addr >= s.Addr && addr-s.Addr <= uint64(len(s.In)) {
			b := s.In[addr-s.Addr:]
			return b[:min(n, uint64(len(b)))]
		}
	}
	return nil
}

// ReadMem implements Memory.
func (m recorded) ReadMem(addr uint64, buf []byte) (int, error) {
	n := copy(buf, m.at(addr, uint64(len(buf))))
	if n < len(buf) {
		return n, errors.New("not recorded")
	}
	return n, nil
}

// TestPlan: on all recordings, what a plan says is what a Watcher copies, and it
// says it of nearly all calls.
func TestPlan(t *testing.T) {
	files, err := filepath.Glob("../traces/corpus/*.nvt")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings", err)
	}
	total, plains := 0, 0
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			rd, err := traces.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			w := NewWatcher(rd.Header.Driver)
			x := newPlanner(NewPlan(w.ABI(), false))
			all, plain := 0, 0
			ev := new(traces.Event)
			for {
				if err := rd.Next(ev); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				if ev.Kind != traces.KindIoctl {
					continue
				}
				all++
				mem := recorded(ev.Clone().Mem)
				segs, ok := x.segments(ev, mem.at)
				if !ok {
					continue
				}
				plain++
				w.Enter(ev, mem)
				if len(segs) != len(ev.Mem) {
					t.Fatalf("request %#x: %d segments planned, %d copied", ev.Request(), len(segs), len(ev.Mem))
				}
				for i := range segs {
					a, b := &segs[i], &ev.Mem[i]
					if a.Addr != b.Addr || a.Len != b.Len || !bytes.Equal(a.In, b.In) {
						t.Fatalf("request %#x: segment %d: planned %+v, copied %+v", ev.Request(), i, a, b)
					}
				}
			}
			t.Logf("%d of %d ioctls are plain", plain, all)
			total, plains = total+all, plains+plain
		})
	}
	if plains*10 < total*9 {
		t.Errorf("only %d of %d ioctls are plain", plains, total)
	}
}

// TestPlanSynthetic: the same for every request, control and class that there is,
// with parameters of several sizes, and flags.
func TestPlanSynthetic(t *testing.T) {
	abi := rm.Newest()
	w := NewWatcher(abi.Version().String())
	for _, brief := range []bool{false, true} {
		w.SetBrief(brief)
		x := newPlanner(NewPlan(abi, brief))
		if n := len(slices.Collect(abi.UVMs())); brief && len(x.uvm) != n {
			t.Errorf("%d of %d requests of UVM have a rule, which need no more than their number", len(x.uvm), n)
		}
		n := 0
		try := func(dev string, request uint32, arg []byte, params int) {
			mem := recorded{{Addr: 0x10000, In: arg}, {Addr: 0x20000, In: bytes.Repeat([]byte{7}, params)}}
			ev := &traces.Event{Kind: traces.KindIoctl, Dev: dev, Args: [6]uint64{3, uint64(request), 0x10000}}
			segs, ok := x.segments(ev, mem.at)
			if !ok {
				return
			}
			n++
			w.Enter(ev, mem)
			same := len(segs) == len(ev.Mem) && ev.Flags == 0
			for i := 0; same && i < len(segs); i++ {
				same = segs[i].Addr == ev.Mem[i].Addr && segs[i].Len == ev.Mem[i].Len && bytes.Equal(segs[i].In, ev.Mem[i].In)
			}
			if !same {
				t.Fatalf("%s %#x % x: planned %v, copied %v (%v)", dev, request, arg, segs, ev.Mem, ev.Flags)
			}
		}
		for i := range x.Requests {
			r := &x.Requests[i]
			dev := "nvidiactl"
			if r.UVM {
				dev = "nvidia-uvm"
			}
			if !r.Follow {
				try(dev, r.Request, bytes.Repeat([]byte{1}, int(r.Size)), 0)
				continue
			}
			numbers := []uint32{0, 1, 0xdeadbeef, 0x20800102}
			for c := range abi.Controls() {
				numbers = append(numbers, c.Cmd)
			}
			for c := range abi.Classes() {
				numbers = append(numbers, c.ID)
			}
			for _, v := range numbers {
				for _, size := range []uint32{0, 64, 5000} {
					for _, flags := range []uint32{0, 1, 4} {
						arg := make([]byte, r.Size)
						binary.LittleEndian.PutUint64(arg[r.Ptr:], 0x20000)
						binary.LittleEndian.PutUint32(arg[r.Select:], v)
						if r.Len != noField {
							binary.LittleEndian.PutUint32(arg[r.Len:], size)
						}
						if r.Flags != noField {
							binary.LittleEndian.PutUint32(arg[r.Flags:], flags)
						}
						try(dev, r.Request, arg, 1<<16)
						binary.LittleEndian.PutUint64(arg[r.Ptr:], 0)
						try(dev, r.Request, arg, 0)
					}
				}
			}
		}
		if n < len(x.Requests) {
			t.Errorf("brief %v: %d calls tried of %d requests", brief, n, len(x.Requests))
		}
	}
}

// TestPointerControls: the list is that of the tables.
func TestPointerControls(t *testing.T) {
	seen := make(map[uint32]bool)
	for c := range rm.AllControls() {
		if len(c.Embedded) > 0 {
			seen[c.Cmd] = true
		}
	}
	list := slices.Sorted(maps.Keys(seen))
	if slices.Equal(list, pointerControls[:]) {
		return
	}
	if !*update {
		t.Fatalf("the tables have %d controls with pointers, zpointers.go %d, or others: go test ./ioctl -run TestPointerControls -update", len(list), len(pointerControls))
	}
	text, err := os.ReadFile("zpointers.go")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(text), "{\n")
	b := []byte(head + "{\n")
	for i, cmd := range list {
		sep := " "
		if i%6 == 5 || i == len(list)-1 {
			sep = "\n"
		}
		if i%6 == 0 {
			b = append(b, '\t')
		}
		b = fmt.Appendf(b, "%#08x,%s", cmd, sep)
	}
	if err := os.WriteFile("zpointers.go", append(b, "}\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
}
