package ptx

import (
	"strconv"
	"strings"
)

// directive parses a statement that begins with a directive word.
func (p *parser) directive() {
	word := p.text()
	switch word {
	case ".loc":
		p.loc()
	case ".file":
		p.file()
	case ".section":
		p.section()
	case ".version":
		p.version()
	case ".target":
		p.target()
	case ".address_size":
		p.addressSize()
	case ".pragma", ".alias", ".branchtargets", ".calltargets":
		s := Stmt{Kind: StmtDirective, Pos: Pos(p.pos), Name: p.span()}
		p.next()
		s.arg, s.nargs = p.operands(false)
		p.want(';', "',' or ';' after the "+word+" operands")
		p.add(s)
	case ".callprototype":
		p.callPrototype()
	default:
		p.declOrFunc(word)
	}
}

// lineDirective starts a directive without ';'.
func (p *parser) lineDirective(kind StmtKind) Stmt {
	s := Stmt{Kind: kind, Pos: Pos(p.pos), Name: p.span()}
	p.next()
	return s
}

func (p *parser) token(k TokenKind, what string) string {
	if p.tok != k {
		p.fail(what)
		return ""
	}
	t := p.text()
	p.next()
	return t
}

func (p *parser) loc() {
	s := p.lineDirective(StmtLoc)
	p.token(TokInt, "a file index")
	p.token(TokInt, "a line number")
	p.token(TokInt, "a column")
	for p.c == ',' {
		p.next()
		switch p.text() {
		case "function_name":
			p.next()
			p.token(TokIdent, "a label after function_name")
			if p.c == '+' {
				p.next()
				p.token(TokInt, "an offset after '+'")
			}
		case "inlined_at":
			p.next()
			p.token(TokInt, "a file index after inlined_at")
			p.token(TokInt, "a line number after inlined_at")
			p.token(TokInt, "a column after inlined_at")
		default:
			p.fail("function_name or inlined_at")
		}
	}
	p.add(s)
}

func (p *parser) file() {
	s := p.lineDirective(StmtFile)
	p.token(TokInt, "a file index")
	p.token(TokString, "a file name in quotes")
	for p.c == ',' {
		p.next()
		p.token(TokInt, "a time stamp or a size")
	}
	p.add(s)
}

// section takes a section whole: its contents are data for a debugger.
func (p *parser) section() {
	s := p.lineDirective(StmtSection)
	if p.tok != TokDirective && p.tok != TokIdent {
		p.fail("a section name")
		return
	}
	s.Name = p.span()
	p.next()
	for p.err == nil && p.c != '{' {
		if p.tok == TokEOF || p.c == ';' || p.c == '}' {
			p.fail("'{' after the section name")
			return
		}
		p.next()
	}
	p.skipBraces("'}' at the end of the section")
	p.add(s)
}

// skipBraces consumes a '{' and everything to the '}' that matches it.
func (p *parser) skipBraces(what string) {
	src, depth := p.src, 0
	for i := p.pos; i < len(src); {
		switch src[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				p.rewind(i + 1)
				return
			}
		case '/', '"':
			k, end := scan(src, i)
			if k == TokBad {
				p.rewind(i)
				return
			}
			i = end
			continue
		}
		i++
	}
	p.pos, p.end, p.tok = len(src), len(src), TokEOF
	p.fail(what)
}

func (p *parser) version() {
	s := p.lineDirective(StmtDirective)
	major, minor, ok := strings.Cut(p.text(), ".")
	a, err1 := strconv.ParseUint(major, 10, 8)
	b, err2 := strconv.ParseUint(minor, 10, 8)
	if p.tok != TokFloat || !ok || err1 != nil || err2 != nil {
		p.fail("a version like 8.4")
		return
	}
	p.next()
	if p.f.Version == (Version{}) {
		p.f.Version = Version{uint8(a), uint8(b)}
	}
	p.add(s)
}

func (p *parser) target() {
	s := p.lineDirective(StmtDirective)
	mark := len(p.stk)
	for {
		o := Operand{Kind: OperandName, Pos: Pos(p.pos), Name: p.span()}
		p.f.Targets = append(p.f.Targets, p.token(TokIdent, "a target like sm_90"))
		p.done(o)
		if p.c != ',' {
			break
		}
		p.next()
	}
	s.arg, s.nargs = p.keep(mark)
	p.add(s)
}

