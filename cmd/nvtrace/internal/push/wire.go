package push

import (
	"encoding/binary"
	"math"
)

// A message is a protobuf message that is being written, field by field. Values that are zero are left out, as proto3 has it.
type message []byte

// Wire types.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

func (m *message) tag(field, wire int) { *m = binary.AppendUvarint(*m, uint64(field)<<3|uint64(wire)) }

// uint writes a field of type uint32, uint64, int64, bool or of an enumeration.
func (m *message) uint(field int, v uint64) {
	if v != 0 {
		m.tag(field, wireVarint)
		*m = binary.AppendUvarint(*m, v)
	}
}

func (m *message) fixed64(field int, v uint64) {
	if v != 0 {
		m.tag(field, wireFixed64)
		*m = binary.LittleEndian.AppendUint64(*m, v)
	}
}

// double writes a field of a oneof: there, zero is a value, too.
func (m *message) double(field int, v float64) {
	m.tag(field, wireFixed64)
	*m = binary.LittleEndian.AppendUint64(*m, math.Float64bits(v))
}

func (m *message) text(field int, s string) {
	if s != "" {
		m.bytes(field, []byte(s))
	}
}

// bytes writes a field of type bytes, string or a message, also an empty one.
func (m *message) bytes(field int, b []byte) {
	m.tag(field, wireBytes)
	*m = binary.AppendUvarint(*m, uint64(len(b)))
	*m = append(*m, b...)
}

// packed writes a field of repeated numbers.
func (m *message) packed(field int, list []uint64) {
	if len(list) == 0 {
		return
	}
	var b []byte
	for _, v := range list {
		b = binary.AppendUvarint(b, v)
	}
	m.bytes(field, b)
}

// fields gives the fields of a message that was received to take: numbers, or bytes. It ends at what is no message.
func fields(b []byte, take func(field int, number uint64, bytes []byte)) {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return
		}
		b = b[n:]
		var number uint64
		var data []byte
		switch tag & 7 {
		case wireVarint:
			if number, n = binary.Uvarint(b); n <= 0 {
				return
			}
		case wireBytes:
			size, k := binary.Uvarint(b)
			if k <= 0 || size > uint64(len(b)-k) {
				return
			}
			data, n = b[k:k+int(size)], k+int(size)
		case wireFixed64:
			n = 8
		case wireFixed32:
			n = 4
		default:
			return
		}
		if n > len(b) {
			return
		}
		b = b[n:]
		take(int(tag>>3), number, data)
	}
}
