// Package values writes and reads values of maps and variables, by their BTF types: as text, as
// JSON, and from what users give.
package values

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"

	"nvtrace/traces/escape"
)

// Bounds of a value, and of printing one, whatever its type says.
const (
	MaxBytes      = 1 << 20 // of one value
	maxTypeDepth  = 16
	maxValueChars = 1 << 20
)

// style is how values are written.
type style uint8

const (
	styleText style = iota
	styleJSON
)

// Append appends a value as text: numbers, "strings", {member = value, …}.
// What the bytes are too short for is written as ?, and a value without a type as
// a number if it has 1, 2, 4 or 8 bytes and else as hexadecimal.
func Append(dst []byte, t btf.Type, data []byte) []byte {
	f := formatter{style: styleText, limit: len(dst) + maxValueChars}
	return f.value(dst, t, data, 0)
}

// AppendJSON appends a value as JSON: objects, arrays, numbers and strings.
func AppendJSON(dst []byte, t btf.Type, data []byte) []byte {
	f := formatter{style: styleJSON, limit: len(dst) + maxValueChars}
	return f.value(dst, t, data, 0)
}

// AppendRecord appends a record of a ring buffer as text: by the type, where there is one and
// the record is as long, otherwise as 64-bit numbers.
func AppendRecord(dst []byte, t btf.Type, data []byte) []byte {
	return appendRecord(dst, t, data, styleText)
}

// AppendRecordJSON appends a record as JSON, by the rule of AppendRecord.
func AppendRecordJSON(dst []byte, t btf.Type, data []byte) []byte {
	return appendRecord(dst, t, data, styleJSON)
}

func appendRecord(dst []byte, t btf.Type, data []byte, s style) []byte {
	f := formatter{style: s, limit: len(dst) + maxValueChars}
	if t != nil {
		if size, err := btf.Sizeof(t); err == nil && size > 0 && size == len(data) {
			return f.value(dst, t, data, 0)
		}
	}
	if len(data)%8 != 0 || len(data) <= 8 {
		return f.raw(dst, data)
	}
	words := &btf.Array{Type: &btf.Int{Size: 8}, Nelems: uint32(len(data) / 8)}
	return f.value(dst, words, data, 0)
}

type formatter struct {
	style style
	limit int
}

// unknown writes a value that can't be shown.
func (f *formatter) unknown(dst []byte) []byte {
	if f.style == styleJSON {
		return append(dst, "null"...)
	}
	return append(dst, '?')
}

func (f *formatter) quoted(dst []byte, s string) []byte {
	if f.style == styleJSON {
		return escape.AppendJSON(dst, s)
	}
	return strconv.AppendQuote(dst, s)
}

func (f *formatter) value(dst []byte, t btf.Type, data []byte, depth int) []byte {
	if depth > maxTypeDepth || len(dst) > f.limit {
		return f.unknown(dst)
	}
	if t == nil {
		return f.raw(dst, data)
	}
	t = btf.UnderlyingType(t)
	if v, ok := t.(*btf.Var); ok {
		return f.value(dst, v.Type, data, depth+1)
	}
	size, err := btf.Sizeof(t)
	if err != nil || size > len(data) {
		return f.unknown(dst)
	}
	data = data[:size]
	switch t := t.(type) {
	case *btf.Int:
		return f.integer(dst, data, t.Encoding)
	case *btf.Enum:
		return f.enum(dst, t, data)
	case *btf.Float:
		return f.float(dst, data)
	case *btf.Pointer:
		return f.hex(dst, data)
	case *btf.Array:
		return f.array(dst, t, data, depth)
	case *btf.Struct:
		return f.members(dst, t.Members, data, depth)
	case *btf.Union:
		return f.members(dst, t.Members, data, depth)
	case *btf.Datasec:
		return f.datasec(dst, t, data, depth)
	}
	return f.raw(dst, data)
}

// raw writes bytes without a type.
func (f *formatter) raw(dst, data []byte) []byte {
	switch len(data) {
	case 1, 2, 4, 8:
		return strconv.AppendUint(dst, Unsigned(data), 10)
	}
	s := hex.EncodeToString(data)
	if f.style == styleJSON {
		return escape.AppendJSON(dst, s)
	}
	return append(append(dst, "0x"...), s...)
}

// Unsigned returns a little-endian number of up to 8 bytes.
func Unsigned(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}

// Signed is Unsigned with the sign of the last byte.
func Signed(b []byte) int64 {
	shift := 64 - 8*min(len(b), 8)
	return int64(Unsigned(b)<<shift) >> shift
}

func (f *formatter) integer(dst, data []byte, enc btf.IntEncoding) []byte {
	switch {
	case len(data) > 8:
		return f.hex(dst, data)
	case enc == btf.Bool:
		return strconv.AppendBool(dst, Unsigned(data) != 0)
	case enc == btf.Signed:
		return strconv.AppendInt(dst, Signed(data), 10)
	}
	return strconv.AppendUint(dst, Unsigned(data), 10)
}

