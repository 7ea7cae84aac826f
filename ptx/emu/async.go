package emu

import (
	"slices"

	"nvtrace/ptx"
)

// Asynchronous copies are made when they are issued. That is one of the orders
// the ISA allows, so groups need no bookkeeping: commit and wait do nothing, and
// an mbarrier learns of a copy's bytes at once.

// An mbarrier object is a 64-bit word in shared memory. The ISA leaves its layout
// open; here it is, from the lowest bit: 20 bits arrivals still pending, 20 bits
// arrivals a phase expects, 21 bits signed bytes still to come, 3 bits phase.
const (
	mbarCountMask = 1<<20 - 1
	mbarTxShift   = 40
	mbarTxMask    = 1<<21 - 1
	mbarPhase     = 61
)

type mbarrier struct {
	pending, expected uint64
	tx                int64
	phase             uint64
}

func unpackMbarrier(v uint64) mbarrier {
	return mbarrier{v & mbarCountMask, v >> 20 & mbarCountMask, sext(v>>mbarTxShift, 21), v >> mbarPhase}
}

func (b mbarrier) pack() uint64 {
	return b.pending&mbarCountMask | b.expected&mbarCountMask<<20 | uint64(b.tx)&mbarTxMask<<mbarTxShift | b.phase<<mbarPhase
}

// endPhase ends the phase when nothing is pending.
func (b *mbarrier) endPhase() {
	if b.pending == 0 && b.tx == 0 {
		b.phase = (b.phase + 1) & 7
		b.pending = b.expected
	}
}

// arrive counts n arrivals.
func (b *mbarrier) arrive(n uint64) error {
	if n > b.pending {
		return errf(ErrInvalid, "%d arrivals at an mbarrier with %d pending", n, b.pending)
	}
	b.pending -= n
	return nil
}

// updateMbarrier applies f to the mbarrier at addr of lane i, and returns the old word.
func (w *warp) updateMbarrier(a *address, r *lanes, i int, slot uint32, f func(b *mbarrier) error) uint64 {
	space, addr := a.space, a.at(w, r, i)
	if space == ptx.SpaceGeneric {
		space, addr = splitGeneric(addr)
	}
	if space != ptx.SpaceShared {
		w.fail(i, errf(ErrAddress, "%#x, an mbarrier in %v memory", addr, space))
		return 0
	}
	p := w.locate(space, addr, 8, i, true, slot)
	if p == nil {
		return 0
	}
	old := loadBytes(p, 8)
	b := unpackMbarrier(old)
	if err := f(&b); err != nil {
		w.fail(i, err)
		return 0
	}
	storeBytes(p, 8, b.pack())
	return old
}

func asyncBuilders() map[string]builder {
	return map[string]builder{"mbarrier": buildMbarrier, "cp": buildCp}
}

func buildMbarrier(x *insn) error {
	op := x.takeOne(".init", ".inval", ".arrive", ".arrive_drop", ".test_wait", ".try_wait", ".pending_count", ".expect_tx", ".complete_tx")
	x.ignore(".release", ".acquire", ".relaxed")
	x.ignore(scopes...)
	switch op {
	case ".init", ".inval", ".expect_tx", ".complete_tx":
		return x.mbarrierSet(op)
	case ".arrive", ".arrive_drop":
		return x.mbarrierArrive(op == ".arrive_drop")
	case ".test_wait", ".try_wait":
		return x.mbarrierWait()
	case ".pending_count":
		return x.op1(ptx.B64, func(a uint64) uint64 { return a & mbarCountMask }, nil)
	}
	return x.badType()
}

// mbarrierSet compiles the operations without a result.
func (x *insn) mbarrierSet(op string) error {
	space := x.space()
	if err := x.nargs(1, 2); err != nil {
		return err
	}
	a, err := x.address(&x.args[0], space)
	if err != nil {
		return err
	}
	n := x.constant(0)
	if len(x.args) == 2 {
		if n, err = x.src(&x.args[1], ptx.B32); err != nil {
			return err
		}
	}
	slot := uint32(len(x.out.code))
	return x.step(func(w *warp, m uint32) {
		r, v := w.src(a.base), w.src(n)
		for ; m != 0 && w.err == nil; m &= m - 1 {
			i := firstLane(m)
			count := v[i] & 0xffffffff
			w.updateMbarrier(&a, r, i, slot, func(b *mbarrier) error { return b.set(op, count) })
		}
	})
}

