package cc

import "fmt"

// member is a member before it has a place.
type member struct {
	Member
	align  int64 // asked for by an attribute, 0 none
	packed bool
	zero   bool // a bit-field of width 0: ends the storage unit
}

// packing is what attributes and pragmas say of a whole record.
type packing struct {
	align  int64
	packed bool
	max    int64 // #pragma pack(n), 0 none
}

// layout places members by the System V ABI of x86-64, as gcc does.
type layout struct {
	r       *Record
	p       packing
	bit     int64 // next free bit of a struct
	size    int64 // of a union so far
	largest int64 // alignment
}

func (r *Record) layout(members []member, p packing) error {
	l := layout{r: r, p: p, largest: 1}
	for i := range members {
		m := &members[i]
		if b := m.Type.Base(); b.isRecord() && !b.Record.Done {
			return fmt.Errorf("member %s of %s has no layout yet", m.Name, r.Name())
		}
		switch {
		case m.zero:
			if !r.Union {
				l.bit = roundUp(l.bit, m.Type.SizeOf()*8)
			}
		case m.Bits > 0:
			l.bitField(m)
		default:
			l.plain(m)
		}
	}
	if !r.Union {
		l.size = (l.bit + 7) / 8
	}
	r.Align = max(l.largest, p.align)
	r.Size = roundUp(l.size, r.Align)
	r.Done = true
	return nil
}

// alignOf is a member's alignment here.
func (l *layout) alignOf(m *member) int64 {
	a := m.Type.AlignOf()
	if l.p.packed || m.packed {
		a = 1
	}
	a = max(a, m.align)
	if l.p.max > 0 {
		a = min(a, l.p.max)
	}
	return a
}

func (l *layout) plain(m *member) {
	a, size := l.alignOf(m), m.Type.SizeOf()
	l.largest = max(l.largest, a)
	if l.r.Union {
		l.size = max(l.size, size)
	} else {
		l.bit = roundUp(roundUp(l.bit, 8), a*8)
		m.Offset = l.bit / 8
		l.bit += size * 8
	}
	l.r.Members = append(l.r.Members, m.Member)
}

// bitField puts a bit-field where it does not cross a storage unit of its type.
func (l *layout) bitField(m *member) {
	a, unit := l.alignOf(m), m.Type.SizeOf()*8
	if l.r.Union {
		l.size = max(l.size, (m.Bits+7)/8)
	} else {
		if !l.p.packed {
			if l.bit/unit != (l.bit+m.Bits-1)/unit {
				l.bit = roundUp(l.bit, unit)
			}
			if m.align > 0 {
				l.bit = roundUp(l.bit, a*8)
			}
		}
		m.Offset = l.bit / unit * (unit / 8)
		m.Bit = l.bit - m.Offset*8
		l.bit += m.Bits
	}
	if m.Name == "" { // padding: has no name and does not align the record
		return
	}
	l.largest = max(l.largest, a)
	l.r.Members = append(l.r.Members, m.Member)
}

func roundUp(n, a int64) int64 {
	if a <= 1 {
		return n
	}
	return (n + a - 1) / a * a
}
