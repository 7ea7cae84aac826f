package cdecl

import "strings"

// specifiers is what stands before and behind a declarator, beside the type.
type specifiers struct {
	typedef, isConst, packed bool
	align                    int64 // asked for, 0 none
}

// qualifiers and storage classes. Of them only const counts.
var qualifiers = map[string]bool{
	"const": true, "__const": true, "volatile": true, "__volatile__": true, "restrict": true, "__restrict": true, "__restrict__": true,
	"static": true, "extern": true, "inline": true, "__inline": true, "__inline__": true, "register": true, "auto": true,
	"_Noreturn": true, "__extension__": true, "_Thread_local": true, "__thread": true,
}

// spellings are the keywords of basic types.
var spellings = map[string]string{
	"unsigned": "unsigned", "signed": "signed", "__signed__": "signed", "int": "int", "char": "char", "short": "short", "long": "long",
	"void": "void", "float": "float", "double": "double", "_Bool": "_Bool", "__int128": "__int128",
	"_Float128": "long double", "__float128": "long double", "_Float64x": "long double", "_Float32": "float", "_Float64": "double", "_Float32x": "double", "_Float16": "short",
}

// classes are the keywords before tags.
var classes = map[string]Class{"struct": Struct, "union": Union, "enum": Enum}

// specifiers reads a type and what stands about it.
func (u *Unit) specifiers(s *specifiers) *Type {
	var words []string
	var t *Type
	for {
		switch w := u.Peek(); {
		case u.qualify(s):
		case w == "typedef":
			s.typedef = true
			u.Pos++
		case w == "_Alignas":
			u.Pos++
			u.Want("(")
			s.align = max(s.align, u.number("_Alignas"))
			u.Want(")")
		case spellings[w] != "" && t == nil:
			words = append(words, strings.Fields(spellings[w])...)
			u.Pos++
		case classes[w] != 0:
			t = u.tagged(s)
		case t == nil && words == nil && u.Typedefs[w] != nil:
			t = u.Typedefs[w]
			u.Pos++
		default:
			if t == nil {
				t = basic(words)
			}
			if t == nil {
				u.Fail("unknown type %q", w)
			}
			return t
		}
	}
}

// qualify takes the qualifiers and attributes ahead, and reports whether there
// were any.
func (u *Unit) qualify(s *specifiers) (some bool) {
	for ; ; some = true {
		switch w := u.Peek(); {
		case qualifiers[w]:
			s.isConst = s.isConst || strings.Trim(w, "_") == "const"
			u.Pos++
		case w == "__attribute__" || w == "__attribute":
			u.Pos++
			u.attributes(s)
		case w == "__asm__" || w == "asm":
			u.Pos++
			u.Skip()
		default:
			return some
		}
	}
}

// attributes reads the list of an __attribute__, ((…)), as far as layout is
// concerned.
func (u *Unit) attributes(s *specifiers) {
	u.Want("(")
	u.Want("(")
	for !u.Accept(")") {
		name := strings.Trim(u.Next().Text, "_")
		switch {
		case name == "packed":
			s.packed = true
		case name == "aligned" && u.Accept("("):
			s.align = max(s.align, u.number("aligned"))
			u.Want(")")
		case name == "aligned":
			s.align = max(s.align, 16)
		case u.Peek() == "(":
			u.Skip()
		}
		u.Accept(",")
	}
	u.Want(")")
}

// declarator reads a name with its pointers, arrays, parameters and attributes.
func (u *Unit) declarator(t *Type, s *specifiers) (string, *Type) {
	for u.qualify(s) || u.Peek() == "*" {
		if u.Accept("*") {
			t, s.isConst = pointerTo(t, s.isConst), false
		}
	}
	name, inner := "", -1
	switch {
	case u.Peek() == "(" && u.nested():
		inner = u.Pos + 1
		u.Skip()
	case u.AtIdent():
		name = u.Next().Text
	}
	t = u.suffixes(t, s.isConst)
	if inner >= 0 {
		end := u.Pos
		u.Pos, s.isConst = inner, false
		name, t = u.declarator(t, s)
		u.Want(")")
		u.Pos = end
	}
	u.qualify(s)
	return name, t
}

// nested reports whether the parenthesis ahead holds a declarator, not parameters.
func (u *Unit) nested() bool {
	switch w := u.Ahead(1); w {
	case "*", "(", "__attribute__":
		return true
	case ")", "...":
		return false
	default:
		return !u.isType(w)
	}
}

// suffixes reads arrays and parameters.
func (u *Unit) suffixes(t *Type, isConst bool) *Type {
	switch {
	case u.Accept("("):
		return &Type{Class: Func, Elem: t, Params: u.params()}
	case u.Accept("["):
		n := int64(-1)
		for qualifiers[u.Peek()] {
			u.Pos++
		}
		if u.Peek() != "]" {
			n = u.number("array length")
		}
		u.Want("]")
		return &Type{Class: Array, Elem: u.suffixes(t, isConst), Count: n, Const: isConst}
	}
	return t
}

// params reads parameters behind the parenthesis.
func (u *Unit) params() (list []Param) {
	if u.Peek() == "void" && u.Ahead(1) == ")" {
		u.Pos += 2
		return nil
	}
	for !u.Accept(")") {
		if len(list) > 0 {
			u.Want(",")
		}
		if u.Accept("...") {
			continue
		}
		var s specifiers
		name, t := u.declarator(u.specifiers(&s), &s)
		switch t.Class { // as C adjusts them
		case Array:
			t = pointerTo(t.Elem, t.Const)
		case Func:
			t = pointerTo(t, false)
		}
		list = append(list, Param{name, t})
	}
	return list
}
