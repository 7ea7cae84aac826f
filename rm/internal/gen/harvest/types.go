package harvest

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"nvtrace/internal/gen/cdecl"
	"nvtrace/rm/internal/gen/facts"
)

// types copies the records, enums and scalars of a unit into the facts.
func (h *harvest) types(u *unit) {
	for name, t := range u.par.Typedefs {
		if b := t.Base(); b.IsRecord() && nameOf(b) != name {
			h.f.Alias[name] = nameOf(b)
		}
	}
	for _, r := range u.par.Records {
		if r.Name != "" {
			h.record(u, r, "")
		}
	}
	for _, e := range u.par.Enums {
		h.enum(e)
	}
	for name, t := range u.par.Typedefs {
		if b := t.Base(); (b.IsInteger() || b.Class == cdecl.Float || b.Class == cdecl.Pointer) && strings.HasPrefix(name, "N") {
			h.scalar(name, t)
		}
	}
}

// nameOf is what facts call a struct, union or enum: its typedef, else its tag,
// else nothing.
func nameOf(t *cdecl.Type) string { return cmp.Or(t.Typedef, t.Name) }

func (h *harvest) enum(e *cdecl.Type) {
	name := nameOf(e)
	if name == "" && len(e.Values) > 0 {
		name = "enum:" + e.Values[0].Name
	}
	if name == "" {
		return
	}
	m := map[string]int64{}
	for _, v := range e.Values {
		m[v.Name] = v.Number
	}
	h.f.Enums[name] = m
}

func (h *harvest) scalar(name string, t *cdecl.Type) {
	if _, ok := h.f.Scalars[name]; ok {
		return
	}
	b := t.Base()
	s := facts.Scalar{Size: b.Size(), Kind: "u"}
	switch {
	case b.Class == cdecl.Pointer, name == "NvP64":
		s.Kind = "p"
	case b.Class == cdecl.Float:
		s.Kind = "f"
	case b.Class == cdecl.Enum:
		s.Kind, s.Enum = "e", nameOf(b)
	case b.Signed():
		s.Kind = "s"
	}
	h.f.Scalars[name] = s
}

// record enters a record and returns its key; hint names one without a name.
func (h *harvest) record(u *unit, r *cdecl.Type, hint string) string {
	if k, ok := h.names[r]; ok {
		return k
	}
	key := cmp.Or(nameOf(r), hint)
	h.names[r] = key
	t := facts.Type{Union: r.Class == cdecl.Union, Size: r.Size(), Align: r.Align(), Fields: []facts.Field{}}
	for i, m := range r.Fields {
		name := m.Name
		if name == "" {
			name = strconv.Itoa(i)
		}
		f := facts.Field{Name: m.Name, Off: m.Offset, Size: m.Type.Size()}
		f.Type, f.Dims, f.Ptr = h.member(u, m.Type, key+"."+name)
		if m.Bits > 0 {
			f.Bit, f.Bits = m.Bit, m.Bits
		}
		t.Fields = append(t.Fields, f)
	}
	if old, ok := h.f.Types[key]; ok && !sameLayout(old, t) {
		// The halves of the driver differ in a few names that do not cross.
		h.names[r] = u.name + ":" + key
		key = h.names[r]
	}
	h.f.Types[key] = t
	return key
}

// member names a member's element type and its array dimensions.
func (h *harvest) member(u *unit, t *cdecl.Type, hint string) (name string, dims []int64, pointer bool) {
	for {
		b := t.Base()
		switch {
		case t.Class == cdecl.Named && b.Class == cdecl.Array: // a typedef of an array counts as the array
			t = t.Elem
			continue
		case t.Class == cdecl.Named && b.IsRecord():
			key := h.record(u, b, hint)
			if _, renamed := h.f.Alias[t.Name]; renamed {
				key = t.Name
			}
			return key, dims, false
		case t.Class == cdecl.Named:
			h.scalar(t.Name, t)
			return t.Name, dims, b.Class == cdecl.Pointer || t.Name == "NvP64"
		case t.Class == cdecl.Array:
			dims = append(dims, t.Count)
			t = t.Elem
			continue
		}
		break
	}
	switch t.Class {
	case cdecl.Struct, cdecl.Union:
		return h.record(u, t, hint), dims, false
	case cdecl.Pointer:
		h.scalar("void*", t)
		return "void*", dims, true
	case cdecl.Enum:
		if nameOf(t) == "" {
			t.Name = hint
		}
		h.scalar(nameOf(t), t)
		return nameOf(t), dims, false
	}
	h.scalar(t.Name, t)
	return t.Name, dims, false
}

func sameLayout(a, b facts.Type) bool {
	return a.Union == b.Union && a.Size == b.Size && slices.EqualFunc(a.Fields, b.Fields, func(x, y facts.Field) bool {
		return x.Name == y.Name && x.Off == y.Off && x.Size == y.Size && x.Bit == y.Bit && x.Bits == y.Bits && slices.Equal(x.Dims, y.Dims)
	})
}
