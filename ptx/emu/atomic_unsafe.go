package emu

import (
	"sync/atomic"
	"unsafe"
)

// alignedBytes returns n zero bytes whose first is aligned to 16, as atomic
// access and 128-bit values need.
func alignedBytes(n int) []byte {
	words := make([]uint64, (n+15)/16*2+2)
	p := unsafe.Pointer(unsafe.SliceData(words))
	if uintptr(p)&15 != 0 {
		p = unsafe.Add(p, 8)
	}
	return unsafe.Slice((*byte)(p), n)
}

// word32 and word64 give the atomic word at the start of b, which must be
// aligned in real memory: device addresses and the backing bytes of a Region
// agree modulo 16, which Machine checks for regions that come from outside.
func word32(b []byte) *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(b[:4]))) }
func word64(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[:8]))) }

// misplaced reports whether the bytes of r are not aligned as its addresses are.
func misplaced(r *Region) bool {
	return len(r.Data) != 0 && (uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.Data))))^r.Base)&7 != 0
}

// updateWord replaces the aligned value of size 4 or 8 bytes at b by f of it, in
// one atomic step with respect to all goroutines, and returns the old value. f
// may be called more than once.
func updateWord(b []byte, size int, f func(old uint64) uint64) uint64 {
	if size == 8 {
		p := word64(b)
		for {
			old := atomic.LoadUint64(p)
			if v := f(old); v == old || atomic.CompareAndSwapUint64(p, old, v) {
				return old
			}
		}
	}
	p := word32(b)
	for {
		old := atomic.LoadUint32(p)
		if v := f(uint64(old)); uint32(v) == old || atomic.CompareAndSwapUint32(p, old, uint32(v)) {
			return uint64(old)
		}
	}
}

// loadWord reads an aligned value in one atomic step where Go has one.
func loadWord(b []byte, size int) uint64 {
	switch size {
	case 4:
		return uint64(atomic.LoadUint32(word32(b)))
	case 8:
		return atomic.LoadUint64(word64(b))
	}
	return loadBytes(b, size)
}

// storeWord writes an aligned value in one atomic step where Go has one.
func storeWord(b []byte, size int, v uint64) {
	switch size {
	case 4:
		atomic.StoreUint32(word32(b), uint32(v))
	case 8:
		atomic.StoreUint64(word64(b), v)
	default:
		storeBytes(b, size, v)
	}
}
