package sim

import "slices"

// granularity is what sizes of memory that is mapped, and addresses for it, are multiples of.
const granularity = 2 << 20

// maxReserved bounds the ranges of addresses that a program reserves.
const maxReserved = 1 << 14

// drvMapped are functions that reserve addresses, and map memory there. It can be used from then on, before
// cuMemSetAccess, too.
func drvMapped() map[string]handler {
	return map[string]handler{
		"cuMemGetAllocationGranularity": func(c *call) result {
			if _, r := c.allocationProp(c.arg(1)); r != success {
				return r
			}
			c.put64(c.arg(0), granularity)
			return success
		},
		"cuMemAddressReserve": addressReserve,
		"cuMemAddressFree":    addressFree,
		"cuMemCreate":         memCreate,
		"cuMemRelease": func(c *call) result {
			x, ok := object[*physical](c.p, c.arg(0))
			if !ok || x.holds == 0 {
				return errInvalidValue
			}
			x.holds--
			c.p.endPhysical(x)
			return success
		},
		"cuMemRetainAllocationHandle": func(c *call) result {
			for _, x := range c.p.physicals {
				if x.at != 0 && c.arg(1)-x.at < x.size {
					x.holds++
					c.put64(c.arg(0), x.handle)
					return success
				}
			}
			return errInvalidValue
		},
		"cuMemMap":       memMap,
		"cuMemUnmap":     memUnmap,
		"cuMemSetAccess": func(c *call) result { return c.inReserved(c.arg(0), c.arg(1)) },
	}
}

// allocationProp returns the device of a CUmemAllocationProp (cuda.h): type, handle types, and the location's type and number.
func (c *call) allocationProp(addr uint64) (dev int, r result) {
	const pinned, onDevice = 1, 1
	if c.get32(addr) != pinned || c.get32(addr+8) != onDevice {
		return 0, errInvalidValue
	}
	d, r := c.deviceOf(uint64(c.get32(addr + 12)))
	if r != success {
		return 0, r
	}
	return d.ordinal, success
}

// addressReserve is (address, size, alignment, wish, flags).
func addressReserve(c *call) result {
	size, align := c.arg(1), max(c.arg(2), granularity)
	if _, r := c.context(); r != success {
		return r
	}
	if size == 0 || size%granularity != 0 || align&(align-1) != 0 || align > 1<<40 {
		return errInvalidValue
	}
	if len(c.p.reserved) >= maxReserved {
		return errOutOfMemory
	}
	addr, ok := c.p.arena.reserve(size, align)
	if !ok {
		return errOutOfMemory
	}
	if c.put64(c.arg(0), addr); c.bad {
		c.p.arena.unreserve(addr)
		return errInvalidValue
	}
	if c.p.reserved == nil {
		c.p.reserved = make(map[uint64]uint64)
	}
	c.p.reserved[addr] = size
	return success
}

// addressFree is (address, size): all that was reserved, and nothing is mapped there.
func addressFree(c *call) result {
	addr, size := c.arg(0), c.arg(1)
	if c.p.reserved[addr] != size || size == 0 || c.p.arena.overlaps(addr, size) {
		return errInvalidValue
	}
	delete(c.p.reserved, addr)
	c.p.arena.unreserve(addr)
	return success
}

// inReserved says whether a range lies in one that was reserved.
func (c *call) inReserved(addr, size uint64) result {
	for base, n := range c.p.reserved {
		if addr-base < n && size <= n-(addr-base) && size > 0 {
			return success
		}
	}
	return errInvalidValue
}

// memCreate is (handle, size, properties, flags).
func memCreate(c *call) result {
	size := c.arg(1)
	dev, r := c.allocationProp(c.arg(2))
	switch {
	case r != success:
		return r
	case size == 0 || size%granularity != 0 || c.arg(3) != 0:
		return errInvalidValue
	case !c.p.arena.hold(size):
		return errOutOfMemory
	}
	x := &physical{size: size, dev: dev, holds: 1}
	if x.handle = c.p.add(x); x.handle == 0 {
		c.p.arena.leave(size)
		return errOutOfMemory
	}
	c.p.physicals = append(c.p.physicals, x)
	if c.put64(c.arg(0), x.handle); c.bad {
		x.holds = 0
		c.p.endPhysical(x)
		return errInvalidValue
	}
	return success
}

// endPhysical gives memory back that nobody holds and that is mapped nowhere.
func (p *Process) endPhysical(x *physical) {
	if x.holds > 0 || x.at != 0 {
		return
	}
	delete(p.objects, x.handle)
	p.physicals = slices.DeleteFunc(p.physicals, func(y *physical) bool { return x == y })
	p.arena.leave(x.size)
}

// memMap is (address, size, offset, handle, flags).
func memMap(c *call) result {
	addr, size := c.arg(0), c.arg(1)
	x, ok := object[*physical](c.p, c.arg(3))
	switch {
	case !ok || x.holds == 0 || size != x.size || addr%granularity != 0 || c.arg(2) != 0 || c.arg(4) != 0:
		return errInvalidValue
	case c.inReserved(addr, size) != success || c.p.arena.overlaps(addr, size):
		return errInvalidValue
	case x.at != 0:
		return errNotSupported
	case !c.p.arena.mapAt(addr, size, x.dev):
		return errMapFailed
	}
	x.at = addr
	return success
}

// memUnmap is (address, size): all of what is mapped there, when the device is idle.
func memUnmap(c *call) result {
	ctx, r := c.context()
	if r == success {
		r = c.unsafe()
	}
	if r != success {
		return r
	}
	addr, size := c.arg(0), c.arg(1)
	var list []*physical
	mapped := func() (n uint64) {
		list = nil
		for _, x := range c.p.physicals {
			if x.at != 0 && x.at-addr < size && x.size <= size-(x.at-addr) {
				list = append(list, x)
				n += x.size
			}
		}
		return n
	}
	if size == 0 || mapped() != size {
		return errInvalidValue
	}
	if r = c.sync(ctx); mapped() != size { // another thread was here
		return errInvalidValue
	}
	for _, x := range list {
		c.p.arena.unmap(x.at, x.size)
		x.at = 0
		c.p.endPhysical(x)
	}
	return r
}
