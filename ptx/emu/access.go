package emu

import "nvtrace/ptx"

// An address is a memory operand.
type address struct {
	base  int32  // register or constant
	disp  uint64 // added to it
	mask  uint64 // of the width of the address register
	frame bool   // the frame's local memory is added too
	space ptx.Space
}

// at returns the address of lane i; r is w.src(a.base).
func (a *address) at(w *warp, r *lanes, i int) uint64 {
	v := (r[i] + a.disp) & a.mask
	if a.frame {
		v += w.frame.local
	}
	return v
}

// address resolves a memory operand in the given space.
func (x *insn) address(o *ptx.Operand, space ptx.Space) (address, error) {
	if o.Kind != ptx.OperandAddr {
		return address{}, errf(ErrInvalid, "operand %s is no address", x.text(o.Span()))
	}
	if len(x.file.Kids(o)) != 0 || o.Has(ptx.Unified) {
		return address{}, errf(ErrNotImplemented, "address %s", x.text(o.Span()))
	}
	a := address{disp: o.Bits, mask: ^uint64(0), space: space}
	if space == ptx.SpaceParam && !x.out.entry {
		a.space = ptx.SpaceLocal
	}
	if o.Name.Empty() {
		a.base = x.constant(0)
		return a, nil
	}
	sym, err := x.lookup(o)
	if err != nil {
		return a, err
	}
	switch sym.kind {
	case symReg:
		a.base, err = x.component(o, &sym)
		if sym.typ.Size() < 8 {
			a.mask = 0xffffffff
		}
		return a, err
	case symLocal:
		a.base, a.frame, a.space = x.constant(0), true, ptx.SpaceLocal
		a.disp += sym.addr
		return a, nil
	case symConstant:
		a.base = x.constant(0)
		a.disp += sym.addr
		if space == ptx.SpaceGeneric {
			a.space = sym.space // [sym] without a space means the variable's own
		}
		return a, nil
	}
	return a, errf(ErrInvalid, "operand %s is no address", x.text(o.Span()))
}

// locate returns the n bytes at addr for lane i, or nil after w.fail.
func (w *warp) locate(space ptx.Space, addr, n uint64, i int, write bool, slot uint32) []byte {
	if space == ptx.SpaceGeneric {
		space, addr = splitGeneric(addr)
	}
	if addr&(alignOf(n)-1) != 0 {
		w.fail(i, errf(ErrMisaligned, "%#x in %v memory, access of %d bytes", addr, space, n))
		return nil
	}
	switch space {
	case ptx.SpaceGlobal:
		return w.locateGlobal(addr, n, i, write, slot)
	case ptx.SpaceShared:
		return w.locateShared(addr, n, i)
	case ptx.SpaceLocal:
		if addr <= w.frame.top && n <= w.frame.top-addr {
			off := uint64(i)*w.stride + addr
			return w.local[off : off+n]
		}
		w.fail(i, errf(ErrAddress, "%#x, %d bytes of local memory; the thread's stack ends at %#x", addr, n, w.frame.top))
		return nil
	case ptx.SpaceConst:
		if b := w.wk.launch.prog.mod.constBank.Data; !write && addr <= uint64(len(b)) && n <= uint64(len(b))-addr {
			return b[addr : addr+n]
		}
	case ptx.SpaceParam:
		if b := w.wk.launch.params; !write && addr <= uint64(len(b)) && n <= uint64(len(b))-addr {
			return b[addr : addr+n]
		}
	}
	w.fail(i, errf(ErrAddress, "%#x, %s %d bytes of %v memory", addr, verb(write), n, space))
	return nil
}

func verb(write bool) string {
	if write {
		return "write of"
	}
	return "read of"
}

// alignOf is the alignment that an access of n bytes needs; vectors of three
// exist in no ISA, so n is a power of two but for bulk copies.
func alignOf(n uint64) uint64 {
	if n&(n-1) == 0 && n <= 64 {
		return max(n, 1)
	}
	return 1
}

