package diff

import (
	"cmp"
	"slices"
	"strconv"

	"nvtrace/rm"
)

// Layout is a struct that two driver versions lay out differently.
type Layout struct {
	Name string `json:"name"`
	// SizeA and SizeB are in bytes; 0 where the version has no such struct.
	SizeA  int      `json:"size_a"`
	SizeB  int      `json:"size_b"`
	Fields []Member `json:"fields,omitempty"` // members that differ, in order of offset
}

// Member is one that is new (A is nil), gone (B is nil) or other.
type Member struct {
	Name string `json:"name"`
	A    *Place `json:"a,omitempty"`
	B    *Place `json:"b,omitempty"`
}

// Place is where a member lies and of what type it is.
type Place struct {
	Offset int    `json:"offset"` // bytes
	Size   int    `json:"size"`   // bytes
	Type   string `json:"type"`   // as C has it: "NvU32[4]", "NvU32:3" for a bit-field
	Bit    int    `json:"bit,omitempty"`
}

// usedLayouts compares the layouts that either run used, and those nested in
// them.
func usedLayouts(a, b *Profile) []Layout {
	names := make(map[string]struct{})
	for _, p := range []*Profile{a, b} {
		for s := range p.structs {
			addNames(names, s)
		}
	}
	var out []Layout
	for name := range names {
		if l, differs := compareLayouts(name, a.abi.Struct(name), b.abi.Struct(name)); differs {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(x, y Layout) int { return cmp.Compare(x.Name, y.Name) })
	return out
}

// addNames adds the names of a struct and of those nested in it.
func addNames(names map[string]struct{}, s *rm.Struct) {
	if _, ok := names[s.Name]; ok || s.Name == "" {
		return
	}
	names[s.Name] = struct{}{}
	for i := range s.Fields {
		if n := s.Fields[i].Struct; n != nil {
			addNames(names, n)
		}
	}
}

// compareLayouts compares two versions' layouts of a name, either of which may
// be nil. A member whose own struct changed counts only if its size or place
// changed with it.
func compareLayouts(name string, a, b *rm.Struct) (l Layout, differs bool) {
	l.Name = name
	switch {
	case a == b:
		return l, false
	case a == nil:
		l.SizeB = b.Size
		return l, true
	case b == nil:
		l.SizeA = a.Size
		return l, true
	}
	l.SizeA, l.SizeB = a.Size, b.Size
	matched := make([]bool, len(b.Fields))
	for i := range a.Fields {
		fa := &a.Fields[i]
		pa := placeOf(fa)
		j := counterpart(fa, i, b, matched)
		if j < 0 {
			l.Fields = append(l.Fields, Member{Name: memberName(fa), A: &pa})
			continue
		}
		matched[j] = true
		if pb := placeOf(&b.Fields[j]); pa != pb {
			l.Fields = append(l.Fields, Member{memberName(fa), &pa, &pb})
		}
	}
	for j := range b.Fields {
		if !matched[j] {
			pb := placeOf(&b.Fields[j])
			l.Fields = append(l.Fields, Member{Name: memberName(&b.Fields[j]), B: &pb})
		}
	}
	slices.SortStableFunc(l.Fields, func(x, y Member) int { return cmp.Compare(x.offset(), y.offset()) })
	return l, len(l.Fields) > 0 || a.Size != b.Size || a.Union != b.Union
}

// offset is where the member is to be listed.
func (m *Member) offset() int {
	if m.B != nil {
		return m.B.Offset
	}
	return m.A.Offset
}

// counterpart finds the member of b that has f's name; an anonymous one is known
// by its order among its like.
func counterpart(f *rm.Field, i int, b *rm.Struct, matched []bool) int {
	if f.Name == "" {
		if i < len(b.Fields) && b.Fields[i].Name == "" && !matched[i] {
			return i
		}
	}
	for j := range b.Fields {
		if b.Fields[j].Name == f.Name && !matched[j] {
			return j
		}
	}
	return -1
}

func memberName(f *rm.Field) string {
	if f.Name == "" {
		return "(anonymous)"
	}
	return f.Name
}

func placeOf(f *rm.Field) Place {
	p := Place{Offset: f.Offset, Size: f.Size, Type: f.Type, Bit: f.BitOff}
	for _, d := range f.Dims {
		p.Type += "[" + strconv.Itoa(d) + "]"
	}
	if f.Bits != 0 {
		p.Type += ":" + strconv.Itoa(f.Bits)
	}
	return p
}
