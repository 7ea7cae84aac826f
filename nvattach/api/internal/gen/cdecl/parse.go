package cdecl

import (
	"fmt"
	"strings"
)

// Unit is what a text declares.
type Unit struct {
	Funcs    []Decl
	Typedefs map[string]*Type // Class Named
	Tags     map[string]*Type // structs, unions and enums, by tag
	Errors   []error          // declarations that could not be read

	tokens []token
	pos    int
	consts map[string]int64
}

// Parse reads the declarations of a preprocessed text. What it cannot read is in
// Errors; it goes on behind.
func Parse(src string) *Unit {
	u := &Unit{Typedefs: map[string]*Type{}, Tags: map[string]*Type{}, tokens: lex(src), consts: map[string]int64{}}
	va := &Type{Class: Struct, Name: "__va_list_tag", Done: true, size: 24, align: 8}
	u.Typedefs["__builtin_va_list"] = &Type{Class: Named, Name: "va_list", Elem: va}
	for u.pos < len(u.tokens) {
		start := u.pos
		if err := u.guard(u.external); err != nil {
			u.Errors = append(u.Errors, fmt.Errorf("line %d: %w: %s", u.tokens[start].line, err, u.spell(start, 12)))
			u.pos = max(u.pos, start+1)
			if u.guard(u.recover) != nil {
				break // the text ends in what was to be passed over
			}
		}
	}
	return u
}

// bail carries a syntax error up to the declaration that it is in.
type bail struct{ err error }

func (u *Unit) fail(format string, a ...any) { panic(bail{fmt.Errorf(format, a...)}) }

func (u *Unit) guard(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case bail:
			err = r.err
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// recover goes on behind the declaration that the position is in.
func (u *Unit) recover() {
	for u.pos < len(u.tokens) {
		switch u.peek() {
		case ";":
			u.pos++
			return
		case "{":
			u.skip()
			if u.peek() != ";" && !u.atIdent() {
				return
			}
		case "(", "[":
			u.skip()
		default:
			u.pos++
		}
	}
}

func (u *Unit) spell(from, n int) string {
	var words []string
	for i := from; i < len(u.tokens) && i < from+n; i++ {
		words = append(words, u.tokens[i].text)
	}
	return strings.Join(words, " ")
}

func (u *Unit) peek() string { return u.ahead(0) }

func (u *Unit) ahead(n int) string {
	if u.pos+n < len(u.tokens) {
		return u.tokens[u.pos+n].text
	}
	return ""
}

func (u *Unit) atIdent() bool { return u.pos < len(u.tokens) && u.tokens[u.pos].kind == ident }

func (u *Unit) next() token {
	if u.pos >= len(u.tokens) {
		u.fail("the text ends in a declaration")
	}
	u.pos++
	return u.tokens[u.pos-1]
}

func (u *Unit) accept(s string) bool {
	if u.peek() != s {
		return false
	}
	u.pos++
	return true
}

func (u *Unit) want(s string) {
	if !u.accept(s) {
		u.fail("%q where %q is expected", u.peek(), s)
	}
}

// skip passes over a bracketed text.
func (u *Unit) skip() {
	depth := 0
	for {
		switch u.next().text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		}
		if depth <= 0 {
			return
		}
	}
}

