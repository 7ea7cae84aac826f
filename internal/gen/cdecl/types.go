package cdecl

import "slices"

// Class is what a type is.
type Class uint8

// The classes.
const (
	Void Class = iota
	Int
	Uint
	Bool
	Char
	Float
	Pointer
	Array
	Struct
	Union
	Enum
	Func
	Named // a typedef; Elem is what it names
)

// Type is a C type. What is made of a tag is one Type, filled when the tag is
// defined.
type Type struct {
	Class   Class
	Name    string // a basic type's spelling; a typedef; a tag or, for what has none, its first typedef
	Typedef string // of a struct, union or enum: its first typedef
	Elem    *Type  // of a pointer, array, typedef; a function's result
	Const   bool   // a pointer's target is const
	Count   int64  // elements of an array, -1 for [ ]
	Fields  []Field
	Values  []Value // of an enum
	Params  []Param // of a function
	Done    bool    // a struct, union or enum is defined

	size, align int64
}

// Field is a member.
type Field struct {
	Name   string // "" for an anonymous struct or union
	Type   *Type
	Offset int64
	Bit    int64 // of a bit-field: the first bit in the storage unit at Offset
	Bits   int64 // of a bit-field: the width, else 0
}

// Value is an enumerator.
type Value struct {
	Name   string
	Number int64
}

// Param is a parameter.
type Param struct {
	Name string
	Type *Type
}

// Decl is a function's declaration.
type Decl struct {
	Name string
	Type *Type // Class Func
}

// Size returns the size in bytes, 0 for what has none.
func (t *Type) Size() int64 {
	switch t.Class {
	case Named:
		return t.Elem.Size()
	case Array:
		return max(t.Count, 0) * t.Elem.Size()
	}
	return t.size
}

// Align returns the alignment in bytes.
func (t *Type) Align() int64 {
	switch t.Class {
	case Named:
		return max(t.align, t.Elem.Align())
	case Array:
		return t.Elem.Align()
	}
	return max(t.align, 1)
}

// Base follows typedefs.
func (t *Type) Base() *Type {
	for t.Class == Named {
		t = t.Elem
	}
	return t
}

// IsRecord reports whether the type is a struct or union; a typedef of one is not.
func (t *Type) IsRecord() bool { return t.Class == Struct || t.Class == Union }

// IsInteger reports whether the type, behind typedefs, is an integer or an enum.
func (t *Type) IsInteger() bool {
	switch t.Base().Class {
	case Int, Uint, Bool, Char, Enum:
		return true
	}
	return false
}

// Signed reports whether the type, behind typedefs, is an integer or an enum
// that has negative values.
func (t *Type) Signed() bool {
	switch t = t.Base(); t.Class {
	case Int, Char:
		return true
	case Enum:
		return slices.ContainsFunc(t.Values, func(v Value) bool { return v.Number < 0 })
	}
	return false
}

func pointerTo(t *Type, isConst bool) *Type {
	return &Type{Class: Pointer, Elem: t, Const: isConst, size: 8, align: 8}
}

// basic is the type that keywords spell, nil where they spell none.
func basic(words []string) *Type {
	n := map[string]int{}
	for _, w := range words {
		n[w]++
	}
	unsigned := n["unsigned"] > 0
	t := func(c Class, size int64, name string) *Type {
		if c == Int && unsigned {
			c, name = Uint, "unsigned "+name
		}
		return &Type{Class: c, Name: name, size: size, align: size}
	}
	switch {
	case len(words) == 0:
		return nil
	case n["void"] > 0:
		return t(Void, 1, "void") // as gcc counts it
	case n["_Bool"] > 0:
		return t(Bool, 1, "bool")
	case n["float"] > 0:
		return t(Float, 4, "float")
	case n["double"] > 0 && n["long"] > 0:
		return t(Float, 16, "long double")
	case n["double"] > 0:
		return t(Float, 8, "double")
	case n["char"] > 0 && n["signed"] > 0:
		return t(Int, 1, "signed char")
	case n["char"] > 0 && unsigned:
		return t(Int, 1, "char")
	case n["char"] > 0:
		return t(Char, 1, "char")
	case n["short"] > 0:
		return t(Int, 2, "short")
	case n["__int128"] > 0:
		return t(Int, 16, "__int128")
	case n["long"] > 1:
		return t(Int, 8, "long long")
	case n["long"] > 0:
		return t(Int, 8, "long")
	}
	return t(Int, 4, "int")
}
