package sim

import (
	"errors"
	"math/bits"
	"sync"
	"time"

	"nvtrace/ptx/emu"
)

// A try runs kernels on copies of the memory that a launch is about to change. All
// copies are made of one snapshot, which has what any of the kernels has asked for.
//
// Nobody knows before a run what a kernel will look at. So an allocation is copied when a run asks
// for its address first: once into the snapshot (taken), which no run writes to, and from there into
// the run's own view. The launch that is tried waits for the hook meanwhile, but other streams
// and the program itself go on: what they change may or may not be in the snapshot, and all
// runs see the same.
type try struct {
	arena *Arena
	mu    sync.Mutex
	taken map[uint64]emu.Region // by address
}

// An Outcome is what a launch did to copies of memory, see [Launch.Try].
type Outcome struct {
	Stats emu.Stats
	view  *view
}

// Data returns what an allocation held after the run; nil if the run did not look
// there.
func (o *Outcome) Data(base uint64) []byte {
	o.view.mu.Lock()
	defer o.view.mu.Unlock()
	return o.view.copies[base].Data
}

// A view is the memory of one run: copies of what it looks at.
type view struct {
	of     *try
	mu     sync.Mutex
	copies map[uint64]emu.Region
	own    map[uint64]bool // allocated by the kernel
}

// copyOf returns a copy of memory, aligned as the original is.
func copyOf(r emu.Region) emu.Region {
	const align = 256
	off := r.Base % align
	size := off + uint64(len(r.Data))
	// Allocations whose size is a power of two, and large ones, are aligned to that.
	buf := make([]byte, size, max(2*align, 1<<bits.Len64(size-1)))
	r.Data = buf[off:]
	return r
}

// region returns the snapshot of the allocation at addr, which it takes if there is none yet.
func (t *try) region(addr uint64) (emu.Region, bool) {
	r, ok := t.arena.Region(addr)
	if !ok {
		return r, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.taken[r.Base]
	if !ok {
		s = copyOf(r)
		copy(s.Data, r.Data)
		t.taken[r.Base] = s
	}
	return s, true
}

// Region implements [emu.Memory].
func (v *view) Region(addr uint64) (emu.Region, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, ok := v.of.region(addr)
	if !ok {
		return s, false
	}
	c, ok := v.copies[s.Base]
	if !ok {
		c = copyOf(s)
		copy(c.Data, s.Data)
		v.copies[s.Base] = c
	}
	return c, true
}

// Alloc implements [emu.Allocator]: malloc in a kernel. It comes from the program's arena, since
// a run has to find it by its address; Try frees what is left.
func (v *view) Alloc(size, align uint64, name string) (emu.Region, error) {
	r, err := v.of.arena.Alloc(size, align, name)
	if err == nil {
		v.mu.Lock()
		v.own[r.Base] = true
		v.mu.Unlock()
	}
	return r, err
}

// Free implements [emu.Allocator]. What the program has allocated stays.
func (v *view) Free(base uint64) error {
	v.mu.Lock()
	own := v.own[base]
	delete(v.own, base)
	v.mu.Unlock()
	if !own {
		return nil
	}
	return v.of.arena.Free(base)
}

// ErrNoEnd is in the chain of errors about runs of [Launch.Try] that take too long, as
// those of kernels do that wait for another.
var ErrNoEnd = errors.New("the kernel does not end")

// hostTime is the time in nanoseconds.
func hostTime() uint64 { return uint64(time.Now().UnixNano()) }

// tryTime is how long a run on copies may take.
const tryTime = 10 * time.Second
