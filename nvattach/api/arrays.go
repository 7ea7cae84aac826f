package api

import (
	"math"
	"math/bits"

	"nvtrace/traces"
)

// A texel is how much memory a format of CUDA arrays takes.
type texel struct {
	bits     uint64 // of an element; of a block of blockSide by blockSide elements where it is compressed
	channels bool   // bits are those of one channel
	block    bool
}

// blockSide is how many elements wide and high the blocks of all compressed formats are.
const blockSide = 4

// texels are the formats by their numbers in CUarray_format (cuda.h), where comments say what channels, bits and
// sampling they have. CU_AD_FORMAT_UINT8_PACKED_444 is not among them: nothing says whether it pads three channels to four bytes.
var texels = func() map[uint64]texel {
	m := map[uint64]texel{
		0x01: {bits: 8, channels: true}, 0x02: {bits: 16, channels: true}, 0x03: {bits: 32, channels: true}, // unsigned integers
		0x08: {bits: 8, channels: true}, 0x09: {bits: 16, channels: true}, 0x0a: {bits: 32, channels: true}, // signed
		0x10: {bits: 16, channels: true}, 0x20: {bits: 32, channels: true}, // half, float
		0x50: {bits: 32}, // UNORM_INT_101010_2
		// Of pictures, in bits for each of them: 12 are 8-bit channels of which two are sampled 4:2:0.
		0xb0: {bits: 12}, 0x9f: {bits: 24}, 0xa1: {bits: 24}, // NV12, P010, P016: 4:2:0
		0xa2: {bits: 16}, 0xa3: {bits: 32}, 0xa4: {bits: 32}, // NV16, P210, P216: 4:2:2
		0xa5: {bits: 16}, 0xa6: {bits: 32}, 0xa7: {bits: 32}, // YUY2, Y210, Y216: 4:2:2
		0xa8: {bits: 32}, 0xa9: {bits: 32}, 0xb1: {bits: 64}, // AYUV, Y410, Y416: 4:4:4
		0xb2: {bits: 24}, 0xb3: {bits: 48}, 0xb4: {bits: 24}, 0xb5: {bits: 48}, // planar and semi-planar 4:4:4
		0x51: {bits: 16}, // UINT8_PACKED_422
	}
	for i, n := range []uint64{12, 24, 16, 32, 24, 48, 12, 24, 16, 32, 24, 48} { // UINT8_SEMIPLANAR_420 to UINT16_PLANAR_444
		m[0x53+uint64(i)] = texel{bits: n}
	}
	for i, n := range []uint64{8, 16, 32, 16, 32, 64} { // 8X1, 8X2, 8X4, 16X1, 16X2, 16X4
		m[0xc0+uint64(i)], m[0xc6+uint64(i)] = texel{bits: n}, texel{bits: n} // UNORM_INT, SNORM_INT
	}
	for f := uint64(0x91); f <= 0x9e; f++ { // BC1 to BC7
		m[f] = texel{bits: 128, block: true}
	}
	for _, f := range []uint64{0x91, 0x92, 0x97, 0x98} { // BC1, BC4
		m[f] = texel{bits: 64, block: true}
	}
	return m
}()

// formatOfKind returns the driver's format that a cudaChannelFormatKind (driver_types.h) stands for, false for those
// whose bits the descriptor says.
func formatOfKind(kind uint64) (format uint64, ok bool) {
	switch {
	case kind == 4: // NV12
		return 0xb0, true
	case kind >= 5 && kind <= 16: // UnsignedNormalized8X1 to SignedNormalized16X4
		return kind - 5 + 0xc0, true
	case kind >= 17 && kind <= 30: // UnsignedBlockCompressed1 to 7SRGB
		return kind - 17 + 0x91, true
	case kind >= 31 && kind <= 45: // UnsignedNormalized1010102, Unsigned8Packed422 to Unsigned16Planar444
		return kind - 31 + 0x50, true
	}
	return 0, false
}