func (w *warp) locateGlobal(addr, n uint64, i int, write bool, slot uint32) []byte {
	r := &w.wk.cache[slot%cacheSlots]
	if !r.contains(addr, n) || write && r.ReadOnly {
		got, ok := w.wk.launch.machine.mem.Region(addr)
		if ok && misplaced(&got) {
			w.fail(i, errf(ErrInvalid, "the allocation at %#x is backed by memory of another alignment", got.Base))
			return nil
		}
		if !ok || !got.contains(addr, n) || write && got.ReadOnly {
			w.fail(i, errf(ErrAddress, "%#x, %s %d bytes of global memory%s", addr, verb(write), n, nearRegion(&got, ok)))
			return nil
		}
		*r = got
	}
	off := addr - r.Base
	return r.Data[off : off+n : off+n]
}

// nearRegion describes what an illegal access nearly hit.
func nearRegion(r *Region, ok bool) string {
	if !ok {
		return ", which no allocation holds"
	}
	kind := ""
	if r.ReadOnly {
		kind = "read-only "
	}
	return errf(ErrAddress, "; %sallocation %q is [%#x,%#x)", kind, r.Name, r.Base, r.Base+uint64(len(r.Data))).Error()[len(ErrAddress.Error())+2:]
}

func (w *warp) locateShared(addr, n uint64, i int) []byte {
	b := w.block
	off := addr
	if addr>>clusterShift != 0 {
		rank := int(addr>>clusterShift) - 1
		off = addr & (1<<clusterShift - 1)
		if rank >= len(b.cluster.blocks) || addr >= windowSize {
			w.fail(i, errf(ErrAddress, "%#x of shared memory: no block of rank %d in the cluster", addr, rank))
			return nil
		}
		b = b.cluster.blocks[rank]
	}
	if off <= uint64(len(b.shared)) && n <= uint64(len(b.shared))-off {
		return b.shared[off : off+n : off+n]
	}
	w.fail(i, errf(ErrAddress, "%#x, %d bytes of shared memory; the block has %d bytes", addr, n, len(b.shared)))
	return nil
}

// An element is one register of a load or store.
type element struct {
	slot int32
	mask uint64 // of the register's width
}

// A transfer is a compiled load or store.
type transfer struct {
	addr   address
	elems  []element
	size   int  // bytes of one element
	width  uint // bits to sign-extend from, 0 for none
	strong bool // volatile, relaxed, acquire, release: one atomic step a word
	slot   uint32
	zero   bool // .param of a kernel at a constant offset: the same for all lanes
}

func (t *transfer) bytes() uint64 { return uint64(t.size * len(t.elems)) }

// value extends an element that was read.
func (t *transfer) value(v, mask uint64) uint64 {
	if t.width != 0 {
		return uint64(sext(v, t.width)) & mask
	}
	return v
}

// load executes a load for the lanes in m.
func (t *transfer) load(w *warp, m uint32) {
	if t.zero {
		t.loadUniform(w, m)
		return
	}
	r := w.src(t.addr.base)
	if base, data, ok := t.window(w); ok {
		m = t.loadFast(w, r, m, base, data)
	}
	n := t.bytes()
	for ; m != 0; m &= m - 1 {
		i := firstLane(m)
		addr := t.addr.at(w, r, i)
		b := w.locate(t.addr.space, addr, n, i, false, t.slot)
		if b == nil {
			return
		}
		if w.wk.race != nil {
			w.wk.race.access(w, i, t.addr.space, addr, n, t.kind(false))
		}
		for k, e := range t.elems {
			p := b[k*t.size:]
			switch {
			case t.size == 16:
				w.regs[e.slot][i], w.regs[e.slot+1][i] = loadBytes(p, 8), loadBytes(p[8:], 8)
			case t.strong:
				w.regs[e.slot][i] = t.value(loadWord(p, t.size), e.mask)
			default:
				w.regs[e.slot][i] = t.value(loadBytes(p, t.size), e.mask)
			}
		}
	}
	if t.strong {
		w.tire(16)
	}
}

