package ptx

import (
	"fmt"
	"strings"
)

// ParseOptions changes what [Parse] accepts. The zero value and nil mean the
// defaults.
type ParseOptions struct {
	// MaxDepth limits how deep scopes, vectors, initialisers and expressions
	// nest; 0 means 256.
	MaxDepth int
}

// Parse parses a PTX module. The name is only for messages.
//
// Trailing NUL bytes, as fat binaries have them, are kept and mean nothing. An
// opcode, modifier or directive that is not known is no error. The error is an
// *[Error]: the first place where the text does not fit the grammar.
//
// The time is linear in the length of src; the memory is a small multiple of it.
func Parse(name, src string, o *ParseOptions) (*File, error) {
	f := &File{Name: name, Src: src, AddressSize: 32, lines: new(lineTable), funcs: new(funcTable)}
	p := parser{f: f, src: src, maxDepth: 256}
	if o != nil && o.MaxDepth > 0 {
		p.maxDepth = o.MaxDepth
	}
	if uint64(len(src)) > maxSource {
		return nil, &Error{File: name, Line: 1, Col: 1, Want: "a source of less than 4 GiB", Got: fmt.Sprintf("%d bytes", len(src))}
	}
	// Almost every statement ends in ';' and has up to three operands, about one
	// in eight bytes.
	n := strings.Count(src, ";")
	f.Stmts = make([]Stmt, 0, n+n/4+32)
	f.args = make([]Operand, 0, min(3*n, len(src)/8)+32)
	p.stk = make([]Operand, 0, 64)
	p.module()
	if p.err != nil {
		return nil, p.err
	}
	return f, nil
}

// A parser holds one token of look-ahead. The first error stops it: the current
// token then is the end of file for good.
type parser struct {
	f    *File
	src  string
	tok  TokenKind
	c    byte // the byte of a TokPunct, 0 for others
	pos  int  // of the current token
	end  int
	prev int // end of the token before

	depth    int
	maxDepth int
	err      *Error

	opens []uint32  // indices in f.Stmts of the open scopes
	fn    int       // index in f.Funcs of the function whose body is open
	stk   []Operand // operands of the lists under construction
}

func (p *parser) module() {
	p.next()
	for p.tok != TokEOF {
		p.statement()
	}
	if p.err == nil && len(p.opens) > 0 {
		open := p.f.Stmts[p.opens[len(p.opens)-1]].Pos
		p.fail("'}' to close the '{' of line " + fmt.Sprint(p.f.Position(open).Line))
	}
}

// next moves to the next token that is not trivia.
func (p *parser) next() {
	p.prev = p.end
	if p.err != nil {
		p.tok, p.c = TokEOF, 0
		return
	}
	src, i := p.src, p.end
	for i < len(src) {
		c := src[i]
		switch class[c] & clsMask {
		case clSpace:
			i++
			continue
		case clPunct:
			p.tok, p.c, p.pos, p.end = TokPunct, c, i, i+1
			return
		case clAlpha:
			p.tok, p.c, p.pos, p.end = TokIdent, 0, i, glyphs(src, i+1)
			return
		}
		k, end := scan(src, i)
		if k.trivia() {
			i = end
			continue
		}
		p.tok, p.c, p.pos, p.end = k, 0, i, end
		if k == TokPunct {
			p.c = c
		}
		if k == TokBad {
			p.fail("a token")
		}
		return
	}
	p.tok, p.c, p.pos, p.end = TokEOF, 0, len(src), len(src)
}

// rewind makes the token at offset pos the current one.
func (p *parser) rewind(pos int) {
	p.end = pos
	p.next()
}

func (p *parser) text() string { return p.src[p.pos:p.end] }

func (p *parser) span() Span { return Span{Pos(p.pos), Pos(p.end)} }

// fail records that want should stand where the current token is, if nothing
// failed before, and ends the input.
func (p *parser) fail(want string) {
	if p.err == nil {
		at := p.f.Position(Pos(p.pos))
		p.err = &Error{File: p.f.Name, Pos: Pos(p.pos), Line: at.Line, Col: at.Col, Want: want, Got: p.found()}
	}
	p.tok, p.c = TokEOF, 0
}

// failAt is fail for a message about the text at pos instead of what should be there.
func (p *parser) failAt(pos Pos, msg string) {
	if p.err == nil {
		at := p.f.Position(pos)
		p.err = &Error{File: p.f.Name, Pos: pos, Line: at.Line, Col: at.Col, Want: msg}
	}
	p.tok, p.c = TokEOF, 0
}

