package emu

import (
	"fmt"

	"nvtrace/ptx"
)

// A Variable is a module's named variable in global or constant memory.
type Variable struct {
	Name string // as in the source
	Addr uint64 // where the host and generic addresses reach it
	Size uint64 // in bytes
}

// A unit is one PTX file of a module.
type unit struct {
	file  *ptx.File
	scope *scope // the file's names
}

// innerKey identifies a variable that is declared inside a function.
type innerKey struct {
	file *ptx.File
	pos  ptx.Pos
}

// A funcDef is a function with a body.
type funcDef struct {
	file *ptx.File
	fn   *ptx.Func
	name string
	addr uint64 // what its address is when taken
}

// An initializer is a variable that has one.
type initializer struct {
	unit *unit
	decl *ptx.Decl
	name *ptx.Declarator
	sym  symbol
}

// Load links files, places their variables in the machine's memory and
// initialises them. Kernels are compiled when [Module.Kernel] first asks for them.
//
// Returns an error that wraps ErrInvalid or ErrNotImplemented for a declaration
// that has no place in the machine, ErrOutOfMemory if the memory does not hold the
// variables, or ErrInvalid if the machine's memory cannot allocate.
func (m *Machine) Load(files ...*ptx.File) (*Module, error) {
	mod := &Module{
		machine: m, vars: map[string]symbol{}, funcs: map[string]*funcDef{},
		inner: map[innerKey]symbol{}, named: map[string]Variable{}, kernels: map[string]*Kernel{},
	}
	for _, f := range files {
		mod.units = append(mod.units, &unit{file: f, scope: newScope(nil)})
	}
	for _, u := range mod.units {
		mod.collectFuncs(u)
	}
	for _, u := range mod.units {
		if err := mod.declareUnit(u); err != nil {
			return nil, err
		}
	}
	if err := mod.place(); err != nil {
		mod.Unload()
		return nil, err
	}
	for _, u := range mod.units {
		mod.collectTaken(u)
	}
	return mod, nil
}

// collectTaken gives an address to every function that is an operand of a mov, so
// that all kernels know the same targets of indirect calls.
func (mod *Module) collectTaken(u *unit) {
	for i := range u.file.Stmts {
		st := &u.file.Stmts[i]
		if st.Kind != ptx.StmtInstr || u.file.Opcode(st) != "mov" {
			continue
		}
		for _, a := range u.file.Args(st) {
			if a.Kind != ptx.OperandName {
				continue
			}
			if sym, ok := u.scope.names[u.file.Text(a.Name)]; ok && sym.fn != nil {
				mod.functionAddress(&sym)
			}
		}
	}
}

// Unload frees the module's variables. No launch of its kernels may be running.
func (mod *Module) Unload() {
	if a, ok := mod.machine.mem.(Allocator); ok {
		for _, r := range mod.regions {
			_ = a.Free(r.Base) // allocated by place, so it is there
		}
	}
	mod.regions = nil
}

// scope returns the names at module level of file.
func (mod *Module) scope(file *ptx.File) *scope {
	for _, u := range mod.units {
		if u.file == file {
			return u.scope
		}
	}
	return nil
}

// collectFuncs enters the functions of u.
func (mod *Module) collectFuncs(u *unit) {
	for i := range u.file.Funcs {
		fn := &u.file.Funcs[i]
		if fn.Kind == ptx.FuncPrototype {
			continue
		}
		name := u.file.Text(fn.Name)
		u.scope.define(name, symbol{kind: symConstant, space: ptx.SpaceGeneric, fn: fn, file: u.file})
		if fn.HasBody() && mod.funcs[name] == nil {
			mod.funcs[name] = &funcDef{file: u.file, fn: fn, name: name}
		}
	}
	for i := range u.file.Stmts {
		st := &u.file.Stmts[i]
		if st.Kind == ptx.StmtDirective && u.file.Text(st.Name) == ".alias" {
			mod.alias(u, st)
		}
	}
}

