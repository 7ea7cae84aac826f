package objects

import (
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// mapRecord is one mapping of a device file in a process.
type mapRecord struct {
	PID        int32
	Addr, Size uint64
	Prot       uint64
	FD         int32
	File       uint32
	Node       string
	Managed    bool        // of nvidia-uvm
	Of         *rm.Mapping // nil: unified memory, or not known
	Born, Died int64       // mmap; munmap, exec or MAP_FIXED over it
	before     *mapRecord  // of the same program, whether it lives or not
}

// until is when the mapping ended, as far as the recording tells: munmap is
// recorded on request only, the driver's side of it always.
func (r *mapRecord) until() int64 {
	t := r.Died
	if r.Of != nil {
		t = min(t, r.Of.Unmapped, r.Of.Died)
	}
	return t
}

type mapAt struct {
	pid  int32
	addr uint64
}

// rangeRecord is a range of a managed address space.
type rangeRecord struct {
	*rm.UVMRange
	File uint32
	PID  int32
}

// gpuRecord is memory mapped at GPU addresses through an external range.
type gpuRecord struct {
	*rm.UVMMapping
	File uint32
	PID  int32
	In   *rm.UVMRange
	Died int64
}

func (g *gpuRecord) until() int64 { return min(g.Died, g.In.Died) }

// addMap notes what an event does to mappings of device files.
func (l *ObjectLog) addMap(ev *traces.Event, c *ioctl.Call) {
	if c.Errno != 0 {
		return
	}
	switch ev.Kind {
	case traces.KindMmap:
		if ev.Flags&(traces.FlagUnfinished|traces.FlagNoExit) != 0 {
			return
		}
		addr := uint64(ev.Ret)
		r := &mapRecord{
			PID: ev.PID, Addr: addr, Size: ev.Args[1], Prot: ev.Args[2], FD: ev.FD, File: ev.File, Node: ev.Dev,
			Managed: c.Device == ioctl.DeviceUVM, Born: l.now, Died: rm.Alive,
		}
		if !r.Managed {
			if m := l.Tree.MappingAt(ev.PID, addr); m != nil && m.Through == ev.File {
				r.Of = m
			}
		}
		l.put(r)
		if r.Managed {
			l.noteRange(ev.PID, ev.File, addr)
		}
	case traces.KindMunmap:
		l.unmap(ev.PID, ev.Args[0])
	case traces.KindMremap:
		if r := l.mapped[mapAt{ev.PID, ev.Args[0]}]; r != nil {
			moved := *r
			l.unmap(ev.PID, ev.Args[0])
			moved.Addr, moved.Size, moved.Born, moved.Died = uint64(ev.Ret), ev.Args[2], l.now, rm.Alive
			l.put(&moved)
		}
	case traces.KindExec:
		l.forgetMaps(ev.PID, func(r *mapRecord) { r.Died = l.now })
	case traces.KindFork, traces.KindExit:
		// What a child inherits is not followed. Nor may a process id that comes
		// again find the mappings of the one before.
		pid := ev.Child
		if ev.Kind == traces.KindExit {
			pid = ev.PID
		}
		if ev.Flags&traces.FlagThread == 0 && (ev.Kind == traces.KindFork || ev.TID == ev.PID) {
			l.forgetMaps(pid, nil)
		}
	}
}

// forgetMaps takes a process's mappings from the living ones.
func (l *ObjectLog) forgetMaps(pid int32, each func(*mapRecord)) {
	for r := l.latest[pid]; r != nil; r = r.before {
		at := mapAt{pid, r.Addr}
		if l.mapped[at] != r {
			continue
		}
		if each != nil {
			each(r)
		}
		delete(l.mapped, at)
	}
	delete(l.latest, pid)
}

func (l *ObjectLog) put(r *mapRecord) {
	l.unmap(r.PID, r.Addr)
	l.maps = append(l.maps, r)
	l.mapped[mapAt{r.PID, r.Addr}] = r
	r.before, l.latest[r.PID] = l.latest[r.PID], r
}

func (l *ObjectLog) unmap(pid int32, addr uint64) {
	if r := l.mapped[mapAt{pid, addr}]; r != nil {
		r.Died = l.now
		delete(l.mapped, mapAt{pid, addr})
	}
}

// noteRange remembers the range at an address of a managed address space, if it
// is new.
func (l *ObjectLog) noteRange(pid int32, file uint32, base uint64) {
	s := l.Tree.UVM(file)
	if s == nil {
		return
	}
	r := s.Ranges[base]
	if r == nil || r.Born < l.now {
		return
	}
	if n := len(l.ranges); n > 0 && l.ranges[n-1].UVMRange == r {
		return
	}
	l.ranges = append(l.ranges, &rangeRecord{r, file, pid})
}

// addUVM notes what a request of nvidia-uvm does to ranges.
func (l *ObjectLog) addUVM(ev *traces.Event, c *ioctl.Call) {
	p := c.Argument()
	if p == nil || p.Struct == nil {
		return
	}
	base, ok := p.Struct.Uint("base", p.In)
	if !ok {
		return
	}
	l.noteRange(ev.PID, ev.File, base)
	s := l.Tree.UVM(ev.File)
	if s == nil {
		return
	}
	switch c.Name {
	case "UVM_MAP_EXTERNAL_ALLOCATION":
		m := s.External(base)
		in := containing(s, base)
		if m == nil || m.Base != base || in == nil {
			return
		}
		g := &gpuRecord{m, ev.File, ev.PID, in, rm.Alive}
		l.gpuMaps = append(l.gpuMaps, g)
		l.gpuAt[fileAt{ev.File, base}] = g
	case "UVM_UNMAP_EXTERNAL":
		if g := l.gpuAt[fileAt{ev.File, base}]; g != nil {
			g.Died = l.now
			delete(l.gpuAt, fileAt{ev.File, base})
		}
	}
}

type fileAt struct {
	file uint32
	addr uint64
}

// containing returns the living range that holds an address.
func containing(s *rm.UVMSpace, addr uint64) *rm.UVMRange {
	if r := s.Ranges[addr]; r != nil {
		return r // the usual case: one mapping fills the range
	}
	for _, r := range s.Ranges {
		if addr-r.Base < r.Length {
			return r
		}
	}
	return nil
}

// addDMA notes what NV_ESC_RM_MAP_MEMORY_DMA mapped: memory 12 bytes into NVOS46.
func (l *ObjectLog) addDMA(c *ioctl.Call) {
	p := c.Argument()
	if p == nil || p.Struct == nil {
		return
	}
	memory, _ := p.Struct.Uint("hMemory", p.In)
	o := l.Tree.Object(rm.Ref{Client: c.Client, Handle: uint32(memory)})
	if o == nil {
		return
	}
	addr, _ := p.Struct.Uint("dmaOffset", p.Latest())
	for _, m := range o.DMAMappings() {
		if m.Addr == addr && m.Born == l.now {
			l.dmas = append(l.dmas, m)
		}
	}
}
