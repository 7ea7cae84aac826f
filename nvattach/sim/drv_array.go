package sim

import (
	"encoding/binary"
	"math/bits"
)

// An array is a CUarray or a CUmipmappedArray, whose levels are arrays, too. It takes memory, but has no addresses: nothing
// reads or writes it.
type array struct {
	desc   arrayDesc
	dev    int
	size   uint64 // that it takes; 0 of a level
	levels []*array
	of     *array // of a level: the array that it is of
	handle uint64 // 0: it has none yet
	mipmap bool
}

// An arrayDesc is a CUDA_ARRAY3D_DESCRIPTOR.
type arrayDesc struct {
	width, height, depth    uint64
	format, channels, flags uint32
}

// Flags of arrays, CUDA_ARRAY3D_LAYERED and the like.
const (
	arrayLayered = 0x01
	arrayCubemap = 0x04
	// With surfaces, gathers and colour attachments, which change nothing here.
	arrayFlags = arrayLayered | arrayCubemap | 0x02 | 0x08 | 0x20
)

// drvArrays are functions that make arrays, describe and destroy them.
func drvArrays() map[string]handler {
	return map[string]handler{
		"cuArrayCreate_v2": func(c *call) result {
			var b [24]byte
			if !c.read(c.arg(1), b[:]) {
				return errInvalidValue
			}
			return c.newArray(c.arg(0), &arrayDesc{
				width: binary.LittleEndian.Uint64(b[0:]), height: binary.LittleEndian.Uint64(b[8:]),
				format: binary.LittleEndian.Uint32(b[16:]), channels: binary.LittleEndian.Uint32(b[20:]),
			}, 0)
		},
		"cuArray3DCreate_v2": func(c *call) result { return c.describedArray(0) },
		"cuMipmappedArrayCreate": func(c *call) result {
			return c.describedArray(max(c.u32(2), 1))
		},
		"cuArrayGetDescriptor_v2": func(c *call) result {
			a, r := c.arrayOf(c.arg(1), false)
			if r == success {
				c.write(c.arg(0), a.desc.append2D(nil))
			}
			return r
		},
		"cuArray3DGetDescriptor_v2": func(c *call) result {
			a, r := c.arrayOf(c.arg(1), false)
			if r == success {
				c.write(c.arg(0), a.desc.append3D(nil))
			}
			return r
		},
		"cuMipmappedArrayGetLevel": func(c *call) result { return c.arrayLevel(c.arg(0), c.arg(1), c.u32(2)) },
		"cuArrayDestroy":           func(c *call) result { return c.destroyArray(c.arg(0), false) },
		"cuMipmappedArrayDestroy":  func(c *call) result { return c.destroyArray(c.arg(0), true) },
	}
}

// rtArrays are the runtime's. Extents lie on the stack, and a null handle is freed without effect.
func rtArrays() map[string]handler {
	free := func(mipmap bool) handler {
		return func(c *call) result {
			if c.arg(0) == 0 {
				return needsContext(c)
			}
			return c.destroyArray(c.arg(0), mipmap)
		}
	}
	return map[string]handler{
		"cudaMallocArray": func(c *call) result {
			return c.channelArray(&arrayDesc{width: c.arg(2), height: c.arg(3), flags: c.u32(4)}, 0)
		},
		"cudaMalloc3DArray": func(c *call) result {
			return c.channelArray(&arrayDesc{width: c.arg(6), height: c.arg(7), depth: c.arg(8), flags: c.u32(2)}, 0)
		},
		"cudaMallocMipmappedArray": func(c *call) result {
			return c.channelArray(&arrayDesc{width: c.arg(6), height: c.arg(7), depth: c.arg(8), flags: c.u32(3)}, max(c.u32(2), 1))
		},
		"cudaGetMipmappedArrayLevel": func(c *call) result { return c.arrayLevel(c.arg(0), c.arg(1), c.u32(2)) },
		"cudaCreateChannelDesc": func(c *call) result { // its result is a structure, and lies where the first argument says
			var b []byte
			for i := 1; i <= 5; i++ {
				b = binary.LittleEndian.AppendUint32(b, c.u32(i))
			}
			c.write(c.arg(0), b)
			return c.returns(c.arg(0))
		},
		"cudaFreeArray":          free(false),
		"cudaFreeMipmappedArray": free(true),
	}
}

