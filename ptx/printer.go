package ptx

import (
	"bytes"
	"io"
	"strings"
)

// Format writes f in one layout: a statement a line, bodies indented, one blank
// between operands, comments kept. Tokens and their order do not change, so the
// result means the same; formatting it again changes nothing. Sections and
// unknown directives are written as they are.
//
// Format is for readers. Probes are woven into the source as it is, see
// [Weaver].
func Format(w io.Writer, f *File) error {
	p := printer{f: f}
	at := Pos(0)
	for i := range f.Stmts {
		s := &f.Stmts[i]
		if s.Kind == StmtClose {
			p.depth--
		}
		p.gap(f.Src[at:s.Pos])
		p.statement(s)
		at = s.End
		if s.Kind == StmtOpen {
			p.depth++
		}
	}
	p.gap(f.Src[at:])
	p.newline()
	p.out.WriteString(p.padding)
	_, err := w.Write(p.out.Bytes())
	return err
}

type printer struct {
	f       *File
	out     bytes.Buffer
	depth   int
	col     int  // bytes on the current line
	blank   bool // the line before is blank
	padding string
}

func (p *printer) newline() {
	if p.col > 0 {
		p.out.WriteByte('\n')
		p.col = 0
	}
}

func (p *printer) write(s string) {
	p.out.WriteString(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		p.col = len(s) - i - 1
	} else {
		p.col += len(s)
	}
	if s != "" {
		p.blank = false
	}
}

func (p *printer) indent(n int) {
	for range n {
		p.write("\t")
	}
}

// gap prints what stands between two statements: comments, and at most one
// blank line in a row.
func (p *printer) gap(text string) {
	lines := 0
	for t := range Lex(text) {
		s := text[t.Pos:t.End]
		switch t.Kind {
		case TokSpace:
			lines += strings.Count(s, "\n")
			continue
		case TokPadding:
			p.padding = s
			continue
		}
		switch {
		case t.Kind == TokMarker:
			p.newline()
		case lines == 0 && p.col > 0:
			p.write(" ")
		default:
			p.newline()
			p.empty(lines)
			p.indent(p.depth)
		}
		p.write(strings.TrimRight(s, " \t\r"))
		lines = 0
	}
	if p.col > 0 {
		p.newline()
	}
	p.empty(lines)
}

// empty prints a blank line if the source has one here.
func (p *printer) empty(lines int) {
	if lines > 1 && p.out.Len() > 0 && !p.blank {
		p.out.WriteByte('\n')
		p.blank = true
	}
}

func (p *printer) statement(s *Stmt) {
	p.newline()
	text := p.f.Text(s.Span())
	switch {
	case s.Kind == StmtSection || s.Flags&UnknownWord != 0 && s.Kind == StmtDirective:
		p.indent(p.depth)
		p.write(text)
		return
	case s.Kind != StmtLabel:
		p.indent(p.depth)
	}
	t := tokenPrinter{p: p, kind: s.Kind, text: text}
	t.print()
}

// tokenPrinter prints the tokens of one statement.
type tokenPrinter struct {
	p      *printer
	kind   StmtKind
	text   string
	prev   Token
	opcode bool // within the opcode and its modifiers
	parens int
	braces int
	items  int  // commas seen within braces
	attrs  bool // past the first directive behind a parameter list
	broken bool // the open parameter list has one parameter a line
}

func (t *tokenPrinter) print() {
	t.opcode = t.kind == StmtInstr
	for tok := range Lex(t.text) {
		if tok.Kind == TokSpace {
			continue
		}
		s := t.text[tok.Pos:tok.End]
		if tok.Kind == TokMarker {
			t.p.newline()
		} else if t.prev.End > 0 {
			t.space(tok, s)
		}
		t.p.write(s)
		if tok.Kind == TokLineComment || tok.Kind == TokMarker {
			t.breakLine()
		}
		t.after(tok, s)
		t.prev = tok
	}
}

func (t *tokenPrinter) breakLine() {
	t.p.newline()
	t.p.indent(t.p.depth + 1)
}

// rowLength is how many elements of an initialiser stand in a line.
const rowLength = 16

