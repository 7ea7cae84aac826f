package ioctl

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"nvtrace/rm"
	"nvtrace/traces/escape"
)

// load reads a little-endian number of size bytes, as far as there are any.
func load(b []byte, size int) uint64 {
	switch {
	case size == 4 && len(b) >= 4:
		return uint64(binary.LittleEndian.Uint32(b))
	case size == 8 && len(b) >= 8:
		return binary.LittleEndian.Uint64(b)
	}
	var v uint64
	for i := min(len(b), size, 8) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// scalar appends one element.
func (p *printer) scalar(f *rm.Field, b, outer []byte) {
	if len(b) < f.Elem {
		p.dst = append(p.dst, '?') // its bytes were not recorded
		return
	}
	if f.Kind == rm.KindStruct || f.Elem > 8 {
		p.hex(b)
		return
	}
	v := load(b, f.Elem)
	switch f.Role {
	case rm.RoleHandle:
		p.handle(f, uint32(v), outer)
		return
	case rm.RoleFD:
		p.fd(int32(uint32(v)))
		return
	case rm.RoleClass:
		if c := p.abi.Class(uint32(v)); c != nil {
			p.dst = append(p.dst, c.Name...)
			return
		}
		p.hexNumber(v)
		return
	case rm.RoleStatus:
		p.dst = append(p.dst, p.abi.StatusName(rm.Status(v))...)
		return
	}
	p.number(f, v)
}

// number appends a value by its domain, or as fits its kind.
func (p *printer) number(f *rm.Field, v uint64) {
	if f.Domain != nil && p.domain(f, v) {
		return
	}
	switch {
	case f.Kind == rm.KindInt || f.Role == rm.RolePID:
		shift := 64 - 8*min(f.Elem, 8)
		if f.Bits != 0 {
			shift = 64 - f.Bits
		}
		p.dst = strconv.AppendInt(p.dst, int64(v<<shift)>>shift, 10)
	case f.Kind == rm.KindFloat && f.Elem == 4:
		p.dst = strconv.AppendFloat(p.dst, float64(math.Float32frombits(uint32(v))), 'g', -1, 32)
	case f.Kind == rm.KindFloat && f.Elem == 8:
		p.dst = strconv.AppendFloat(p.dst, math.Float64frombits(v), 'g', -1, 64)
	case f.Kind == rm.KindPointer || f.Role == rm.RoleAddress || f.Role == rm.RolePointer || f.Role == rm.RoleGPU:
		p.hexNumber(v)
	case strings.HasSuffix(f.Name, "_id"): // PCI ids
		p.hexNumber(v)
	case v <= 1 && (f.Type == "NvBool" || f.Type == "bool"):
		p.dst = strconv.AppendBool(p.dst, v == 1)
	default:
		p.plain(v)
	}
}

// AppendValue appends a member's value as lines print it: by the names that the
// tables have for it, else as a number.
func AppendValue(dst []byte, f *rm.Field, v uint64) []byte {
	p := printer{dst: dst, abi: rm.Newest()}
	p.number(f, v)
	return p.dst
}

// plain appends small numbers in decimal, others in hexadecimal.
func (p *printer) plain(v uint64) {
	if v < 10_000 {
		p.dst = strconv.AppendUint(p.dst, v, 10)
		return
	}
	p.hexNumber(v)
}

func (p *printer) hexNumber(v uint64) {
	p.dst = append(p.dst, "0x"...)
	p.dst = strconv.AppendUint(p.dst, v, 16)
}

// domain appends a value by name; false if the domain says nothing about it.
func (p *printer) domain(f *rm.Field, v uint64) bool {
	d := f.Domain
	if len(d.Ranges) > 0 {
		return p.ranges(d, v)
	}
	if !d.Bound && f.Elem == 8 {
		return false // found by spelling; such a one never fitted a 64-bit member
	}
	if name := domainValue(d.Values, v); name != "" {
		p.dst = append(p.dst, name...)
		return true
	}
	if !isFlagSet(d) || v == 0 {
		return false
	}
	some := false
	for _, val := range d.Values {
		if val.V != 0 && v&val.V == val.V && bits.OnesCount64(val.V) == 1 {
			p.or(&some)
			p.dst = append(p.dst, val.Name...)
			v &^= val.V
		}
	}
	if !some {
		return false
	}
	if v != 0 {
		p.or(&some)
		p.hexNumber(v)
	}
	return true
}

func (p *printer) or(some *bool) {
	if *some {
		p.dst = append(p.dst, '|')
	}
	*some = true
}

// isFlagSet reports whether a domain's values are single bits, at least two of them.
func isFlagSet(d *rm.Domain) bool {
	n := 0
	for _, val := range d.Values {
		switch bits.OnesCount64(val.V) {
		case 0:
		case 1:
			n++
		default:
			return false
		}
	}
	return n >= 2
}

func domainValue(values []rm.Value, v uint64) string {
	for i := range values {
		if values[i].V == v {
			return values[i].Name
		}
	}
	return ""
}

// ranges appends a value as RANGE=VALUE|…, leaving out ranges that are zero,
// and the bits outside all ranges in hexadecimal.
func (p *printer) ranges(d *rm.Domain, v uint64) bool {
	some := false
	rest := v
	for i := range d.Ranges {
		r := &d.Ranges[i]
		if r.Hi > 63 || r.Lo > r.Hi {
			continue
		}
		mask := uint64(1)<<(r.Hi-r.Lo)<<1 - 1
		bits := v >> r.Lo & mask
		// Ranges overlap where a newer name covers an older one: the first wins.
		if bits == 0 || rest>>r.Lo&mask != bits {
			continue
		}
		rest &^= mask << r.Lo
		p.or(&some)
		if name := domainValue(d.Values, bits); name != "" && r.Lo == 0 && len(r.Values) == 0 {
			p.dst = append(p.dst, name...) // the range is the value itself, beside other bits
			continue
		}
		if r.Lo == 0 && len(r.Values) == 0 && bits == v {
			p.plain(v) // the range is a number, and there is nothing else
			continue
		}
		p.dst = append(p.dst, r.Name...)
		name := domainValue(r.Values, bits)
		if name == "" && mask == 1 {
			continue // a flag
		}
		p.dst = append(p.dst, '=')
		if name != "" {
			p.dst = append(p.dst, name...)
		} else {
			p.plain(bits)
		}
	}
	if rest != 0 || !some {
		p.or(&some)
		if rest == 0 {
			p.dst = append(p.dst, '0')
		} else {
			p.hexNumber(rest)
		}
	}
	return true
}

// handle appends an object's handle: the name that the Namer has for it, or the
// number.
func (p *printer) handle(f *rm.Field, h uint32, outer []byte) {
	client := p.call.Client
	switch f.Name {
	case "hClient", "hRoot", "hClientSrc":
		client = h
	case "hObjectSrc":
		if p.call.Nr == escDupObject {
			client = load32(outer, 12) // NVOS55_PARAMETERS.hClientSrc
		}
	}
	p.object(client, h)
}

func (p *printer) object(client, h uint32) {
	if p.name != nil && h != 0 {
		n := len(p.dst)
		p.dst = p.name(p.dst, client, h)
		if len(p.dst) > n {
			return
		}
	}
	p.hexNumber(uint64(h))
}

// fd appends a descriptor with the node behind it.
func (p *printer) fd(fd int32) {
	p.dst = strconv.AppendInt(p.dst, int64(fd), 10)
	if fd < 0 {
		return
	}
	dev := ""
	if p.fds != nil {
		dev = p.fds(p.pid, fd)
	} else {
		dev = p.links.fds[p.pid][fd].dev
	}
	if dev != "" {
		p.dst = append(p.dst, '<')
		p.dst = escape.Append(p.dst, dev)
		p.dst = append(p.dst, '>')
	}
}

// str appends NUL-terminated characters in quotes.
func (p *printer) str(b []byte) {
	b = b[:cstrlen(b)]
	limit := len(b)
	if p.elems >= 0 {
		limit = min(limit, 4*p.elems)
	}
	p.dst = escape.AppendQuoted(p.dst, b[:limit])
	if limit < len(b) {
		p.dst = append(p.dst, "…"...)
	}
}

func cstrlen(b []byte) int {
	for i, c := range b {
		if c == 0 {
			return i
		}
	}
	return len(b)
}

const hexDigits = "0123456789abcdef"

// hex appends bytes as x"0102…" without trailing zeros, with their number.
func (p *printer) hex(b []byte) {
	n := trimmed(b)
	shown := n
	if p.elems >= 0 {
		shown = min(shown, 4*p.elems)
	}
	p.dst = append(p.dst, 'x', '"')
	for _, c := range b[:shown] {
		p.dst = append(p.dst, hexDigits[c>>4], hexDigits[c&15])
	}
	if shown < n {
		p.dst = append(p.dst, "…"...)
	}
	p.dst = append(p.dst, '"')
	if shown < len(b) {
		p.dst = append(p.dst, '/')
		p.dst = strconv.AppendInt(p.dst, int64(len(b)), 10)
	}
}

// uuids appends one UUID, or a list.
func (p *printer) uuids(f *rm.Field, b []byte) {
	if f.Dims == nil || f.Size == 16 {
		p.uuid(b)
		return
	}
	p.dst = append(p.dst, '[')
	n := min(len(b)/16, (trimmed(b)+15)/16)
	shown := n
	if p.elems >= 0 {
		shown = min(n, p.elems)
	}
	for i := range shown {
		if i > 0 {
			p.dst = append(p.dst, ", "...)
		}
		p.uuid(b[16*i:])
	}
	p.more(n-shown, shown > 0)
	p.dst = append(p.dst, ']')
}

// uuid appends 16 bytes the way nvidia-smi writes a GPU's.
func (p *printer) uuid(b []byte) {
	if len(b) < 16 {
		p.dst = append(p.dst, '?')
		return
	}
	p.dst = append(p.dst, "GPU-"...)
	for i, c := range b[:16] {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			p.dst = append(p.dst, '-')
		}
		p.dst = append(p.dst, hexDigits[c>>4], hexDigits[c&15])
	}
}
