package mapmem

import "fmt"

// Memory reads and writes the memory that maps live in, by its addresses: a
// GPU's through a process, a simulated GPU's, or a test's.
type Memory interface {
	ReadMem(addr uint64, buf []byte) error
	WriteMem(addr uint64, buf []byte) error
}

// A Prefetcher is a [Memory] that is told what will be read next, where each read
// would be slow by itself: rows of width bytes, stride bytes apart. What it has
// already need not be copied again.
type Prefetcher interface {
	Prefetch(addr, stride uint64, width, rows int)
	// WriteLate is WriteMem, but kernels may see it much later, when all is read.
	WriteLate(addr uint64, buf []byte) error
}

// A Buffer is a Memory of its own: bytes that begin at address Base.
type Buffer struct {
	Base uint64
	Data []byte
}

func (b *Buffer) at(addr uint64, n int) ([]byte, error) {
	off := addr - b.Base
	if addr < b.Base || off > uint64(len(b.Data)) || uint64(n) > uint64(len(b.Data))-off {
		return nil, fmt.Errorf("memory %#x, %d bytes: outside the buffer of %d bytes at %#x", addr, n, len(b.Data), b.Base)
	}
	return b.Data[off : off+uint64(n)], nil
}

// ReadMem copies from the buffer.
func (b *Buffer) ReadMem(addr uint64, buf []byte) error {
	s, err := b.at(addr, len(buf))
	copy(buf, s)
	return err
}

// WriteMem copies into the buffer.
func (b *Buffer) WriteMem(addr uint64, buf []byte) error {
	s, err := b.at(addr, len(buf))
	copy(s, buf)
	return err
}
