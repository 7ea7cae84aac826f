package emu

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// A Region is one allocation that device code may reach in the global space.
type Region struct {
	Base     uint64 // its first address
	Data     []byte // its bytes; accesses of the device go right there
	ReadOnly bool   // stores are errors
	Name     string // of the variable or allocation, for messages; may be empty
}

// contains reports whether [addr, addr+size) is inside r.
func (r *Region) contains(addr, size uint64) bool {
	off := addr - r.Base
	return off <= uint64(len(r.Data)) && size <= uint64(len(r.Data))-off
}

// Memory provides the global address space: it says which allocation holds an
// address. A simulated driver supplies one that shares real host memory; [Heap]
// is the one that stands alone.
//
// Region is called from several goroutines. A region that was returned must stay
// valid until the launch that asked for it has ended.
type Memory interface {
	Region(addr uint64) (Region, bool)
}

// An Allocator is a Memory that can also allocate; module variables and the
// device's malloc need one.
type Allocator interface {
	Memory
	Alloc(size, align uint64, name string) (Region, error)
	Free(base uint64) error
}

// The address space below what real user processes use is split into windows
// for the spaces that have addresses of their own. Addresses of real memory have
// 47 bits, so the windows lie above them.
const (
	windowSize   = uint64(1) << 32
	sharedWindow = uint64(1) << 48
	localWindow  = uint64(2) << 48
	constWindow  = uint64(3) << 48
	paramWindow  = uint64(4) << 48
	codeWindow   = uint64(5) << 48 // function addresses: not memory, so a load from one is an error

	// A shared::cluster address is the rank of the block plus one in the upper
	// byte and the offset in its shared memory below; zero means the own block.
	clusterShift = 24
)

// Heap is a Memory of its own, with bounds between allocations so that an access
// just past one never hits another. Its zero value is not usable: newHeap. It is
// safe for concurrent use.
type Heap struct {
	mu      sync.RWMutex
	regions []Region // sorted by Base
	next    uint64
	used    uint64
	limit   uint64
}

// heapBase is the lowest address that a Heap gives out; heapGap what it leaves
// free behind each allocation.
const (
	heapBase = 0x1000_0000
	heapGap  = 4096
)

// newHeap returns an empty heap that holds at most limit bytes; 0 means 4 GiB.
func newHeap(limit uint64) *Heap {
	if limit == 0 {
		limit = 4 << 30
	}
	return &Heap{next: heapBase, limit: limit}
}

// Alloc returns a new zeroed region of size bytes, aligned to align, at least
// 256 as cuMemAlloc's. A size of 0 is an error, as cuMemAlloc's.
func (h *Heap) Alloc(size, align uint64, name string) (Region, error) {
	align = max(align, 256)
	if size == 0 || align&(align-1) != 0 {
		return Region{}, fmt.Errorf("allocate %d bytes aligned to %d: invalid value", size, align)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if size > h.limit || h.used > h.limit-size {
		return Region{}, fmt.Errorf("allocate %d bytes for %q: %w (%d of %d bytes are in use)", size, name, ErrOutOfMemory, h.used, h.limit)
	}
	base := (h.next + align - 1) &^ (align - 1)
	r := Region{Base: base, Data: alignedBytes(int(size)), Name: name}
	h.next = base + size + heapGap
	h.used += size
	h.regions = append(h.regions, r)
	return r, nil
}

// Free gives the region that begins at base back.
func (h *Heap) Free(base uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, ok := h.find(base)
	if !ok || h.regions[i].Base != base {
		return fmt.Errorf("free %#x: %w: not the start of an allocation", base, ErrAddress)
	}
	h.used -= uint64(len(h.regions[i].Data))
	h.regions = slices.Delete(h.regions, i, i+1)
	return nil
}

// Region implements Memory.
func (h *Heap) Region(addr uint64) (Region, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	i, ok := h.find(addr)
	if !ok {
		return Region{}, false
	}
	return h.regions[i], true
}

// find returns the index of the region that holds addr.
func (h *Heap) find(addr uint64) (int, bool) {
	i, found := slices.BinarySearchFunc(h.regions, addr, func(r Region, a uint64) int {
		switch {
		case r.Base < a:
			return -1
		case r.Base > a:
			return 1
		}
		return 0
	})
	if found {
		return i, true
	}
	if i == 0 || !h.regions[i-1].contains(addr, 1) {
		return 0, false
	}
	return i - 1, true
}

// Used returns the number of bytes that are allocated.
func (h *Heap) Used() uint64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.used
}

// loadBytes reads a little-endian value of size 1, 2, 4 or 8.
func loadBytes(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	default:
		return binary.LittleEndian.Uint64(b)
	}
}

// storeBytes writes the low size bytes of v.
func storeBytes(b []byte, size int, v uint64) {
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}

// readSome reads a little-endian value of any size, at most its low 8 bytes.
func readSome(b []byte, size uint64) (v uint64) {
	for k := range min(size, 8) {
		v |= uint64(b[k]) << (8 * k)
	}
	return v
}

// writeSome writes the low size bytes of v, at most 8.
func writeSome(b []byte, size, v uint64) {
	for k := range min(size, 8) {
		b[k] = byte(v >> (8 * k))
	}
}
