package nvattach

import (
	"sync/atomic"
	"unsafe"
)

// Memory that traced processes share with this one is read and written by these, at
// offsets that are multiples of the size.

func load32(b []byte, off uint64) uint32 {
	_ = b[off+3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[off])))
}

func load64(b []byte, off uint64) uint64 {
	_ = b[off+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off])))
}

func store32(b []byte, off uint64, v uint32) {
	_ = b[off+3]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[off])), v)
}

func store64(b []byte, off, v uint64) {
	_ = b[off+7]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[off])), v)
}

func swap32(b []byte, off uint64, old, to uint32) bool {
	_ = b[off+3]
	return atomic.CompareAndSwapUint32((*uint32)(unsafe.Pointer(&b[off])), old, to)
}

func swap64(b []byte, off, old, to uint64) bool {
	_ = b[off+7]
	return atomic.CompareAndSwapUint64((*uint64)(unsafe.Pointer(&b[off])), old, to)
}
