package emu

import "nvtrace/ptx"

// maxRegs bounds the register slots of one function, against declarations like
// %r<4000000000>.
const maxRegs = 1 << 16

// compileProgram compiles the entry fn and everything it reaches. Dynamic shared
// memory lies behind the static one, whose size is known only at the end, so a
// program that has both is compiled twice.
func compileProgram(m *Module, u *unit, fn *ptx.Func) (*program, error) {
	p, err := compileWith(m, u, fn, 0)
	if err != nil || !p.usesDynamic || p.sharedLen == 0 {
		return p, err
	}
	return compileWith(m, u, fn, (p.sharedLen+p.dynAlign-1)&^(p.dynAlign-1))
}

func compileWith(m *Module, u *unit, fn *ptx.Func, dynBase uint64) (*program, error) {
	p := &program{mod: m, funcs: map[*ptx.Func]*function{}, shared: map[innerKey]uint64{}, dynAlign: 16, dynBase: dynBase}
	f, err := p.compile(u.file, fn)
	if err != nil {
		return nil, err
	}
	p.entry = f
	if err := p.compileIndirect(); err != nil {
		return nil, err
	}
	p.dynBase = max(dynBase, p.sharedLen)
	return p, nil
}

// compileIndirect compiles every function whose address an indirect call may
// hold, when there is such a call.
func (p *program) compileIndirect() error {
	p.byAddr = map[uint64]*function{}
	if !p.indirect {
		return nil
	}
	for _, d := range p.mod.taken {
		f, err := p.compile(d.file, d.fn)
		if err != nil {
			return err
		}
		p.byAddr[d.addr] = f
	}
	return nil
}

// compile returns the code of fn, compiling it when this is its first use.
func (p *program) compile(file *ptx.File, fn *ptx.Func) (*function, error) {
	if f := p.funcs[fn]; f != nil {
		return f, nil
	}
	out := &function{name: file.Text(fn.Name), file: file, fn: fn, entry: fn.Kind == ptx.FuncEntry}
	p.funcs[fn] = out
	c := &compiler{
		prog: p, mod: p.mod, file: file, out: out,
		scope: newScope(p.mod.scope(file)), scopes: map[int]*scope{}, tables: map[string][]string{},
		consts: map[uint64]int32{}, npreds: 1, // predicate 0 is always false
		nregs: 1, // register 0 is the target of _
	}
	if err := c.function(); err != nil {
		return nil, err
	}
	return out, nil
}

// function compiles the whole body.
func (c *compiler) function() error {
	if err := c.declareParams(); err != nil {
		return err
	}
	body := c.file.Body(c.out.fn)
	first := int(c.out.fn.Open) + 1
	c.collect(body, first)
	root := c.scope
	for i := range body {
		c.stmt = first + i
		if err := c.statement(&body[i]); err != nil {
			return err
		}
	}
	c.scope = root
	c.emit(inst{ctl: c.endOfBody(), guard: -1, hidden: true, stmt: int32(max(first, int(c.out.fn.Close)-1))})
	c.out.nregs, c.out.npreds, c.out.localSize = c.nregs, c.npreds, (c.local+15)&^15
	return nil
}

// collect makes the scopes of the body and notes labels and target tables, which
// may be used before they are defined.
func (c *compiler) collect(body []ptx.Stmt, first int) {
	s, label := c.scope, ""
	for i := range body {
		st := &body[i]
		switch st.Kind {
		case ptx.StmtOpen:
			s = newScope(s)
			c.scopes[first+i] = s
		case ptx.StmtClose:
			s = s.parent
		case ptx.StmtLabel:
			label = c.file.Text(st.Name)
			s.label(label)
			continue
		case ptx.StmtDirective:
			if n := c.file.Text(st.Name); n == ".branchtargets" || n == ".calltargets" {
				c.collectTable(label, st)
			}
		}
		label = ""
	}
}

func (c *compiler) collectTable(label string, st *ptx.Stmt) {
	var names []string
	for _, a := range c.file.Args(st) {
		names = append(names, c.file.Text(a.Name))
	}
	c.tables[label] = names
}

// statement compiles one statement.
func (c *compiler) statement(st *ptx.Stmt) error {
	switch st.Kind {
	case ptx.StmtOpen:
		c.scope = c.scopes[c.stmt]
	case ptx.StmtClose:
		c.scope = c.scope.parent
	case ptx.StmtLabel:
		*c.scope.label(c.file.Text(st.Name)) = len(c.out.code)
	case ptx.StmtDecl:
		return c.declare(c.file.Decl(st))
	case ptx.StmtInstr:
		return c.instr(st)
	}
	return nil
}

// declare enters the names of a declaration inside a body.
func (c *compiler) declare(d *ptx.Decl) error {
	for _, n := range c.file.Names(d) {
		if err := c.declareName(d, &n); err != nil {
			return c.errAt(err)
		}
	}
	return nil
}