// Flags of arrays: CUDA_ARRAY3D_LAYERED and the like (cuda.h), cudaArrayLayered and the like (driver_types.h).
const (
	arrayLayered  = 0x01
	arrayCubemap  = 0x04
	arraySparse   = 0x40
	arrayDeferred = 0x80
)

// An arrayShape is what a call that creates an array asks for.
type arrayShape struct {
	width, height, depth uint64 // 0: it does not have that dimension
	levels               uint64 // of a mipmapped array, else 0
	flags                uint64
	texel                texel
}

// bytes returns how many its elements take, math.MaxInt64 if they are more than that.
func (s *arrayShape) bytes() (n uint64) {
	layers := s.flags&(arrayLayered|arrayCubemap) != 0 // they do not get fewer from level to level
	largest := max(s.width, s.height)
	if !layers {
		largest = max(largest, s.depth)
	}
	levels := min(max(s.levels, 1), uint64(max(bits.Len64(largest), 1)))
	for l := range levels {
		w, h, d := max(s.width>>l, 1), max(s.height>>l, 1), max(s.depth, 1)
		if !layers {
			d = max(s.depth>>l, 1)
		}
		if s.texel.block {
			w, h = (w-1)/blockSide+1, (h-1)/blockSide+1
		}
		total := uint64(1)
		for _, f := range []uint64{w, h, d, s.texel.bits} {
			hi, lo := bits.Mul64(total, f)
			if hi != 0 || lo > math.MaxInt64 {
				return math.MaxInt64
			}
			total = lo
		}
		if n += (total + 7) / 8; n > math.MaxInt64 {
			return math.MaxInt64
		}
	}
	return n
}

// shape reads what a call creates that begins with ev: descriptors are recorded then. It is false where that was not
// recorded, where the size of the format is not known, and where the array has no memory of its own: the program
// maps some there.
func (a *allocator) shape(f *Frame, ev *traces.Event) (s arrayShape, ok bool) {
	p := f.Function.Param(a.desc)
	if p == nil || p.Type.Elem == nil {
		return s, false
	}
	at, ok := f.word(p, 0)
	b := segment(ev.Mem, at, false)
	if !ok || b == nil {
		return s, false
	}
	field := func(name string) (n uint64) {
		fields := p.Type.Elem.Fields
		for i := range fields {
			if fields[i].Name == name {
				v, read := load(b, fields[i].Offset, fields[i].Type.Size)
				ok = ok && read
				return fields[i].Type.number(v)
			}
		}
		return 0 // cuArrayCreate's has neither depth nor flags
	}
	arg := func(name string) (n uint64) {
		if name != "" {
			var read bool
			n, read = f.Arg(name, ev)
			ok = ok && read
		}
		return n
	}
	s.levels = arg(a.levels)
	var format, channels uint64
	if f.Module.Library == Driver {
		s.width, s.height, s.depth, s.flags = field("Width"), field("Height"), field("Depth"), field("Flags")
		format, channels = field("Format"), field("NumChannels")
	} else {
		s.flags = arg("flags")
		if extent := f.Function.Param(a.size); extent != nil {
			for i, n := range []*uint64{&s.width, &s.height, &s.depth} {
				v, read := f.word(extent, i)
				*n, ok = v, ok && read
			}
		} else {
			s.width, s.height = arg("width"), arg("height")
		}
		format, _ = formatOfKind(field("f"))
		s.texel.bits = field("x") + field("y") + field("z") + field("w")
	}
	if format != 0 {
		s.texel = texels[format]
		if s.texel.channels {
			s.texel.bits *= channels
		}
	}
	const most = 4 * 32 // channels, bits
	if !ok || s.width == 0 || s.texel.bits == 0 || s.texel.bits > most || s.flags&(arraySparse|arrayDeferred) != 0 {
		return s, false
	}
	return s, true
}
