package cc

import (
	"strings"

	"nvtrace/internal/gen/ctoken"
)

// specifiers is what stands before a declarator, beside the type.
type specifiers struct {
	typedef bool
	align   int64
	packed  bool
}

// qualifiers do not matter for layout.
var qualifiers = map[string]bool{
	"static": true, "extern": true, "inline": true, "__inline": true, "__inline__": true, "register": true, "auto": true,
	"const": true, "volatile": true, "restrict": true, "__restrict": true, "__const": true, "__volatile__": true,
	"_Noreturn": true, "__extension__": true,
}

// keywords spell basic types.
var keywords = map[string]bool{
	"unsigned": true, "signed": true, "__signed__": true, "int": true, "char": true, "short": true, "long": true,
	"void": true, "float": true, "double": true, "_Bool": true, "__int128": true, "_Complex": true,
}

func (q *Parser) specifiers(s *specifiers) *Type {
	var words []string
	var t *Type
	for {
		q.attributes(&s.align, &s.packed)
		w := q.Peek()
		switch {
		case !q.AtIdent():
		case w == "typedef":
			s.typedef = true
			q.Pos++
			continue
		case qualifiers[w]:
			q.Pos++
			continue
		case keywords[w]:
			words = append(words, w)
			q.Pos++
			continue
		case w == "struct" || w == "union":
			t = q.record()
			continue
		case w == "enum":
			t = q.enum()
			continue
		case w == "_Alignas":
			q.Fail("_Alignas is not supported")
		case w == "__typeof__" || w == "typeof":
			q.Pos++
			q.Skip()
			t = basic([]string{"int"})
			continue
		case t == nil && len(words) == 0 && q.Typedefs[w] != nil:
			t = q.Typedefs[w]
			q.Pos++
			continue
		}
		break
	}
	switch {
	case t != nil:
		return t
	case len(words) == 0:
		q.Fail("unknown type %q", q.Peek())
	}
	return basic(words)
}

// attributes reads __attribute__((…)) as far as layout is concerned.
func (q *Parser) attributes(align *int64, packed *bool) {
	for {
		switch q.Peek() {
		case "__attribute__", "__attribute":
			q.Pos++
			q.Want("(")
			q.Want("(")
			for !q.Accept(")") {
				q.attribute(align, packed)
				q.Accept(",")
			}
			q.Want(")")
		case "__asm__":
			q.Pos++
			q.Skip()
		default:
			return
		}
	}
}

func (q *Parser) attribute(align *int64, packed *bool) {
	name := strings.Trim(q.Next().Text, "_")
	if q.Peek() != "(" {
		switch name {
		case "packed":
			*packed = true
		case "aligned":
			*align = max(*align, 16)
		}
		return
	}
	start := q.Pos + 1
	q.Skip()
	if name != "aligned" {
		return
	}
	v, err := q.Eval(q.Tokens[start : q.Pos-1])
	if err != nil {
		q.Fail("aligned(%s): %v", ctoken.Spell(q.Tokens, start, 8), err)
	}
	*align = max(*align, v.Int)
}

// declarator reads a name with its pointers, arrays and parameters.
func (q *Parser) declarator(t *Type) (name string, _ *Type, align int64) {
	var packed bool
	q.attributes(&align, &packed)
	for q.Accept("*") {
		t = pointerTo(t)
		for qualifiers[q.Peek()] {
			q.Pos++
		}
		q.attributes(&align, &packed)
	}
	if q.Peek() == "(" {
		name, t = q.nested(t)
	} else {
		if q.AtIdent() {
			name = q.Next().Text
		}
		var dims []int64
		for {
			if q.Peek() == "[" {
				dims = append(dims, q.dimension())
				continue
			}
			if q.Peek() != "(" {
				break
			}
			q.Skip()
			t = function()
		}
		t = arrayOf(t, dims)
	}
	q.attributes(&align, &packed)
	return name, t, align
}

// nested reads a declarator in parentheses: a pointer to a function or array.
func (q *Parser) nested(t *Type) (name string, _ *Type) {
	q.Want("(")
	pointers := 0
	var align int64
	var packed bool
	for {
		switch {
		case q.Accept("*"):
			pointers++
			continue
		case qualifiers[q.Peek()]:
			q.Pos++
			continue
		case q.Peek() == "__attribute__":
			q.attributes(&align, &packed)
			continue
		}
		break
	}
	if q.AtIdent() {
		name = q.Next().Text
	}
	var dims []int64
	for q.Peek() == "[" {
		dims = append(dims, q.dimension())
	}
	for q.Peek() == "(" {
		q.Skip()
	}
	q.Want(")")
	for q.Peek() == "(" {
		q.Skip()
		t = function()
	}
	for q.Peek() == "[" {
		q.dimension()
	}
	for ; pointers > 0; pointers-- {
		t = pointerTo(t)
	}
	return name, arrayOf(t, dims)
}

