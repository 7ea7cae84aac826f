package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	// ErrFormat is in the chain of errors about bytes that are not what
	// their format wants.
	ErrFormat = errors.New("malformed")
	// ErrTooLarge is in the chain of errors about content above a limit.
	ErrTooLarge = errors.New("above the limit")
	// ErrOpaque is in the chain of errors about content that nobody but
	// NVIDIA's linker can read: scrambled LTO-IR.
	ErrOpaque = errors.New("opaque content")
)

// formatError says where in an image (an offset from its start) something is
// wrong.
func formatError(what string, offset uint64, format string, args ...any) error {
	return fmt.Errorf("%s: +0x%x: %s: %w", what, offset, fmt.Sprintf(format, args...), ErrFormat)
}

func u16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// cut returns b[off:off+size], or false if that is not within b.
func cut(b []byte, off, size uint64) ([]byte, bool) {
	n := uint64(len(b))
	if off > n || size > n-off {
		return nil, false
	}
	return b[off : off+size : off+size], true
}

// cstring returns the bytes at off up to a NUL. False: off is outside, or no
// NUL follows.
func cstring(b []byte, off uint64) ([]byte, bool) {
	if off >= uint64(len(b)) {
		return nil, false
	}
	n := bytes.IndexByte(b[off:], 0)
	if n < 0 {
		return nil, false
	}
	return b[off : off+uint64(n)], true
}

// align8 rounds up to a multiple of 8; the caller knows that n is small.
func align8(n uint64) uint64 { return (n + 7) &^ 7 }

// budget bounds what is made from an image. Tables of an image may overlap, so
// that a small hostile file could otherwise describe any amount of names and
// attributes; in a file that a tool wrote they don't, and their sum is at most
// the file's size.
type budget struct{ left int64 }

func newBudget(image int) *budget { return &budget{left: 2*int64(image) + 4096} }

// spend takes n bytes and reports whether they were there.
func (b *budget) spend(n int) bool {
	b.left -= int64(n)
	return b.left >= 0
}
