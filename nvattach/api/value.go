package api

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"nvtrace/traces/escape"
)

// Bounds of what is printed of a value.
const (
	maxElems = 16 // of an array
	maxNest  = 4  // structures in structures
)

const hexDigits = "0123456789abcdef"

func appendHex(dst []byte, v uint64) []byte {
	return strconv.AppendUint(append(dst, "0x"...), v, 16)
}

// signed extends a number of size bytes.
func signed(v uint64, size int) int64 {
	if size <= 0 || size >= 8 {
		return int64(v)
	}
	shift := 64 - 8*uint(size)
	return int64(v<<shift) >> shift
}

func unsigned(v uint64, size int) uint64 {
	if size <= 0 || size >= 8 {
		return v
	}
	return v & (1<<(8*uint(size)) - 1)
}

// appendScalar appends a value that is in a register or was loaded from memory.
func appendScalar(dst []byte, t *Type, v uint64) []byte {
	switch t.Kind {
	case KindInt:
		return strconv.AppendInt(dst, signed(v, t.Size), 10)
	case KindChar:
		return strconv.AppendInt(dst, signed(v, 1), 10)
	case KindBool:
		return strconv.AppendBool(dst, v&0xff != 0)
	case KindUint:
		if v = unsigned(v, t.Size); isAddressName(t.Name) {
			return appendHex(dst, v)
		}
		return strconv.AppendUint(dst, v, 10)
	case KindEnum:
		return appendEnum(dst, t, v)
	case KindFlags:
		return appendFlags(dst, t, unsigned(v, t.Size))
	case KindFloat:
		switch t.Size {
		case 4:
			return strconv.AppendFloat(dst, float64(math.Float32frombits(uint32(v))), 'g', -1, 32)
		case 8:
			return strconv.AppendFloat(dst, math.Float64frombits(v), 'g', -1, 64)
		}
		return append(dst, '?')
	case KindPointer, KindFunc:
		if v == 0 {
			return append(dst, "NULL"...)
		}
	}
	return appendHex(dst, v)
}

// isAddressName reports whether an unsigned integer type holds addresses or
// handles: CUdeviceptr, cudaTextureObject_t.
func isAddressName(name string) bool {
	return strings.Contains(name, "ptr") || strings.Contains(name, "Object") || strings.Contains(name, "Handle")
}

func appendEnum(dst []byte, t *Type, v uint64) []byte {
	n := signed(v, t.Size)
	name := t.ValueName(n)
	if name == "" {
		name = t.ValueName(int64(unsigned(v, t.Size)))
	}
	if name == "" {
		return strconv.AppendInt(dst, n, 10)
	}
	return append(dst, name...)
}

// appendFlags appends the names of the set bits, the rest in hexadecimal.
func appendFlags(dst []byte, t *Type, v uint64) []byte {
	if name := t.ValueName(int64(v)); name != "" {
		return append(dst, name...)
	}
	if v == 0 {
		return append(dst, '0')
	}
	sep := false
	for i := range t.Values {
		bit := uint64(t.Values[i].Number)
		if bit == 0 || bit&(bit-1) != 0 || v&bit == 0 {
			continue
		}
		if sep {
			dst = append(dst, '|')
		}
		dst, sep = append(dst, t.Values[i].Name...), true
		v &^= bit
	}
	if v != 0 {
		if sep {
			dst = append(dst, '|')
		}
		dst = appendHex(dst, v)
	}
	return dst
}

// load reads a little-endian number of at most 8 bytes; it is false where b ends
// before.
func load(b []byte, off, size int) (uint64, bool) {
	if off < 0 || size <= 0 || size > 8 || off > len(b) || len(b)-off < size {
		return 0, false
	}
	var w [8]byte
	copy(w[:], b[off:off+size])
	return binary.LittleEndian.Uint64(w[:]), true
}

// appendMemory appends a value of type t that lies at the beginning of b, which
// may be shorter.
func appendMemory(dst []byte, t *Type, b []byte, depth int) []byte {
	switch t.Kind {
	case KindStruct, KindUnion:
		return appendRecord(dst, t, b, depth)
	case KindArray:
		return appendArray(dst, t, b, depth)
	}
	v, ok := load(b, 0, t.Size)
	if !ok {
		return append(dst, '?')
	}
	return appendScalar(dst, t, v)
}

func appendArray(dst []byte, t *Type, b []byte, depth int) []byte {
	if t.Elem == nil || t.Elem.Size <= 0 {
		return append(dst, "[]"...)
	}
	if t.Elem.Kind == KindChar {
		if b = b[:min(len(b), t.Size)]; printableText(b) {
			return appendText(dst, b, len(b) < t.Size)
		}
		return appendBytes(dst, b)
	}
	dst = append(dst, '[')
	for i := range t.Count {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if i == maxElems || depth > maxNest || i*t.Elem.Size >= len(b) {
			dst = append(dst, "…"...)
			break
		}
		dst = appendMemory(dst, t.Elem, b[i*t.Elem.Size:], depth+1)
	}
	return append(dst, ']')
}