// after notes brackets and breaks the lines of parameter lists and initialisers.
func (t *tokenPrinter) after(tok Token, s string) {
	switch s {
	case "(":
		t.parens++
		if t.kind == StmtFunc && t.parens == 1 && t.list(tok.End) {
			t.broken = true
			t.breakLine()
		}
	case ")":
		t.parens--
	case "{":
		t.braces++
	case "}":
		t.braces--
	case ",":
		switch {
		case t.broken && t.parens == 1:
			t.breakLine()
		case t.kind == StmtDecl && t.braces > 0:
			if t.items++; t.items%rowLength == 0 {
				t.breakLine()
			}
		}
	}
}

// space prints what belongs between the token before and tok.
func (t *tokenPrinter) space(tok Token, s string) {
	prev := t.text[t.prev.Pos:t.prev.End]
	if t.p.col == 0 || t.lineStart() {
		return
	}
	if t.kind == StmtFunc && t.ownLine(tok, prev, s) {
		return
	}
	if t.prev.Kind == TokComment || tok.Kind == TokComment || tok.Kind == TokLineComment {
		t.p.write(" ")
		return
	}
	if t.kind == StmtInstr && tok.Kind == TokDirective && (t.opcode || t.prev.Kind == TokIdent || prev == "]") && prev != "(" {
		return
	}
	if t.opcode && t.prev.Kind != TokPunct && s != ";" {
		// The guard ends with its register; the opcode with its last modifier.
		t.opcode = t.text[0] == '@' && !t.pastGuard(tok)
		t.p.write(" ")
		return
	}
	if s == "(" && t.prev.Kind == TokDirective && (t.kind == StmtFunc || t.kind == StmtPrototype) && prev != ".attribute" {
		t.p.write(" ")
		return
	}
	if spaced(t.prev.Kind, prev, tok.Kind, s) || t.wideOperator(prev, s) {
		t.p.write(" ")
	}
}

// list reports whether the parameter list that starts at offset at of the
// statement has more than one parameter.
func (t *tokenPrinter) list(at Pos) bool {
	depth := 0
	for x := range Lex(t.text[at:]) {
		switch t.text[at:][x.Pos:x.End] {
		case "(":
			depth++
		case ")":
			if depth--; depth < 0 {
				return false
			}
		case ",":
			return true
		}
	}
	return false
}

// ownLine breaks the line before the ')' of a list with one parameter a line,
// and before the directives behind a function's parameters.
func (t *tokenPrinter) ownLine(tok Token, prev, s string) bool {
	closes := s == ")" && t.parens == 1 && t.broken
	if closes {
		t.broken = false
	}
	attr := tok.Kind == TokDirective && t.parens == 0 && (prev == ")" || t.attrs)
	if attr {
		t.attrs = true
	}
	if !closes && !attr {
		return false
	}
	t.p.newline()
	t.p.indent(t.p.depth)
	return true
}

// lineStart reports whether only indentation stands on the current line.
func (t *tokenPrinter) lineStart() bool {
	b := t.p.out.Bytes()
	for _, c := range b[len(b)-t.p.col:] {
		if c != '\t' {
			return false
		}
	}
	return true
}

// pastGuard reports whether the tokens before tok hold more than a guard.
func (t *tokenPrinter) pastGuard(tok Token) bool {
	words := 0
	for x := range Lex(t.text[:tok.Pos]) {
		if x.Kind == TokIdent {
			words++
		}
	}
	return words > 1
}

// wideOperator reports whether an operator next to it has blanks around it: '='
// and '?' ':' for the reader, '%' because it would begin a name.
func (t *tokenPrinter) wideOperator(prev, s string) bool {
	if s == ":" {
		return t.kind != StmtLabel
	}
	return s == "?" || prev == "?" || prev == ":" || s == "%" || prev == "%" || s == "=" && !strings.Contains("<>!=", prev) || prev == "=" && s != "=" && t.kind == StmtDecl
}

// spaced reports whether a blank separates two neighbouring tokens in general.
func spaced(pk TokenKind, prev string, k TokenKind, s string) bool {
	if pk == TokPunct {
		switch prev {
		case ",":
			return true
		case ")":
			return k != TokPunct || s == "{" || s == "("
		case "]", ">", "}":
			return k != TokPunct && k != TokInt && k != TokFloat
		}
		return false
	}
	if k == TokPunct {
		return s == "{" && prev != "{"
	}
	return true
}
