// Package cdecl reads preprocessed C as far as declarations go: types with
// their layout on x86-64 Linux, enumerations with their values, function
// prototypes with the names of their parameters. Bodies of functions are passed
// over. What it cannot read it reports instead of guessing.
package cdecl

import (
	"strings"

	"nvtrace/internal/gen/ctoken"
)

// cursor is embedded without being part of the API.
type cursor = ctoken.Cursor

// Options say how a text is read; nil is the C language.
type Options struct {
	Wide bool // constant expressions have 64 bits: a flag of 1 << 31 is that bit, and no negative number
}

// Unit is what a text declares.
type Unit struct {
	cursor
	Funcs    []Decl
	Typedefs map[string]*Type // Class Named
	Tags     map[string]*Type // structs, unions and enums, by tag
	Records  []*Type          // structs and unions that are defined, in order
	Enums    []*Type          // enums that are defined, in order
	Errors   []error          // declarations that could not be read

	options Options
	consts  map[string]ctoken.Value
	packs   []int64 // #pragma pack; the last one holds
}

// Tokens splits what a preprocessor has written. Of the lines that begin with #,
// its remarks, only #pragma pack counts; it becomes __pragma(pack(…)).
func Tokens(text string) (list []ctoken.Token) {
	for _, line := range ctoken.Lines(text) {
		if strings.HasPrefix(line, "#") {
			args, ok := strings.CutPrefix(line, "#pragma pack")
			if !ok {
				continue
			}
			line = "__pragma(pack" + args + ")"
		}
		list = append(list, ctoken.Lex(line)...)
	}
	return list
}

// Parse reads the declarations of a preprocessed text. What it cannot read is in
// Errors; it goes on behind.
func Parse(tokens []ctoken.Token, o *Options) *Unit {
	u := &Unit{Typedefs: map[string]*Type{}, Tags: map[string]*Type{}, consts: map[string]ctoken.Value{}}
	if o != nil {
		u.options = *o
	}
	u.Tokens = tokens
	u.define("__builtin_va_list", &Type{Class: Struct, Name: "__va_list_tag", Done: true, size: 24, align: 8}, 0)
	u.Errors = u.Each(u.external)
	return u
}

// external reads a declaration or a definition at the top level.
func (u *Unit) external() {
	switch u.Peek() {
	case ";":
		u.Pos++
		return
	case "_Static_assert", "static_assert", "__asm__", "asm":
		u.Pos++
		u.Skip()
		u.Want(";")
		return
	case "__pragma":
		u.Pos++
		u.pragma()
		return
	}
	var s specifiers
	base := u.specifiers(&s)
	for !u.Accept(";") {
		own := s
		name, t := u.declarator(base, &own)
		switch {
		case name == "":
			u.Fail("a declaration without a name")
		case s.typedef:
			u.define(name, t, own.align)
		case t.Class == Func:
			u.Funcs = append(u.Funcs, Decl{name, t})
			if u.Peek() == "{" {
				u.Skip()
				return
			}
		case u.Accept("="):
			for u.Peek() != ";" && u.Peek() != "," {
				u.Skip()
			}
		}
		if u.Peek() != ";" {
			u.Want(",")
		}
	}
}

// pragma obeys #pragma pack.
func (u *Unit) pragma() {
	u.Want("(")
	u.Want("pack")
	u.Want("(")
	if u.Peek() == ")" {
		u.packs = nil
	}
	for !u.Accept(")") {
		switch {
		case u.Accept("push"):
			u.packs = append(u.packs, u.pack())
		case u.Accept("pop"):
			u.packs = u.packs[:max(len(u.packs)-1, 0)]
		case u.Accept(","):
		default:
			n := u.number("#pragma pack")
			u.packs = append(u.packs[:max(len(u.packs)-1, 0)], n)
		}
	}
	u.Want(")")
}

// pack is the alignment that no member exceeds, 0 where there is none.
func (u *Unit) pack() int64 {
	if len(u.packs) == 0 {
		return 0
	}
	return u.packs[len(u.packs)-1]
}

// define notes a typedef. A type without a tag takes the name for itself.
func (u *Unit) define(name string, t *Type, align int64) {
	if (t.IsRecord() || t.Class == Enum) && t.Typedef == "" {
		t.Typedef = name
		if t.Name == "" {
			t.Name = name
		}
	}
	u.Typedefs[name] = &Type{Class: Named, Name: name, Elem: t, align: align}
}

// Eval computes a constant expression over what has been read.
func (u *Unit) Eval(l []ctoken.Token) (ctoken.Value, error) {
	old := u.cursor
	defer func() { u.cursor = old }()
	u.cursor = cursor{Tokens: l}
	return u.evaluator().Whole()
}

// number reads a constant expression; what says of what, for errors.
func (u *Unit) number(what string) int64 {
	v, err := u.evaluator().Expression()
	if err != nil {
		u.Fail("%s: %w", what, err)
	}
	return v.Int
}

func (u *Unit) evaluator() *ctoken.Evaluator {
	return &ctoken.Evaluator{
		Cursor:   &u.cursor,
		Constant: func(name string) (ctoken.Value, bool) { v, ok := u.consts[name]; return v, ok },
		TypeName: u.typeName,
		Wide:     u.options.Wide,
	}
}

// typeName reads a type's name inside an expression.
func (u *Unit) typeName() (ctoken.Sized, bool) {
	if !u.isType(u.Peek()) {
		return ctoken.Sized{}, false
	}
	start := u.Pos
	var name string
	var t *Type
	err := ctoken.Guard(func() {
		var s specifiers
		name, t = u.declarator(u.specifiers(&s), &s)
	})
	if err != nil || name != "" {
		u.Pos = start
		return ctoken.Sized{}, false
	}
	return ctoken.Sized{Size: t.Size(), Align: t.Align(), Signed: t.Signed()}, true
}

// isType reports whether a word begins a type's name.
func (u *Unit) isType(w string) bool {
	return spellings[w] != "" || qualifiers[w] || classes[w] != 0 || u.Typedefs[w] != nil
}
