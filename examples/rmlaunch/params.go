package main

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"nvtrace/rm"
)

// A record is one of the driver's structures, as the running release lays it out. Members are
// named as in the driver's headers and found by package rm's tables, so that one program speaks to
// every release that these know.
type record struct {
	layout *rm.Struct
	b      []byte
}

// fields are members of a record with their values: numbers, bools, bytes, or text that names
// what the driver's headers name, as in "LOCATION=PCI|COHERENCY=CACHED".
type fields map[string]any

func newRecord(layout *rm.Struct) record { return record{layout, make([]byte, layout.Size)} }

// set writes members.
func (r record) set(f fields) error {
	for path, value := range f {
		at, m, err := r.find(path)
		if err != nil {
			return err
		}
		if err := put(r.b[at:], m, value); err != nil {
			return fmt.Errorf("%s.%s: %w", r.layout.Name, path, err)
		}
	}
	return nil
}

// get reads a number.
func (r record) get(path string) (uint64, error) {
	at, m, err := r.find(path)
	if err != nil {
		return 0, err
	}
	return number(r.b[at:], m.Elem), nil
}

// bytes returns the bytes of a member, which are those of the record.
func (r record) bytes(path string) ([]byte, error) {
	at, m, err := r.find(path)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, "]") {
		return r.b[at : at+m.Elem], nil
	}
	return r.b[at : at+m.Size], nil
}

// has says whether this release's structure has a member.
func (r record) has(path string) bool {
	_, _, err := r.find(path)
	return err == nil
}

// find returns where a member lies, by a path like params.hClient or gpuIds[1].
func (r record) find(path string) (at int, member *rm.Field, err error) {
	s := r.layout
	for name := range strings.SplitSeq(path, ".") {
		if s == nil {
			return 0, nil, fmt.Errorf("%s.%s: only structures have members", r.layout.Name, path)
		}
		name, index, indexed := strings.Cut(strings.TrimSuffix(name, "]"), "[")
		member = nil
		for i := range s.Fields {
			if s.Fields[i].Name == name {
				member = &s.Fields[i]
			}
		}
		if member == nil {
			return 0, nil, fmt.Errorf("%s has no member %s in this release", s.Name, name)
		}
		at += member.Offset
		if indexed {
			i, err := strconv.Atoi(index)
			if err != nil || i < 0 || (i+1)*member.Elem > member.Size {
				return 0, nil, fmt.Errorf("%s.%s: no element %s", r.layout.Name, path, index)
			}
			at += i * member.Elem
		}
		s = member.Struct
	}
	return at, member, nil
}

// put writes one value.
func put(b []byte, m *rm.Field, value any) error {
	var v uint64
	switch value := value.(type) {
	case []byte:
		if len(value) > m.Size {
			return fmt.Errorf("%d bytes for %d", len(value), m.Size)
		}
		copy(b, value)
		return nil
	case string:
		var err error
		if v, err = named(m.Domain, value); err != nil {
			return err
		}
	case bool:
		if value {
			v = 1
		}
	case int:
		v = uint64(value)
	case uint32:
		v = uint64(value)
	case uint64:
		v = value
	default:
		return fmt.Errorf("BUG: a value of type %T", value)
	}
	switch m.Elem {
	case 1:
		b[0] = uint8(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	case 8:
		binary.LittleEndian.PutUint64(b, v)
	default:
		return fmt.Errorf("a member of %d bytes is no number", m.Elem)
	}
	return nil
}

func number(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	case 8:
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// named returns the number that names stand for: those of values, and NAME=VALUE for those of
// ranges of bits.
func named(d *rm.Domain, text string) (uint64, error) {
	var v uint64
	for part := range strings.SplitSeq(text, "|") {
		n, ok := namedPart(d, part)
		if !ok {
			return 0, fmt.Errorf("this release has no value %s", part)
		}
		v |= n
	}
	return v, nil
}

func namedPart(d *rm.Domain, part string) (uint64, bool) {
	if d == nil {
		return 0, false
	}
	name, value, isRange := strings.Cut(part, "=")
	if !isRange {
		return valueNamed(d.Values, name)
	}
	for i := range d.Ranges {
		if r := &d.Ranges[i]; r.Name == name {
			v, ok := valueNamed(r.Values, value)
			return v << r.Lo, ok
		}
	}
	return 0, false
}

func valueNamed(values []rm.Value, name string) (uint64, bool) {
	for _, v := range values {
		if v.Name == name {
			return v.V, true
		}
	}
	return 0, false
}
