package mapmem

import (
	"sync/atomic"
	"unsafe"
)

// Memory that traced processes share with this one is read and written by these, at
// offsets that are multiples of the size.

// Load32 reads a number at an offset, atomically.
func Load32(b []byte, off uint64) uint32 {
	_ = b[off+3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[off])))
}

// Load64 reads a number at an offset, atomically.
func Load64(b []byte, off uint64) uint64 {
	_ = b[off+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off])))
}

// Store32 writes a number at an offset, atomically.
func Store32(b []byte, off uint64, v uint32) {
	_ = b[off+3]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[off])), v)
}

// Store64 writes a number at an offset, atomically.
func Store64(b []byte, off, v uint64) {
	_ = b[off+7]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[off])), v)
}

// Swap32 writes a number if the old one is there, atomically.
func Swap32(b []byte, off uint64, old, to uint32) bool {
	_ = b[off+3]
	return atomic.CompareAndSwapUint32((*uint32)(unsafe.Pointer(&b[off])), old, to)
}

// Swap64 writes a number if the old one is there, atomically.
func Swap64(b []byte, off, old, to uint64) bool {
	_ = b[off+7]
	return atomic.CompareAndSwapUint64((*uint64)(unsafe.Pointer(&b[off])), old, to)
}
