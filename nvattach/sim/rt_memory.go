package sim

import "encoding/binary"

// The cudaMemcpyKinds.
const (
	hostToHost     = 0
	hostToDevice   = 1
	deviceToHost   = 2
	deviceToDevice = 3
	copyDefault    = 4
)

// runtimeCopy is a copy of the runtime, whose kind has to fit the addresses: the address of a device
// must be one. Kinds that say host take any address, as with unified addressing a pointer of a
// device is accepted there.
func (c *call) runtimeCopy(k *copy2, kind uint32, stream uint64, async bool) result {
	if kind > copyDefault {
		return errInvalidDirection
	}
	if k.width == 0 || k.height == 0 || k.depth == 0 {
		_, r := c.context()
		return r
	}
	a := c.p.arena
	if (kind == hostToDevice || kind == deviceToDevice) && a.at(k.dst) == nil || (kind == deviceToHost || kind == deviceToDevice) && a.at(k.src) == nil {
		if r := needsContext(c); r != success {
			return r
		}
		return errInvalidValue
	}
	return c.copyCall(k, stream, async)
}

// rows is a two-dimensional copy.
func rows(dst, dpitch, src, spitch, width, height uint64) *copy2 {
	return &copy2{dst: dst, src: src, dstPitch: dpitch, srcPitch: spitch, width: width, height: height, depth: 1}
}

// rtMemory are the runtime's functions for memory. A copy in any shape (bytes, rows, slices, to and
// from a variable, between devices) is first read into a copy2, then made in a stream or at once.
func rtMemory(lib int) map[string]handler {
	async := func(streamArg int, f func(c *call) (*copy2, uint32, result)) handler {
		return func(c *call) result {
			k, kind, r := f(c)
			if r != success {
				return r
			}
			stream := uint64(0)
			if streamArg >= 0 {
				stream = c.arg(streamArg)
			}
			h := func(c *call) result { return c.runtimeCopy(k, kind, stream, streamArg >= 0) }
			return withDriver(func(c *call) *underlying { return c.copyUnderlying(k, kind, stream, streamArg >= 0) }, h)(c)
		}
	}
	plain := func(c *call) (*copy2, uint32, result) {
		return plainCopy(c.arg(0), c.arg(1), c.arg(2)), c.u32(3), success
	}
	two := func(c *call) (*copy2, uint32, result) {
		if c.arg(1) < c.arg(4) || c.arg(3) < c.arg(4) {
			return nil, 0, errInvalidPitch
		}
		return rows(c.arg(0), c.arg(1), c.arg(2), c.arg(3), c.arg(4), c.arg(5)), c.u32(6), success
	}
	three := func(c *call) (*copy2, uint32, result) { return c.copy3D(c.arg(0)) }
	to := func(c *call) (*copy2, uint32, result) {
		addr, size, r := c.symbol(c.arg(0))
		if r == success && (c.arg(3) > size || c.arg(2) > size-c.arg(3)) {
			r = errInvalidValue
		}
		return plainCopy(addr+c.arg(3), c.arg(1), c.arg(2)), c.u32(4), r
	}
	from := func(c *call) (*copy2, uint32, result) {
		addr, size, r := c.symbol(c.arg(1))
		if r == success && (c.arg(3) > size || c.arg(2) > size-c.arg(3)) {
			r = errInvalidValue
		}
		return plainCopy(c.arg(0), addr+c.arg(3), c.arg(2)), c.u32(4), r
	}
	peer := func(c *call) (*copy2, uint32, result) {
		return plainCopy(c.arg(0), c.arg(2), c.arg(4)), copyDefault, success
	}
	m := map[string]handler{
		"cudaMemcpy": async(-1, plain), "cudaMemcpyAsync": async(4, plain),
		"cudaMemcpy2D": async(-1, two), "cudaMemcpy2DAsync": async(7, two),
		"cudaMemcpy3D": async(-1, three), "cudaMemcpy3DAsync": async(1, three),
		"cudaMemcpyToSymbol": async(-1, to), "cudaMemcpyToSymbolAsync": async(5, to),
		"cudaMemcpyFromSymbol": async(-1, from), "cudaMemcpyFromSymbolAsync": async(5, from),
		"cudaMemcpyPeer": async(-1, peer), "cudaMemcpyPeerAsync": async(5, peer),
		"cudaGetSymbolAddress": func(c *call) result {
			addr, _, r := c.symbol(c.arg(1))
			if r == success {
				c.put64(c.arg(0), addr)
			}
			return r
		},
		"cudaGetSymbolSize": func(c *call) result {
			_, size, r := c.symbol(c.arg(1))
			if r == success {
				c.put64(c.arg(0), size)
			}
			return r
		},
		"cudaMalloc": func(c *call) result {
			if c.arg(1) == 0 {
				c.put64(c.arg(0), 0)
				return needsContext(c)
			}
			_, r := c.allocate(c.arg(0), c.arg(1), deviceMemory, 0)
			return r
		},
		"cudaMallocManaged": func(c *call) result {
			if f := c.u32(2); f != 1 && f != 2 && f != 4 {
				return errInvalidValue
			}
			_, r := c.allocate(c.arg(0), c.arg(1), managedMemory, c.u32(2))
			return r
		},
		"cudaFree": func(c *call) result { return c.free(c.arg(0), deviceMemory, managedMemory) },
		"cudaMalloc3D": func(c *call) result { // (cudaPitchedPtr*, extent on the stack)
			w, h, d := c.arg(6), c.arg(7), c.arg(8)
			if h > 1<<32 || d > 1<<32 || h*d > 1<<40 {
				return errInvalidValue
			}
			if r := c.allocPitch(c.arg(0), c.arg(0)+8, w, h*d); r != success {
				return r
			}
			c.put64(c.arg(0)+16, w)
			c.put64(c.arg(0)+24, h)
			return success
		},
		"cudaMemGetInfo": func(c *call) result { return c.memInfo(c.arg(0), c.arg(1)) },
		"cudaMemset": func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), value: c.u32(1), size: 1, width: c.arg(2), height: 1}, 0, false)
		},
		"cudaMemsetAsync": func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), value: c.u32(1), size: 1, width: c.arg(2), height: 1}, c.arg(3), true)
		},
		"cudaMemset2D": func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), pitch: c.arg(1), value: c.u32(2), size: 1, width: c.arg(3), height: c.arg(4)}, 0, false)
		},
		"cudaMemset2DAsync": func(c *call) result {
			return c.fillCall(&fill{dst: c.arg(0), pitch: c.arg(1), value: c.u32(2), size: 1, width: c.arg(3), height: c.arg(4)}, c.arg(5), true)
		},
		"cudaMemset3D":             func(c *call) result { return c.fill3D(0, false) },
		"cudaMemset3DAsync":        func(c *call) result { return c.fill3D(c.arg(1), true) },
		"cudaPointerGetAttributes": func(c *call) result { return c.pointerAttributes(lib) },
		"cudaMemPrefetchAsync_v2":  func(c *call) result { return c.streamNothing(c.arg(4)) },
	}
	if lib == libCudart13 {
		m["cudaMemPrefetchAsync"] = m["cudaMemPrefetchAsync_v2"]
	} else {
		m["cudaMemPrefetchAsync"] = func(c *call) result { return c.streamNothing(c.arg(3)) }
	}
	return m
}