// appendRecord appends the members of a structure; for a union, those of all
// that it may be. A union of more than two members, and what is not public, is
// appended as bytes.
func appendRecord(dst []byte, t *Type, b []byte, depth int) []byte {
	b = b[:min(len(b), max(t.Size, 0))]
	switch {
	case t.Name == "CUuuid" || t.Name == "cudaUUID_t" || t.Name == "CUuuid_st":
		return appendUUID(dst, b)
	case t.Name == "dim3" || t.Name == "uint3":
		x, _ := load(b, 0, 4)
		y, _ := load(b, 4, 4)
		z, ok := load(b, 8, 4)
		if ok {
			return appendTriple(dst, x, y, z)
		}
	}
	if depth > maxNest || t.Kind == KindUnion && len(t.Fields) > 2 {
		return appendBytes(dst, b)
	}
	dst = append(dst, '{')
	for i, shown := 0, 0; i < len(t.Fields); i++ {
		f := &t.Fields[i]
		if strings.HasPrefix(f.Name, "reserved") || strings.HasPrefix(f.Name, "pad") {
			continue
		}
		if shown++; shown > 1 {
			dst = append(dst, ", "...)
		}
		if name, n := group(i, len(t.Fields), func(k int) (string, bool) { return t.Fields[k].Name, t.Fields[k].Type.Size == 4 }); n > 0 {
			x, _ := load(b, f.Offset, 4)
			y, _ := load(b, t.Fields[i+1].Offset, 4)
			z, ok := load(b, t.Fields[i+2].Offset, 4)
			if ok {
				dst = append(append(dst, name...), '=')
				dst = appendTriple(dst, x, y, z)
				i += n - 1
				continue
			}
		}
		if f.Name != "" {
			dst = append(append(dst, f.Name...), '=')
		}
		switch {
		case f.Offset >= len(b):
			dst = append(dst, '?')
		case f.Bits > 0:
			dst = appendBits(dst, f, b)
		default:
			dst = appendMemory(dst, f.Type, b[f.Offset:], depth+1)
		}
	}
	return append(dst, '}')
}

func appendBits(dst []byte, f *Field, b []byte) []byte {
	v, ok := load(b, f.Offset, f.Type.Size)
	if !ok {
		return append(dst, '?')
	}
	v = v >> (uint(f.Bit) & 63)
	if f.Bits < 64 {
		v &= 1<<uint(f.Bits) - 1
	}
	if f.Type.Kind == KindEnum {
		return appendEnum(dst, f.Type, v)
	}
	return strconv.AppendUint(dst, v, 10)
}

// group reports that the names at i are those of a triple, gridDimX, gridDimY
// and gridDimZ, and what it is called then.
func group(i, n int, name func(k int) (string, bool)) (string, int) {
	if i+3 > n {
		return "", 0
	}
	for _, g := range [...]struct{ first, short string }{{"gridDimX", "grid"}, {"blockDimX", "block"}} {
		a, ok := name(i)
		if a != g.first || !ok {
			continue
		}
		b, okB := name(i + 1)
		c, okC := name(i + 2)
		stem := g.first[:len(g.first)-1]
		if okB && okC && b == stem+"Y" && c == stem+"Z" {
			return g.short, 3
		}
	}
	return "", 0
}

func appendTriple(dst []byte, x, y, z uint64) []byte {
	dst = strconv.AppendUint(append(dst, '('), x, 10)
	dst = strconv.AppendUint(append(dst, ','), y, 10)
	dst = strconv.AppendUint(append(dst, ','), z, 10)
	return append(dst, ')')
}

func appendUUID(dst, b []byte) []byte {
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
	}
	if len(b) == 0 {
		dst = append(dst, '?')
	}
	return dst
}

// appendBytes appends bytes in hexadecimal.
func appendBytes(dst, b []byte) []byte {
	if len(b) == 0 {
		return append(dst, '?')
	}
	dst = append(dst, '<')
	for i, c := range b {
		if i == 2*maxElems {
			dst = append(dst, "…"...)
			break
		}
		dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
	}
	return append(dst, '>')
}

// printableText reports whether b is text up to its first zero byte.
func printableText(b []byte) bool {
	for i, c := range b {
		if c == 0 {
			return i > 0 || len(strings.Trim(string(b), "\x00")) == 0
		}
		if c < 0x20 && c != '\n' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

// appendText appends text up to its zero byte in quotes, 64 bytes at most; cut says that there may be more than b where it has none.
func appendText(dst, b []byte, cut bool) []byte {
	for i, c := range b {
		if c == 0 {
			b, cut = b[:i], false
			break
		}
	}
	const most = 64
	if len(b) > most {
		b, cut = b[:most], true
		for len(b) > most-4 && !utf8.Valid(b) {
			b = b[:len(b)-1]
		}
	}
	dst = escape.AppendQuoted(dst, b)
	if cut {
		dst = append(dst, "…"...)
	}
	return dst
}