func (c *compiler) declareName(d *ptx.Decl, n *ptx.Declarator) error {
	name := c.file.Text(n.Name)
	switch d.Space {
	case ptx.SpaceReg:
		return c.declareReg(d, n, name)
	case ptx.SpaceLocal, ptx.SpaceParam:
		size, err := declSize(d, n)
		if err != nil {
			return err
		}
		off, err := c.allocLocal(size, declAlign(d))
		if err != nil {
			return err
		}
		c.scope.define(name, symbol{kind: symLocal, space: d.Space, typ: d.Type, addr: off, size: size})
	case ptx.SpaceShared:
		sym, err := c.prog.sharedVar(c.file, d, n)
		if err != nil {
			return err
		}
		c.scope.define(name, sym)
	case ptx.SpaceGlobal, ptx.SpaceConst:
		sym, ok := c.mod.inner[innerKey{c.file, n.Name.Pos}]
		if !ok {
			return errf(ErrInvalid, "variable %s has no storage", name)
		}
		c.scope.define(name, sym)
	default:
		return errf(ErrNotImplemented, "declaration in state space %v", d.Space)
	}
	return nil
}

func (c *compiler) declareReg(d *ptx.Decl, n *ptx.Declarator, name string) error {
	sym := symbol{kind: symReg, space: ptx.SpaceReg, typ: d.Type, vec: max(1, int(d.Vec))}
	count := max(1, int64(n.Range))
	if d.Type == ptx.TypeNone || d.Type >= ptx.TexRef {
		return errf(ErrNotImplemented, "register type %s", c.file.Text(d.TypeWord))
	}
	if d.Type == ptx.Pred {
		sym.kind, sym.slot = symPred, int32(c.npreds)
		if int64(c.npreds)+count > maxRegs {
			return errf(ErrOutOfMemory, "more than %d predicates", maxRegs)
		}
		c.npreds += int(count)
	} else {
		need := count * int64(sym.vec*slots(d.Type))
		if int64(c.nregs)+need > maxRegs {
			return errf(ErrOutOfMemory, "more than %d registers", maxRegs)
		}
		sym.slot = int32(c.nregs)
		c.nregs += int(need)
	}
	if n.Range != 0 {
		c.scope.defineRange(name, regRange{n.Range, sym})
	} else {
		c.scope.define(name, sym)
	}
	return nil
}

// allocLocal reserves local memory in the frame.
func (c *compiler) allocLocal(size, align uint64) (uint64, error) {
	off := (c.local + align - 1) &^ (align - 1)
	if size > 1<<30 || off+size > 1<<30 {
		return 0, errf(ErrOutOfMemory, "%d bytes of local memory", size)
	}
	c.local = off + size
	return off, nil
}

// declareParams enters the parameters of the function and lays them out: those
// of a kernel in the parameter buffer, those of a function in its frame.
func (c *compiler) declareParams() error {
	c.stmt = int(c.out.fn.Stmt)
	rets, err := c.declareParamList(c.file.Returns(c.out.fn))
	if err != nil {
		return c.errAt(err)
	}
	params, err := c.declareParamList(c.file.Params(c.out.fn))
	if err != nil {
		return c.errAt(err)
	}
	c.out.rets, c.out.params = rets, params
	if c.out.entry {
		c.prog.params, c.prog.paramLen = params, c.local
		c.local = 0
	}
	return nil
}

func (c *compiler) declareParamList(decls []ptx.Decl) ([]paramVar, error) {
	var vars []paramVar
	for i := range decls {
		d := &decls[i]
		for _, n := range c.file.Names(d) {
			v, err := c.declareParam(d, &n)
			if err != nil {
				return nil, err
			}
			vars = append(vars, v...)
		}
	}
	return vars, nil
}

// declareParam declares a parameter. One that is a vector of registers, or one of 128
// bits, is passed as so many, one a slot.
func (c *compiler) declareParam(d *ptx.Decl, n *ptx.Declarator) ([]paramVar, error) {
	name := c.file.Text(n.Name)
	if d.Space == ptx.SpaceReg {
		if err := c.declareReg(d, n, name); err != nil {
			return nil, err
		}
		sym, _ := c.scope.lookup(name)
		var vars []paramVar
		for i := range passedSlots(&sym) {
			vars = append(vars, paramVar{reg: sym.slot + int32(i), pred: sym.kind == symPred, size: min(uint64(d.Type.Size()), 8)})
		}
		return vars, nil
	}
	size, err := declSize(d, n)
	if err != nil {
		return nil, err
	}
	off, err := c.allocLocal(size, declAlign(d))
	if err != nil {
		return nil, err
	}
	sym := symbol{kind: symLocal, space: ptx.SpaceParam, typ: d.Type, addr: off, size: size}
	if c.out.entry {
		sym.kind = symConstant
	}
	c.scope.define(name, sym)
	return []paramVar{{off: off, size: size, reg: -1}}, nil
}
