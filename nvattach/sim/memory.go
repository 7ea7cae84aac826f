package sim

import (
	"encoding/binary"
	"errors"
	"slices"

	"nvtrace/ptx/emu"
)

// allocate allocates memory for the program and writes its address to out. Allocations are
// aligned to 512 bytes, as those of the driver are.
func (c *call) allocate(out, size uint64, kind regionKind, flags uint32) (*region, result) {
	x, r := c.context()
	if r != success {
		return nil, r
	}
	if r := c.unsafe(); r != success {
		return nil, r
	}
	if size == 0 || out == 0 {
		return nil, errInvalidValue
	}
	m, err := c.p.arena.alloc(size, 512, userAllocation, kind)
	if err != nil {
		return nil, memoryResult(err)
	}
	m.flags, m.dev = flags, x.dev.ordinal
	if c.put64(out, m.Base); c.bad {
		c.release(m)
		return nil, errInvalidValue
	}
	return m, success
}

// memoryResult is what CUDA says about an allocation that failed this way.
func memoryResult(err error) result {
	switch {
	case errors.Is(err, emu.ErrOutOfMemory):
		return errOutOfMemory
	case errors.Is(err, emu.ErrInvalid):
		return errInvalidValue
	}
	return errMapFailed
}

// release frees a region that the program allocated. The program's mapping goes first, so that
// its thread can't write to what somebody else is given next.
func (c *call) release(m *region) {
	if m.kind == managedMemory || m.kind == pinnedMemory {
		c.p.unmapHost(m)
	}
	_ = c.p.arena.Free(m.Base)
}

// free frees memory of some kinds after the device is idle, as cudaFree does.
func (c *call) free(addr uint64, kinds ...regionKind) result {
	x, r := c.context()
	if r != success {
		return r
	}
	if r := c.unsafe(); r != success {
		return r
	}
	if addr == 0 {
		return success
	}
	if m := c.owned(addr, kinds); m == nil {
		return errInvalidValue
	}
	r = c.sync(x)
	if m := c.owned(addr, kinds); m != nil { // another thread may have freed it meanwhile
		c.release(m)
	}
	return r
}

// owned returns the program's allocation that begins at addr, if it is of one of
// the kinds.
func (c *call) owned(addr uint64, kinds []regionKind) *region {
	m := c.p.arena.at(addr)
	if m == nil || m.Base != addr || m.Name != userAllocation || !slices.Contains(kinds, m.kind) {
		return nil
	}
	return m
}

// hostRegister moves memory of the program into the shared file: the calling thread copies its
// pages there and maps the file in their place. So kernels reach it at its address in the
// program, without a copy for each access. What other threads write to the pages meanwhile is lost.
func (c *call) hostRegister(addr, size uint64, flags uint32) result {
	if _, r := c.context(); r != success {
		return r
	}
	if addr == 0 || size == 0 || addr+size < addr || addr+size > 1<<47 {
		return errInvalidValue
	}
	lo, hi := addr&^(pageSize-1), (addr+size+pageSize-1)&^(pageSize-1)
	if c.p.arena.overlaps(lo, hi-lo) {
		return errHostRegistered
	}
	var probe [1]byte // the program itself would fault on what is not there
	for _, a := range []uint64{addr, addr + size - 1} {
		if _, err := c.p.mem.ReadMem(a, probe[:]); err != nil {
			return errInvalidValue
		}
	}
	m, err := c.p.arena.adopt(addr, size)
	if err != nil {
		return memoryResult(err)
	}
	m.flags = flags
	res, err := c.conn.do(&reply{action: actMove, a: [5]uint64{lo, hi - lo, m.off}, fd: c.p.arena.fd})
	if err != nil || res != lo {
		_ = c.p.arena.Free(addr)
		return errMapFailed
	}
	return success
}

