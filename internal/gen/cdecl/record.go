package cdecl

import (
	"cmp"
	"fmt"
	"math"

	"nvtrace/internal/gen/ctoken"
)

// tagged reads struct, union or enum with tag, definition or both. Attributes are
// the type's, a const behind it is the declaration's.
func (u *Unit) tagged(decl *specifiers) *Type {
	t := &Type{Class: classes[u.Next().Text]}
	if t.Class == Enum {
		t.size, t.align = 4, 4
	}
	var s specifiers
	u.qualify(&s)
	if u.AtIdent() {
		tag := u.Next().Text
		known := u.Tags[tag]
		if known != nil && known.Class == t.Class && !(known.Done && u.Peek() == "{") {
			t = known
		} else {
			t.Name = tag
			u.Tags[tag] = t
		}
	}
	if !u.Accept("{") {
		return t
	}
	if t.Class == Enum {
		u.enumerators(t)
		u.qualify(&s)
		t.fit(s.packed)
		u.Enums = append(u.Enums, t)
	} else {
		members := u.members()
		u.qualify(&s)
		t.layout(members, s, u.pack())
		u.Records = append(u.Records, t)
	}
	t.Done = true
	decl.isConst = decl.isConst || s.isConst
	return t
}

func (u *Unit) enumerators(t *Type) {
	next := int64(0)
	for !u.Accept("}") {
		name := u.Next().Text
		var s specifiers
		u.qualify(&s)
		if u.Accept("=") {
			next = u.number(fmt.Sprintf("enum %s, %s", t.Name, name))
		}
		t.Values = append(t.Values, Value{name, next})
		u.consts[name] = ctoken.Value{Int: next, Wide: next != int64(int32(next))}
		next++
		if u.Peek() != "}" {
			u.Want(",")
		}
	}
}

// fit chooses the size that the values of an enum need.
func (t *Type) fit(packed bool) {
	low, high := int64(0), int64(0)
	for _, v := range t.Values {
		low, high = min(low, v.Number), max(high, v.Number)
	}
	t.size = 4
	if packed {
		t.size = 1
	}
	for ; t.size < 8; t.size *= 2 {
		if half := int64(1) << (8*t.size - 1); low >= -half && (high < half || low == 0 && high < 2*half) {
			break
		}
	}
	t.align = t.size
}

// member is a member before it has a place.
type member struct {
	Field
	specifiers
	bits bool // a bit-field, which may have a width of 0
}

// members reads up to and with the closing brace.
func (u *Unit) members() (list []member) {
	for !u.Accept("}") {
		switch u.Peek() {
		case ";":
			u.Pos++
			continue
		case "_Static_assert":
			u.Pos++
			u.Skip()
			continue
		}
		var s specifiers
		base := u.specifiers(&s)
		if u.Accept(";") {
			if base.IsRecord() && base.Name == "" { // its members count as those of the outer one
				list = append(list, member{Field: Field{Type: base}, specifiers: s})
			}
			continue
		}
		list = append(list, u.member(base, s))
		for !u.Accept(";") {
			u.Want(",")
			list = append(list, u.member(base, s))
		}
	}
	return list
}

func (u *Unit) member(base *Type, s specifiers) member {
	m := member{Field: Field{Type: base}, specifiers: s}
	if u.Peek() != ":" {
		m.Name, m.Type = u.declarator(base, &m.specifiers)
	}
	inner := m.Type.Base()
	for inner.Class == Array {
		inner = inner.Elem.Base()
	}
	if inner.IsRecord() && !inner.Done {
		u.Fail("member %s: %s has no layout yet", m.Name, inner.Name)
	}
	if m.bits = u.Accept(":"); m.bits {
		m.Bits = u.number("width of " + m.Name)
		if !m.Type.IsInteger() || m.Bits < 0 || m.Bits > 8*m.Type.Size() {
			u.Fail("width of %s: %d bits of %s", m.Name, m.Bits, m.Type.Name)
		}
	}
	u.qualify(&m.specifiers)
	return m
}

// layout places members by the System V ABI of x86-64, as gcc does. s is what
// the record's attributes say, pack what #pragma pack does, 0 for nothing.
func (t *Type) layout(members []member, s specifiers, pack int64) {
	t.align = 1
	limit := cmp.Or(pack, math.MaxInt64)
	bit := int64(0) // the next that is free
	for _, m := range members {
		align, size := m.Type.Align(), 8*m.Type.Size()
		packed := s.packed || m.packed
		if packed && (pack == 0 || !m.bits) { // for a bit-field, gcc asks #pragma pack first
			align = 1
		}
		asked := min(m.align, limit)
		align = max(min(align, limit), asked)
		if t.Class == Union {
			bit = 0
		}
		switch {
		case !m.bits:
			bit = roundUp(bit, 8*align)
			m.Offset = bit / 8
			bit += size
		case m.Bits == 0: // ends the storage unit
			bit = roundUp(bit, size)
		default: // in a storage unit of its type
			bit = roundUp(bit, 8*asked)
			if !packed && pack == 0 && bit/size != (bit+m.Bits-1)/size {
				bit = roundUp(bit, size)
			}
			m.Offset = bit / size * (size / 8)
			m.Bit = bit - 8*m.Offset
			bit += m.Bits
		}
		t.size = max(t.size, (bit+7)/8)
		if !m.bits || m.Name != "" { // a bit-field without a name only takes room
			t.align = max(t.align, align)
			t.Fields = append(t.Fields, m.Field)
		}
	}
	t.align = max(t.align, s.align)
	t.size = roundUp(t.size, t.align)
}

func roundUp(n, to int64) int64 { return (n + max(to, 1) - 1) / max(to, 1) * max(to, 1) }
