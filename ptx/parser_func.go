package ptx

// function parses the header of an .entry or .func; the body follows as
// statements.
func (p *parser) function(kind FuncKind, start Pos, link Linkage) {
	if len(p.opens) > 0 {
		p.fail("'}' to end the function before the next")
		return
	}
	fn := Func{Kind: kind, Linkage: link, Pos: start, Stmt: uint32(len(p.f.Stmts))}
	fn.attr = uint32(len(p.f.attrs))
	p.next()
	for p.tok == TokDirective {
		if p.text() == ".attribute" {
			fn.Linkage |= p.attribute()
		} else {
			p.attr()
		}
	}
	if p.c == '(' {
		fn.ret, fn.nret = p.params()
	}
	fn.Name = p.span()
	p.token(TokIdent, "a function name")
	if p.c == '(' {
		fn.param, fn.nparams = p.params()
	}
	for p.tok == TokDirective && !startsStatement(p.text()) {
		p.attr()
	}
	p.header(&fn)
	// Compilers of PTX 1.x and 2.x end a prototype with nothing.
	bare := p.tok == TokDirective
	if p.c != '{' && p.c != ';' && !bare {
		p.fail("'{', ';' or a performance directive after the function header")
		return
	}
	s := Stmt{Kind: StmtFunc, Pos: start, Name: fn.Name, Ref: uint32(len(p.f.Funcs))}
	proto := p.c != '{'
	if p.c == ';' {
		p.next()
	}
	p.add(s)
	fn.End = Pos(p.prev)
	if !proto {
		fn.Open = uint32(len(p.f.Stmts))
	}
	p.fn = len(p.f.Funcs)
	p.f.Funcs = append(p.f.Funcs, fn)
	if !proto {
		p.pushScope()
	}
}

// startsStatement reports whether a word can't belong to a function header
// because it begins a statement of its own.
func startsStatement(word string) bool {
	switch word {
	case ".entry", ".func", ".file", ".loc", ".section", ".version", ".target", ".address_size", ".alias":
		return true
	}
	_, space := spaceOf(word)
	return space || linkage(word) != 0
}

// header notes what the header directives of fn say.
func (p *parser) header(fn *Func) {
	fn.nattrs = uint32(len(p.f.attrs)) - fn.attr
	for i := fn.attr; i < fn.attr+fn.nattrs; i++ {
		if p.f.Text(p.f.attrs[i].Name) == ".noreturn" {
			fn.Noreturn = true
		}
	}
}

// attr parses one header directive with its numbers or strings. ".pragma"
// carries a ';' of its own.
func (p *parser) attr() {
	s := Stmt{Kind: StmtDirective, Pos: Pos(p.pos), Name: p.span()}
	if !headerWords[p.text()] {
		s.Flags |= UnknownWord
	}
	pragma := p.text() == ".pragma"
	p.next()
	if p.tok == TokInt || p.tok == TokString || p.tok == TokFloat || p.c == '-' {
		s.arg, s.nargs = p.operands(false)
	}
	if pragma && p.c == ';' {
		p.next()
	}
	s.End = Pos(p.prev)
	p.f.attrs = append(p.f.attrs, s)
}

// headerWords are the directives known between a function's ')' and its '{'.
// PTX ISA §11.4, §11.7.
var headerWords = map[string]bool{
	".maxnreg": true, ".maxntid": true, ".reqntid": true, ".minnctapersm": true, ".maxnctapersm": true,
	".noreturn": true, ".pragma": true, ".abi_preserve": true, ".abi_preserve_control": true,
	".reqnctapercluster": true, ".explicitcluster": true, ".maxclusterrank": true, ".blocksareclusters": true,
}

// params parses a parameter list with its parentheses.
func (p *parser) params() (first, n uint32) {
	p.next()
	first = uint32(len(p.f.decls))
	for p.c != ')' && p.err == nil {
		p.f.decls = append(p.f.decls, p.param())
		if p.c != ',' {
			break
		}
		p.next()
	}
	p.want(')', "',' or ')' after the parameter")
	return first, uint32(len(p.f.decls)) - first
}

func (p *parser) param() Decl {
	if p.tok != TokDirective {
		p.fail("a parameter like .param .b32 name")
		return Decl{}
	}
	d := p.declHead(Pos(p.pos), 0)
	n := Declarator{Elems: 1, Filler: true}
	if p.tok == TokIdent {
		n.Name = p.span()
		n.Filler = p.text() == "_"
		p.next()
		if p.c == '<' {
			p.rewind(int(n.Name.Pos))
			n = p.declarator()
		}
	}
	p.dims(&n)
	n.End = Pos(p.prev)
	d.End = n.End
	d.name, d.nnames = uint32(len(p.f.names)), 1
	p.f.names = append(p.f.names, n)
	return d
}

// callPrototype parses ".callprototype (ret) _ (params) .noreturn;".
func (p *parser) callPrototype() {
	fn := Func{Kind: FuncPrototype, Pos: Pos(p.pos), Stmt: uint32(len(p.f.Stmts)), attr: uint32(len(p.f.attrs))}
	s := Stmt{Kind: StmtPrototype, Pos: fn.Pos, Name: p.span(), Ref: uint32(len(p.f.Funcs))}
	p.next()
	if p.c == '(' {
		fn.ret, fn.nret = p.params()
	}
	fn.Name = p.span()
	p.token(TokIdent, "'_' or a name")
	if p.c == '(' {
		fn.param, fn.nparams = p.params()
	}
	for p.tok == TokDirective {
		p.attr()
	}
	p.header(&fn)
	if !p.want(';', "';' after the prototype") {
		return
	}
	fn.End = Pos(p.prev)
	p.f.Funcs = append(p.f.Funcs, fn)
	p.add(s)
}
