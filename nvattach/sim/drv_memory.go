package sim

import (
	"encoding/binary"

	"nvtrace/nvattach/api/cuda"
)

// drvMemory are functions that allocate memory, free it and ask about it.
func drvMemory() map[string]handler {
	return map[string]handler{
		"cuMemGetInfo_v2": func(c *call) result { return c.memInfo(c.arg(0), c.arg(1)) },
		"cuMemAlloc_v2": func(c *call) result {
			_, r := c.allocate(c.arg(0), c.arg(1), deviceMemory, 0)
			return r
		},
		"cuMemAllocPitch_v2": func(c *call) result { return c.allocPitch(c.arg(0), c.arg(1), c.arg(2), c.arg(3)) },
		"cuMemFree_v2":       func(c *call) result { return c.free(c.arg(0), deviceMemory, managedMemory) },
		"cuMemAllocManaged": func(c *call) result {
			if f := c.u32(2); f != 1 && f != 2 && f != 4 {
				return errInvalidValue
			}
			_, r := c.allocate(c.arg(0), c.arg(1), managedMemory, c.u32(2))
			return r
		},
		"cuMemAllocHost_v2": func(c *call) result {
			_, r := c.allocate(c.arg(0), c.arg(1), pinnedMemory, 0)
			return r
		},
		"cuMemHostAlloc": func(c *call) result {
			_, r := c.allocate(c.arg(0), c.arg(1), pinnedMemory, c.u32(2))
			return r
		},
		"cuMemFreeHost":                func(c *call) result { return c.free(c.arg(0), pinnedMemory) },
		"cuMemHostRegister_v2":         func(c *call) result { return c.hostRegister(c.arg(0), c.arg(1), c.u32(2)) },
		"cuMemHostUnregister":          func(c *call) result { return c.hostUnregister(c.arg(0)) },
		"cuMemHostGetDevicePointer_v2": hostGetDevicePointer,
		"cuMemHostGetFlags":            hostGetFlags,
		"cuMemGetAddressRange_v2": func(c *call) result {
			m := c.p.arena.at(c.arg(2))
			if m == nil {
				return errNotFound
			}
			c.maybe64(c.arg(0), m.Base)
			c.maybe64(c.arg(1), uint64(len(m.Data)))
			return success
		},
		"cuPointerGetAttribute": func(c *call) result { return c.pointerAttribute(c.arg(0), c.u32(1), c.arg(2)) },
		"cuPointerGetAttributes": func(c *call) result {
			n := c.u32(0)
			if n > 64 {
				return errInvalidValue
			}
			for i := range uint64(n) {
				id, out := c.get32(c.arg(1)+4*i), c.get64(c.arg(2)+8*i)
				if r := c.pointerAttribute(out, id, c.arg(3)); r != success { // unregistered memory: zeroes
					c.maybe64(out, 0)
				}
			}
			return success
		},
		"cuMemAdvise": needsContext, "cuMemAdvise_v2": needsContext,
		"cuMemPrefetchAsync":    func(c *call) result { return c.streamNothing(c.arg(3)) },
		"cuMemPrefetchAsync_v2": func(c *call) result { return c.streamNothing(c.arg(5)) },
	}
}

// memInfo is cuMemGetInfo(free, total). What is free is told by the limit of the simulation, if
// that is below the device's memory: programs allocate a share of it.
func (c *call) memInfo(free, total uint64) result {
	if _, r := c.context(); r != success {
		return r
	}
	all, limit, used := c.p.sim.gpu.Memory, c.p.sim.opts.MemoryLimit, c.p.arena.Used()
	c.put64(free, min(all, limit)-min(used, min(all, limit)))
	c.put64(total, all)
	return success
}

// allocPitch allocates rows, each beginning at a multiple of 512 bytes.
func (c *call) allocPitch(out, pitch, width, height uint64) result {
	if width == 0 || height == 0 || width > 1<<40 || height > 1<<32 {
		return errInvalidValue
	}
	p := (width + 511) &^ 511
	if p*height/height != p {
		return errInvalidValue
	}
	_, r := c.allocate(out, p*height, deviceMemory, 0)
	if r == success {
		c.put64(pitch, p)
	}
	return r
}

