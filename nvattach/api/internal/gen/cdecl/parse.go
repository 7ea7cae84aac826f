// Package cdecl reads preprocessed C as far as declarations go: types with
// their layout on x86-64, enumerations with their values, function prototypes
// with the names of their parameters. Bodies of functions are passed over.
package cdecl

import (
	"strings"

	"nvtrace/internal/gen/ctoken"
)

// cursor is embedded without being part of the API.
type cursor = ctoken.Cursor

// Unit is what a text declares.
type Unit struct {
	cursor
	Funcs    []Decl
	Typedefs map[string]*Type // Class Named
	Tags     map[string]*Type // structs, unions and enums, by tag
	Errors   []error          // declarations that could not be read

	consts map[string]ctoken.Value
}

// Parse reads the declarations of a preprocessed text. What it cannot read is in
// Errors; it goes on behind.
func Parse(src string) *Unit {
	u := &Unit{Typedefs: map[string]*Type{}, Tags: map[string]*Type{}, consts: map[string]ctoken.Value{}}
	for _, line := range ctoken.Lines(src) {
		if !strings.HasPrefix(line, "#") { // the preprocessor's remarks
			u.Tokens = append(u.Tokens, ctoken.Lex(line)...)
		}
	}
	va := &Type{Class: Struct, Name: "__va_list_tag", Done: true, size: 24, align: 8}
	u.Typedefs["__builtin_va_list"] = &Type{Class: Named, Name: "va_list", Elem: va}
	u.Errors = u.Each(u.external)
	return u
}

// external reads a declaration or a definition at the top level.
func (u *Unit) external() {
	if u.Accept(";") {
		return
	}
	switch u.Peek() {
	case "_Static_assert", "__asm__", "asm":
		u.Pos++
		u.Skip()
		u.Want(";")
		return
	}
	var s specifiers
	base := u.specifiers(&s)
	for first := true; !u.Accept(";"); first = false {
		if !first {
			u.Want(",")
		}
		name, t := u.declarator(base, s.isConst)
		u.attributes(&s)
		switch {
		case name == "":
			u.Fail("a declaration without a name")
		case s.typedef:
			u.typedef(name, t, s.align)
		case t.Class == Func:
			u.Funcs = append(u.Funcs, Decl{name, t})
			if u.Peek() == "{" {
				u.Skip()
				return
			}
		default:
			if u.Accept("=") {
				for u.Peek() != ";" && u.Peek() != "," {
					if strings.Contains("([{", u.Peek()) {
						u.Skip()
						continue
					}
					u.Next()
				}
			}
		}
	}
}

// typedef names a type. An anonymous one takes the name for itself.
func (u *Unit) typedef(name string, t *Type, align int64) {
	if t.Name == "" && (t.Class == Struct || t.Class == Union || t.Class == Enum) {
		t.Name = name
	}
	u.Typedefs[name] = &Type{Class: Named, Name: name, Elem: t, align: align}
}

// specifiers is what stands before declarators, beside the type.
type specifiers struct {
	typedef, isConst, packed bool
	align                    int64
}

var ignored = map[string]bool{
	"static": true, "extern": true, "inline": true, "__inline": true, "__inline__": true, "register": true, "auto": true,
	"volatile": true, "__volatile__": true, "restrict": true, "__restrict": true, "__restrict__": true, "_Noreturn": true,
	"__extension__": true, "_Thread_local": true, "__thread": true,
}

var spellings = map[string]string{
	"unsigned": "unsigned", "signed": "signed", "__signed__": "signed", "int": "int", "char": "char", "short": "short", "long": "long",
	"void": "void", "float": "float", "double": "double", "_Bool": "_Bool", "__int128": "__int128", "_Complex": "_Complex",
	"_Float128": "double", "__float128": "double", "_Float64x": "double", "_Float32": "float", "_Float64": "double", "_Float32x": "double", "_Float16": "short",
}

