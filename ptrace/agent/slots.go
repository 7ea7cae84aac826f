package agent

import (
	"encoding/binary"
	"errors"
	"strconv"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// errFull says that there are too many threads.
var errFull = errors.New("too many threads: no slot is free")

// addThread gives a stopped thread a ring. One without a thread pointer of its
// own gets none, and stops for everything. Threads are told apart by their thread pointers, since that
// is what code can find out in any thread without a system call.
//
// System calls for it are made by, which may be another thread.
func (p *Process) addThread(t, by *ptrace.Task) {
	if p.byTID[t.TID] != nil || t.PID != p.PID {
		return
	}
	regs, err := t.Regs()
	if err != nil {
		return
	}
	tp := regs.FSBase()
	if tp == 0 {
		return
	}
	if _, ok := p.keys[tp]; ok && !p.retire(t, tp) {
		return
	}
	i, err := p.freeSlot(by, tp)
	if err != nil {
		p.a.o.Logger.Debug("thread without a ring", "tid", t.TID, "err", err)
		return
	}
	r := p.newRing(i, t.TID, tp)
	if err := p.writeSlot(r); err != nil {
		p.a.o.Logger.Debug("thread without a ring", "tid", t.TID, "err", err)
		return
	}
	p.adopt(r)
}

// newRing makes a ring of the memory of slot i, for the thread whose slot that is.
func (p *Process) newRing(i, tid int, tp uint64) *ring {
	r := &ring{
		p: p, slot: i, home: i, tid: tid, tp: tp, hole: ^uint64(0), head: sharedRings + i*rheadSize,
		data: p.chunks[i/chunkSlots][i%chunkSlots*ringSize:][:ringSize:ringSize],
	}
	// Nothing that lies in the ring is mistaken for a record whose header is about
	// to be written: neither what an earlier thread left, nor zeros.
	r.seen = p.starts[i] + 2*ringSize
	r.tail, r.given = r.seen, r.seen
	store64(p.shared, r.head, r.seen)
	store64(p.shared, r.head+rheadTail, r.seen)
	return r
}

// adopt makes a ring the one that its thread writes to.
func (p *Process) adopt(r *ring) {
	p.byTID[r.tid] = r
	if p.rings[r.slot] != r {
		p.rings[r.slot] = r
		p.a.rings = append(p.a.rings, r)
	}
}

// roomy says whether so many slots are free that threads may have two.
func (p *Process) roomy() bool {
	used := 0
	for _, r := range p.rings {
		if r != nil {
			used++
		}
	}
	return used < maxSlots/2
}

// maxRings is how many rings a thread can have.
const maxRings = 6

// exchange gives a stopped thread another ring, of most at most, as its own has no
// room: its records wait to be read; or a record in the making keeps it, which a signal
// handler that comes in between can't wait for. The thread completes that where it has
// begun it. Rings stay with their thread until it ends.
func (p *Process) exchange(t *ptrace.Task, r *ring, most int) bool {
	var to *ring
	n := 0
	for _, o := range p.rings {
		if o == nil || o.dead || o.tid != r.tid {
			continue
		}
		if n++; o == r {
			continue
		}
		if o.scan(); !o.spoil && !o.unwritten && len(o.pend)+len(o.holes) == 0 {
			to = o
		}
	}
	if to == nil {
		if n >= most {
			return false
		}
		i, err := p.freeSlot(t, 0)
		if err != nil {
			return false
		}
		to = p.newRing(i, r.tid, r.tp)
		to.home = r.home
	}
	to.off = r.off
	addr := uint64(slotAddr + r.home*slotSize)
	var b [16]byte // of struct slot: ring, head
	binary.LittleEndian.PutUint64(b[slotRing:], ringAddr+uint64(to.slot)*ringSize)
	binary.LittleEndian.PutUint64(b[slotHead:], uint64(sharedAddr+to.head))
	if p.write(addr, b[:]) != nil {
		return false
	}
	p.adopt(to)
	return true
}

// writeSlot makes a ring the agent's.
func (p *Process) writeSlot(r *ring) error {
	var b [slotOpen]byte
	binary.LittleEndian.PutUint64(b[slotRing:], ringAddr+uint64(r.slot)*ringSize)
	binary.LittleEndian.PutUint64(b[slotHead:], uint64(sharedAddr+r.head))
	binary.LittleEndian.PutUint64(b[slotIDs:], uint64(p.PID)<<32|uint64(uint32(r.tid)))
	addr := uint64(slotAddr + r.slot*slotSize)
	if _, ok := p.inherited[r.tp]; p.runs && !ok { // what another thread has left
		if err := p.write64(retsAddr+uint64(r.slot)*retsSize, 0); err != nil {
			return err
		}
	}
	if depth := p.openCalls(r); depth > 0 {
		// It has calls open from the process that it was forked from.
		binary.LittleEndian.PutUint64(b[slotDepth:], depth)
	}
	if err := p.write(addr, b[:]); err != nil {
		return err
	}
	return p.insertKey(r.tp, addr)
}

// openCalls moves the hooked calls that a forked child's thread has not returned
// from into its slot, and returns how many there are.
func (p *Process) openCalls(r *ring) uint64 {
	slot, ok := p.inherited[r.tp]
	if !ok {
		return 0
	}
	from, to := slotAddr+uint64(slot*slotSize), slotAddr+uint64(r.slot*slotSize)
	var b [slotSize]byte
	if n, _ := p.mem.ReadAt(b[:], int64(from)); n != slotSize {
		return 0
	}
	delete(p.inherited, r.tp)
	depth := min(binary.LittleEndian.Uint64(b[slotDepth:]), maxOpen)
	if to != from && depth > 0 {
		if p.write(to+slotOpen, b[slotOpen:]) != nil || p.write64(from+slotDepth, 0) != nil {
			return 0
		}
	}
	return depth
}

// hash is the place of a thread pointer in the table, if that is free.
func hash(tp uint64) int { return int((tp >> 4) * 0x9e3779b97f4a7c15 >> 51) }

// insertKey enters a slot into the table. The thread pointer goes first: an
// entry is valid when its slot is there. Threads look for their own entries meanwhile, so that none is
// ever moved; one that is taken out stays as a mark until it is used again.
func (p *Process) insertKey(tp, slot uint64) error {
	i, known := p.keys[tp]
	if !known {
		i = hash(tp)
	}
	for n := 0; p.places[i] != 0 && p.places[i] != tp && !p.freed[i]; n++ {
		if n == numKeys {
			return errFull
		}
		i = (i + 1) % numKeys
	}
	at := uint64(keysAddr + i*keySize)
	if err := p.write64(at, tp); err != nil {
		return err
	}
	if err := p.write64(at+8, slot); err != nil {
		return err
	}
	delete(p.freed, i)
	p.places[i], p.keys[tp] = tp, i
	return nil
}

// removeKey makes an entry invalid.
func (p *Process) removeKey(tp uint64) {
	i, ok := p.keys[tp]
	if !ok {
		return
	}
	delete(p.keys, tp)
	p.freed[i] = true
	_ = p.write64(uint64(keysAddr+i*keySize)+8, 1) // fails if the process has ended
}

// retire makes room for a new thread whose thread pointer is known already. If
// the one that had it is ending, the new one has got its memory from the C
// library. Otherwise both live, and neither can record.
func (p *Process) retire(t *ptrace.Task, tp uint64) bool {
	for _, r := range p.rings {
		if r == nil || r.dead || r.tp != tp {
			continue
		}
		if !exiting(p.PID, r.tid) {
			p.switchOff(t, r)
			return false
		}
		p.endRings(r.tid, nanotime())
		return true
	}
	return true
}

// exiting says whether a thread is on its way out, or gone: the flag PF_EXITING
// in /proc/PID/task/TID/stat.
func exiting(pid, tid int) bool {
	const flagExiting = 4
	flags, err := strconv.ParseUint(proc.Stat(pid, tid, proc.StatFlags), 10, 64)
	return err != nil || flags&flagExiting != 0
}

// freeSlot finds a slot, and maps the memory of its ring. A thread with calls open
// from before, by its thread pointer, has its own.
func (p *Process) freeSlot(t *ptrace.Task, tp uint64) (int, error) {
	own, ok := p.inherited[tp]
	for i, r := range p.rings {
		if r != nil || ok && i != own || !ok && p.reserved(i) {
			continue
		}
		c := i / chunkSlots
		if p.chunks[c] == nil {
			m, err := p.share(t, ringAddr+uint64(c)*chunkSize, chunkSize)
			if err != nil {
				return 0, err
			}
			p.chunks[c] = m
		}
		return i, nil
	}
	return 0, errFull
}

// reserved says whether a slot is that of a thread with calls open from before.
func (p *Process) reserved(slot int) bool {
	for _, i := range p.inherited {
		if i == slot {
			return true
		}
	}
	return false
}

// endThread ends a thread's ring.
func (p *Process) endThread(tid int, when int64) {
	r := p.byTID[tid]
	if r == nil {
		return
	}
	p.removeKey(r.tp)
	p.endRings(tid, when)
}

// endRings ends all rings of a thread.
func (p *Process) endRings(tid int, when int64) {
	delete(p.byTID, tid)
	for _, r := range p.rings {
		if r != nil && r.tid == tid {
			r.end(when)
		}
	}
}

// borrow: another task with a thread pointer of ours lives in the memory, as a
// vfork child does while its parent waits. Nothing is recorded by it.
func (p *Process) borrow(t *ptrace.Task) {
	if !p.started {
		return
	}
	regs, err := t.Regs()
	if err != nil {
		return
	}
	for _, r := range p.rings {
		if r != nil && !r.dead && r.tp == regs.FSBase() && r.slot == r.home {
			p.switchOff(t, r)
		}
	}
}

// switchOff makes a ring's threads stop for everything until t has ended or
// execed.
func (p *Process) switchOff(t *ptrace.Task, r *ring) {
	if p.write64(uint64(slotAddr+r.home*slotSize)+slotOff, 1) == nil {
		p.borrowed[t.TID] = r
		r.off = true
	}
}

// unborrow ends what switchOff began.
func (p *Process) unborrow(tid int) {
	r := p.borrowed[tid]
	if r == nil {
		return
	}
	delete(p.borrowed, tid)
	for _, o := range p.borrowed {
		if o == r {
			return
		}
	}
	r.off = false
	_ = p.write64(uint64(slotAddr+r.home*slotSize)+slotOff, 0) // fails if the process has ended
}
