package cc

import "slices"

// Type is a C type. A typedef is a Type of its own that names another.
type Type struct {
	Class   Class
	Name    string // typedef's name or the spelling of a basic type
	Signed  bool
	Elem    *Type // what a pointer points to, an array holds, a typedef names
	Len     int64 // of an array; -1: [ ]
	Record  *Record
	Enum    *Enum
	Typedef bool

	size, align int64
}

// Class is what a type is, behind its typedefs.
type Class uint8

// The classes of types.
const (
	Int Class = iota
	Float
	Pointer
	Array
	Struct
	Union
	EnumType
	Func
	Void
)

// Record is a struct or union.
type Record struct {
	Tag     string
	Typedef string // the first typedef of it
	Union   bool
	Done    bool // defined, not only declared
	Members []Member
	Size    int64
	Align   int64
}

// Name is the typedef's name, else the tag, else empty.
func (r *Record) Name() string {
	if r.Typedef != "" {
		return r.Typedef
	}
	return r.Tag
}

// Member is a member of a record.
type Member struct {
	Name   string // "" if anonymous
	Type   *Type
	Offset int64
	Bit    int64 // bit-field: first bit in the storage unit at Offset
	Bits   int64 // bit-field: width, else 0
}

// Enum is an enumeration.
type Enum struct {
	Tag, Typedef string
	Names        []string
	Values       []int64
}

// Name is the typedef's name, else the tag, else empty.
func (e *Enum) Name() string {
	if e.Typedef != "" {
		return e.Typedef
	}
	return e.Tag
}

// Base follows typedefs.
func (t *Type) Base() *Type {
	for t.Typedef {
		t = t.Elem
	}
	return t
}

func (t *Type) isRecord() bool { return t.Record != nil && (t.Class == Struct || t.Class == Union) }

// SizeOf returns the size in bytes. It looks through to records that were only
// declared when the type was made.
func (t *Type) SizeOf() int64 {
	switch {
	case t.Typedef:
		return t.Elem.SizeOf()
	case t.Class == Array:
		return max(t.Len, 0) * t.Elem.SizeOf()
	case t.isRecord():
		return t.Record.Size
	}
	return t.size
}

// AlignOf returns the alignment in bytes.
func (t *Type) AlignOf() int64 {
	switch {
	case t.Typedef:
		return max(t.align, t.Elem.AlignOf())
	case t.Class == Array:
		return t.Elem.AlignOf()
	case t.isRecord():
		return t.Record.Align
	}
	return t.align
}

func pointerTo(t *Type) *Type { return &Type{Class: Pointer, size: 8, align: 8, Elem: t} }

func function() *Type { return &Type{Class: Func, size: 1, align: 1} }

// arrayOf makes arrays of arrays, outermost length first.
func arrayOf(t *Type, dims []int64) *Type {
	for _, n := range slices.Backward(dims) {
		t = &Type{Class: Array, Elem: t, Len: n}
	}
	return t
}

// basic is the type that a list of keywords spells.
func basic(words []string) *Type {
	count := map[string]int{}
	name := ""
	for _, w := range words {
		count[w]++
		if name != "" {
			name += " "
		}
		name += w
	}
	t := &Type{Name: name, Signed: count["unsigned"] == 0, size: 4}
	switch {
	case count["void"] > 0:
		t.Class, t.size = Void, 1
	case count["float"] > 0:
		t.Class = Float
	case count["double"] > 0:
		t.Class, t.size = Float, 8
		if count["long"] > 0 {
			t.size = 16
		}
	case count["char"] > 0:
		t.size = 1
	case count["_Bool"] > 0:
		t.size, t.Signed = 1, false
	case count["short"] > 0:
		t.size = 2
	case count["__int128"] > 0:
		t.size = 16
	case count["long"] > 0:
		t.size = 8
	}
	t.align = t.size
	return t
}