// hex writes a number of any size in hexadecimal; in JSON as a string.
func (f *formatter) hex(dst, data []byte) []byte {
	b := slices.Clone(data)
	slices.Reverse(b)
	s := "0x" + hex.EncodeToString(b)
	if len(b) <= 8 {
		s = "0x" + strconv.FormatUint(Unsigned(data), 16)
	}
	if f.style == styleJSON {
		return escape.AppendJSON(dst, s)
	}
	return append(dst, s...)
}

func (f *formatter) enum(dst []byte, t *btf.Enum, data []byte) []byte {
	v := Unsigned(data)
	if t.Signed {
		v = uint64(Signed(data))
	}
	for _, e := range t.Values {
		if e.Value == v {
			if f.style == styleJSON {
				return escape.AppendJSON(dst, e.Name)
			}
			return append(dst, e.Name...)
		}
	}
	if t.Signed {
		return strconv.AppendInt(dst, int64(v), 10)
	}
	return strconv.AppendUint(dst, v, 10)
}

func (f *formatter) float(dst, data []byte) []byte {
	var v float64
	switch len(data) {
	case 4:
		v = float64(math.Float32frombits(binary.LittleEndian.Uint32(data)))
	case 8:
		v = math.Float64frombits(binary.LittleEndian.Uint64(data))
	default:
		return f.hex(dst, data)
	}
	if f.style == styleJSON && (math.IsNaN(v) || math.IsInf(v, 0)) {
		return escape.AppendJSON(dst, strconv.FormatFloat(v, 'g', -1, 64))
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 8*len(data))
}

func (f *formatter) array(dst []byte, t *btf.Array, data []byte, depth int) []byte {
	elem, err := btf.Sizeof(t.Type)
	if err != nil || elem == 0 {
		return append(dst, "[]"...)
	}
	if s, ok := text(t, data); ok {
		return f.quoted(dst, s)
	}
	dst = append(dst, '[')
	for i := 0; i+elem <= len(data); i += elem {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if len(dst) > f.limit {
			return append(f.unknown(dst), ']')
		}
		dst = f.value(dst, t.Type, data[i:i+elem], depth+1)
	}
	return append(dst, ']')
}

// text returns an array of char as a string, if it is one: printable bytes up to
// its end or a NUL, and nothing but NULs from there on.
func text(t *btf.Array, data []byte) (string, bool) {
	e, ok := btf.UnderlyingType(t.Type).(*btf.Int)
	if !ok || e.Size != 1 || e.Encoding == btf.Bool || e.Encoding == btf.Unsigned && e.Name != "char" {
		return "", false
	}
	n := slices.Index(data, 0)
	if n < 0 {
		n = len(data)
	}
	if n == 0 {
		return "", e.Encoding == btf.Char || e.Name == "char"
	}
	for _, c := range data[:n] {
		if c < ' ' && c != '\n' && c != '\t' || c >= 0x7f {
			return "", false
		}
	}
	for _, c := range data[n:] {
		if c != 0 {
			return "", false
		}
	}
	return string(data[:n]), true
}

func (f *formatter) members(dst []byte, members []btf.Member, data []byte, depth int) []byte {
	dst = append(dst, '{')
	for i := range members {
		m := &members[i]
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if len(dst) > f.limit {
			break
		}
		name := m.Name
		if name == "" {
			name = fmt.Sprintf("anon%d", i)
		}
		dst = f.name(dst, name)
		dst = f.member(dst, m, data, depth)
	}
	return append(dst, '}')
}

func (f *formatter) name(dst []byte, name string) []byte {
	if f.style == styleJSON {
		return append(escape.AppendJSON(dst, name), ": "...)
	}
	return append(escape.Append(dst, name), " = "...)
}

func (f *formatter) member(dst []byte, m *btf.Member, data []byte, depth int) []byte {
	off := int(m.Offset / 8)
	if off < 0 || off > len(data) {
		return f.unknown(dst)
	}
	if m.BitfieldSize == 0 {
		return f.value(dst, m.Type, data[off:], depth+1)
	}
	bitOff, n := uint64(m.Offset%8), uint64(m.BitfieldSize)
	if n > 56 || off+int((bitOff+n+7)/8) > len(data) {
		return f.unknown(dst)
	}
	v := Unsigned(data[off:min(len(data), off+8)]) >> bitOff & (1<<n - 1)
	if t, ok := btf.UnderlyingType(m.Type).(*btf.Int); ok && t.Encoding == btf.Signed {
		return strconv.AppendInt(dst, int64(v<<(64-n))>>(64-n), 10)
	}
	return strconv.AppendUint(dst, v, 10)
}

func (f *formatter) datasec(dst []byte, t *btf.Datasec, data []byte, depth int) []byte {
	dst = append(dst, '{')
	for i, v := range t.Vars {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if len(dst) > f.limit {
			break
		}
		dst = f.name(dst, v.Type.TypeName())
		if uint64(v.Offset) > uint64(len(data)) {
			dst = f.unknown(dst)
			continue
		}
		dst = f.value(dst, v.Type, data[v.Offset:], depth+1)
	}
	return append(dst, '}')
}

