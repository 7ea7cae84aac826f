// Package cc reads C declarations: a preprocessor, a parser for declarations and
// the layout rules of x86-64 Linux. It covers what ABI headers use, and reports
// what it cannot read instead of guessing.
package cc

import "nvtrace/internal/gen/ctoken"

// pragmaPack marks a #pragma pack in the expanded text.
const pragmaPack = "__pragma_pack"

// cursor is embedded without being part of the API.
type cursor = ctoken.Cursor

// Parser reads declarations. What it cannot read it reports in Errors, and goes
// on after it.
type Parser struct {
	cursor
	Typedefs map[string]*Type
	Records  []*Record // defined ones, in order
	Enums    []*Enum
	Aliases  [][2]string // typedefs of records that have another name: typedef, record
	Errors   []error

	tags   map[string]*Record // "struct x"
	enums  map[string]*Enum
	consts map[string]ctoken.Value
	packs  []int64
}

// NewParser returns a parser that has read nothing yet.
func NewParser() *Parser {
	q := &Parser{Typedefs: map[string]*Type{}, tags: map[string]*Record{}, enums: map[string]*Enum{}, consts: map[string]ctoken.Value{}}
	va := &Record{Tag: "__va_list", Done: true, Size: 24, Align: 8}
	q.Typedefs["__builtin_va_list"] = &Type{Class: Struct, Name: "va_list", Record: va}
	return q
}

// Parse reads all declarations of an expanded text.
func (q *Parser) Parse(tokens []ctoken.Token) {
	q.cursor = cursor{Tokens: tokens}
	q.Errors = append(q.Errors, q.Each(q.topLevel)...)
}

// topLevel reads one declaration.
func (q *Parser) topLevel() {
	switch q.Peek() {
	case ";", "}":
		q.Pos++
		return
	case "_Static_assert", "static_assert", "__asm__", "asm":
		q.Pos++
		q.Skip()
		return
	case pragmaPack:
		q.Pos++
		q.pragma()
		return
	case "extern":
		if q.Pos+1 < len(q.Tokens) && q.Tokens[q.Pos+1].Kind == ctoken.String { // extern "C" {
			q.Pos += 2
			q.Accept("{")
			return
		}
	}
	var s specifiers
	t := q.specifiers(&s)
	for !q.Accept(";") {
		name, dt, align := q.declarator(t)
		switch {
		case s.typedef:
			q.define(name, dt, max(align, s.align))
		case q.Peek() == "{": // a function's body
			q.Skip()
			return
		case q.Accept("="):
			q.skipInitializer()
		}
		if !q.Accept(",") {
			q.Want(";")
			return
		}
	}
}

func (q *Parser) skipInitializer() {
	for q.Peek() != ";" && q.Peek() != "," {
		switch q.Peek() {
		case "{", "(", "[":
			q.Skip()
		default:
			q.Next()
		}
	}
}

// pragma obeys #pragma pack.
func (q *Parser) pragma() {
	q.Want("(")
	if q.Accept(")") {
		q.packs = nil
		return
	}
	for !q.Accept(")") {
		switch t := q.Next(); t.Text {
		case "push":
			q.packs = append(q.packs, q.pack())
		case "pop":
			if len(q.packs) > 0 {
				q.packs = q.packs[:len(q.packs)-1]
			}
		case ",":
		default:
			v, err := ctoken.ParseNumber(t.Text)
			if err != nil {
				q.Fail("#pragma pack(%s)", t.Text)
			}
			if len(q.packs) == 0 {
				q.packs = []int64{0}
			}
			q.packs[len(q.packs)-1] = v.Int
		}
	}
}

func (q *Parser) pack() int64 {
	if len(q.packs) == 0 {
		return 0
	}
	return q.packs[len(q.packs)-1]
}

// define notes a typedef.
func (q *Parser) define(name string, t *Type, align int64) {
	switch b := t.Base(); {
	case t.Typedef && b.isRecord():
		q.Aliases = append(q.Aliases, [2]string{name, b.Record.Name()})
	case t.isRecord() && t.Record.Typedef == "":
		t.Record.Typedef = name
	case t.isRecord() && t.Record.Typedef != name:
		q.Aliases = append(q.Aliases, [2]string{name, t.Record.Name()})
	case t.Class == EnumType && !t.Typedef && t.Enum.Typedef == "":
		t.Enum.Typedef = name
	}
	n := *t
	n.Name, n.Elem, n.Typedef = name, t, true
	n.align = align
	q.Typedefs[name] = &n
}

// Eval computes a constant expression over the enumerators and types read so far.
func (q *Parser) Eval(l []ctoken.Token) (ctoken.Value, error) {
	old := q.cursor
	defer func() { q.cursor = old }()
	q.cursor = cursor{Tokens: l}
	e := ctoken.Evaluator{
		Cursor:   &q.cursor,
		Constant: func(s string) (ctoken.Value, bool) { v, ok := q.consts[s]; return v, ok },
		TypeName: q.typeName,
	}
	return e.Whole()
}

// typeName parses a type's name inside an expression.
func (q *Parser) typeName() (ctoken.Sized, bool) {
	if !q.AtIdent() || !q.startsType(q.Peek()) {
		return ctoken.Sized{}, false
	}
	start := q.Pos
	var t *Type
	err := ctoken.Guard(func() {
		var s specifiers
		t = q.specifiers(&s)
		for q.Accept("*") {
			t = pointerTo(t)
		}
	})
	if err != nil {
		q.Pos = start
		return ctoken.Sized{}, false
	}
	return ctoken.Sized{Size: t.SizeOf(), Align: t.AlignOf(), Signed: t.Base().Signed}, true
}

func (q *Parser) startsType(s string) bool {
	switch s {
	case "struct", "union", "enum", "const", "volatile":
		return true
	}
	return keywords[s] || q.Typedefs[s] != nil
}