func (d *arrayDesc) append2D(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, d.width)
	b = binary.LittleEndian.AppendUint64(b, d.height)
	b = binary.LittleEndian.AppendUint32(b, d.format)
	return binary.LittleEndian.AppendUint32(b, d.channels)
}

func (d *arrayDesc) append3D(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, d.width)
	b = binary.LittleEndian.AppendUint64(b, d.height)
	b = binary.LittleEndian.AppendUint64(b, d.depth)
	b = binary.LittleEndian.AppendUint32(b, d.format)
	b = binary.LittleEndian.AppendUint32(b, d.channels)
	return binary.LittleEndian.AppendUint64(b, uint64(d.flags)) // and four bytes that pad it
}

// describedArray is (handle, CUDA_ARRAY3D_DESCRIPTOR).
func (c *call) describedArray(levels uint32) result {
	var b [40]byte
	if !c.read(c.arg(1), b[:]) {
		return errInvalidValue
	}
	w := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	return c.newArray(c.arg(0), &arrayDesc{width: w(0), height: w(8), depth: w(16), format: uint32(w(24)), channels: uint32(w(24) >> 32), flags: uint32(w(32))}, levels)
}

// channelArray is (handle, cudaChannelFormatDesc): bits of four channels, and what they are. Which kinds stand for which
// formats is the order of both.
func (c *call) channelArray(d *arrayDesc, levels uint32) result {
	var b [20]byte
	if !c.read(c.arg(1), b[:]) {
		return errInvalidValue
	}
	w := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	bits, kind := w(0), w(4)
	for i := 0; i < 4 && w(i) != 0; i++ {
		if w(i) != bits {
			return errInvalidValue
		}
		d.channels++
	}
	switch {
	case kind <= 1: // signed, unsigned: 8, 16 and 32 bits have numbers one after the other
		switch bits {
		case 8, 16, 32:
			d.format = 8 - 7*kind + bits/16
		}
	case kind == 2 && (bits == 16 || bits == 32): // half, float
		d.format = bits
	case kind >= 5 && kind <= 16:
		d.format = 0xc0 + kind - 5
	case kind >= 17 && kind <= 30:
		d.format = 0x91 + kind - 17
	}
	u := &underlying{name: "cuArrayCreate_v2", args: []uint64{c.arg(0), 0}, into: 2, blob: d.append3D(nil)}
	u.blob = binary.LittleEndian.AppendUint32(u.blob, 0)
	switch {
	case levels > 0:
		u.name, u.args = "cuMipmappedArrayCreate", append(u.args, uint64(levels))
	case d.depth != 0 || d.flags != 0:
		u.name = "cuArray3DCreate_v2"
	default:
		u.blob = d.append2D(nil)
	}
	run := func(c *call) result { return c.newArray(c.arg(0), d, levels) }
	return withDriver(func(*call) *underlying { return u }, run)(c)
}

// element returns the bits of an element, and of a side of the square that they are for; 0: there is no such format.
func (d *arrayDesc) element() (n, side uint64) {
	switch f := d.format; {
	case d.channels != 1 && d.channels != 2 && d.channels != 4 && (f < 0x9b || f > 0x9c): // BC6H has three
	case f >= 1 && f <= 3:
		return 8 << (f - 1) * uint64(d.channels), 1
	case f >= 8 && f <= 10:
		return 8 << (f - 8) * uint64(d.channels), 1
	case f == 16 || f == 32:
		return uint64(f * d.channels), 1
	case f >= 0xc0 && f <= 0xcb && d.channels == 1<<((f-0xc0)%3):
		return uint64(8<<((f-0xc0)/3%2)) * uint64(d.channels), 1
	case f == 0x91 || f == 0x92 || f == 0x97 || f == 0x98:
		return 64, 4
	case f >= 0x91 && f <= 0x9e:
		return 128, 4
	}
	return 0, 0
}