func (b *mbarrier) set(op string, n uint64) error {
	switch op {
	case ".init":
		if n == 0 || n > mbarCountMask {
			return errf(ErrInvalid, "mbarrier with a count of %d", n)
		}
		*b = mbarrier{pending: n, expected: n}
	case ".inval":
		*b = mbarrier{}
	case ".expect_tx":
		b.tx += int64(n)
	case ".complete_tx":
		b.tx -= int64(n)
		b.endPhase()
	}
	return nil
}

// mbarrierArrive compiles arrive and arrive_drop with their forms.
func (x *insn) mbarrierArrive(drop bool) error {
	expect, noComplete := x.take(".expect_tx"), x.take(".noComplete")
	space := x.space()
	args := x.args
	d := int32(-1)
	var err error
	if len(args) != 0 && args[0].Kind != ptx.OperandAddr {
		if args[0].Kind != ptx.OperandSink {
			if d, _, err = x.dst(&args[0]); err != nil {
				return err
			}
		}
		args = args[1:]
	}
	if len(args) == 0 || len(args) > 2 {
		return x.nargs(2, 3)
	}
	a, err := x.address(&args[0], space)
	if err != nil {
		return err
	}
	n := x.constant(boolBit(!expect))
	if len(args) == 2 {
		if n, err = x.src(&args[1], ptx.B32); err != nil {
			return err
		}
	}
	slot := uint32(len(x.out.code))
	return x.step(func(w *warp, m uint32) {
		r, v := w.src(a.base), w.src(n)
		for ; m != 0 && w.err == nil; m &= m - 1 {
			i := firstLane(m)
			old := w.updateMbarrier(&a, r, i, slot, func(b *mbarrier) error {
				count := v[i] & 0xffffffff
				if expect {
					b.tx += int64(count)
					count = 1
				}
				if drop {
					b.expected -= min(count, b.expected)
				}
				err := b.arrive(count)
				if !noComplete {
					b.endPhase()
				}
				return err
			})
			if d >= 0 {
				w.regs[d][i] = old
			}
		}
	})
}

// mbarrierWait compiles test_wait and try_wait, by state or by parity. A phase
// that is not over is no reason to suspend: the warp's turn ends sooner.
func (x *insn) mbarrierWait() error {
	parity := x.take(".parity")
	space := x.space()
	if err := x.nargs(3, 4); err != nil { // the fourth is a time limit
		return err
	}
	p, err := x.predDst(&x.args[0])
	if err != nil {
		return err
	}
	a, err := x.address(&x.args[1], space)
	if err != nil {
		return err
	}
	t := ptx.B64
	if parity {
		t = ptx.B32
	}
	s, err := x.src(&x.args[2], t)
	if err != nil {
		return err
	}
	slot := uint32(len(x.out.code))
	return x.step(func(w *warp, m uint32) {
		r, v := w.src(a.base), w.src(s)
		var done uint32
		for l := m; l != 0 && w.err == nil; l &= l - 1 {
			i := firstLane(l)
			old := unpackMbarrier(w.updateMbarrier(&a, r, i, slot, func(*mbarrier) error { return nil }))
			if parity {
				done |= bit(old.phase&1 != v[i]&1) << i
			} else {
				done |= bit(old.phase != unpackMbarrier(v[i]).phase) << i
			}
		}
		w.setPred(p, m, done)
		w.tire(64)
	})
}

// buildCp compiles cp.async, cp.async.bulk and cp.reduce.async.bulk.
func buildCp(x *insn) error {
	reduce := x.take(".reduce")
	if !x.take(".async") {
		return x.badType()
	}
	bulk := x.take(".bulk")
	switch {
	case x.takeOne(".commit_group", ".wait_group", ".wait_all") != "":
		x.ignore(".read")
		return x.step(func(*warp, uint32) {})
	case x.take(".prefetch"):
		x.space()
		x.ignore(".L2")
		x.ignore(cacheHints...)
		return x.step(func(*warp, uint32) {})
	case x.take(".mbarrier"):
		return x.cpArrive()
	case bulk:
		return x.cpBulk(reduce)
	}
	return x.cpAsync()
}

