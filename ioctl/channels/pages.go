package channels

import (
	"encoding/binary"
	"slices"
)

// semaphorePages are the pages of memory that a look reads, all at one time: those with trackers first,
// as the semaphore of a kernel's end is reset before the kernel's tracker is written.
type semaphorePages struct {
	trackers, others []uint64
	index            map[uint64]int // of a page in buffer
	buffer           []byte
	addresses        []uint64
	changed          bool // there are others since the latest look
}

// maxSemaphorePagesRead is how many pages a look reads.
const maxSemaphorePagesRead = 64

// want has the page of an address read from the next look on.
func (p *semaphorePages) want(address uint64, tracker bool) {
	page := address &^ (pageSize - 1)
	if slices.Contains(p.trackers, page) || slices.Contains(p.others, page) && !tracker || len(p.trackers)+len(p.others) >= maxSemaphorePagesRead {
		return
	}
	p.others = slices.DeleteFunc(p.others, func(a uint64) bool { return a == page })
	if tracker {
		p.trackers = append(p.trackers, page)
	} else {
		p.others = append(p.others, page)
	}
	p.changed = true
}

// A gatherer reads many pages in one step.
type gatherer interface {
	ReadPages(addresses []uint64, b []byte) error
}

// read reads the pages.
func (p *semaphorePages) read(m Memory) error {
	if p.changed {
		p.changed = false
		p.addresses = slices.Concat(p.trackers, p.others)
		p.index = make(map[uint64]int, len(p.addresses))
		for i, a := range p.addresses {
			p.index[a] = i
		}
		p.buffer = make([]byte, pageSize*len(p.addresses))
	}
	if len(p.addresses) == 0 {
		_, err := m.Maps()
		return err
	}
	if g, ok := m.(gatherer); ok && g.ReadPages(p.addresses, p.buffer) == nil {
		return nil
	}
	failed := error(nil)
	gone := map[uint64]bool{}
	for i, a := range p.addresses {
		b := p.buffer[i*pageSize : (i+1)*pageSize]
		if err := m.Read(a, b); err != nil {
			gone[a], failed = true, err
			delete(p.index, a)
		}
	}
	if len(gone) == len(p.addresses) {
		return failed
	}
	if len(gone) > 0 { // which the process has unmapped
		p.trackers = slices.DeleteFunc(p.trackers, func(a uint64) bool { return gone[a] })
		p.others = slices.DeleteFunc(p.others, func(a uint64) bool { return gone[a] })
		p.changed = true
	}
	return nil
}

// value returns 32 bits as the look has read them.
func (p *semaphorePages) value(address uint64) (uint32, bool) {
	i, ok := p.index[address&^(pageSize-1)]
	if !ok || address%pageSize > pageSize-4 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(p.buffer[uint64(i)*pageSize+address%pageSize:]), true
}

// tracker returns a semaphore of four words as the look has read it.
func (p *semaphorePages) tracker(address uint64) (value uint32, time uint64, ok bool) {
	i, ok := p.index[address&^(pageSize-1)]
	if !ok || address%pageSize > pageSize-16 {
		return 0, 0, false
	}
	b := p.buffer[uint64(i)*pageSize+address%pageSize:]
	return binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[8:]), true
}