// valid reports whether there are such arrays. The largest are those of compute capability 7.5 and later.
func (d *arrayDesc) valid() bool {
	bits, _ := d.element()
	layers := d.flags&(arrayLayered|arrayCubemap) != 0
	switch {
	case bits == 0 || d.flags&^arrayFlags != 0 || d.width == 0 || d.width > 1<<17 || d.height > 1<<16 || d.depth > 1<<14:
		return false
	case layers && (d.depth == 0 || d.depth > 2048), !layers && d.depth > 0 && (d.height == 0 || max(d.width, d.height) > 1<<14):
		return false
	case d.flags&arrayCubemap != 0 && (d.width != d.height || d.depth%6 != 0 || d.depth != 6 && d.flags&arrayLayered == 0):
		return false
	}
	return true
}

// level returns the description of a level, and how many bytes it takes.
func (d *arrayDesc) level(n int) (l arrayDesc, size uint64) {
	l = *d
	shrink := func(v *uint64) {
		if *v > 0 {
			*v = max(*v>>n, 1)
		}
	}
	shrink(&l.width)
	shrink(&l.height)
	if d.flags&(arrayLayered|arrayCubemap) == 0 {
		shrink(&l.depth)
	}
	bits, side := d.element()
	return l, (l.width + side - 1) / side * ((max(l.height, 1) + side - 1) / side) * max(l.depth, 1) * bits / 8
}

// newArray makes an array, or with levels a mipmapped one, and writes its handle to out.
func (c *call) newArray(out uint64, d *arrayDesc, levels uint32) result {
	x, r := c.context()
	if r == success {
		r = c.unsafe()
	}
	switch {
	case r != success:
		return r
	case out == 0 || !d.valid():
		return errInvalidValue
	}
	a := &array{desc: *d, dev: x.dev.ordinal, mipmap: levels > 0}
	largest := max(d.width, d.height)
	if d.flags&(arrayLayered|arrayCubemap) == 0 {
		largest = max(largest, d.depth)
	}
	for i := range max(min(int(levels), bits.Len64(largest)), 1) {
		l, size := d.level(i)
		a.size += size
		if a.mipmap {
			a.levels = append(a.levels, &array{desc: l, dev: a.dev, of: a})
		}
	}
	if !c.p.arena.hold(a.size) {
		return errOutOfMemory
	}
	if a.handle = c.p.add(a); a.handle == 0 {
		c.p.arena.leave(a.size)
		return errOutOfMemory
	}
	if c.put64(out, a.handle); c.bad {
		c.p.endArray(a)
		return errInvalidValue
	}
	return success
}

// arrayOf returns the array of a handle.
func (c *call) arrayOf(h uint64, mipmap bool) (*array, result) {
	if _, r := c.context(); r != success {
		return nil, r
	}
	a, ok := object[*array](c.p, h)
	if !ok || a.mipmap != mipmap {
		return nil, errInvalidHandle
	}
	return a, success
}

// arrayLevel writes the handle of a level to out. It is the same each time.
func (c *call) arrayLevel(out, h uint64, n uint32) result {
	a, r := c.arrayOf(h, true)
	switch {
	case r != success:
		return r
	case uint64(n) >= uint64(len(a.levels)):
		return errInvalidValue
	}
	l := a.levels[n]
	if l.handle == 0 {
		if l.handle = c.p.add(l); l.handle == 0 {
			return errOutOfMemory
		}
	}
	c.put64(out, l.handle)
	return success
}

// destroyArray frees an array when the device is idle, as memory is freed. Levels end with their array.
func (c *call) destroyArray(h uint64, mipmap bool) result {
	a, r := c.arrayOf(h, mipmap)
	if r == success {
		r = c.unsafe()
	}
	if r == success && a.of != nil {
		r = errInvalidValue
	}
	if r != success {
		return r
	}
	x, r := c.context()
	if r != success {
		return r
	}
	r = c.sync(x)
	if b, ok := object[*array](c.p, h); ok && a == b { // another thread may have destroyed it meanwhile
		c.p.endArray(a)
	}
	return r
}

// endArray gives back what an array takes.
func (p *Process) endArray(a *array) {
	for _, l := range a.levels {
		delete(p.objects, l.handle)
	}
	delete(p.objects, a.handle)
	p.arena.leave(a.size)
}