// hostUnregister gives the program private memory back, with the same content, after what
// may use it has ended.
func (c *call) hostUnregister(addr uint64) result {
	x, r := c.context()
	if r != success {
		return r
	}
	m := c.p.arena.at(addr)
	if m == nil || m.kind != registeredMemory || m.Base != addr {
		return errHostNotRegistered
	}
	r = c.sync(x)
	lo := addr &^ (pageSize - 1)
	if _, err := c.conn.do(&reply{action: actMove, a: [5]uint64{lo, m.span}, fd: -1}); err != nil {
		return errMapFailed
	}
	_ = c.p.arena.Free(addr)
	return r
}

// A copy2 is a copy of rows, as cuMemcpy2D and 3D describe it; a plain copy has one.
type copy2 struct {
	dst, src           uint64
	dstPitch, srcPitch uint64
	dstSlice, srcSlice uint64 // bytes from one slice to the next
	width              uint64 // bytes of a row
	height, depth      uint64
}

// plainCopy copies n bytes.
func plainCopy(dst, src, n uint64) *copy2 {
	return &copy2{dst: dst, src: src, width: n, height: 1, depth: 1}
}

// pageable reports whether the copy touches the program's own memory.
func (k *copy2) pageable(a *Arena) bool { return a.at(k.dst) == nil || a.at(k.src) == nil }

// extent is the number of bytes from the first to the last of one side.
func (k *copy2) extent(pitch, slice uint64) uint64 {
	if k.width == 0 || k.height == 0 || k.depth == 0 {
		return 0
	}
	return k.width + pitch*(k.height-1) + slice*(k.depth-1)
}

// check says whether the copy stays in allocations where it begins in them.
func (k *copy2) check(a *Arena) result {
	const most = 1 << 46
	for _, v := range []uint64{k.width, k.dstPitch, k.srcPitch, k.dstSlice, k.srcSlice} {
		if v > most {
			return errInvalidValue
		}
	}
	if k.height > most/max(k.dstPitch, k.srcPitch, 1) || k.depth > most/max(k.dstSlice, k.srcSlice, 1) {
		return errInvalidValue
	}
	if n := k.extent(k.dstPitch, k.dstSlice); n != 0 && !inside(a, k.dst, n) {
		return errInvalidValue
	}
	if n := k.extent(k.srcPitch, k.srcSlice); n != 0 && !inside(a, k.src, n) {
		return errInvalidValue
	}
	return success
}

// inside reports whether [addr, addr+n) is in one allocation or in none of the
// simulated GPU's ranges.
func inside(a *Arena, addr, n uint64) bool {
	if b, in := a.bytes(addr, n); in {
		return b != nil
	}
	return addr != 0 && !simulated(addr) && addr+n > addr && addr+n <= 1<<47
}

// run copies.
func (k *copy2) run(p *Process) result {
	if k.width == 0 {
		return success
	}
	if k.depth == 1 && (k.height == 1 || k.dstPitch == k.width && k.srcPitch == k.width) {
		return p.move(k.dst, k.src, k.width*k.height)
	}
	for z := range k.depth {
		for y := range k.height {
			if r := p.move(k.dst+z*k.dstSlice+y*k.dstPitch, k.src+z*k.srcSlice+y*k.srcPitch, k.width); r != success {
				return r
			}
		}
		if p.ctx.Err() != nil {
			return errUnknown
		}
	}
	return success
}

// move copies n bytes between any two places. Neither may be partly in an allocation. Memory
// of the program is read by another process, so that a bad pointer is an error here and no fault
// there.
func (p *Process) move(dst, src, n uint64) result {
	d, dIn := p.arena.bytes(dst, n)
	s, sIn := p.arena.bytes(src, n)
	switch {
	case dIn && d == nil || sIn && s == nil:
		return errInvalidValue
	case dIn && sIn:
		copy(d, s)
	case dIn:
		if _, err := p.mem.ReadMem(src, d); err != nil {
			return errInvalidValue
		}
	case sIn:
		if _, err := p.mem.WriteMem(dst, s); err != nil {
			return errInvalidValue
		}
	default:
		buf := make([]byte, min(n, 1<<20))
		for at := uint64(0); at < n; at += uint64(len(buf)) {
			b := buf[:min(uint64(len(buf)), n-at)]
			if _, err := p.mem.ReadMem(src+at, b); err != nil {
				return errInvalidValue
			}
			if _, err := p.mem.WriteMem(dst+at, b); err != nil {
				return errInvalidValue
			}
		}
	}
	return success
}

