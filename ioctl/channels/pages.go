package channels

import "slices"

// semaphorePages are the semaphores as the latest observation has them, and which pages are wanted.
type semaphorePages struct {
	ends, trackers []uint64
	used           map[uint64]uint64 // by page, the observation that wanted it last
	late           map[uint64]*words // by page: trackers, and what was read after them
	early          map[uint64]*words // what was read before the trackers
	count          uint64            // observations
	changed        bool
}

// words are a page.
type words [pageSize / 8]uint64

const (
	maxSemaphorePages = 64
	forgetAfter       = 1 << 16 // observations after which a page that nobody wants is no longer read
)

func pageOf(address uint64) uint64 { return address &^ (pageSize - 1) }

// want has the page of an address read.
func (p *semaphorePages) want(address uint64, tracker bool) {
	page := pageOf(address)
	if p.used == nil {
		p.used = map[uint64]uint64{}
	}
	if _, ok := p.used[page]; ok && (!tracker || slices.Contains(p.trackers, page)) {
		p.used[page] = p.count
		return
	}
	if len(p.used) >= maxSemaphorePages {
		return
	}
	if tracker {
		p.ends = slices.DeleteFunc(p.ends, func(a uint64) bool { return a == page })
		p.trackers = append(p.trackers, page)
	} else {
		p.ends = append(p.ends, page)
	}
	p.used[page] = p.count
	p.changed = true
}

// list returns the pages that are to be read, nil if they are the same as before.
func (p *semaphorePages) list() *pageList {
	if p.count%forgetAfter == 0 {
		p.ends = slices.DeleteFunc(p.ends, func(a uint64) bool {
			old := p.count-p.used[a] > forgetAfter
			if old {
				delete(p.used, a)
				p.changed = true
			}
			return old
		})
	}
	if !p.changed {
		return nil
	}
	p.changed = false
	return newPageList(slices.Clone(p.ends), slices.Clone(p.trackers))
}

// take takes in what an observation has shown.
func (p *semaphorePages) take(o *observation) {
	p.count++
	if o.fresh != nil {
		p.late, p.early = map[uint64]*words{}, map[uint64]*words{}
		for _, a := range o.fresh.order {
			p.late[a] = new(words)
		}
		for _, a := range o.fresh.ends {
			p.early[a] = new(words)
		}
	}
	for _, w := range o.words {
		pages := p.late
		if w.early {
			pages = p.early
		}
		pages[pageOf(w.address)][w.address%pageSize/8] = w.value
	}
}

// value returns the 32 bits of a semaphore, read after the trackers, or with early before them.
func (p *semaphorePages) value(address uint64, early bool) (uint32, bool) {
	page := p.late[pageOf(address)]
	if early && p.early[pageOf(address)] != nil {
		page = p.early[pageOf(address)]
	}
	if page == nil {
		return 0, false
	}
	return uint32(page[address%pageSize/8] >> (address & 4 * 8)), true
}

// tracker returns a semaphore of four words.
func (p *semaphorePages) tracker(address uint64) (value uint32, time uint64, ok bool) {
	page := p.late[pageOf(address)]
	if page == nil || address%8 != 0 || address%pageSize > pageSize-16 {
		return 0, 0, false
	}
	i := address % pageSize / 8
	return uint32(page[i]), page[i+1], true
}