// alias enters the name of an .alias directive for the function it stands for.
func (mod *Module) alias(u *unit, st *ptx.Stmt) {
	args := u.file.Args(st)
	if len(args) != 2 {
		return
	}
	if def := mod.funcs[u.file.Text(args[1].Name)]; def != nil {
		mod.funcs[u.file.Text(args[0].Name)] = def
	}
}

// definition returns the body of the function that sym names; nil if no file of
// the module has it.
func (mod *Module) definition(sym *symbol) *funcDef {
	if sym.fn.HasBody() {
		return &funcDef{file: sym.file, fn: sym.fn}
	}
	return mod.funcs[sym.file.Text(sym.fn.Name)]
}

// functionAddress returns the address of a function, giving it one on first use.
// Addresses are assigned while kernels compile, under mod.mu.
func (mod *Module) functionAddress(sym *symbol) uint64 {
	def := mod.definition(sym)
	if def == nil {
		return 0
	}
	for _, d := range mod.taken {
		if d.fn == def.fn {
			return d.addr
		}
	}
	d := &funcDef{file: def.file, fn: def.fn, addr: codeWindow + uint64(len(mod.taken)+1)*16}
	mod.taken = append(mod.taken, d)
	return d.addr
}

// declareUnit enters the variables of u, at module level and inside functions.
func (mod *Module) declareUnit(u *unit) error {
	depth := 0
	for i := range u.file.Stmts {
		st := &u.file.Stmts[i]
		switch st.Kind {
		case ptx.StmtOpen:
			depth++
		case ptx.StmtClose:
			depth--
		case ptx.StmtDecl:
			if err := mod.declare(u, u.file.Decl(st), depth != 0); err != nil {
				return fmt.Errorf("%v: %w", u.file.Position(st.Pos), err)
			}
		}
	}
	return nil
}

func (mod *Module) declare(u *unit, d *ptx.Decl, inner bool) error {
	names := u.file.Names(d)
	for i := range names {
		n := &names[i]
		if err := mod.declareVar(u, d, n, inner); err != nil {
			return fmt.Errorf("variable %s: %w", u.file.Text(n.Name), err)
		}
	}
	return nil
}

func (mod *Module) declareVar(u *unit, d *ptx.Decl, n *ptx.Declarator, inner bool) error {
	if inner && d.Space != ptx.SpaceGlobal && d.Space != ptx.SpaceConst {
		return nil // the compiler's
	}
	name := u.file.Text(n.Name)
	switch d.Space {
	case ptx.SpaceShared: // laid out for each kernel
		u.scope.define(name, symbol{kind: symShared, space: d.Space, file: u.file, decl: d, name: n})
		return nil
	case ptx.SpaceGlobal, ptx.SpaceConst, ptx.SpaceLocal:
	default:
		return errf(ErrNotImplemented, "declaration in state space %v at module level", d.Space)
	}
	size, err := declSize(d, n)
	if err != nil {
		return err
	}
	if d.Linkage&ptx.Extern != 0 {
		return nil // found in mod.vars, or unknown
	}
	if d.Linkage&(ptx.Weak|ptx.Common) != 0 && !inner {
		if sym, ok := mod.vars[name]; ok {
			u.scope.define(name, sym)
			return nil
		}
	}
	sym, err := mod.allocate(d, n, name, size)
	if err != nil {
		return err
	}
	if inner {
		mod.inner[innerKey{u.file, n.Name.Pos}] = sym
	} else {
		u.scope.define(name, sym)
		mod.vars[name] = sym
	}
	if !n.Init.Empty() {
		mod.inits = append(mod.inits, initializer{u, d, n, sym})
	}
	return nil
}