// copyIn puts a copy into a stream. Copies from and to memory that is not pinned
// are over when the call returns, as CUDA has it ("API synchronization behavior" of the runtime's
// documentation): the caller may use the buffer again at once. A synchronous copy can't be captured.
func (c *call) copyIn(s *stream, k *copy2, async bool) result {
	if r := k.check(c.p.arena); r != success {
		return r
	}
	p := c.p
	var failed result
	w := &work{kind: nodeMemcpy, copy: k, run: func(*cudaContext) result {
		failed = k.run(p)
		return success // a bad pointer of the host is the call's error, not the context's
	}}
	if s.cap != nil && !async {
		return c.invalidate(s)
	}
	o, r := c.submit(s, w)
	if r != success || o == nil {
		return r
	}
	if async && !k.pageable(p.arena) {
		return success
	}
	c.wait(o)
	if failed != success {
		return failed
	}
	return s.ctx.status()
}

// A fill is a memset, of rows and slices as the 2D and 3D functions have them.
type fill struct {
	dst, pitch    uint64
	value         uint32
	size          uint64 // bytes of an element
	width, height uint64
	slice, more   uint64 // bytes from one slice to the next, and how many come after the first
}

// valid reports whether the numbers make sense, whatever lies there.
func (f *fill) valid() bool {
	const most = 1 << 46
	row := f.width * f.size
	switch {
	case f.size != 1 && f.size != 2 && f.size != 4, f.dst%f.size != 0:
		return false
	case f.width > most, f.height > 1 && f.pitch < row, f.more > 0 && f.slice < f.pitch*f.height:
		return false
	}
	return f.height <= most/max(f.pitch, 1) && f.more <= most/max(f.slice, 1)
}

// bytes are what is filled, and between; nil if that isn't in one allocation.
func (f *fill) bytes(a *Arena) []byte {
	if f.width == 0 || f.height == 0 {
		return []byte{}
	}
	b, _ := a.bytes(f.dst, f.width*f.size+f.pitch*(f.height-1)+f.slice*f.more)
	return b
}

// fillIn puts a memset into a stream.
func (c *call) fillIn(s *stream, f *fill, async bool) result {
	if !f.valid() || f.bytes(c.p.arena) == nil {
		return errInvalidValue
	}
	p := c.p
	w := &work{kind: nodeMemset, fill: f, run: func(*cudaContext) result { return f.run(p) }}
	if s.cap != nil && !async {
		return c.invalidate(s)
	}
	o, r := c.submit(s, w)
	if r == success && o != nil && !async {
		c.wait(o)
		r = s.ctx.status()
	}
	return r
}

// run fills. The memory may have been freed since the call.
func (f *fill) run(p *Process) result {
	b := f.bytes(p.arena)
	if b == nil {
		return errInvalidValue
	}
	for z := uint64(0); z <= f.more && len(b) > 0; z++ {
		for y := range f.height {
			at := z*f.slice + y*f.pitch
			fillBytes(b[at:at+f.width*f.size], f.value, int(f.size))
		}
	}
	return success
}

// fillBytes repeats the low size bytes of v.
func fillBytes(b []byte, v uint32, size int) {
	if len(b) == 0 {
		return
	}
	var e [4]byte
	binary.LittleEndian.PutUint32(e[:], v)
	for n := copy(b, e[:size]); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