// hostGetDevicePointer is (device pointer, host pointer, flags): they are the same.
func hostGetDevicePointer(c *call) result {
	m := c.p.arena.at(c.arg(1))
	if m == nil || m.kind != pinnedMemory && m.kind != registeredMemory && m.kind != managedMemory && m.kind != sharedMemory {
		return errInvalidValue
	}
	c.put64(c.arg(0), c.arg(1))
	return success
}

// hostGetFlags is (flags, pointer).
func hostGetFlags(c *call) result {
	m := c.p.arena.at(c.arg(1))
	if m == nil || m.kind != pinnedMemory && m.kind != registeredMemory {
		return errInvalidValue
	}
	c.put32(c.arg(0), m.flags|2) // mapped, as all are with unified addresses
	return success
}

// streamNothing puts an operation without effect into a stream.
func (c *call) streamNothing(h uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	_, r = c.submit(s, &work{kind: nodeEmpty, run: func(*cudaContext) result { return success }})
	return r
}

// pointerAttribute is cuPointerGetAttribute: ids are those of CUpointer_attribute.
func (c *call) pointerAttribute(out uint64, id uint32, ptr uint64) result {
	m := c.p.arena.at(ptr)
	if m == nil || m.kind == internalMemory {
		return errInvalidValue
	}
	x := c.p.devices[m.dev].primary
	if cur := c.th.current(); cur != nil && cur.dev.ordinal == m.dev {
		x = cur
	}
	host := m.kind == pinnedMemory || m.kind == registeredMemory
	switch id {
	case cuda.CU_POINTER_ATTRIBUTE_CONTEXT:
		if x == nil {
			return errInvalidValue
		}
		c.put64(out, x.handle)
	case cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		if host {
			c.put32(out, cuda.CU_MEMORYTYPE_HOST)
		} else {
			c.put32(out, cuda.CU_MEMORYTYPE_DEVICE)
		}
	case cuda.CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		c.put64(out, ptr)
	case cuda.CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if m.kind == deviceMemory || m.kind == mappedMemory {
			return errInvalidValue
		}
		c.put64(out, ptr)
	case cuda.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		c.put32(out, 0)
	case cuda.CU_POINTER_ATTRIBUTE_BUFFER_ID:
		c.put64(out, m.Base)
	case cuda.CU_POINTER_ATTRIBUTE_IS_MANAGED:
		c.put32(out, uint32(bool32(m.kind == managedMemory)))
	case cuda.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		c.put32(out, uint32(m.dev))
	case cuda.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		c.put32(out, 0)
	case cuda.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		c.put64(out, m.Base)
	case cuda.CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		c.put64(out, uint64(len(m.Data)))
	case cuda.CU_POINTER_ATTRIBUTE_MAPPED:
		c.put32(out, 1)
	default:
		return errNotSupported
	}
	return success
}

