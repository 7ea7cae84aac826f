package api

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nvtrace/traces"
)

// halves are 32-bit numbers as they lie in memory.
func halves(v ...uint32) (b []byte) {
	for _, w := range v {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// TestArrays: arrays have the bytes of their elements, are known by their handles, and are what the driver makes where
// the runtime has one.
func TestArrays(t *testing.T) {
	const driver, runtime, at, desc = "libcuda.so.1", "libcudart.so.12", 0x7f00, 0x7e00
	tracker, now := NewTracker(), int64(0)
	add := func(path string, ev *traces.Event) *Frame {
		now++
		ev.Path, ev.Time = path, now
		return tracker.Add(ev)
	}
	// create calls a function that puts handle 0x1234 where its first argument says.
	create := func(path, name string, result int64, b []byte, args ...uint64) []MemoryChange {
		c := call(0, path, name, args...)
		if b != nil {
			in(c, desc, b)
		}
		add(path, c)
		return add(path, out(ret(c, 0, result), at, words(0x1234))).Memory()
	}
	want := func(what string, got []MemoryChange, want ...MemoryChange) {
		t.Helper()
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	made := func(bytes uint64) MemoryChange { return MemoryChange{Addr: 0x1234, Size: bytes} }
	two := func(w, h uint64, format, channels uint32) []byte {
		return append(words(w, h), halves(format, channels)...)
	}
	three := func(w, h, d uint64, format, channels, flags uint32) []byte {
		return append(words(w, h, d), halves(format, channels, flags, 0)...)
	}
	const u8, u16, f32, nv12, unorm8x4, bc1, bc7 = 1, 2, 32, 0xb0, 0xc2, 0x91, 0x9d
	want("1D", create(driver, "cuArrayCreate_v2", 0, two(100, 0, f32, 4), at, desc), made(1600))
	want("2D", create(driver, "cuArrayCreate_v2", 0, two(100, 30, u16, 2), at, desc), made(12000))
	want("2D of a version before", create(driver, "cuArrayCreate", 0, halves(100, 30, u8, 1), at, desc), made(3000))
	want("3D", create(driver, "cuArray3DCreate_v2", 0, three(10, 20, 30, u8, 1, 0), at, desc), made(6000))
	want("3D of a version before", create(driver, "cuArray3DCreate", 0, halves(10, 20, 30, u8, 2, 0), at, desc), made(12000))
	want("layers of 1D", create(driver, "cuArray3DCreate_v2", 0, three(10, 0, 30, f32, 1, arrayLayered), at, desc), made(1200))
	want("channels in the format", create(driver, "cuArray3DCreate_v2", 0, three(10, 10, 0, unorm8x4, 4, 0), at, desc), made(400))
	want("blocks", create(driver, "cuArray3DCreate_v2", 0, three(64, 32, 0, bc1, 4, 0), at, desc), made(1024))
	want("parts of blocks", create(driver, "cuArray3DCreate_v2", 0, three(5, 3, 0, bc7, 4, 0), at, desc), made(32))
	want("a picture", create(driver, "cuArray3DCreate_v2", 0, three(64, 32, 0, nv12, 3, 0), at, desc), made(3072))
	want("levels", create(driver, "cuMipmappedArrayCreate", 0, three(16, 8, 0, f32, 1, 0), at, desc, 3), made(4*(128+32+8)))
	want("more levels than there are", create(driver, "cuMipmappedArrayCreate", 0, three(16, 8, 0, f32, 1, 0), at, desc, 99), made(4*(128+32+8+2+1)))
	want("levels of 3D", create(driver, "cuMipmappedArrayCreate", 0, three(4, 4, 4, u8, 1, 0), at, desc, 3), made(64+8+1))
	want("levels of layers", create(driver, "cuMipmappedArrayCreate", 0, three(4, 4, 6, u8, 1, arrayCubemap), at, desc, 9), made(6*(16+4+1)))
	want("levels of blocks", create(driver, "cuMipmappedArrayCreate", 0, three(8, 8, 0, bc7, 4, 0), at, desc, 4), made(16*(4+1+1+1)))
	want("one that fails", create(driver, "cuArrayCreate_v2", 2, two(100, 30, f32, 4), at, desc), MemoryChange{Size: 48000, Failed: true})
	want("too large", create(driver, "cuArrayCreate_v2", 2, two(1<<40, 1<<40, f32, 4), at, desc), MemoryChange{Size: math.MaxInt64, Failed: true})
	want("no memory", create(driver, "cuArray3DCreate_v2", 0, three(64, 64, 0, f32, 1, arraySparse), at, desc))
	want("memory later", create(driver, "cuMipmappedArrayCreate", 0, three(64, 64, 0, f32, 1, arrayDeferred), at, desc, 2))
	want("a format that is not known", create(driver, "cuArray3DCreate_v2", 0, three(64, 64, 0, 0x7f, 1, 0), at, desc))
	want("what was not recorded", create(driver, "cuArrayCreate_v2", 0, nil, at, desc))
	want("a part", create(driver, "cuArrayCreate_v2", 0, words(64, 64), at, desc))

	free := func(path, name string) []MemoryChange {
		c := call(0, path, name, 0x1234)
		add(path, c)
		return add(path, ret(c, 0, 0)).Memory()
	}
	gone := MemoryChange{Addr: 0x1234, Freed: true}
	want("destroy", free(driver, "cuArrayDestroy"), gone)
	want("destroy", free(driver, "cuMipmappedArrayDestroy"), gone)

	const signed, float, x2, bc4 = 0, 2, 6, 23
	tracker = NewTracker() // a simulated GPU: its runtime calls no driver
	want("MallocArray", create(runtime, "cudaMallocArray", 0, halves(32, 32, 0, 0, float), at, desc, 100, 0, 0), made(800))
	want("MallocArray", create(runtime, "cudaMallocArray", 0, halves(8, 8, 0, 0, x2), at, desc, 100, 2, 0), made(400))
	want("MallocArray", create(runtime, "cudaMallocArray", 0, halves(8, 0, 0, 0, bc4), at, desc, 16, 16, 0), made(128))
	want("Malloc3DArray", create(runtime, "cudaMalloc3DArray", 0, halves(16, 0, 0, 0, signed), at, desc, 0, 0, 0, 0, 10, 20, 30), made(12000))
	want("Malloc3DArray, sparse", create(runtime, "cudaMalloc3DArray", 0, halves(16, 0, 0, 0, signed), at, desc, arraySparse, 0, 0, 0, 10, 20, 30))
	want("MallocMipmappedArray", create(runtime, "cudaMallocMipmappedArray", 0, halves(8, 0, 0, 0, signed), at, desc, 2, arrayLayered, 0, 0, 8, 8, 5), made(5*(64+16)))
	want("FreeArray", free(runtime, "cudaFreeArray"), gone)
	want("FreeMipmappedArray", free(runtime, "cudaFreeMipmappedArray"), gone)
	outer := in(call(0, runtime, "cudaMallocArray", at, desc, 100, 0, 0), desc, halves(32, 0, 0, 0, float))
	add(runtime, outer)
	want("inside", create(driver, "cuArray3DCreate_v2", 0, three(100, 0, 0, f32, 1, 0), at, desc), made(400))
	want("around", add(runtime, out(ret(outer, 0, 0), at, words(0x1234))).Memory())
}

// TestTexels: there is a size for every format of cuda.h and of driver_types.h, but for those that do not say theirs.
func TestTexels(t *testing.T) {
	enum := func(l Library, function, param, field string) *Type {
		for f := range Functions(l) {
			if p := f.Param(param); f.Name == function && p != nil {
				for i := range p.Type.Elem.Fields {
					if x := &p.Type.Elem.Fields[i]; x.Name == field {
						return x.Type
					}
				}
			}
		}
		t.Fatalf("%s has no %s with %s", function, param, field)
		return nil
	}
	numbers := make(map[uint64]string)
	for _, v := range enum(Driver, "cuArrayCreate_v2", "pAllocateArray", "Format").Values {
		numbers[uint64(v.Number)] = v.Name
		if _, ok := texels[uint64(v.Number)]; !ok && v.Name != "CU_AD_FORMAT_MAX" && v.Name != "CU_AD_FORMAT_UINT8_PACKED_444" {
			t.Errorf("no size of %s", v.Name)
		}
	}
	for n := range texels {
		if numbers[n] == "" {
			t.Errorf("%#x is no format", n)
		}
	}
	// Names of kinds and formats differ; their channels, bits and compressions do not.
	for _, v := range enum(Runtime, "cudaMallocArray", "desc", "f").Values {
		kind := strings.TrimPrefix(v.Name, "cudaChannelFormatKind")
		format, ok := formatOfKind(uint64(v.Number))
		if !ok {
			if kind != "Signed" && kind != "Unsigned" && kind != "Float" && kind != "None" {
				t.Errorf("no format of %s", v.Name)
			}
			continue
		}
		for _, r := range [][2]string{
			{"UnsignedNormalized", "UNORM_INT"},
			{"SignedNormalized", "SNORM_INT"},
			{"UnsignedBlockCompressed6H", "BC6H_UF16"},
			{"SignedBlockCompressed6H", "BC6H_SF16"},
			{"UnsignedBlockCompressed", "BC"},
			{"SignedBlockCompressed", "BC"},
			{"Unsigned", "UINT"},
			{"INT1010102", "INT_101010_2"},
			{"Packed", "_PACKED_"},
			{"SemiPlanar", "_SEMIPLANAR_"},
			{"Planar", "_PLANAR_"},
		} {
			kind = strings.Replace(kind, r[0], r[1], 1)
		}
		if name := strings.TrimPrefix(numbers[format], "CU_AD_FORMAT_"); !strings.HasPrefix(strings.ReplaceAll(name, "_", ""), strings.TrimSuffix(strings.ReplaceAll(kind, "_", ""), "SRGB")) {
			t.Errorf("%s (%s) is %s", v.Name, kind, name)
		}
	}
}