// cpArrive compiles cp.async.mbarrier.arrive: the copies are complete, so the
// form with .noinc is a plain arrival and the other, which adds the arrival to what
// the phase waits for, changes nothing.
func (x *insn) cpArrive() error {
	x.take(".arrive")
	noinc := x.take(".noinc")
	space := x.space()
	if err := x.nargs(1); err != nil {
		return err
	}
	a, err := x.address(&x.args[0], space)
	if err != nil {
		return err
	}
	slot := uint32(len(x.out.code))
	return x.step(func(w *warp, m uint32) {
		if !noinc {
			return
		}
		r := w.src(a.base)
		for ; m != 0 && w.err == nil; m &= m - 1 {
			w.updateMbarrier(&a, r, firstLane(m), slot, func(b *mbarrier) error {
				err := b.arrive(1)
				b.endPhase()
				return err
			})
		}
	})
}

// cpSpaces takes the destination's and the source's space.
func (x *insn) cpSpaces() (dst, src ptx.Space, err error) {
	var found []ptx.Space
	for i, m := range x.mods {
		switch m {
		case ".shared", ".shared::cta", ".shared::cluster":
			found = append(found, ptx.SpaceShared)
		case ".global":
			found = append(found, ptx.SpaceGlobal)
		default:
			continue
		}
		x.used[i] = true
	}
	if len(found) != 2 {
		return 0, 0, x.badType()
	}
	return found[0], found[1], nil
}

// cpAsync compiles cp.async: 4, 8 or 16 bytes from global to shared memory, of
// which the last may be zeros instead.
func (x *insn) cpAsync() error {
	x.ignore(cacheHints...)
	dstSpace, srcSpace, err := x.cpSpaces()
	if err != nil {
		return err
	}
	if err := x.nargs(3, 4, 5); err != nil {
		return err
	}
	dst, err := x.address(&x.args[0], dstSpace)
	if err != nil {
		return err
	}
	src, err := x.address(&x.args[1], srcSpace)
	if err != nil {
		return err
	}
	size, err := x.immediate(2, 16)
	if err != nil {
		return err
	}
	if size != 4 && size != 8 && size != 16 {
		return errf(ErrInvalid, "copy of %d bytes", size)
	}
	some, skip, not := x.constant(size), int32(0), false
	if len(x.args) > 3 {
		if x.isPred(&x.args[3]) {
			skip, not, err = x.pred(&x.args[3])
		} else {
			some, err = x.src(&x.args[3], ptx.B32)
		}
		if err != nil {
			return err
		}
	}
	slot := uint32(len(x.out.code))
	return x.step(func(w *warp, m uint32) {
		rd, rs, sizes := w.src(dst.base), w.src(src.base), w.src(some)
		zero := w.preds[skip]
		if not {
			zero = ^zero
		}
		for ; m != 0 && w.err == nil; m &= m - 1 {
			i := firstLane(m)
			n := min(sizes[i]&0xffffffff, size)
			if zero>>i&1 != 0 {
				n = 0
			}
			w.copyAsync(&dst, &src, rd, rs, i, size, n, slot)
		}
	})
}

// copyAsync copies n bytes for lane i and clears the rest of size.
func (w *warp) copyAsync(dst, src *address, rd, rs *lanes, i int, size, n uint64, slot uint32) {
	d := w.locate(dst.space, dst.at(w, rd, i), size, i, true, slot)
	if d == nil {
		return
	}
	addr := src.at(w, rs, i)
	if addr&(size-1) != 0 {
		w.fail(i, errf(ErrMisaligned, "%#x, source of a copy of %d bytes", addr, size))
		return
	}
	var s []byte
	if n != 0 {
		if s = w.locateAny(src.space, addr, n, i, false, slot+1); s == nil {
			return
		}
	}
	clear(d[copy(d, s):])
}

// locateAny is locate for sizes that are no power of two.
func (w *warp) locateAny(space ptx.Space, addr, n uint64, i int, write bool, slot uint32) []byte {
	if space == ptx.SpaceGeneric {
		space, addr = splitGeneric(addr)
	}
	if space == ptx.SpaceShared {
		return w.locateShared(addr, n, i)
	}
	return w.locateGlobal(addr, n, i, write, slot)
}

// A bulkCopy is a compiled cp.async.bulk or cp.reduce.async.bulk.
type bulkCopy struct {
	dst, src address
	size     int32
	bar      address
	hasBar   bool
	reduce   atomicOp
	elem     int
	mask     int32 // operand with the blocks of a multicast; noSlot for none
	slot     uint32
}

