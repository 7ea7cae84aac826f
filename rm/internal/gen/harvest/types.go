package harvest

import (
	"slices"
	"strconv"
	"strings"

	"nvtrace/rm/internal/gen/cc"
	"nvtrace/rm/internal/gen/facts"
)

// types copies the records, enums and scalars of a unit into the facts.
func (h *harvest) types(u *unit) {
	for _, a := range u.par.Aliases {
		h.f.Alias[a[0]] = a[1]
	}
	for _, r := range u.par.Records {
		if r.Name() != "" {
			h.record(u, r, "")
		}
	}
	for _, e := range u.par.Enums {
		h.enum(e)
	}
	for name, t := range u.par.Typedefs {
		b := t.Base()
		if b.Record == nil && b.Class != cc.Func && b.Class != cc.Array && b.Class != cc.Void && strings.HasPrefix(name, "N") {
			h.scalar(name, t)
		}
	}
}

func (h *harvest) enum(e *cc.Enum) {
	name := e.Name()
	if name == "" && len(e.Names) > 0 {
		name = "enum:" + e.Names[0]
	}
	if name == "" {
		return
	}
	m := map[string]int64{}
	for i, s := range e.Names {
		m[s] = e.Values[i]
	}
	h.f.Enums[name] = m
}

func (h *harvest) scalar(name string, t *cc.Type) {
	if _, ok := h.f.Scalars[name]; ok {
		return
	}
	b := t.Base()
	s := facts.Scalar{Size: b.SizeOf(), Kind: "u"}
	switch {
	case b.Class == cc.Pointer, name == "NvP64":
		s.Kind = "p"
	case b.Class == cc.Float:
		s.Kind = "f"
	case b.Class == cc.EnumType:
		s.Kind, s.Enum = "e", b.Enum.Name()
	case b.Signed:
		s.Kind = "s"
	}
	h.f.Scalars[name] = s
}

// record enters a record and returns its key; hint names one without a name.
func (h *harvest) record(u *unit, r *cc.Record, hint string) string {
	if k, ok := h.names[r]; ok {
		return k
	}
	key := r.Name()
	if key == "" {
		key = hint
	}
	h.names[r] = key
	t := facts.Type{Union: r.Union, Size: r.Size, Align: r.Align, Fields: []facts.Field{}}
	for i, m := range r.Members {
		name := m.Name
		if name == "" {
			name = strconv.Itoa(i)
		}
		f := facts.Field{Name: m.Name, Off: m.Offset, Size: m.Type.SizeOf()}
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
func (h *harvest) member(u *unit, t *cc.Type, hint string) (name string, dims []int64, pointer bool) {
	for {
		b := t.Base()
		switch {
		case t.Typedef && b.Class == cc.Array: // a typedef of an array counts as the array
			t = t.Elem
			continue
		case t.Typedef && b.Record != nil && b.Class != cc.Pointer:
			key := h.record(u, b.Record, hint)
			if _, renamed := h.f.Alias[t.Name]; renamed {
				key = t.Name
			}
			return key, dims, false
		case t.Typedef:
			h.scalar(t.Name, t)
			return t.Name, dims, b.Class == cc.Pointer || t.Name == "NvP64"
		case t.Class == cc.Array:
			dims = append(dims, t.Len)
			t = t.Elem
			continue
		}
		break
	}
	switch t.Class {
	case cc.Struct, cc.Union:
		return h.record(u, t.Record, hint), dims, false
	case cc.Pointer:
		h.scalar("void*", t)
		return "void*", dims, true
	case cc.EnumType:
		if t.Enum.Name() == "" {
			t.Enum.Typedef = hint
		}
		h.scalar(t.Enum.Name(), t)
		return t.Enum.Name(), dims, false
	}
	h.scalar(t.Name, t)
	return t.Name, dims, false
}

func sameLayout(a, b facts.Type) bool {
	return a.Union == b.Union && a.Size == b.Size && slices.EqualFunc(a.Fields, b.Fields, func(x, y facts.Field) bool {
		return x.Name == y.Name && x.Off == y.Off && x.Size == y.Size && x.Bit == y.Bit && x.Bits == y.Bits && slices.Equal(x.Dims, y.Dims)
	})
}