// external reads a declaration or a definition at the top level.
func (u *Unit) external() {
	if u.accept(";") {
		return
	}
	switch u.peek() {
	case "_Static_assert", "__asm__", "asm":
		u.pos++
		u.skip()
		u.want(";")
		return
	}
	line := u.tokens[u.pos].line
	var s specifiers
	base := u.specifiers(&s)
	for first := true; !u.accept(";"); first = false {
		if !first {
			u.want(",")
		}
		name, t := u.declarator(base, s.isConst)
		u.attributes(&s)
		switch {
		case name == "":
			u.fail("a declaration without a name")
		case s.typedef:
			u.typedef(name, t, s.align)
		case t.Class == Func:
			u.Funcs = append(u.Funcs, Decl{name, t, line})
			if u.peek() == "{" {
				u.skip()
				return
			}
		default:
			if u.accept("=") {
				for u.peek() != ";" && u.peek() != "," {
					if strings.Contains("([{", u.peek()) {
						u.skip()
						continue
					}
					u.next()
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
		w := u.peek()
		switch {
		case !u.atIdent():
		case w == "typedef":
			s.typedef = true
			u.pos++
			continue
		case w == "const" || w == "__const":
			s.isConst = true
			u.pos++
			continue
		case ignored[w]:
			u.pos++
			continue
		case w == "_Alignas":
			u.pos++
			u.want("(")
			s.align = max(s.align, u.expression())
			u.want(")")
			continue
		case spellings[w] != "" && t == nil:
			words = append(words, spellings[w])
			u.pos++
			continue
		case w == "struct" || w == "union" || w == "enum":
			u.pos++
			t = u.tagged(w)
			continue
		case w == "__typeof__" || w == "typeof":
			u.pos++
			u.skip()
			t = basic([]string{"int"})
			continue
		case t == nil && words == nil && u.Typedefs[w] != nil:
			t = u.Typedefs[w]
			u.pos++
			continue
		}
		break
	}
	if t == nil {
		t = basic(words)
	}
	if t == nil {
		u.fail("unknown type %q", u.peek())
	}
	return t
}

// attributes reads __attribute__((…)) as far as layout is concerned.
func (u *Unit) attributes(s *specifiers) {
	for {
		switch u.peek() {
		case "__attribute__", "__attribute":
			u.pos++
			u.want("(")
			u.want("(")
			for !u.accept(")") {
				name := strings.Trim(u.next().text, "_")
				switch {
				case name == "packed":
					s.packed = true
				case name == "aligned" && u.accept("("):
					s.align = max(s.align, u.expression())
					u.want(")")
				case name == "aligned":
					s.align = max(s.align, 16)
				case u.peek() == "(":
					u.skip()
				}
				u.accept(",")
			}
			u.want(")")
		case "__asm__", "asm":
			u.pos++
			u.skip()
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
		case u.accept("*"):
			t = pointerTo(t, isConst)
			isConst = false
			continue
		case u.peek() == "const" || u.peek() == "__const":
			isConst = true
			u.pos++
			continue
		case ignored[u.peek()]:
			u.pos++
			continue
		}
		break
	}
	name, inner := "", -1
	switch {
	case u.peek() == "(" && u.nested():
		inner = u.pos + 1
		u.skip()
	case u.atIdent():
		name = u.next().text
	}
	t = u.suffixes(t, isConst)
	if inner >= 0 {
		end := u.pos
		u.pos = inner
		name, t = u.declarator(t, false)
		u.want(")")
		u.pos = end
	}
	return name, t
}

// nested reports whether the parenthesis ahead holds a declarator, not parameters.
func (u *Unit) nested() bool {
	w := u.ahead(1)
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
	case u.accept("("):
		f := &Type{Class: Func, Elem: t}
		f.Params = u.params()
		return f
	case u.accept("["):
		n := int64(-1)
		for ignored[u.peek()] || u.peek() == "const" || u.peek() == "static" {
			u.pos++
		}
		if u.peek() != "]" {
			n = u.expression()
		}
		u.want("]")
		return &Type{Class: Array, Elem: u.suffixes(t, isConst), Count: n, Const: isConst}
	}
	return t
}

// params reads parameters behind the parenthesis.
func (u *Unit) params() (list []Param) {
	if u.peek() == "void" && u.ahead(1) == ")" {
		u.pos += 2
		return nil
	}
	for !u.accept(")") {
		if len(list) > 0 {
			u.want(",")
		}
		if u.accept("...") {
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
		if u.peek() == "" {
			u.fail("the text ends in parameters")
		}
	}
	return list
}