func (x *insn) cpBulk(reduce bool) error {
	if slices.Contains(x.mods, ".tensor") {
		return errf(ErrNotImplemented, "tensor copies")
	}
	c := &bulkCopy{slot: uint32(len(x.out.code)), mask: noSlot}
	c.hasBar = x.take(".mbarrier::complete_tx::bytes")
	x.take(".bulk_group")
	multicast := x.take(".multicast::cluster")
	x.ignore(".noftz")
	x.ignore(cacheHints...)
	if reduce {
		t := x.lastType()
		op := x.takeOne(".and", ".or", ".xor", ".add", ".inc", ".dec", ".min", ".max")
		if c.reduce = atomicOps[op]; c.reduce == nil {
			c.reduce, _, _ = typedAtomic(op, t)
		}
		if c.elem = t.Size(); c.reduce == nil || c.elem == 0 || c.elem > 8 {
			return x.badType()
		}
	}
	dst, src, err := x.cpSpaces()
	if err != nil {
		return err
	}
	if err := x.nargs(3, 4, 5, 6); err != nil {
		return err
	}
	if c.dst, err = x.address(&x.args[0], dst); err != nil {
		return err
	}
	if c.src, err = x.address(&x.args[1], src); err != nil {
		return err
	}
	if c.size, err = x.src(&x.args[2], ptx.B32); err != nil {
		return err
	}
	if c.hasBar {
		if len(x.args) < 4 {
			return x.nargs(4)
		}
		if c.bar, err = x.address(&x.args[3], ptx.SpaceShared); err != nil {
			return err
		}
	}
	if multicast {
		if len(x.args) < 5 {
			return x.nargs(5)
		}
		if c.mask, err = x.src(&x.args[4], ptx.B16); err != nil {
			return err
		}
	}
	return x.step(c.run)
}

func (c *bulkCopy) run(w *warp, m uint32) {
	rd, rs, sizes := w.src(c.dst.base), w.src(c.src.base), w.src(c.size)
	for ; m != 0 && w.err == nil; m &= m - 1 {
		i := firstLane(m)
		n := sizes[i] & 0xffffffff
		d, s := c.dst.at(w, rd, i), c.src.at(w, rs, i)
		if (d|s|n)&15 != 0 {
			w.fail(i, errf(ErrMisaligned, "bulk copy of %d bytes from %#x to %#x, all must be multiples of 16", n, s, d))
			return
		}
		if c.mask == noSlot {
			c.copy(w, i, d, s, n, 0)
			continue
		}
		for rank := range w.block.cluster.blocks {
			if w.src(c.mask)[i]>>rank&1 != 0 {
				c.copy(w, i, d&(1<<clusterShift-1), s, n, uint64(rank+1)<<clusterShift)
			}
		}
	}
}

// copy makes the copy to one block; rank is added to shared addresses of the
// destination.
func (c *bulkCopy) copy(w *warp, i int, d, s, n, rank uint64) {
	if n != 0 {
		to := w.locateAny(c.dst.space, d+rank, n, i, true, c.slot)
		if to == nil {
			return
		}
		from := w.locateAny(c.src.space, s, n, i, false, c.slot+1)
		if from == nil {
			return
		}
		c.combine(w, to, from)
	}
	if c.hasBar {
		bar := c.bar
		if rank != 0 {
			bar.mask &= 1<<clusterShift - 1
		}
		r := *w.src(bar.base)
		r[i] = (r[i]+bar.disp)&bar.mask + rank
		bar.disp, bar.mask = 0, ^uint64(0)
		w.updateMbarrier(&bar, &r, i, c.slot, func(b *mbarrier) error { return b.set(".complete_tx", n) })
	}
}

// combine copies, or reduces element by element.
func (c *bulkCopy) combine(w *warp, to, from []byte) {
	if c.reduce == nil {
		copy(to, from)
		return
	}
	for k := 0; k < len(to); k += c.elem {
		b := loadBytes(from[k:], c.elem)
		if c.elem >= 4 && c.dst.space == ptx.SpaceGlobal {
			updateWord(to[k:], c.elem, func(old uint64) uint64 { return c.reduce(old, b, 0) })
			continue
		}
		mu := &w.wk.launch.machine.atomicMu
		mu.Lock()
		storeBytes(to[k:], c.elem, c.reduce(loadBytes(to[k:], c.elem), b, 0))
		mu.Unlock()
	}
}