// Parse makes the bytes of a value from text, by its type: a number, a quoted
// or bare word for an array of char, hex:… for bytes as they are, or {a, b, …}
// for the members of a structure or the elements of an array. Elements that are
// not given are zero.
func Parse(s string, t btf.Type, size int) ([]byte, error) {
	if size > MaxBytes {
		return nil, fmt.Errorf("a value of %d bytes is too large to be written", size)
	}
	out := make([]byte, size)
	return out, parseInto(out, s, t, 0)
}

func parseInto(out []byte, s string, t btf.Type, depth int) error {
	if depth > maxTypeDepth {
		return fmt.Errorf("value %q: nested too deeply", s)
	}
	if h, ok := strings.CutPrefix(s, "hex:"); ok {
		b, err := hex.DecodeString(h)
		if err != nil || len(b) > len(out) {
			return fmt.Errorf("value %q: not up to %d bytes of hexadecimal", s, len(out))
		}
		copy(out, b)
		return nil
	}
	if t != nil {
		t = btf.UnderlyingType(t)
		if v, ok := t.(*btf.Var); ok {
			return parseInto(out, s, v.Type, depth+1)
		}
	}
	if len(s) >= 2 && s[0] == '{' && s[len(s)-1] == '}' {
		return parseGroup(out, s, t, depth)
	}
	switch t := t.(type) {
	case *btf.Float:
		return parseFloat(out, s)
	case *btf.Enum:
		for _, e := range t.Values {
			if e.Name == s {
				return putInt(out, e.Value)
			}
		}
	case *btf.Array:
		if e, ok := btf.UnderlyingType(t.Type).(*btf.Int); ok && e.Size == 1 {
			if q, err := strconv.Unquote(s); err == nil {
				s = q
			}
			if len(s) > len(out) {
				return fmt.Errorf("value %q: %d bytes, room for %d", s, len(s), len(out))
			}
			copy(out, s)
			return nil
		}
		return fmt.Errorf("value %q: write the elements as {a, b, …}, or hex:…", s)
	case *btf.Struct, *btf.Union:
		return fmt.Errorf("value %q: write the members as {a, b, …}, or hex:…", s)
	case *btf.Int:
		if t.Encoding == btf.Bool {
			if b, err := strconv.ParseBool(s); err == nil {
				s = strconv.Itoa(map[bool]int{true: 1}[b])
			}
		}
	}
	return parseInt(out, s)
}

func putInt(out []byte, v uint64) error {
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], v)
	copy(out, w[:])
	return nil
}

func parseInt(out []byte, s string) error {
	if len(out) > 8 {
		return fmt.Errorf("value %q: for %d bytes write hex:…", s, len(out))
	}
	bits := 8 * len(out)
	if v, err := strconv.ParseUint(s, 0, bits); err == nil {
		return putInt(out, v)
	}
	v, err := strconv.ParseInt(s, 0, bits)
	if err != nil {
		return fmt.Errorf("value %q: not a number of %d bits", s, bits)
	}
	return putInt(out, uint64(v))
}

func parseFloat(out []byte, s string) error {
	v, err := strconv.ParseFloat(s, 8*len(out))
	switch {
	case err != nil:
		return fmt.Errorf("value %q: not a floating-point number", s)
	case len(out) == 4:
		return putInt(out, uint64(math.Float32bits(float32(v))))
	}
	return putInt(out, math.Float64bits(v))
}

// parseGroup fills a structure or an array from "{a, b, …}".
func parseGroup(out []byte, s string, t btf.Type, depth int) error {
	parts := splitGroup(s[1 : len(s)-1])
	switch t := t.(type) {
	case *btf.Struct:
		if len(parts) > len(t.Members) {
			return fmt.Errorf("value %q: %d members, the type has %d", s, len(parts), len(t.Members))
		}
		for i, p := range parts {
			m := &t.Members[i]
			size, err := btf.Sizeof(m.Type)
			off := int(m.Offset / 8)
			if err != nil || m.BitfieldSize != 0 || off < 0 || off+size > len(out) {
				return fmt.Errorf("value %q: member %s can't be set; write hex:…", s, m.Name)
			}
			if err := parseInto(out[off:off+size], p, m.Type, depth+1); err != nil {
				return err
			}
		}
		return nil
	case *btf.Array:
		size, err := btf.Sizeof(t.Type)
		if err != nil || size == 0 || len(parts) > len(out)/size {
			return fmt.Errorf("value %q: more elements than the array has", s)
		}
		for i, p := range parts {
			if err := parseInto(out[i*size:(i+1)*size], p, t.Type, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("value %q: the type is no structure and no array", s)
}

// splitGroup cuts "a, {b, c}, d" at its outer commas.
func splitGroup(s string) []string {
	var parts []string
	depth, from := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	if last := strings.TrimSpace(s[from:]); last != "" || len(parts) > 0 {
		parts = append(parts, last)
	}
	return parts
}