func (q *Parser) dimension() int64 {
	start := q.Pos + 1
	q.Skip()
	l := q.Tokens[start : q.Pos-1]
	if len(l) == 0 {
		return -1
	}
	v, err := q.Eval(l)
	if err != nil {
		q.Fail("array length %s: %v", ctoken.Spell(l, 0, 20), err)
	}
	return v.Int
}

// record reads struct or union with tag, members or both.
func (q *Parser) record() *Type {
	keyword := q.Next().Text
	p := packing{}
	q.attributes(&p.align, &p.packed)
	r := &Record{Union: keyword == "union"}
	if q.AtIdent() {
		tag := q.Next().Text
		old := q.tags[keyword+" "+tag]
		if old != nil && !(old.Done && q.Peek() == "{") {
			r = old
		} else {
			r.Tag = tag
			q.tags[keyword+" "+tag] = r
		}
	}
	q.attributes(&p.align, &p.packed)
	if q.Accept("{") {
		members := q.members()
		q.attributes(&p.align, &p.packed)
		p.max = q.pack()
		p.packed = p.packed || p.max == 1
		if err := r.layout(members, p); err != nil {
			q.Fail("%v", err)
		}
		q.Records = append(q.Records, r)
	}
	t := &Type{Class: Struct, Record: r}
	if r.Union {
		t.Class = Union
	}
	return t
}

// members reads up to and with the closing brace.
func (q *Parser) members() []member {
	var out []member
	for !q.Accept("}") {
		switch q.Peek() {
		case ";":
			q.Pos++
			continue
		case "_Static_assert":
			q.Pos++
			q.Skip()
			continue
		}
		var s specifiers
		t := q.specifiers(&s)
		if q.Accept(";") { // struct { … };
			if t.isRecord() {
				out = append(out, member{Member: Member{Type: t}, align: s.align, packed: s.packed})
			}
			continue
		}
		for {
			out = append(out, q.member(t, s))
			if !q.Accept(",") {
				break
			}
		}
		q.Want(";")
	}
	return out
}

func (q *Parser) member(t *Type, s specifiers) member {
	m := member{Member: Member{Type: t}, align: s.align, packed: s.packed}
	if q.Peek() != ":" {
		var align int64
		m.Name, m.Type, align = q.declarator(t)
		m.align = max(m.align, align)
	}
	if q.Accept(":") {
		start := q.Pos
		for q.Peek() != ";" && q.Peek() != "," && q.Peek() != "__attribute__" {
			q.Next()
		}
		v, err := q.Eval(q.Tokens[start:q.Pos])
		if err != nil {
			q.Fail("width of %s: %v", m.Name, err)
		}
		m.Bits, m.zero = v.Int, v.Int == 0
	}
	q.attributes(&m.align, &m.packed)
	return m
}

// enum reads enum with tag, values or both.
func (q *Parser) enum() *Type {
	q.Next()
	var align int64
	var packed bool
	q.attributes(&align, &packed)
	tag := ""
	if q.AtIdent() {
		tag = q.Next().Text
	}
	e := q.enums[tag]
	if e == nil || tag == "" {
		e = &Enum{Tag: tag}
		if tag != "" {
			q.enums[tag] = e
		}
	}
	if q.Accept("{") {
		q.enumerators(e)
		q.attributes(&align, &packed)
		q.Enums = append(q.Enums, e)
	}
	t := &Type{Class: EnumType, Enum: e, Name: tag, size: 4}
	if packed {
		t.size = 1
	}
	for _, v := range e.Values {
		t.Signed = t.Signed || v < 0
		if v > 0xffffffff {
			t.size = 8
		}
	}
	t.align = t.size
	return t
}

func (q *Parser) enumerators(e *Enum) {
	next := int64(0)
	var align int64
	var packed bool
	for !q.Accept("}") {
		name := q.Next().Text
		q.attributes(&align, &packed)
		if q.Accept("=") {
			start := q.Pos
			for q.Peek() != "," && q.Peek() != "}" {
				if q.Peek() == "(" {
					q.Skip()
				} else {
					q.Next()
				}
			}
			v, err := q.Eval(q.Tokens[start:q.Pos])
			if err != nil {
				q.Fail("enum %s, %s: %v", e.Tag, name, err)
			}
			next = v.Int
		}
		e.Names, e.Values = append(e.Names, name), append(e.Values, next)
		q.consts[name] = ctoken.Value{Int: next, Wide: next > 0x7fffffff || next < -0x80000000}
		next++
		q.Accept(",")
	}
}
