package fatbin

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// The LZ4 block format: sequences of a token (the high four bits count
// literals, the low four bits a match's length less 4; 15 means that bytes
// follow which add to it, up to one that is not 255), the literals, and a
// 16-bit distance. The last sequence has only literals. Fat binaries hold the
// bare block without a frame.
const (
	lz4MinMatch   = 4
	lz4MaxOffset  = 1<<16 - 1
	lz4LastBytes  = 5  // a block's last bytes are literals
	lz4MatchLimit = 12 // no match starts closer to the end
	lz4HashBits   = 14
	// lz4MaxRatio bounds how much a byte of a block can decode to: 255, by
	// a byte that extends a match.
	lz4MaxRatio = 255
	// What a short sequence may read and write: 14 literals and a distance,
	// or a match of 18, in whole words.
	lz4FastSrc = 17
	lz4FastDst = 24
)

// decodeLZ4 decodes an LZ4 block into dst and returns how many bytes it wrote.
// It never writes past dst, and reads nothing before it. An error (in whose
// chain [ErrFormat] is) says at which byte of src the block can't go on, or
// that dst is too short; the bytes written until then are counted.
func decodeLZ4(dst, src []byte) (int, error) {
	d, s := 0, 0
	for s < len(src) {
		token := src[s]
		s++
		n := int(token >> 4)
		if n < 15 && len(src)-s >= lz4FastSrc && len(dst)-d >= lz4FastDst {
			// Most sequences are short: whole words are copied, of which
			// the next sequence overwrites what is too much.
			*(*[16]byte)(dst[d:]) = *(*[16]byte)(src[s:])
			d, s = d+n, s+n
		} else {
			if n == 15 {
				var ok bool
				if n, s, ok = lz4Length(src, s, n); !ok {
					return d, lz4Error(s, "the block ends in a literal length")
				}
			}
			if n > len(src)-s {
				return d, lz4Error(s, "the block ends in %d literals", n)
			}
			if n > len(dst)-d {
				return d, lz4Error(s, "the content is longer than the %d bytes that were promised", len(dst))
			}
			d += copy(dst[d:], src[s:s+n])
			s += n
			if s == len(src) {
				return d, nil // the last sequence has no match
			}
			if len(src)-s < 2 {
				return d, lz4Error(s, "the block ends in a match's distance")
			}
		}
		offset := int(src[s]) | int(src[s+1])<<8
		s += 2
		if offset == 0 || offset > d {
			return d, lz4Error(s-2, "a match %d bytes back, where %d were decoded", offset, d)
		}
		n = int(token & 15)
		if n < 15 && offset >= 8 && len(dst)-d >= lz4FastDst {
			from := d - offset
			*(*[8]byte)(dst[d:]) = *(*[8]byte)(dst[from:])
			*(*[8]byte)(dst[d+8:]) = *(*[8]byte)(dst[from+8:])
			*(*[8]byte)(dst[d+16:]) = *(*[8]byte)(dst[from+16:])
			d += n + lz4MinMatch
			continue
		}
		if n == 15 {
			var ok bool
			if n, s, ok = lz4Length(src, s, n); !ok {
				return d, lz4Error(s, "the block ends in a match length")
			}
		}
		n += lz4MinMatch
		if n > len(dst)-d {
			return d, lz4Error(s, "the content is longer than the %d bytes that were promised", len(dst))
		}
		d = lz4Match(dst, d, offset, n)
	}
	if len(src) > 0 {
		return d, lz4Error(s, "the block ends with a match")
	}
	return d, nil
}

// lz4Length adds the bytes that extend a length. The sum can't overflow: it is
// at most 255 times the block's size.
func lz4Length(src []byte, s, n int) (length, next int, ok bool) {
	for s < len(src) {
		b := src[s]
		s++
		n += int(b)
		if b != 255 {
			return n, s, true
		}
	}
	return n, s, false
}

// lz4Match copies n bytes from offset back; what it copies may overlap what it
// writes.
func lz4Match(dst []byte, d, offset, n int) int {
	end := d + n
	if offset >= n {
		copy(dst[d:end], dst[d-offset:])
		return end
	}
	// The pattern repeats: each copy doubles what there is of it.
	start := d - offset
	for d < end {
		d += copy(dst[d:end], dst[start:d])
	}
	return end
}

func lz4Error(at int, format string, args ...any) error {
	return fmt.Errorf("LZ4: +0x%x: %s: %w", at, fmt.Sprintf(format, args...), ErrFormat)
}

// appendLZ4 appends src as an LZ4 block to dst.
func appendLZ4(dst, src []byte) []byte {
	var table [1 << lz4HashBits]int32 // position+1 of the last sequence with that hash
	anchor, misses := 0, 0
	for p := 0; p < len(src)-lz4MatchLimit; {
		h := binary.LittleEndian.Uint32(src[p:]) * 2654435761 >> (32 - lz4HashBits)
		q := int(table[h]) - 1
		table[h] = int32(p + 1)
		if q < 0 || p-q > lz4MaxOffset || binary.LittleEndian.Uint32(src[q:]) != binary.LittleEndian.Uint32(src[p:]) {
			// The longer nothing was found, the larger the steps.
			misses++
			p += 1 + misses>>6
			continue
		}
		for p > anchor && q > 0 && src[p-1] == src[q-1] {
			p, q = p-1, q-1
		}
		n := lz4Common(src[q:], src[p:len(src)-lz4LastBytes])
		dst = lz4Sequence(dst, src[anchor:p], p-q, n)
		p += n
		anchor, misses = p, 0
	}
	dst = lz4Token(dst, len(src)-anchor, 0)
	return append(dst, src[anchor:]...)
}

// lz4Common counts the bytes in which b begins as a does; a is the longer one.
func lz4Common(a, b []byte) int {
	n := 0
	for n+8 <= len(b) {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
		n += 8
	}
	for n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func lz4Sequence(dst, literals []byte, offset, match int) []byte {
	match -= lz4MinMatch
	dst = lz4Token(dst, len(literals), match)
	dst = append(dst, literals...)
	dst = append(dst, byte(offset), byte(offset>>8))
	if match >= 15 {
		dst = lz4Extend(dst, match-15)
	}
	return dst
}

func lz4Token(dst []byte, literals, match int) []byte {
	dst = append(dst, byte(min(literals, 15))<<4|byte(min(match, 15)))
	if literals >= 15 {
		dst = lz4Extend(dst, literals-15)
	}
	return dst
}

func lz4Extend(dst []byte, n int) []byte {
	for ; n >= 255; n -= 255 {
		dst = append(dst, 255)
	}
	return append(dst, byte(n))
}
