package cc

import (
	"fmt"
	"strings"
)

// pragmaPack marks a #pragma pack in the expanded text.
const pragmaPack = "__pragma_pack"

// Parser reads declarations. What it cannot read it reports in Errors, and goes
// on after it.
type Parser struct {
	Typedefs map[string]*Type
	Records  []*Record // defined ones, in order
	Enums    []*Enum
	Aliases  [][2]string // typedefs of records that have another name: typedef, record
	Errors   []error

	tokens []Token
	pos    int
	tags   map[string]*Record // "struct x"
	enums  map[string]*Enum
	consts map[string]Value
	packs  []int64
}

// NewParser returns a parser that has read nothing yet.
func NewParser() *Parser {
	q := &Parser{Typedefs: map[string]*Type{}, tags: map[string]*Record{}, enums: map[string]*Enum{}, consts: map[string]Value{}}
	va := &Record{Tag: "__va_list", Done: true, Size: 24, Align: 8}
	q.Typedefs["__builtin_va_list"] = &Type{Class: Struct, Name: "va_list", Record: va}
	return q
}

// bail carries a syntax error up to the declaration that it is in.
type bail struct{ err error }

func (q *Parser) fail(format string, a ...any) { panic(bail{fmt.Errorf(format, a...)}) }

// guard runs f and returns the syntax error that it met.
func guard(f func()) (err error) {
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

func (q *Parser) peek() string {
	if q.pos < len(q.tokens) {
		return q.tokens[q.pos].Text
	}
	return ""
}

func (q *Parser) atIdent() bool { return q.pos < len(q.tokens) && q.tokens[q.pos].Kind == Ident }

func (q *Parser) next() Token {
	if q.pos >= len(q.tokens) {
		q.fail("the text ends in a declaration")
	}
	q.pos++
	return q.tokens[q.pos-1]
}

func (q *Parser) accept(s string) bool {
	if q.peek() != s {
		return false
	}
	q.pos++
	return true
}

func (q *Parser) want(s string) {
	if !q.accept(s) {
		q.fail("%q where %q is due", q.peek(), s)
	}
}

// Parse reads all declarations of an expanded text.
func (q *Parser) Parse(tokens []Token) {
	q.tokens, q.pos = tokens, 0
	for q.pos < len(q.tokens) {
		start := q.pos
		if err := guard(q.topLevel); err != nil {
			q.Errors = append(q.Errors, fmt.Errorf("%w, near: %s", err, spell(q.tokens, start, 14)))
			q.pos = start
			q.resync()
		}
		if q.pos == start {
			q.pos++
		}
	}
}

// resync goes past the declaration that failed.
func (q *Parser) resync() {
	depth := 0
	for q.pos < len(q.tokens) {
		t := q.tokens[q.pos]
		q.pos++
		if t.Kind != Punct {
			continue
		}
		switch t.Text {
		case "{", "(", "[":
			depth++
		case "}", ")", "]":
			depth--
		}
		if depth <= 0 && (t.Text == ";" || t.Text == "}" && q.peek() != ";" && !q.atIdent()) {
			return
		}
	}
}

func spell(l []Token, i, n int) string {
	var b strings.Builder
	for ; i < len(l) && n > 0; i, n = i+1, n-1 {
		b.WriteString(l[i].Text)
		b.WriteByte(' ')
	}
	return b.String()
}

func (q *Parser) skipBalanced() {
	open := q.next().Text
	closing := map[string]string{"(": ")", "{": "}", "[": "]"}[open]
	for depth := 1; depth > 0; {
		switch t := q.next(); {
		case t.Kind != Punct:
		case t.Text == open:
			depth++
		case t.Text == closing:
			depth--
		}
	}
}

// topLevel reads one declaration.
func (q *Parser) topLevel() {
	switch q.peek() {
	case ";", "}":
		q.pos++
		return
	case "_Static_assert", "static_assert", "__asm__", "asm":
		q.pos++
		q.skipBalanced()
		return
	case pragmaPack:
		q.pos++
		q.pragma()
		return
	case "extern":
		if q.pos+1 < len(q.tokens) && q.tokens[q.pos+1].Kind == String { // extern "C" {
			q.pos += 2
			q.accept("{")
			return
		}
	}
	var s specifiers
	t := q.specifiers(&s)
	for !q.accept(";") {
		name, dt, align := q.declarator(t)
		switch {
		case s.typedef:
			q.define(name, dt, max(align, s.align))
		case q.peek() == "{": // a function's body
			q.skipBalanced()
			return
		case q.accept("="):
			q.skipInitializer()
		}
		if !q.accept(",") {
			q.want(";")
			return
		}
	}
}

func (q *Parser) skipInitializer() {
	for q.peek() != ";" && q.peek() != "," {
		switch q.peek() {
		case "{", "(", "[":
			q.skipBalanced()
		default:
			q.next()
		}
	}
}

// pragma obeys #pragma pack.
func (q *Parser) pragma() {
	q.want("(")
	if q.accept(")") {
		q.packs = nil
		return
	}
	for !q.accept(")") {
		switch t := q.next(); t.Text {
		case "push":
			q.packs = append(q.packs, q.pack())
		case "pop":
			if len(q.packs) > 0 {
				q.packs = q.packs[:len(q.packs)-1]
			}
		case ",":
		default:
			v, err := ParseNumber(t.Text)
			if err != nil {
				q.fail("#pragma pack(%s)", t.Text)
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
func (q *Parser) Eval(l []Token) (Value, error) {
	e := evaluator{
		tokens:   l,
		constant: func(s string) (Value, bool) { v, ok := q.consts[s]; return v, ok },
		typeName: q.typeName,
	}
	return e.whole()
}

// typeName parses a type's name inside an expression.
func (q *Parser) typeName(e *evaluator) (t *Type, ok bool) {
	if e.pos >= len(e.tokens) || e.tokens[e.pos].Kind != Ident || !q.startsType(e.tokens[e.pos].Text) {
		return nil, false
	}
	tokens, pos := q.tokens, q.pos
	defer func() { q.tokens, q.pos = tokens, pos }()
	q.tokens, q.pos = e.tokens, e.pos
	err := guard(func() {
		var s specifiers
		t = q.specifiers(&s)
		for q.accept("*") {
			t = pointerTo(t)
		}
	})
	if err != nil {
		return nil, false
	}
	e.pos = q.pos
	return t, true
}

func (q *Parser) startsType(s string) bool {
	switch s {
	case "struct", "union", "enum", "const", "volatile":
		return true
	}
	return keywords[s] || q.Typedefs[s] != nil
}
