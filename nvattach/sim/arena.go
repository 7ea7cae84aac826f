package sim

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"nvtrace/ptx/emu"
)

// Where memory of the simulated GPU lies, in the program and in kernels. Nothing keeps a program from
// mapping something there; mmap without an address comes neither that far down nor that far up. Memory that
// the program maps too is where no sanitizer has its shadow: 0x5500… to where programs are loaded is theirs to use by
// ThreadSanitizer, MemorySanitizer and AddressSanitizer alike; nvattach.HostBase and the agent lie there, too.
const (
	deviceBase = 0x3000_0000_0000 // only here; the program has no data at these addresses
	deviceEnd  = 0x3800_0000_0000
	hostBase   = 0x5520_0000_0000 // a file that the program maps too
	hostEnd    = 0x5555_0000_0000
)

// simulated reports whether an address is in one of the ranges.
func simulated(addr uint64) bool {
	return addr >= deviceBase && addr < deviceEnd || addr >= hostBase && addr < hostEnd
}

// userAllocation is the name of regions that the program allocated itself.
const userAllocation = "allocation"

// A regionKind says what an allocation is, which decides where its bytes are, who may
// use its address, and which call frees it.
type regionKind uint8

const (
	deviceMemory regionKind = iota
	managedMemory
	pinnedMemory
	registeredMemory // the program's own memory, moved into the file
	internalMemory   // strings and the like, for the program to read
	sharedMemory     // of this process and the program
	mappedMemory     // device memory at an address that the program has reserved
)

// A region is an allocation.
type region struct {
	emu.Region
	kind  regionKind
	off   uint64 // in the arena's range
	span  uint64 // bytes of the range that it takes
	flags uint32 // as the program gave them
	dev   int
}

func (r *region) compare(addr uint64) int { return cmp.Compare(r.Base, addr) }

// An Arena is the memory of the simulated GPUs of one program. It is an
// [emu.Allocator]; what it allocates as such is device memory.
//
// There are two ranges of addresses. Device memory is anonymous memory of this process: the
// program has nothing at its addresses, so that a program which reads device memory on the host
// faults, as with a GPU. Managed, pinned and internal memory is in a memfd, which the program maps
// at the addresses that kernels use. Memory that the program registers is moved into that file,
// too, but keeps its own address.
//
// Neither range moves: slices of them that kernels and copies hold stay good until close, whatever is
// freed meanwhile. A kernel that uses freed memory finds no region at the address and fails; one
// that has looked it up before reads zeroes, or what the next allocation there holds.
type Arena struct {
	mu      sync.RWMutex // guards what changes: regions, device, host, used, managed; file and fd are set once
	regions []*region    // sorted by Base, and disjoint
	device  span
	host    span
	limit   uint64          // bytes that may be allocated
	used    uint64          // bytes that are
	managed map[string]bool // module variables to be put into managed memory
	dev     []byte          // the device range, here
	file    []byte          // the host range, here
	fd      int             // of the host range's file
	// mapHost maps a new host region in the program.
	mapHost func(r *region) error
}

// A span hands out parts of a range of addresses, which are offsets in it.
type span struct {
	base, size, next uint64
	taken            []part // sorted
}

type part struct{ off, size uint64 }

func (p part) compare(off uint64) int { return cmp.Compare(p.off, off) }

// take finds room for size bytes. It goes round the whole range before it uses
// an address again, so that what uses freed memory is found out.
func (s *span) take(size, align uint64) (uint64, bool) {
	fit := func(lo, hi uint64) (uint64, bool) {
		lo = (lo + align - 1) &^ (align - 1)
		return lo, lo <= hi && hi-lo >= size
	}
	insert := func(off uint64) (uint64, bool) {
		i, _ := slices.BinarySearchFunc(s.taken, off, part.compare)
		s.taken = slices.Insert(s.taken, i, part{off, size})
		s.next = off + size
		return off, true
	}
	if off, ok := fit(s.next, s.size); ok {
		i, _ := slices.BinarySearchFunc(s.taken, off, part.compare)
		if (i == len(s.taken) || s.taken[i].off >= off+size) && (i == 0 || s.taken[i-1].off+s.taken[i-1].size <= off) {
			return insert(off)
		}
	}
	lo := uint64(0)
	for _, p := range s.taken {
		if off, ok := fit(lo, p.off); ok {
			return insert(off)
		}
		lo = p.off + p.size
	}
	if off, ok := fit(lo, s.size); ok {
		return insert(off)
	}
	return 0, false
}

// give makes the part at off free again.
func (s *span) give(off uint64) {
	if i, ok := slices.BinarySearchFunc(s.taken, off, part.compare); ok {
		s.taken = slices.Delete(s.taken, i, i+1)
	}
}

// guardBytes lie free behind every allocation, so that an access behind its end, which is the
// mistake that kernels make most, is one at an address that nobody has.
const guardBytes = 512

const pageSize = 4096