func (p *parser) addressSize() {
	s := p.lineDirective(StmtDirective)
	switch t := p.text(); t {
	case "32", "64":
		p.f.AddressSize, _ = strconv.Atoi(t)
	default:
		p.fail("32 or 64")
		return
	}
	s.arg, s.nargs = p.operands(false)
	p.add(s)
}

// linkage returns the bit of a linking word, 0 for other words.
func linkage(word string) Linkage {
	switch word {
	case ".extern":
		return Extern
	case ".visible":
		return Visible
	case ".weak":
		return Weak
	case ".common":
		return Common
	}
	return 0
}

// spaceOf returns the state space that a word names as a declaration or an
// instruction writes it, its sub-qualifier left out.
func spaceOf(word string) (Space, bool) {
	if len(word) > len(".global") {
		word, _, _ = strings.Cut(word, "::")
	}
	switch word {
	case ".reg":
		return SpaceReg, true
	case ".sreg":
		return SpaceSreg, true
	case ".const":
		return SpaceConst, true
	case ".global":
		return SpaceGlobal, true
	case ".local":
		return SpaceLocal, true
	case ".param":
		return SpaceParam, true
	case ".shared":
		return SpaceShared, true
	case ".tex":
		return SpaceTex, true
	}
	return SpaceGeneric, false
}

// declOrFunc parses what may begin with linking directives.
func (p *parser) declOrFunc(word string) {
	start := Pos(p.pos)
	var link Linkage
	for p.tok == TokDirective {
		if bit := linkage(word); bit != 0 {
			link |= bit
			p.next()
		} else if word == ".attribute" {
			link |= p.attribute()
		} else {
			break
		}
		word = p.text()
	}
	if p.tok != TokDirective {
		p.fail("a state space, .entry or .func")
		return
	}
	switch {
	case word == ".entry":
		p.function(FuncEntry, start, link)
	case word == ".func":
		p.function(FuncDevice, start, link)
	default:
		if _, ok := spaceOf(word); !ok {
			p.unknown(start)
			return
		}
		s := Stmt{Kind: StmtDecl, Pos: start, Ref: uint32(len(p.f.decls))}
		d := p.declHead(start, link)
		p.declarators(&d)
		if !p.want(';', "',' or ';' after the declaration") {
			return
		}
		d.End = Pos(p.prev)
		p.f.decls = append(p.f.decls, d)
		p.add(s)
	}
}

// attribute parses ".attribute(.managed, .unified(1, 2))".
func (p *parser) attribute() (link Linkage) {
	p.next()
	if !p.want('(', "'(' after .attribute") {
		return 0
	}
	for depth := 1; depth > 0 && p.err == nil; p.next() {
		switch {
		case p.c == '(':
			depth++
		case p.c == ')':
			depth--
		case p.tok == TokEOF || p.c == ';' || p.c == '{' || p.c == '}':
			p.fail("')' after the attributes")
		case p.tok != TokDirective:
		case p.text() == ".managed":
			link |= Managed
		case p.text() == ".unified":
			link |= UnifiedAt
		default:
			link |= OtherAttr
		}
	}
	return link
}

// unknown takes a directive that this package does not know: up to its ';', or
// to the end of a line where it looks complete, or over a block that follows.
func (p *parser) unknown(start Pos) {
	s := Stmt{Kind: StmtDirective, Flags: UnknownWord, Pos: start, Name: p.span()}
	p.next()
	depth, last := 0, byte(0)
	for p.err == nil && p.tok != TokEOF {
		newLine := strings.IndexByte(p.src[p.prev:p.pos], '\n') >= 0
		if p.c == '{' && depth == 0 && len(p.opens) == 0 {
			p.skipBraces("'}' at the end of the unknown directive's block")
			break
		}
		if depth == 0 && newLine && last != ',' {
			break
		}
		last = p.c
		switch p.c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth < 0 {
				p.add(s)
				return
			}
		case ';':
			if depth == 0 {
				p.next()
				p.add(s)
				return
			}
		}
		p.next()
	}
	if depth > 0 {
		p.fail("a closing bracket")
		return
	}
	p.add(s)
}