// fill3D is cudaMemset3D(pitched pointer on the stack, value, extent on the
// stack): the pointer's words are pointer, pitch, width, height.
func (c *call) fill3D(stream uint64, async bool) result {
	ptr, pitch, ysize := c.arg(6), c.arg(7), c.arg(9)
	w, h, d := c.arg(10), c.arg(11), c.arg(12)
	if pitch > 1<<40 || ysize > 1<<46/max(pitch, 1) {
		return errInvalidValue
	}
	if d == 0 {
		return success
	}
	return c.fillCall(&fill{
		dst: ptr, pitch: pitch, value: c.u32(0), size: 1, width: w, height: h, slice: pitch * ysize, more: d - 1,
	}, stream, async)
}

// copy3D reads a cudaMemcpy3DParms (driver_types.h, 160 bytes): array, position,
// pitched pointer of the source and the same of the destination, extent, kind.
func (c *call) copy3D(addr uint64) (*copy2, uint32, result) {
	var b [160]byte
	if !c.read(addr, b[:]) {
		return nil, 0, errInvalidValue
	}
	w := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	if w(0) != 0 || w(64) != 0 {
		return nil, 0, errNotSupported // arrays
	}
	src := side{x: w(8), y: w(16), z: w(24), kind: 4, dev: w(32), pitch: w(40), height: w(56)}
	dst := side{x: w(72), y: w(80), z: w(88), kind: 4, dev: w(96), pitch: w(104), height: w(120)}
	k, r := sides(&src, &dst, w(128), w(136), w(144))
	return k, uint32(w(152)), r
}

// pointerAttributes fills a cudaPointerAttributes: int type, int device, device
// pointer, host pointer, and in CUDA 13 eight reserved words.
func (c *call) pointerAttributes(lib int) result {
	if _, r := c.context(); r != success {
		return r
	}
	size := 24
	if lib == libCudart13 {
		size = 88
	}
	b := make([]byte, size)
	ptr := c.arg(1)
	m := c.p.arena.at(ptr)
	kind, dev := uint32(0), uint32(0xfffffffe) // unregistered, no device
	if m != nil && m.kind != internalMemory {
		dev = uint32(m.dev)
		switch m.kind {
		case deviceMemory, mappedMemory:
			kind = 2
		case managedMemory:
			kind = 3
		default:
			kind = 1
		}
		binary.LittleEndian.PutUint64(b[8:], ptr)
	}
	if m == nil || m.kind != deviceMemory && m.kind != mappedMemory {
		binary.LittleEndian.PutUint64(b[16:], ptr)
	}
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint32(b[4:], dev)
	c.write(c.arg(0), b)
	return success
}