// window returns the memory that most lanes of a plain access to global or shared
// memory are in, and whether the fast loops apply: scalars of 4 and 8 bytes.
func (t *transfer) window(w *warp) (base uint64, data []byte, ok bool) {
	if t.strong || t.size != 4 && t.size != 8 || w.wk.race != nil {
		return 0, nil, false
	}
	switch t.addr.space {
	case ptx.SpaceGlobal:
		r := &w.wk.cache[t.slot%cacheSlots]
		base, data, ok = r.Base, r.Data, !r.ReadOnly
	case ptx.SpaceShared:
		data, ok = w.block.shared, true
	}
	return base, data, ok && uint64(len(data)) >= t.bytes()
}

// loadFast handles lanes as long as their addresses are inside data and aligned,
// and returns the others.
func (t *transfer) loadFast(w *warp, r *lanes, m uint32, base uint64, data []byte) uint32 {
	if t.width != 0 && t.elems[0].mask != widthMask(t.width) {
		return m // sign extension
	}
	n := t.bytes()
	limit := uint64(len(data)) - n
	for ; m != 0; m &= m - 1 {
		i := firstLane(m)
		a := (r[i] + t.addr.disp) & t.addr.mask
		off := a - base
		if off > limit || a&(n-1) != 0 {
			return m
		}
		p := data[off : off+n]
		if t.size == 4 {
			for k := range t.elems {
				w.regs[t.elems[k].slot][i] = loadBytes(p[4*k:], 4)
			}
			continue
		}
		for k := range t.elems {
			w.regs[t.elems[k].slot][i] = loadBytes(p[8*k:], 8)
		}
	}
	return 0
}

// loadUniform reads a kernel parameter, which is the same for all lanes.
func (t *transfer) loadUniform(w *warp, m uint32) {
	p := w.wk.launch.params[t.addr.disp:]
	for k, e := range t.elems {
		var v lanes
		x := t.value(loadBytes(p[k*t.size:], t.size), e.mask)
		for i := range v {
			v[i] = x
		}
		copyLanes(&w.regs[e.slot], &v, m)
	}
}

// store executes a store for the lanes in m.
func (t *transfer) store(w *warp, m uint32) {
	r := w.src(t.addr.base)
	if base, data, ok := t.window(w); ok {
		m = t.storeFast(w, r, m, base, data)
	}
	n := t.bytes()
	for ; m != 0; m &= m - 1 {
		i := firstLane(m)
		addr := t.addr.at(w, r, i)
		b := w.locate(t.addr.space, addr, n, i, true, t.slot)
		if b == nil {
			return
		}
		if w.wk.race != nil {
			w.wk.race.access(w, i, t.addr.space, addr, n, t.kind(true))
		}
		for k, e := range t.elems {
			p, v := b[k*t.size:], w.src(e.slot)[i]
			switch {
			case t.size == 16:
				storeBytes(p, 8, v)
				storeBytes(p[8:], 8, w.regs[e.slot+1][i])
			case t.strong:
				storeWord(p, t.size, v)
			default:
				storeBytes(p, t.size, v)
			}
		}
	}
}

// storeFast is loadFast for stores.
func (t *transfer) storeFast(w *warp, r *lanes, m uint32, base uint64, data []byte) uint32 {
	n := t.bytes()
	limit := uint64(len(data)) - n
	for ; m != 0; m &= m - 1 {
		i := firstLane(m)
		a := (r[i] + t.addr.disp) & t.addr.mask
		off := a - base
		if off > limit || a&(n-1) != 0 {
			return m
		}
		p := data[off : off+n]
		if t.size == 4 {
			for k := range t.elems {
				storeBytes(p[4*k:], 4, w.src(t.elems[k].slot)[i])
			}
			continue
		}
		for k := range t.elems {
			storeBytes(p[8*k:], 8, w.src(t.elems[k].slot)[i])
		}
	}
	return 0
}

func (t *transfer) kind(write bool) accessKind {
	switch {
	case t.strong && write:
		return accessStrongWrite
	case t.strong:
		return accessStrongRead
	case write:
		return accessWrite
	}
	return accessRead
}