// allocate gives a variable its place.
func (mod *Module) allocate(d *ptx.Decl, n *ptx.Declarator, name string, size uint64) (symbol, error) {
	sym := symbol{kind: symConstant, space: d.Space, typ: d.Type, size: size}
	switch d.Space {
	case ptx.SpaceGlobal:
		r, err := mod.alloc(max(size, 1), declAlign(d), name)
		if err != nil {
			return sym, err
		}
		sym.addr = r.Base
		mod.named[name] = Variable{name, r.Base, size}
	case ptx.SpaceConst:
		a := declAlign(d)
		sym.addr = (mod.constLen + a - 1) &^ (a - 1)
		mod.constLen = sym.addr + size
		mod.named[name] = Variable{name, sym.addr, size} // place adds the bank's address
	case ptx.SpaceLocal:
		a := declAlign(d)
		sym.addr = (mod.localLen + a - 1) &^ (a - 1)
		mod.localLen = sym.addr + size
	}
	return sym, nil
}

func (mod *Module) alloc(size, align uint64, name string) (Region, error) {
	a, ok := mod.machine.mem.(Allocator)
	if !ok {
		return Region{}, errf(ErrInvalid, "the machine's memory cannot allocate")
	}
	r, err := a.Alloc(size, align, name)
	if err == nil {
		mod.regions = append(mod.regions, r)
	}
	return r, err
}

// place allocates the constant bank, resolves external names and writes the
// initial values.
func (mod *Module) place() error {
	if mod.constLen > 1<<30 || mod.localLen > 1<<20 {
		return errf(ErrOutOfMemory, "%d bytes of constants, %d of local memory", mod.constLen, mod.localLen)
	}
	if mod.constLen != 0 {
		r, err := mod.alloc(mod.constLen, 256, "constants")
		if err != nil {
			return err
		}
		mod.constBank = r
	}
	for _, u := range mod.units {
		for name, sym := range mod.vars {
			if _, ok := u.scope.names[name]; !ok {
				u.scope.define(name, sym)
			}
		}
	}
	for i := range mod.inits {
		if err := mod.initialize(&mod.inits[i]); err != nil {
			in := &mod.inits[i]
			return fmt.Errorf("%v: initialiser of %s: %w", in.unit.file.Position(in.decl.Pos), in.unit.file.Text(in.name.Name), err)
		}
	}
	mod.inits = nil
	for name, v := range mod.named {
		if v.Addr < mod.constLen && mod.vars[name].space == ptx.SpaceConst {
			v.Addr += mod.constBank.Base
			mod.named[name] = v
		}
	}
	return nil
}

// initialize writes the initial value of one variable.
func (mod *Module) initialize(in *initializer) error {
	var dst []byte
	switch in.sym.space {
	case ptx.SpaceConst:
		dst = mod.constBank.Data[in.sym.addr:][:in.sym.size]
	case ptx.SpaceGlobal:
		r, ok := mod.machine.mem.Region(in.sym.addr)
		if !ok || !r.contains(in.sym.addr, in.sym.size) {
			return errf(ErrAddress, "%#x", in.sym.addr)
		}
		dst = r.Data[in.sym.addr-r.Base:][:in.sym.size]
	default:
		return errf(ErrNotImplemented, "of %v memory", in.sym.space)
	}
	size := uint64(in.decl.Type.Size())
	for v := range in.unit.file.InitValues(in.name) {
		bits, err := mod.initValue(in, &v)
		if err != nil {
			return err
		}
		if v.Index >= uint64(len(dst))/size {
			return errf(ErrInvalid, "element %d is beyond the variable", v.Index)
		}
		writeSome(dst[v.Index*size:], size, bits)
	}
	return nil
}

