package channels

import (
	"slices"

	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// libcuda maps what it shares with GPUs at the same addresses for both. A program that speaks to the driver itself
// may not: then an address in its ring is no address of the process, and where the process has the memory must be
// found by what is there.

// A window is memory that the GPU has at one address, and the process at another.
type window struct{ gpu, process, size uint64 }

// within returns the process's address of memory that the GPU has at address.
func (w *window) within(address, size uint64) (uint64, bool) {
	offset := address - w.gpu
	if address < w.gpu || offset >= w.size || size > w.size-offset {
		return 0, false
	}
	return w.process + offset, true
}

// read reads memory by its address in the GPU's address space.
func (c *Channel) read(m Memory, address uint64, b []byte) error {
	for i := range c.windows {
		if at, ok := c.windows[i].within(address, uint64(len(b))); ok {
			return m.Read(at, b)
		}
	}
	return m.Read(address, b)
}

// located is memory by its addresses in the GPU's address space.
type located struct {
	Memory
	of *Channel
}

// Read implements [Memory].
func (l located) Read(address uint64, b []byte) error { return l.of.read(l.Memory, address, b) }

const (
	checkedEntries = 8       // of a ring, whose pieces must all be where one of them is believed to be
	maxPlaces      = 1 << 14 // pages of a mapping that are looked at for one piece, or one QMD
	leastCommands  = 4       // of a piece that is believed

	// A hostile process has as many of them to be looked for as it likes: these are for all of a process, and of a channel.
	maxProbes   = 1 << 16 // pages in which pieces may be
	maxSearches = 16      // QMDs that are looked for
)

// windowOf looks for the system memory in which the pieces of a ring stand. Its entry index ends where the GPU
// has read to.
func windowOf(m Memory, s *space, ring uint64, index uint32, entries int) (window, bool) {
	var pieces []channel.Entry
	for back := range uint32(min(checkedEntries, entries)) {
		v, err := readLong(m, ring+uint64((index+uint32(entries)-back)%uint32(entries))*channel.EntrySize)
		if err != nil {
			return window{}, false
		}
		if e := channel.ParseEntry(v); e.Words != 0 {
			pieces = append(pieces, e)
		}
	}
	if len(pieces) == 0 {
		return window{}, false
	}
	var best window
	most, alike := 0, 0
	for i := range s.system {
		for w := range places(&s.system[i], pieces[0].Address) {
			if s.probes >= maxProbes {
				return window{}, false
			}
			s.probes += 1 + int(pieces[0].Words>>10)
			n := 0
			for _, e := range pieces {
				if at, ok := w.within(e.Address, 4*uint64(e.Words)); ok && isPiece(m, at, e.Words) {
					n++
				} else if e == pieces[0] {
					break
				}
			}
			switch {
			case n > most:
				best, most, alike = w, n, 1
			case n == most:
				alike++
			}
		}
	}
	return best, most > 0 && alike == 1
}

// places yields the windows by which a GPU's address can be in a mapping: at the same place of each page.
func places(mapping *proc.Mapping, address uint64) func(yield func(window) bool) {
	return func(yield func(window) bool) {
		page := address &^ (pageSize - 1)
		for n, at := 0, mapping.Start; at < mapping.End && n < maxPlaces; n, at = n+1, at+pageSize {
			if offset := at - mapping.Start; offset <= page && !yield(window{page - offset, mapping.Start, mapping.End - mapping.Start}) {
				return
			}
		}
	}
}

// isPiece reports whether memory has commands for a channel, which end where they should.
func isPiece(m Memory, at uint64, n uint32) bool {
	first, err := readWords(m, at, 1)
	if err != nil || first[0] == 0 || n > maxPieceWords {
		return false
	}
	words, err := readWords(m, at, int(n))
	if err != nil {
		return false
	}
	count := 0
	for c := range channel.Commands(words, at) {
		switch {
		case c.Cut, c.Op != channel.Immediate && len(c.Data) == 0, c.Op == channel.EndSegment:
			return false
		}
		count++
	}
	return count >= leastCommands
}

// findQMD looks for a QMD that is not at its address in the process: in the GPU's memory that has the ring.
func (c *Channel) findQMD(m Memory, address uint64) bool {
	maps, err := m.Maps()
	if err != nil {
		return false
	}
	mapping := proc.At(maps, c.Ring)
	if mapping == nil || c.searches >= maxSearches || slices.Contains(c.unfound, address) {
		return false
	}
	c.searches++
	var best window
	found := 0
	b := make([]byte, channel.MaxQMDSize)
	for w := range places(mapping, address) {
		at, ok := w.within(address, uint64(len(b)))
		if !ok || m.Read(at, b[:8]) != nil || m.Read(at, b) != nil {
			continue
		}
		// The code is most often in the same memory, which proves where that is.
		if l, ok := launchIn(b); ok && l.Program >= w.gpu && l.Program-w.gpu < w.size {
			best = w
			found++
		}
	}
	if found != 1 {
		c.unfound = append(c.unfound, address)
		return false
	}
	c.windows = append(c.windows, best)
	return true
}

// launchIn reads bytes as the QMD of a launch, by any architecture.
func launchIn(b []byte) (channel.Launch, bool) {
	const maxThreads, maxRegisters = 1024, 255
	for _, a := range architectures {
		q, ok := channel.ClassOf(a[0]).ParseQMD(b)
		if !ok {
			continue
		}
		l, ok := q.Launch()
		threads := uint64(l.Block[0]) * uint64(l.Block[1]) * uint64(l.Block[2])
		if ok && !l.Null && threads <= maxThreads && slices.Max(l.Block[:]) <= maxThreads && 0 < l.Registers && l.Registers <= maxRegisters {
			return l, true
		}
	}
	return channel.Launch{}, false
}

// readQMD reads a QMD that no piece has written.
func (c *Channel) readQMD(m Memory, address uint64, b []byte) bool {
	if len(c.windows) == 0 {
		return m.Read(address, b) == nil
	}
	for range 2 {
		for i := range c.windows {
			if at, ok := c.windows[i].within(address, uint64(len(b))); ok {
				return m.Read(at, b) == nil
			}
		}
		if !c.findQMD(m, address) {
			break
		}
	}
	return false
}