// found describes the current token for a message.
func (p *parser) found() string {
	const most = 40
	switch p.tok {
	case TokEOF:
		return "end of file"
	case TokBad:
		switch t := p.text(); {
		case t[0] == '"':
			return "a string without end"
		case strings.HasPrefix(t, "/*"):
			return "a comment without end"
		default:
			return fmt.Sprintf("%.*q", most, t[:min(len(t), most)])
		}
	}
	t := p.text()
	if len(t) > most {
		t = t[:most] + "…"
	}
	return "'" + t + "'"
}

// want consumes the punctuation c.
func (p *parser) want(c byte, what string) bool {
	if p.c != c {
		p.fail(what)
		return false
	}
	p.next()
	return true
}

// enter counts one level of nesting; every call needs a leave.
func (p *parser) enter() {
	if p.depth++; p.depth > p.maxDepth && p.err == nil {
		p.failAt(Pos(p.pos), fmt.Sprintf("nested deeper than %d levels", p.maxDepth))
	}
}

func (p *parser) leave() { p.depth-- }

// add appends a statement that ends with the last token consumed.
func (p *parser) add(s Stmt) {
	s.End = Pos(p.prev)
	p.f.Stmts = append(p.f.Stmts, s)
}

func (p *parser) statement() {
	switch {
	case p.tok == TokIdent:
		p.labelOrInstr()
	case p.tok == TokDirective:
		p.directive()
	case p.c == '@':
		p.guarded()
	case p.c == '{':
		p.open()
	case p.c == '}':
		p.close()
	case len(p.opens) > 0:
		p.fail("an instruction, a directive, a label or '}'")
	default:
		p.fail("a directive")
	}
}

func (p *parser) open() {
	if len(p.opens) == 0 {
		p.fail("a directive")
		return
	}
	p.pushScope()
}

// pushScope consumes a '{' as the start of a scope.
func (p *parser) pushScope() {
	if len(p.opens) >= p.maxDepth {
		p.failAt(Pos(p.pos), fmt.Sprintf("scopes nested deeper than %d levels", p.maxDepth))
		return
	}
	s := Stmt{Kind: StmtOpen, Pos: Pos(p.pos)}
	p.opens = append(p.opens, uint32(len(p.f.Stmts)))
	p.next()
	p.add(s)
}

func (p *parser) close() {
	if len(p.opens) == 0 {
		p.fail("a directive")
		return
	}
	open := p.opens[len(p.opens)-1]
	p.opens = p.opens[:len(p.opens)-1]
	at := uint32(len(p.f.Stmts))
	s := Stmt{Kind: StmtClose, Pos: Pos(p.pos), Ref: open}
	p.f.Stmts[open].Ref = at
	if len(p.opens) == 0 {
		p.f.Funcs[p.fn].Close = at
	}
	p.next()
	p.add(s)
}

func (p *parser) guarded() {
	s := Stmt{Kind: StmtInstr, Pos: Pos(p.pos)}
	p.next()
	if p.c == '!' {
		s.Flags |= GuardNot
		p.next()
	}
	if p.tok != TokIdent {
		p.fail("a predicate after '@'")
		return
	}
	s.Guard = p.span()
	p.next()
	if p.tok != TokIdent {
		p.fail("an instruction after the predicate")
		return
	}
	name := p.span()
	p.next()
	p.instr(s, name)
}

func (p *parser) labelOrInstr() {
	name := p.span()
	p.next()
	if p.c == ':' {
		p.next()
		p.add(Stmt{Kind: StmtLabel, Pos: name.Pos, Name: name})
		return
	}
	if len(p.opens) == 0 {
		p.rewind(int(name.Pos))
		p.fail("a directive")
		return
	}
	p.instr(Stmt{Kind: StmtInstr, Pos: name.Pos}, name)
}

// instr parses an instruction from behind its opcode.
func (p *parser) instr(s Stmt, name Span) {
	s.Name, s.Mods = name, name.End
	s.Op = opOf(p.src[name.Pos:name.End])
	if s.Op == OpUnknown {
		s.Flags |= UnknownWord
	}
	for p.tok == TokDirective {
		s.Mods = Pos(p.end)
		p.next()
	}
	if p.c == ';' {
		s.arg = uint32(len(p.f.args))
		p.next()
		p.add(s)
		return
	}
	s.arg, s.nargs = p.operands(s.Op == OpCall)
	if p.c != ';' {
		p.fail("',' or ';' after the operand")
		return
	}
	p.next()
	p.add(s)
}