// drvCopies are copies and memsets. The directions in the names do not matter: addresses tell them.
func drvCopies() map[string]handler {
	m := map[string]handler{}
	// Names of plain copies: destination, source, bytes, and with Async the stream.
	for _, name := range []string{"cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2"} {
		m[name] = func(c *call) result { return c.copyCall(plainCopy(c.arg(0), c.arg(1), c.arg(2)), 0, false) }
	}
	for _, name := range []string{"cuMemcpyAsync", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2"} {
		m[name] = func(c *call) result {
			return c.copyCall(plainCopy(c.arg(0), c.arg(1), c.arg(2)), c.arg(3), true)
		}
	}
	m["cuMemcpyPeer"] = func(c *call) result { return c.copyCall(plainCopy(c.arg(0), c.arg(2), c.arg(4)), 0, false) }
	m["cuMemcpyPeerAsync"] = func(c *call) result {
		return c.copyCall(plainCopy(c.arg(0), c.arg(2), c.arg(4)), c.arg(5), true)
	}
	copy2D := func(c *call) result {
		k, r := c.memcpy2D(c.arg(0))
		if r != success {
			return r
		}
		return c.copyCall(k, 0, false)
	}
	m["cuMemcpy2D_v2"], m["cuMemcpy2DUnaligned_v2"] = copy2D, copy2D
	m["cuMemcpy2DAsync_v2"] = func(c *call) result {
		k, r := c.memcpy2D(c.arg(0))
		if r != success {
			return r
		}
		return c.copyCall(k, c.arg(1), true)
	}
	m["cuMemcpy3D_v2"] = func(c *call) result {
		k, r := c.memcpy3D(c.arg(0))
		if r != success {
			return r
		}
		return c.copyCall(k, 0, false)
	}
	m["cuMemcpy3DAsync_v2"] = func(c *call) result {
		k, r := c.memcpy3D(c.arg(0))
		if r != success {
			return r
		}
		return c.copyCall(k, c.arg(1), true)
	}
	for i, size := range []uint64{1, 2, 4} {
		bits := []string{"8", "16", "32"}[i]
		m["cuMemsetD"+bits+"_v2"] = func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), value: c.u32(1), size: size, width: c.arg(2), height: 1}, 0, false)
		}
		m["cuMemsetD"+bits+"Async"] = func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), value: c.u32(1), size: size, width: c.arg(2), height: 1}, c.arg(3), true)
		}
		m["cuMemsetD2D"+bits+"_v2"] = func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), pitch: c.arg(1), value: c.u32(2), size: size, width: c.arg(3), height: c.arg(4)}, 0, false)
		}
		m["cuMemsetD2D"+bits+"Async"] = func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), pitch: c.arg(1), value: c.u32(2), size: size, width: c.arg(3), height: c.arg(4)}, c.arg(5), true)
		}
	}
	return m
}

// copyCall is copyIn for the handle of a stream.
func (c *call) copyCall(k *copy2, h uint64, async bool) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	return c.copyIn(s, k, async)
}

// fillCall is fillIn for the handle of a stream.
func (c *call) fillCall(f *fill, h uint64, async bool) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	return c.fillIn(s, f, async)
}

// A side is one half of CUDA_MEMCPY2D or 3D.
type side struct{ x, y, z, kind, host, dev, pitch, height uint64 }

// addr is where the side begins; false for arrays, which there are none of.
func (s *side) addr() (uint64, bool) {
	base := s.dev
	switch s.kind {
	case 1: // host
		base = s.host
	case 2, 4: // device, unified
	default:
		return 0, false
	}
	return base + s.x + s.y*s.pitch + s.z*s.pitch*s.height, true
}

// memcpy2D reads a CUDA_MEMCPY2D (cuda.h, 128 bytes).
func (c *call) memcpy2D(addr uint64) (*copy2, result) {
	var b [128]byte
	if !c.read(addr, b[:]) {
		return nil, errInvalidValue
	}
	w := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	src := side{x: w(0), y: w(8), kind: w(16) & 0xffffffff, host: w(24), dev: w(32), pitch: w(48)}
	dst := side{x: w(56), y: w(64), kind: w(72) & 0xffffffff, host: w(80), dev: w(88), pitch: w(104)}
	return sides(&src, &dst, w(112), w(120), 1)
}

// memcpy3D reads a CUDA_MEMCPY3D (cuda.h, 200 bytes).
func (c *call) memcpy3D(addr uint64) (*copy2, result) {
	var b [200]byte
	if !c.read(addr, b[:]) {
		return nil, errInvalidValue
	}
	w := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	src := side{x: w(0), y: w(8), z: w(16), kind: w(32) & 0xffffffff, host: w(40), dev: w(48), pitch: w(72), height: w(80)}
	dst := side{x: w(88), y: w(96), z: w(104), kind: w(120) & 0xffffffff, host: w(128), dev: w(136), pitch: w(160), height: w(168)}
	return sides(&src, &dst, w(176), w(184), w(192))
}

