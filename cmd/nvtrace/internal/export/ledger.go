package export

import (
	"encoding/binary"

	"nvtrace/ioctl"
	"nvtrace/ioctl/procmap"
	"nvtrace/rm"
	"nvtrace/traces"
)

// quantity is something of a process's that is counted over time.
type quantity uint8

// The quantities.
const (
	quantityVidmem  quantity = iota // bytes of GPU memory that it allocated from the resource manager
	quantitySysmem                  // bytes of pinned host memory, likewise
	quantityFabric                  // bytes of memory on the NVLink fabric, likewise
	quantityMapped                  // bytes of device mappings in its address space
	quantityObjects                 // objects of the resource manager that it made and that live
	quantities
)

// quantityNames are the quantities' names and units in a timeline.
var quantityNames = [quantities]struct {
	name string
	unit uint64
}{
	quantityVidmem:  {"vidmem allocated", unitBytes},
	quantitySysmem:  {"sysmem allocated", unitBytes},
	quantityFabric:  {"fabric memory allocated", unitBytes},
	quantityMapped:  {"mapped device memory", unitBytes},
	quantityObjects: {"live driver objects", unitCount},
}

// account is what a process has.
type account struct {
	pid   int32
	have  [quantities]uint64
	shown [quantities]uint64 // what the timeline shows
	time  int64              // of the latest figures there
	dirty bool               // in ledger.dirty
	seen  bool               // the timeline shows events of the process
	ended bool
}

// ledger counts what processes have. Memory of the resource manager belongs to
// the process that allocated it, for as long as any handle of it lives
// (rm.Tree's totals count in the same way); a mapping to the one that has it.
type ledger struct {
	accounts map[int32]*account
	floor    int64      // latest time of the accounts that were forgotten: a process id may come back
	dirty    []*account // accounts that changed since settle
	made     uint64     // bytes of memory that the latest event allocated or mapped
	backs    map[*rm.Object]*backing
	maps     procmap.Map[uint64] // lengths
}

// backing is the memory that several handles of an object share.
type backing struct {
	account *account
	what    quantity // quantityMapped for none of the kinds that are counted
	bytes   uint64
	refs    int
}

func (l *ledger) init() {
	l.accounts = make(map[int32]*account)
	l.backs = make(map[*rm.Object]*backing)
}

// account returns a process's account. Beyond the bound it is one that nobody
// looks at.
func (l *ledger) account(pid int32) *account {
	a := l.accounts[pid]
	if a == nil {
		a = &account{pid: pid, time: l.floor}
		if len(l.accounts) < maxTasks {
			l.accounts[pid] = a
		}
	}
	return a
}

// change adds to one of an account's quantities; a negative n is given as its
// complement to 2^64.
func (l *ledger) change(a *account, q quantity, n uint64) {
	a.have[q] += n
	if !a.dirty {
		a.dirty = true
		l.dirty = append(l.dirty, a)
	}
}

// notify is told by the tree about objects that appear and end.
func (l *ledger) notify(o *rm.Object, born bool) {
	if born {
		l.born(o)
	} else {
		l.died(o)
	}
}

func (l *ledger) born(o *rm.Object) {
	a := l.account(o.PID)
	l.change(a, quantityObjects, 1)
	if b := l.backs[o.Dup]; o.Dup != nil && b != nil {
		b.refs++
		l.backs[o] = b
		return
	}
	b := &backing{account: a, refs: 1, what: quantityMapped}
	if o.Kind == rm.Memory || o.Kind == rm.Fabric {
		switch o.Attr.Aperture {
		case rm.ApertureVidmem:
			b.what = quantityVidmem
		case rm.ApertureSysmem:
			b.what = quantitySysmem
		case rm.ApertureFabric:
			b.what = quantityFabric
		}
	}
	if b.what != quantityMapped {
		b.bytes = o.Attr.Size
		l.made += b.bytes
		l.change(a, b.what, b.bytes)
	}
	l.backs[o] = b
}

func (l *ledger) died(o *rm.Object) {
	l.change(l.account(o.PID), quantityObjects, ^uint64(0))
	b := l.backs[o]
	if b == nil {
		return
	}
	delete(l.backs, o)
	if b.refs--; b.refs == 0 && b.what != quantityMapped {
		l.change(b.account, b.what, -b.bytes)
	}
}

// add follows the mappings in the processes' address spaces, by the rules of
// ioctl.Summary.
func (l *ledger) add(ev *traces.Event, c *ioctl.Call) {
	switch ev.Kind {
	case traces.KindMmap:
		if c.Errno == 0 && ev.Ret != 0 {
			l.made += ev.Args[1]
			l.mmap(ev.PID, uint64(ev.Ret), ev.Args[1])
		}
	case traces.KindMunmap:
		if c.Errno == 0 {
			l.munmap(ev.PID, ev.Args[0])
		}
	case traces.KindIoctl:
		if c.Name == "NV_ESC_RM_UNMAP_MEMORY" && c.HasStatus && !c.Failed() {
			// NVOS34.pLinearAddress, at 16 in every driver version. The munmap itself may not be recorded.
			if p := c.Argument(); p != nil && len(p.In) >= 24 {
				l.munmap(ev.PID, binary.LittleEndian.Uint64(p.In[16:]))
			}
		}
	case traces.KindExec:
		l.unmapAll(ev.PID)
	case traces.KindExit:
		if ev.TID == ev.PID {
			l.unmapAll(ev.PID)
			if a := l.accounts[ev.PID]; a != nil {
				a.ended = true
				l.change(a, quantityMapped, 0)
			}
		}
	}
}

func (l *ledger) mmap(pid int32, addr, length uint64) {
	l.munmap(pid, addr) // MAP_FIXED, or an munmap that was not recorded
	if l.maps.Len() >= maxMaps {
		return
	}
	l.maps.Put(pid, addr, length)
	l.change(l.account(pid), quantityMapped, length)
}

func (l *ledger) munmap(pid int32, addr uint64) {
	if length, ok := l.maps.Take(pid, addr); ok {
		l.change(l.account(pid), quantityMapped, -length)
	}
}

func (l *ledger) unmapAll(pid int32) {
	for length := range l.maps.TakeAll(pid) {
		l.change(l.account(pid), quantityMapped, -length)
	}
}

// clean forgets which accounts changed, and those of ended processes that have
// nothing left.
func (l *ledger) clean() {
	for _, a := range l.dirty {
		a.dirty = false
		if a.ended && a.have == [quantities]uint64{} && l.accounts[a.pid] == a {
			delete(l.accounts, a.pid)
			l.floor = max(l.floor, a.time)
		}
	}
	clear(l.dirty)
	l.dirty = l.dirty[:0]
}
