package cdecl

import "nvtrace/internal/gen/ctoken"

// tagged reads what stands behind struct, union or enum.
func (u *Unit) tagged(word string) *Type {
	var s specifiers
	u.attributes(&s)
	class := map[string]Class{"struct": Struct, "union": Union, "enum": Enum}[word]
	t := &Type{Class: class}
	if u.AtIdent() {
		tag := u.Next().Text
		if known := u.Tags[tag]; known != nil && known.Class == class {
			t = known
		} else {
			t.Name = tag
			u.Tags[tag] = t
		}
	}
	if class == Enum && t.size == 0 {
		t.size, t.align = 4, 4
	}
	if u.Peek() != "{" {
		return t
	}
	u.Pos++
	if class == Enum {
		u.enumerators(t)
	} else {
		u.members(t, &s)
	}
	u.attributes(&s)
	if class != Enum {
		t.layout(&s)
	}
	t.Done = true
	return t
}

func (u *Unit) enumerators(t *Type) {
	next := int64(0)
	low, high := int64(0), int64(0)
	for !u.Accept("}") {
		name := u.Next().Text
		var s specifiers
		u.attributes(&s)
		if u.Accept("=") {
			next = u.expression()
		}
		t.Values = append(t.Values, Value{name, next})
		u.consts[name] = ctoken.Value{Int: next, Wide: next != int64(int32(next))}
		low, high = min(low, next), max(high, next)
		next++
		if u.Peek() != "}" {
			u.Want(",")
		}
	}
	if low < -1<<31 || high >= 1<<32 || low < 0 && high >= 1<<31 {
		t.size, t.align = 8, 8
	}
}

func (u *Unit) members(t *Type, _ *specifiers) {
	for !u.Accept("}") {
		if u.Accept(";") {
			continue
		}
		if u.Peek() == "_Static_assert" {
			u.Pos++
			u.Skip()
			continue
		}
		var s specifiers
		base := u.specifiers(&s)
		if u.Accept(";") { // an anonymous structure
			t.Fields = append(t.Fields, Field{Type: aligned(base, s.align)})
			continue
		}
		for first := true; !u.Accept(";"); first = false {
			if !first {
				u.Want(",")
			}
			f := Field{Type: base}
			if u.Peek() != ":" {
				f.Name, f.Type = u.declarator(base, s.isConst)
			}
			if u.Accept(":") {
				if f.Bits = u.expression(); f.Bits == 0 {
					f.Bits = -1 // ends the unit
				}
			}
			own := s
			u.attributes(&own)
			f.Type = aligned(f.Type, own.align)
			t.Fields = append(t.Fields, f)
		}
	}
}

// aligned is t with a larger alignment.
func aligned(t *Type, align int64) *Type {
	if align <= t.Align() {
		return t
	}
	c := *t
	c.align = align
	return &c
}

// layout places the members by the rules of the System V ABI.
func (t *Type) layout(s *specifiers) {
	t.align = 1
	bit := int64(0) // next free bit of the structure
	kept := t.Fields[:0]
	for _, f := range t.Fields {
		align, size := f.Type.Align(), f.Type.Size()
		if s.packed {
			align = 1
		}
		if t.Class == Union {
			bit = 0
		}
		switch {
		case f.Bits < 0:
			bit = roundUp(bit, 8*align)
			continue
		case f.Bits > 0:
			unit := 8 * size
			if !s.packed && unit > 0 && bit/unit != (bit+f.Bits-1)/unit {
				bit = roundUp(bit, unit)
			}
			f.Offset = bit / max(unit, 8) * size
			f.Bit = bit - 8*f.Offset
			bit += f.Bits
		default:
			bit = roundUp(bit, 8*align)
			f.Offset = bit / 8
			bit += 8 * size
		}
		t.align = max(t.align, align)
		t.size = max(t.size, (bit+7)/8)
		if f.Name != "" || f.Bits == 0 {
			kept = append(kept, f)
		}
	}
	t.Fields = kept
	t.align = max(t.align, s.align)
	t.size = roundUp(t.size, t.align)
}

func roundUp(n, to int64) int64 { return (n + to - 1) / max(to, 1) * max(to, 1) }