// rtStreams are those for streams and events that have other parameters than the driver's. In CUDA
// 13 a plain name is what the last of _v2 and _v3 was before.
func rtStreams(lib int) map[string]handler {
	update := 3
	info := 0
	if lib == libCudart13 {
		update, info = 4, 3
	}
	return map[string]handler{
		"cudaStreamCreate":                       func(c *call) result { return c.createStream(c.arg(0), 0, 0) },
		"cudaEventCreate":                        func(c *call) result { return c.createEvent(c.arg(0), 0) },
		"cudaStreamGetCaptureInfo":               func(c *call) result { return c.captureInfo(info) },
		"cudaStreamGetCaptureInfo_v2":            func(c *call) result { return c.captureInfo(2) },
		"cudaStreamGetCaptureInfo_v3":            func(c *call) result { return c.captureInfo(3) },
		"cudaStreamUpdateCaptureDependencies":    func(c *call) result { return c.updateCapture(update) },
		"cudaStreamUpdateCaptureDependencies_v2": func(c *call) result { return c.updateCapture(4) },
	}
}

// rtGraphs are those for graphs that have other parameters than the driver's.
func rtGraphs(lib int) map[string]handler {
	copyNode := func(c *call, k *copy2, r result) result { return c.newNode(c.copyWork(k, r)) }
	m := map[string]handler{
		"cudaGraphAddMemcpyNode": func(c *call) result {
			k, _, r := c.copy3D(c.arg(4))
			return copyNode(c, k, r)
		},
		"cudaGraphAddMemcpyNode1D": func(c *call) result {
			return copyNode(c, plainCopy(c.arg(4), c.arg(5), c.arg(6)), success)
		},
		"cudaGraphAddMemcpyNodeToSymbol": func(c *call) result { // (…, symbol, src, count, offset, kind)
			addr, size, r := c.symbol(c.arg(4))
			if r == success && (c.arg(7) > size || c.arg(6) > size-c.arg(7)) {
				r = errInvalidValue
			}
			return copyNode(c, plainCopy(addr+c.arg(7), c.arg(5), c.arg(6)), r)
		},
		"cudaGraphAddMemcpyNodeFromSymbol": func(c *call) result { // (…, dst, symbol, count, offset, kind)
			addr, size, r := c.symbol(c.arg(5))
			if r == success && (c.arg(7) > size || c.arg(6) > size-c.arg(7)) {
				r = errInvalidValue
			}
			return copyNode(c, plainCopy(c.arg(4), addr+c.arg(7), c.arg(6)), r)
		},
	}
	deps := func(count int) handler {
		return func(c *call) result {
			n, good := object[*node](c.p, c.arg(0))
			if !good {
				return errInvalidValue
			}
			return c.putNodes(n.deps, c.arg(1), c.arg(count))
		}
	}
	m["cudaGraphNodeGetDependencies"], m["cudaGraphNodeGetDependencies_v2"] = deps(2), deps(3)
	if lib == libCudart13 {
		m["cudaGraphNodeGetDependencies"] = deps(3)
	}
	return m
}

// copyUnderlying is a copy's call of the driver: by its kind where it is of bytes, else with a CUDA_MEMCPY2D or
// CUDA_MEMCPY3D (cuda.h).
func (c *call) copyUnderlying(k *copy2, kind uint32, stream uint64, async bool) *underlying {
	if kind > copyDefault || k.width == 0 || k.height == 0 || k.depth == 0 {
		return nil
	}
	u := &underlying{}
	end := "_v2"
	switch {
	case k.height == 1 && k.depth == 1:
		name := map[uint32]string{hostToDevice: "cuMemcpyHtoD", deviceToHost: "cuMemcpyDtoH", deviceToDevice: "cuMemcpyDtoD"}[kind]
		if name == "" {
			name, end = "cuMemcpy", ""
		}
		u.name, u.args = name, []uint64{k.dst, k.src, k.width}
	case k.depth == 1:
		u.name = "cuMemcpy2D"
		side := func(addr, pitch uint64) []uint64 { return []uint64{0, 0, unifiedMemory, 0, addr, 0, pitch} }
		u.blob = words(side(k.src, k.srcPitch), side(k.dst, k.dstPitch), []uint64{k.width, k.height})
	default:
		u.name = "cuMemcpy3D"
		side := func(addr, pitch, slice uint64) []uint64 {
			return []uint64{0, 0, 0, 0, unifiedMemory, 0, addr, 0, 0, pitch, slice / max(pitch, 1)}
		}
		u.blob = words(side(k.src, k.srcPitch, k.srcSlice), side(k.dst, k.dstPitch, k.dstSlice), []uint64{k.width, k.height, k.depth})
	}
	if u.blob != nil {
		u.args, u.into = []uint64{0}, 1
	}
	if async {
		u.name += "Async"
		u.args = append(u.args, stream)
	}
	u.name += end
	return u
}