// declHead parses a declaration up to its first name: space, alignment, vector
// and type words in any order.
func (p *parser) declHead(start Pos, link Linkage) Decl {
	d := Decl{Pos: start, Vec: 1, Linkage: link}
	seenSpace := false
	for p.tok == TokDirective {
		word := p.text()
		if t := typeOf(word); t != TypeNone {
			d.Type, d.TypeWord = t, p.span()
			p.next()
			continue
		}
		space, isSpace := spaceOf(word)
		switch {
		case isSpace && !seenSpace:
			d.Space, seenSpace = space, true
			p.next()
			if p.c == '[' {
				p.next()
				d.Bank = p.span()
				p.token(TokInt, "a bank number")
				p.want(']', "']' after the bank number")
			}
			continue
		case isSpace && d.Ptr:
			d.PtrSpace = space
		case word == ".ptr":
			d.Ptr = true
		case word == ".align":
			p.next()
			n := p.expr()
			if n.kind > valUint || n.bits > 1<<31 {
				p.failAt(Pos(p.prev), "expected an alignment before this")
			}
			if d.Ptr {
				d.PtrAlign = uint32(n.bits)
			} else {
				d.Align = uint32(n.bits)
			}
			continue
		case word == ".v2" || word == ".v4" || word == ".v8":
			d.Vec = word[2] - '0'
		case word == ".attribute":
			d.Linkage |= p.attribute()
			continue
		case linkage(word) != 0:
			d.Linkage |= linkage(word)
		case d.Type == TypeNone && d.TypeWord.Empty():
			d.TypeWord = p.span()
		default:
			d.Linkage |= OtherAttr
		}
		p.next()
	}
	return d
}

// declarators parses the names of a variable declaration.
func (p *parser) declarators(d *Decl) {
	d.name = uint32(len(p.f.names))
	for p.err == nil {
		n := p.declarator()
		p.f.names = append(p.f.names, n)
		if p.c != ',' {
			break
		}
		p.next()
		if p.tok == TokDirective { // LLVM's ".reg .b32 a, .reg .b32 b" of old: a type again
			p.declHead(Pos(p.pos), 0)
		}
	}
	d.nnames = uint32(len(p.f.names)) - d.name
}

func (p *parser) declarator() Declarator {
	n := Declarator{Name: p.span(), Elems: 1}
	p.token(TokIdent, "a name")
	if p.c == '<' {
		p.next()
		v := p.binary(precShift)
		if v.kind > valUint || v.bits >= 1<<32 {
			p.failAt(Pos(p.prev), "expected a count below 2^32 before this")
		}
		n.Range = uint32(v.bits)
		p.want('>', "'>' after the count")
	}
	p.dims(&n)
	if p.c == '=' {
		p.next()
		from := Pos(p.pos)
		p.initialiser()
		n.Init = Span{from, Pos(p.prev)}
	}
	n.End = Pos(p.prev)
	return n
}

// dims parses "[4][8]".
func (p *parser) dims(n *Declarator) {
	for p.c == '[' && p.err == nil {
		p.next()
		if n.NDims == 255 {
			p.fail("at most 255 dimensions")
			return
		}
		n.NDims++
		if p.c == ']' {
			if n.NDims > 1 {
				p.fail("a size: only the first may be left out")
				return
			}
			n.Flex = true
			p.next()
			continue
		}
		v := p.expr()
		if v.kind > valUint || v.bits > 1<<48 || n.Elems > 1<<48 {
			p.failAt(Pos(p.prev), "expected an array size below 2^48 before this")
			return
		}
		n.Elems *= v.bits
		p.want(']', "']' after the array size")
	}
}

// initialiser checks the right side of '='. Its values are parsed again when
// asked for (File.InitValues): a table may have millions.
func (p *parser) initialiser() {
	if p.c != '{' {
		if p.tok == TokString {
			p.next()
			return
		}
		p.expr()
		if p.c == '=' { // samplerref: { addr_mode_0 = wrap }
			p.next()
			p.expr()
		}
		return
	}
	p.enter()
	p.next()
	for p.c != '}' && p.err == nil {
		p.initialiser()
		if p.c != ',' {
			break
		}
		p.next()
	}
	p.want('}', "',' or '}' in the initialiser")
	p.leave()
}