// newArena reserves the ranges for limit bytes of memory. They are twice as large, since
// free addresses are used again late and allocations have guards. Memory that is reserved
// without access is not counted by the system.
func newArena(limit uint64) (*Arena, error) {
	a := &Arena{limit: limit, fd: -1, managed: map[string]bool{}}
	size := (2*limit + 1<<26 + pageSize - 1) &^ (pageSize - 1)
	host := min(size, hostEnd-hostBase)
	size = min(size, deviceEnd-deviceBase)
	var err error
	if a.dev, err = unix.Mmap(-1, 0, int(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE); err != nil {
		return nil, fmt.Errorf("reserve %d bytes of addresses for device memory: %w", size, err)
	}
	a.device = span{base: deviceBase, size: size}
	a.host = span{base: hostBase, size: host}
	return a, nil
}

// openHost makes the file for memory that the program shares.
func (a *Arena) openHost() error {
	if a.fd >= 0 {
		return nil
	}
	fd, err := unix.MemfdCreate("nvtrace-sim", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memory to share with the program: %w", err)
	}
	// Sealed, so that the program can't shorten what is mapped here.
	if err = unix.Ftruncate(fd, int64(a.host.size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		a.file, err = unix.Mmap(fd, 0, int(a.host.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("memory to share with the program: %w", err)
	}
	a.fd = fd
	return nil
}

// close gives everything back. Nothing may use the arena's memory any more.
func (a *Arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.regions = nil
	if a.dev != nil {
		_ = unix.Munmap(a.dev)
		a.dev = nil
	}
	if a.file != nil {
		_ = unix.Munmap(a.file)
		a.file = nil
	}
	if a.fd >= 0 {
		_ = unix.Close(a.fd)
		a.fd = -1
	}
}

// Region implements [emu.Memory].
func (a *Arena) Region(addr uint64) (emu.Region, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if r := a.find(addr); r != nil {
		return r.Region, true
	}
	return emu.Region{}, false
}

// find returns the region that holds addr, nil if there is none.
func (a *Arena) find(addr uint64) *region {
	i, found := slices.BinarySearchFunc(a.regions, addr, (*region).compare)
	if found {
		return a.regions[i]
	}
	if i == 0 {
		return nil
	}
	if r := a.regions[i-1]; addr-r.Base < uint64(len(r.Data)) {
		return r
	}
	return nil
}

// at is find for callers without the lock.
func (a *Arena) at(addr uint64) *region {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.find(addr)
}

// bytes returns n bytes at addr if they are in one region, or in some that were mapped one behind the
// other, and whether addr is in any.
func (a *Arena) bytes(addr, n uint64) (b []byte, in bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	r := a.find(addr)
	if r == nil {
		return nil, false
	}
	off := addr - r.Base
	if n <= uint64(len(r.Data))-off {
		return r.Data[off : off+n : off+n], true
	}
	for at := r; at != nil && at.kind == mappedMemory; {
		end := at.Base + uint64(len(at.Data))
		if end-addr >= n {
			return a.dev[r.off+off : r.off+off+n : r.off+off+n], true
		}
		if at = a.find(end); at != nil && at.Base != end {
			break
		}
	}
	return nil, true
}

// Alloc implements [emu.Allocator]: variables of modules, and the device's malloc.
func (a *Arena) Alloc(size, align uint64, name string) (emu.Region, error) {
	kind := deviceMemory
	a.mu.RLock()
	if a.managed[name] {
		kind = managedMemory
	}
	a.mu.RUnlock()
	r, err := a.alloc(size, align, name, kind)
	if err != nil {
		return emu.Region{}, err
	}
	return r.Region, nil
}

// alloc allocates size bytes; an error wraps [emu.ErrOutOfMemory] if the limit
// is reached.
func (a *Arena) alloc(size, align uint64, name string, kind regionKind) (*region, error) {
	a.mu.Lock()
	r, err := a.allocLocked(size, align, name, kind)
	a.mu.Unlock()
	if err == nil && kind != deviceMemory && kind != registeredMemory && a.mapHost != nil {
		if err = a.mapHost(r); err != nil {
			_ = a.Free(r.Base)
			return nil, err
		}
	}
	return r, err
}

// allocLocked is alloc with the lock held. Pages of device memory get access now, and keep it
// when the allocation is freed: whether an address is good is told by the list of regions.
func (a *Arena) allocLocked(size, align uint64, name string, kind regionKind) (*region, error) {
	if size == 0 || align&(align-1) != 0 || align > 1<<30 {
		return nil, fmt.Errorf("allocate %d bytes aligned to %d: %w", size, align, emu.ErrInvalid)
	}
	align = max(align, 256)
	if size > a.limit || a.used > a.limit-size {
		return nil, fmt.Errorf("allocate %d bytes for %q: %w (%d of %d bytes are in use)", size, name, emu.ErrOutOfMemory, a.used, a.limit)
	}
	s, mem := &a.device, a.dev
	spanBytes := (size + guardBytes + 255) &^ 255
	if kind != deviceMemory {
		if err := a.openHost(); err != nil {
			return nil, err
		}
		s, mem, align = &a.host, a.file, max(align, pageSize)
		spanBytes = (size+pageSize-1)&^(pageSize-1) + pageSize // a page without access behind it
	}
	off, ok := s.take(spanBytes, align)
	if !ok {
		return nil, fmt.Errorf("allocate %d bytes for %q: %w: no addresses left", size, name, emu.ErrOutOfMemory)
	}
	if kind == deviceMemory {
		lo, hi := off&^(pageSize-1), (off+size+pageSize-1)&^(pageSize-1)
		if err := unix.Mprotect(mem[lo:hi], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			s.give(off)
			return nil, fmt.Errorf("allocate %d bytes for %q: %w (%w)", size, name, emu.ErrOutOfMemory, err)
		}
	}
	r := &region{Region: emu.Region{Base: s.base + off, Data: mem[off : off+size : off+size], Name: name}, kind: kind, off: off, span: spanBytes}
	a.used += size
	a.insert(r)
	return r, nil
}

// insert adds a region where its address has it in the list.
func (a *Arena) insert(r *region) {
	i, _ := slices.BinarySearchFunc(a.regions, r.Base, (*region).compare)
	a.regions = slices.Insert(a.regions, i, r)
}

// Free implements [emu.Allocator]. Memory is zero when it is allocated: it is cleared when it
// is freed, for which the system takes whole pages back.
func (a *Arena) Free(base uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, ok := slices.BinarySearchFunc(a.regions, base, (*region).compare)
	if !ok {
		return fmt.Errorf("free %#x: %w: not the start of an allocation", base, emu.ErrAddress)
	}
	r := a.regions[i]
	a.regions = slices.Delete(a.regions, i, i+1)
	size := uint64(len(r.Data))
	a.used -= size
	if r.kind == deviceMemory {
		a.wipe(r.off, size)
		a.device.give(r.off)
		return nil
	}
	end := (size + pageSize - 1) &^ (pageSize - 1)
	_ = unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(r.off), int64(end))
	a.host.give(r.off)
	return nil
}

// wipe zeroes device memory and gives whole pages back to the system.
func (a *Arena) wipe(off, size uint64) {
	lo, hi := (off+pageSize-1)&^(pageSize-1), (off+size)&^(pageSize-1)
	if lo >= hi || hi-lo < 1<<16 {
		clear(a.dev[off : off+size])
		return
	}
	clear(a.dev[off:lo])
	clear(a.dev[hi : off+size])
	if unix.Madvise(a.dev[lo:hi], unix.MADV_DONTNEED) != nil {
		clear(a.dev[lo:hi])
	}
}

// hold takes memory that has no address yet, and leave gives it back.
func (a *Arena) hold(size uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if size > a.limit || a.used > a.limit-size {
		return false
	}
	a.used += size
	return true
}

func (a *Arena) leave(size uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used -= size
}

// reserve reserves device addresses, at which there is nothing until something is mapped there.
func (a *Arena) reserve(size, align uint64) (addr uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	off, ok := a.device.take(size, align)
	return a.device.base + off, ok
}

// unreserve gives them back.
func (a *Arena) unreserve(addr uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.device.give(addr - a.device.base)
}

// mapAt has memory that is held at reserved addresses, all zero.
func (a *Arena) mapAt(addr, size uint64, dev int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	off := addr - a.device.base
	if unix.Mprotect(a.dev[off:off+size], unix.PROT_READ|unix.PROT_WRITE) != nil {
		return false
	}
	a.insert(&region{Region: emu.Region{Base: addr, Data: a.dev[off : off+size : off+size], Name: userAllocation}, kind: mappedMemory, off: off, span: size, dev: dev})
	return true
}

// unmap takes it away.
func (a *Arena) unmap(addr, size uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, ok := slices.BinarySearchFunc(a.regions, addr, (*region).compare); ok {
		a.regions = slices.Delete(a.regions, i, i+1)
		a.wipe(addr-a.device.base, size)
	}
}

// adopt makes a region of the program's own pages [addr, addr+size), whose
// content goes to the file. base and size need not be multiples of pages.
func (a *Arena) adopt(addr, size uint64) (*region, error) {
	lo := addr &^ (pageSize - 1)
	pages := (addr+size+pageSize-1)&^(pageSize-1) - lo
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used > a.limit || pages > a.limit-a.used {
		return nil, fmt.Errorf("register %d bytes: %w", size, emu.ErrOutOfMemory)
	}
	if err := a.openHost(); err != nil {
		return nil, err
	}
	off, ok := a.host.take(pages, pageSize)
	if !ok {
		return nil, fmt.Errorf("register %d bytes: %w: no addresses left", size, emu.ErrOutOfMemory)
	}
	in := off + (addr - lo)
	r := &region{Region: emu.Region{Base: addr, Data: a.file[in : in+size : in+size], Name: "registered"}, kind: registeredMemory, off: off, span: pages}
	a.used += size
	a.insert(r)
	return r, nil
}

// overlaps reports whether any region has bytes in [addr, addr+size).
func (a *Arena) overlaps(addr, size uint64) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	i, _ := slices.BinarySearchFunc(a.regions, addr, (*region).compare)
	return a.find(addr) != nil || i < len(a.regions) && a.regions[i].Base-addr < size
}

// Used returns the bytes that are allocated.
func (a *Arena) Used() uint64 {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.used
}