func (mod *Module) initValue(in *initializer, v *ptx.InitValue) (uint64, error) {
	t := in.decl.Type
	switch v.Kind {
	case ptx.OperandInt:
		if f := formatOf(t); f != nil {
			return fromInt(v.Bits, true).pack(f, roundNearest), nil
		}
		return v.Bits, nil
	case ptx.OperandF32, ptx.OperandF64:
		if t == ptx.F16 || t == ptx.BF16 {
			return v.Bits, nil
		}
		return floatConst(&ptx.Operand{Kind: v.Kind, Bits: v.Bits}, t), nil
	case ptx.OperandName:
		return mod.initAddress(in, v)
	}
	return 0, errf(ErrNotImplemented, "element %d", v.Index)
}

// initAddress is the value of an address in an initialiser.
func (mod *Module) initAddress(in *initializer, v *ptx.InitValue) (uint64, error) {
	sym, ok := in.unit.scope.lookup(v.Symbol)
	if !ok {
		return 0, errf(ErrInvalid, "unknown name %q", v.Symbol)
	}
	if sym.fn != nil {
		return mod.functionAddress(&sym) + v.Bits, nil
	}
	addr := sym.addr + v.Bits
	if v.Generic && sym.space == ptx.SpaceConst {
		addr += constWindow
	}
	if v.Mask != 0 {
		shift := 0
		for m := v.Mask; m&0xff == 0 && m != 0; m >>= 8 {
			shift += 8
		}
		addr = addr & v.Mask >> shift
	}
	return addr, nil
}

// Variable returns the named variable in global or constant memory.
func (mod *Module) Variable(name string) (Variable, bool) {
	v, ok := mod.named[name]
	return v, ok
}

// Kernels returns the names of the module's kernels.
func (mod *Module) Kernels() []string {
	var names []string
	for _, u := range mod.units {
		for i := range u.file.Funcs {
			if fn := &u.file.Funcs[i]; fn.Kind == ptx.FuncEntry && fn.HasBody() {
				names = append(names, u.file.Text(fn.Name))
			}
		}
	}
	return names
}

// sharedVar places a shared variable in the kernel's shared memory.
func (p *program) sharedVar(file *ptx.File, d *ptx.Decl, n *ptx.Declarator) (symbol, error) {
	id := innerKey{file, n.Name.Pos}
	size, err := declSize(d, n)
	if err != nil {
		return symbol{}, err
	}
	sym := symbol{kind: symConstant, space: ptx.SpaceShared, typ: d.Type, size: size}
	align := declAlign(d)
	if size == 0 || d.Linkage&ptx.Extern != 0 { // dynamic: behind all static ones
		p.dynAlign = max(p.dynAlign, align)
		p.usesDynamic = true
		sym.addr = p.dynBase
		return sym, nil
	}
	off, ok := p.shared[id]
	if !ok {
		off = (p.sharedLen + align - 1) &^ (align - 1)
		if size > 1<<24 || off+size > 1<<24 {
			return sym, errf(ErrOutOfMemory, "%d bytes of shared memory", size)
		}
		p.shared[id] = off
		p.sharedLen = off + size
	}
	sym.addr = off
	return sym, nil
}

// declSize returns the bytes of one declared name.
func declSize(d *ptx.Decl, n *ptx.Declarator) (uint64, error) {
	unit := uint64(d.Type.Size()) * uint64(max(1, d.Vec))
	if unit == 0 {
		return 0, errf(ErrNotImplemented, "variable of a type without a size")
	}
	if n.Elems > 1<<40/unit {
		return 0, errf(ErrOutOfMemory, "array of %d elements", n.Elems)
	}
	if n.Flex && n.NDims == 1 && n.Init.Empty() {
		return 0, nil
	}
	return unit * n.Elems, nil
}

// declAlign returns the alignment of a declaration, its natural one if none is
// written.
func declAlign(d *ptx.Decl) uint64 {
	natural := uint64(max(1, d.Type.Size())) * uint64(max(1, d.Vec))
	a := uint64(d.Align)
	if a == 0 || a&(a-1) != 0 || a > 1<<16 {
		a = 1
	}
	return max(a, natural)
}