func (u *Unit) specifiers(s *specifiers) *Type {
	var words []string
	var t *Type
	for {
		u.attributes(s)
		w := u.Peek()
		switch {
		case !u.AtIdent():
		case w == "typedef":
			s.typedef = true
			u.Pos++
			continue
		case w == "const" || w == "__const":
			s.isConst = true
			u.Pos++
			continue
		case ignored[w]:
			u.Pos++
			continue
		case w == "_Alignas":
			u.Pos++
			u.Want("(")
			s.align = max(s.align, u.expression())
			u.Want(")")
			continue
		case spellings[w] != "" && t == nil:
			words = append(words, spellings[w])
			u.Pos++
			continue
		case w == "struct" || w == "union" || w == "enum":
			u.Pos++
			t = u.tagged(w)
			continue
		case w == "__typeof__" || w == "typeof":
			u.Pos++
			u.Skip()
			t = basic([]string{"int"})
			continue
		case t == nil && words == nil && u.Typedefs[w] != nil:
			t = u.Typedefs[w]
			u.Pos++
			continue
		}
		break
	}
	if t == nil {
		t = basic(words)
	}
	if t == nil {
		u.Fail("unknown type %q", u.Peek())
	}
	return t
}

// attributes reads __attribute__((…)) as far as layout is concerned.
func (u *Unit) attributes(s *specifiers) {
	for {
		switch u.Peek() {
		case "__attribute__", "__attribute":
			u.Pos++
			u.Want("(")
			u.Want("(")
			for !u.Accept(")") {
				name := strings.Trim(u.Next().Text, "_")
				switch {
				case name == "packed":
					s.packed = true
				case name == "aligned" && u.Accept("("):
					s.align = max(s.align, u.expression())
					u.Want(")")
				case name == "aligned":
					s.align = max(s.align, 16)
				case u.Peek() == "(":
					u.Skip()
				}
				u.Accept(",")
			}
			u.Want(")")
		case "__asm__", "asm":
			u.Pos++
			u.Skip()
		default:
			return
		}
	}
}

// declarator reads a name with its pointers, arrays and parameters. What is
// declared is const-qualified where isConst is set: of interest to pointers only.
func (u *Unit) declarator(t *Type, isConst bool) (string, *Type) {
	for {
		var s specifiers
		u.attributes(&s)
		switch {
		case u.Accept("*"):
			t = pointerTo(t, isConst)
			isConst = false
			continue
		case u.Peek() == "const" || u.Peek() == "__const":
			isConst = true
			u.Pos++
			continue
		case ignored[u.Peek()]:
			u.Pos++
			continue
		}
		break
	}
	name, inner := "", -1
	switch {
	case u.Peek() == "(" && u.nested():
		inner = u.Pos + 1
		u.Skip()
	case u.AtIdent():
		name = u.Next().Text
	}
	t = u.suffixes(t, isConst)
	if inner >= 0 {
		end := u.Pos
		u.Pos = inner
		name, t = u.declarator(t, false)
		u.Want(")")
		u.Pos = end
	}
	return name, t
}

// nested reports whether the parenthesis ahead holds a declarator, not parameters.
func (u *Unit) nested() bool {
	w := u.Ahead(1)
	switch {
	case w == "*" || w == "(" || w == "__attribute__":
		return true
	case w == ")" || spellings[w] != "" || ignored[w] || w == "const" || w == "struct" || w == "union" || w == "enum":
		return false
	}
	return u.Typedefs[w] == nil && w != "..."
}

// suffixes reads arrays and parameters.
func (u *Unit) suffixes(t *Type, isConst bool) *Type {
	switch {
	case u.Accept("("):
		f := &Type{Class: Func, Elem: t}
		f.Params = u.params()
		return f
	case u.Accept("["):
		n := int64(-1)
		for ignored[u.Peek()] || u.Peek() == "const" || u.Peek() == "static" {
			u.Pos++
		}
		if u.Peek() != "]" {
			n = u.expression()
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
		base := u.specifiers(&s)
		name, t := u.declarator(base, s.isConst)
		u.attributes(&s)
		switch t.Class { // as C adjusts them
		case Array:
			t = pointerTo(t.Elem, t.Const)
		case Func:
			t = pointerTo(t, false)
		}
		list = append(list, Param{name, t})
		if u.Peek() == "" {
			u.Fail("the text ends in parameters")
		}
	}
	return list
}