// sides makes a copy of two descriptions. A pitch or height of 0 is that of the copy.
func sides(src, dst *side, width, height, depth uint64) (*copy2, result) {
	for _, s := range []*side{src, dst} {
		if s.pitch == 0 {
			s.pitch = width
		}
		if s.height == 0 {
			s.height = height
		}
		if s.pitch < width || s.x > 1<<46 || s.y > 1<<32 || s.z > 1<<32 || s.pitch > 1<<46 || s.height > 1<<32 {
			return nil, errInvalidValue
		}
	}
	from, a := src.addr()
	to, b := dst.addr()
	if !a || !b {
		return nil, errNotSupported
	}
	return &copy2{
		dst: to, src: from, dstPitch: dst.pitch, srcPitch: src.pitch,
		dstSlice: dst.pitch * dst.height, srcSlice: src.pitch * src.height, width: width, height: height, depth: depth,
	}, success
}

// drvPools are pools of memory, and allocations in the order of a stream. Pools have handles and a
// threshold that can be read back; what is freed goes back to the arena at once.
func drvPools() map[string]handler {
	alloc := func(stream int) handler {
		return func(c *call) result { return c.allocAsync(c.arg(0), c.arg(1), c.arg(stream)) }
	}
	defaultPool := func(c *call) result {
		if _, r := c.deviceOf(c.arg(1)); r != success {
			return r
		}
		c.put64(c.arg(0), c.p.defaultPool())
		return success
	}
	return map[string]handler{
		"cuMemAllocAsync": alloc(2), "cuMemAllocFromPoolAsync": alloc(3),
		"cuMemFreeAsync":            func(c *call) result { return c.freeAsync(c.arg(0), c.arg(1)) },
		"cuDeviceGetDefaultMemPool": defaultPool, "cuDeviceGetMemPool": defaultPool, "cuDeviceSetMemPool": ok,
		"cuMemPoolCreate": func(c *call) result {
			h := c.p.add(&pool{})
			if h == 0 {
				return errOutOfMemory
			}
			c.put64(c.arg(0), h)
			return success
		},
		"cuMemPoolDestroy": func(c *call) result {
			if _, good := object[*pool](c.p, c.arg(0)); !good {
				return errInvalidValue
			}
			delete(c.p.objects, c.arg(0))
			return success
		},
		"cuMemPoolTrimTo":       ok,
		"cuMemPoolSetAccess":    ok,
		"cuMemPoolSetAttribute": poolSet,
		"cuMemPoolGetAttribute": poolGet,
	}
}

// defaultPool returns the handle of the pool that all devices share.
func (p *Process) defaultPool() uint64 {
	for h, o := range p.objects {
		if q, good := o.(*pool); good && q == &p.pool {
			return h
		}
	}
	return p.add(&p.pool)
}

// poolSet and poolGet are (pool, attribute, value); numbers are those of CUmemPool_attribute.
func poolSet(c *call) result {
	q, good := object[*pool](c.p, c.arg(0))
	if !good {
		return errInvalidValue
	}
	if c.u32(1) == 4 { // release threshold
		q.threshold = c.get64(c.arg(2))
	}
	return success
}

func poolGet(c *call) result {
	q, good := object[*pool](c.p, c.arg(0))
	if !good {
		return errInvalidValue
	}
	switch id := c.u32(1); id {
	case 1, 2, 3:
		c.put32(c.arg(2), 1)
	case 4:
		c.put64(c.arg(2), q.threshold)
	case 5, 6, 7, 8:
		c.put64(c.arg(2), c.p.arena.Used())
	default:
		return errInvalidValue
	}
	return success
}

// allocAsync allocates in the order of a stream. The memory is there at once,
// which is early but never late.
func (c *call) allocAsync(out, size, h uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	if s.cap != nil {
		return errNotSupported
	}
	_, r = c.allocate(out, size, deviceMemory, 0)
	return r
}

// freeAsync frees in the order of a stream.
func (c *call) freeAsync(addr, h uint64) result {
	s, r := c.stream(h)
	if r != success || addr == 0 {
		return r
	}
	if s.cap != nil {
		return errNotSupported
	}
	if c.owned(addr, []regionKind{deviceMemory}) == nil {
		return errInvalidValue
	}
	p := c.p
	_, r = c.submit(s, &work{kind: nodeFree, run: func(*cudaContext) result {
		_ = p.arena.Free(addr)
		return success
	}})
	return r
}
