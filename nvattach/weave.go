package nvattach

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// WeaveOptions say how a module is rewritten. Nil is the zero value.
type WeaveOptions struct {
	// Registers says how many registers a thread of the kernel takes without
	// programs, 0 if that is not known. A kernel without launch bounds is given
	// some that leave it the larger of 64 and that, so that it can still be launched
	// with as many threads as before.
	Registers func(kernel string) int
	// Except are functions that have their programs already.
	Except map[string]bool
}

// A Woven is a module with programs.
type Woven struct {
	Text    string
	Kernels []KernelReport
	// Unprobed are kernels that programs want and that can't have them, unlike others of the
	// module.
	Unprobed []Unprobed
}

// A KernelReport says what a kernel or device function got.
type KernelReport struct {
	Name     string // mangled
	Func     bool
	Machine  bool // its machine code got the programs, not its PTX
	Programs []ProgramReport
	// Notes say what is not as one might expect: places that could not be had.
	Notes []string
	// Bounded: the kernel says how many threads or registers it is for, so that a
	// launch can't fail for want of registers.
	Bounded bool
	// Blocks: its blocks have maps of their own in shared memory, so that a launch may fail that
	// wants much of that itself.
	Blocks bool
	// Twin: there is a copy without programs, see [Twins]; NoTwin is why there is none
	// where there should be.
	Twin   bool
	NoTwin string
	// Of a kernel with a copy: the variables of its module that kernels may write, and
	// what it does besides changing memory, such as "it prints".
	Globals []string
	Effect  string
}

// A ProgramReport counts the places of a program in a function.
type ProgramReport struct {
	Program string
	Object  string
	Kind    object.Kind
	Sites   int
}

// Sites returns the places of all programs.
func (k *KernelReport) Sites() int {
	n := 0
	for i := range k.Programs {
		n += k.Programs[i].Sites
	}
	return n
}

// weaving is the work on one module.
type weaving struct {
	p      *Plan
	f      *ptx.File
	w      *ptx.Weaver
	maps   *mapmem.Maps
	o      *WeaveOptions
	report KernelReport
	files  map[uint32]string
	texts  map[string]string // module variables with instructions' texts
	ended  map[ending]bool
	block  []uint32 // of statement i-fn.Open of the function at hand
	insn   []uint32

	begun   bool               // the module has the variable with the maps of blocks
	returns map[*ptx.Func]bool // that keep what they return

	own   map[*object.MapDef]string // what the names of registers with a section of threads' variables begin with
	owned map[ownKey]bool

	found     map[*ptx.Func]*ptx.Sites
	templates map[templateKey]*template
	dialect   dialect
}

// A templateKey is what the code of a program depends on apart from the context's
// fields, which are different everywhere.
type templateKey struct {
	q      *proof.Program
	text   string     // the context of a program of KindCapture
	params *ptx.Sites // of a program that asks for parameters
}

// maxGrowth bounds what programs may add to a module: the driver's compiler takes
// about a second for half a megabyte.
const maxGrowth = 256 << 20

// ErrNotWoven is in the chain of errors about modules that can't get programs.
var ErrNotWoven = errors.New("can't be probed")

// Weave puts the plan's programs into a module. The module's .version and .target
// stay, and its text outside of the places too. Without a function that a program
// wants, the text is the same and Kernels is empty.
func (p *Plan) Weave(f *ptx.File, maps *mapmem.Maps, o *WeaveOptions) (*Woven, error) {
	if !maps.Placed() {
		return nil, errors.New("BUG: Weave before Maps.Place")
	}
	if o == nil {
		o = &WeaveOptions{}
	}
	out := &Woven{Text: f.Src}
	if !p.wantsFile(f) {
		return out, nil
	}
	if f.AddressSize != 64 {
		return nil, fmt.Errorf("%s: a module with %d-bit addresses: %w", f.Name, f.AddressSize, ErrNotWoven)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sites := len(p.sites)
	g := newWeaving(p, f, maps, o)
	g.files = f.SourceFiles()
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		if name := f.Text(fn.Name); !fn.HasBody() || !p.Wants(name, fn.Kind == ptx.FuncDevice) || o.Except[name] {
			continue
		}
		st := g.sites(fn)
		if why := g.tooMuchShared(st); why != "" {
			out.Unprobed = append(out.Unprobed, Unprobed{st.Name, why})
			continue
		}
		if err := g.function(st); err != nil {
			p.sites = p.sites[:sites]
			return nil, fmt.Errorf("%s: %s: %w", f.Name, st.Name, err)
		}
		if len(g.report.Programs)+len(g.report.Notes) > 0 {
			out.Kernels = append(out.Kernels, g.report)
		}
	}
	text, err := g.w.Source()
	if err == nil && len(text)-len(f.Src) > maxGrowth {
		err = fmt.Errorf("%d places make %d bytes of PTX more, and %d is the most: %w", len(p.sites)-sites, len(text)-len(f.Src), maxGrowth, ErrNotWoven)
	}
	if err != nil {
		p.sites = p.sites[:sites]
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	out.Text = text
	return out, nil
}

func newWeaving(p *Plan, f *ptx.File, maps *mapmem.Maps, o *WeaveOptions) *weaving {
	w := ptx.NewWeaver(f)
	if p.kept.templates == nil || len(p.kept.checked) > 64*mostKept {
		p.kept = kept{templates: map[keptKey]*template{}, checked: map[keptCheck]bool{}}
	}
	return &weaving{
		dialect: dialect{version: f.Version, target: f.Target(), stem: w.Stem()},
		p:       p, f: f, w: w, maps: maps, o: o,
		own: map[*object.MapDef]string{}, owned: map[ownKey]bool{},
		texts: map[string]string{}, ended: map[ending]bool{},
		found: map[*ptx.Func]*ptx.Sites{}, templates: map[templateKey]*template{},
	}
}

// sites returns the places of a function with a body, which are looked for once.
func (g *weaving) sites(fn *ptx.Func) *ptx.Sites {
	st := g.found[fn]
	if st == nil {
		st = g.f.Sites(fn)
		g.found[fn] = st
	}
	return st
}

// allSites returns the places of all functions with a body.
func (g *weaving) allSites() []*ptx.Sites {
	var all []*ptx.Sites
	for i := range g.f.Funcs {
		if fn := &g.f.Funcs[i]; fn.HasBody() {
			all = append(all, g.sites(fn))
		}
	}
	return all
}

// check refuses a program's code that the module's version or target does not
// allow; code for the same kind of place is checked once.
func (g *weaving) check(key checkKey, code string) error {
	known := keptCheck{key, g.dialect}
	if g.p.kept.checked[known] {
		return nil
	}
	var src strings.Builder
	for i := range g.f.Stmts {
		s := &g.f.Stmts[i]
		word := g.f.Text(s.Name)
		if s.Kind != ptx.StmtDirective || word != ".version" && word != ".target" && word != ".address_size" {
			break
		}
		src.WriteString(g.f.Text(s.Span()) + "\n")
	}
	src.WriteString(".entry probe()\n{\n" + code + "\n}\n")
	f, err := ptx.Parse(g.f.Name, src.String(), nil)
	if err != nil {
		return fmt.Errorf("BUG: a probe's code: %w", err)
	}
	if found := f.CheckFeatures(); len(found) > 0 {
		return fmt.Errorf("the programs' code: %w: %w", found[len(found)-1], ErrNotWoven)
	}
	g.p.kept.checked[known] = true
	return nil
}

// function weaves all programs that want one function.
func (g *weaving) function(st *ptx.Sites) error {
	fn := st.Func
	device := fn.Kind == ptx.FuncDevice
	g.report = KernelReport{Name: st.Name, Func: device}
	g.block, g.insn = nil, nil
	blocks, before := false, len(g.p.sites)
	for _, q := range g.p.Programs {
		if !g.p.kernelWanted(q, st.Name, device) {
			continue
		}
		if !device {
			g.callees(q, st)
		}
		n, err := g.program(q, st)
		if err != nil {
			return fmt.Errorf("program %s: %w", q.Name, err)
		}
		// Where a function that it calls ends threads, another kernel may have brought the program.
		blocks = blocks || q.UsesBlocks() != nil && (n > 0 || q.Point.Kind == object.KindExit)
		if n > 0 || q.Point.Kind != object.KindCapture {
			g.report.Programs = append(g.report.Programs, ProgramReport{Program: q.Name, Object: q.Object.Name, Kind: q.Point.Kind, Sites: n})
		}
	}
	g.contractions(fn, g.p.sites[before:])
	if blocks {
		g.beginBlock(fn)
	}
	if !device && g.report.Sites() > 0 {
		g.limitRegisters(fn)
	}
	return nil
}

// callees notes that what a kernel's functions do is not the kernel's own code.
func (g *weaving) callees(q *proof.Program, st *ptx.Sites) {
	switch q.Point.Kind {
	case object.KindMem, object.KindInsn, object.KindBlock:
	default:
		return
	}
	for i := range st.Calls {
		c := &st.Calls[i]
		if fn := g.f.Lookup(c.Callee); !c.Indirect && fn != nil && fn.HasBody() && !g.p.Wants(c.Callee, true) {
			g.note("what function %s does, which it calls, is not seen; a section cuda.%s/func:%s sees it", c.Callee, q.Point.Kind, c.Callee)
		}
	}
}

// limitRegisters keeps a kernel without launch bounds launchable: with more
// registers per thread than 65,536/1,024 a block of 1,024 threads could not start. That
// no block has more threads is no news, and unlike a number of registers it does not make
// the assembler use as many as it may.
func (g *weaving) limitRegisters(fn *ptx.Func) {
	for _, a := range []string{".maxntid", ".reqntid", ".maxnreg"} {
		if g.f.Attr(fn, a) != nil {
			g.report.Bounded = true
			return
		}
	}
	if g.o.Registers == nil {
		return
	}
	if n := g.o.Registers(g.report.Name); n > 0 {
		g.w.Header(fn, registerLimit(g.f, fn, n))
		g.report.Bounded = true
	}
}

// program puts one program at all its places in a function.
func (g *weaving) program(q *proof.Program, st *ptx.Sites) (int, error) {
	switch q.Point.Kind {
	case object.KindEntry:
		return g.entry(q, st)
	case object.KindExit:
		return g.exits(q, st)
	case object.KindMem:
		return g.accesses(q, st)
	case object.KindInsn:
		return g.instructions(q, st)
	case object.KindBlock:
		return g.blocks(q, st)
	case object.KindCapture:
		return g.captures(q, st)
	}
	return 0, nil
}

// note remembers why a place has no program; equal ones once.
func (g *weaving) note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if !slices.Contains(g.report.Notes, s) && len(g.report.Notes) < 32 {
		g.report.Notes = append(g.report.Notes, s)
	}
}

// refused turns a place that the Weaver does not allow into a note.
func (g *weaving) refused(err error) error {
	if se, ok := errors.AsType[*ptx.SiteError](err); ok {
		g.note("%v", se)
		return nil
	}
	return err
}

// place starts the description of a place at a statement.
func (g *weaving) place(q *proof.Program, st *ptx.Sites, stmt uint32) *proof.Place {
	p := &proof.Place{Stmt: stmt, Sites: st, Number: uint32(len(g.p.sites) + 1)}
	s := Site{Kernel: st.Name, Program: q.Name, Kind: q.Point.Kind}
	if stmt != 0 {
		if loc, ok := st.Loc(g.f, stmt); ok {
			p.Line, p.File = loc.Line, loc.File
			s.Line, s.File = loc.Line, g.files[loc.File]
		}
		if x := &g.f.Stmts[stmt]; x.Kind == ptx.StmtInstr {
			s.Text = oneLineText(g.f.Text(x.Span()))
			p.Text = s.Text
		}
		g.number(st)
		p.Insn, p.Block = g.insn[stmt-st.Func.Open], g.block[stmt-st.Func.Open]
	}
	s.Insn = p.Insn
	g.p.sites = append(g.p.sites, s)
	return p
}

func oneLineText(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return s[:min(len(s), proof.CaptureText-1)]
}

// number counts instructions and blocks of a function once.
func (g *weaving) number(st *ptx.Sites) {
	if g.insn != nil {
		return
	}
	open, end := st.Func.Open, st.Func.Close
	g.insn, g.block = make([]uint32, end-open+1), make([]uint32, end-open+1)
	n := uint32(0)
	for i := open; i <= end; i++ {
		g.insn[i-open] = n
		if g.f.Stmts[i].Kind == ptx.StmtInstr {
			n++
		}
	}
	for b := range st.Blocks {
		for i := st.Blocks[b].First; i <= st.Blocks[b].Last && i <= end; i++ {
			if i >= open {
				g.block[i-open] = uint32(b)
			}
		}
	}
}

// code writes a program for a place.
func (g *weaving) code(q *proof.Program, at *proof.Place) (string, error) {
	if q.Plain != nil && at.Given == nil && !g.takeSlots(q, at) {
		q = q.Plain
	}
	key := templateKey{q: q}
	if q.Point.Kind == object.KindCapture {
		key.text = at.Text
	}
	if q.AsksForArguments() || q.WantsReturn() {
		key.params = at.Sites
	}
	g.declare(q, at.Sites.Func)
	t := g.templates[key]
	if t == nil {
		var err error
		if t, err = g.keep(key, at); err != nil {
			return "", err
		}
		g.templates[key] = t
	}
	text, err := t.Emit(func(b *bpf.Gen, i int) (ptx.Arg, error) { return at.Field(b, q.Fields[i]) },
		func(b *bpf.Gen, k int) (ptx.Arg, error) { return g.slot(b, q, at, k), nil })
	if err != nil {
		return "", err
	}
	kind := checkKey{q: q}
	if s := &g.f.Stmts[at.Stmt]; at.Stmt != 0 && s.Kind == ptx.StmtInstr {
		kind.opcode = g.f.FullOpcode(s)
	}
	text = t.before + text
	if len(q.Report.Ends) > 0 {
		where := whereRegister(q, g.prefix(q))
		text = fmt.Sprintf("\t.reg .b32 %s;\n\tmov.u32 %s, %d;\n", where, where, at.Number) + text
	}
	return text, g.check(kind, at.Setup+text)
}

// text puts an instruction's text into the module and returns its name.
func (g *weaving) text(s string) string {
	if name := g.texts[s]; name != "" {
		return name
	}
	name := g.w.Fresh('_', "text")
	g.texts[s] = name
	var b strings.Builder
	fmt.Fprintf(&b, ".global .align 8 .b8 %s[%d] = {", name, proof.CaptureText)
	for i := range len(s) {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d", s[i])
	}
	if s == "" {
		b.WriteString("0")
	}
	b.WriteString("};\n")
	g.w.Module(b.String())
	return name
}

// An Unprobed is a kernel that a program wants and does not get.
type Unprobed struct{ Kernel, Reason string }

// registerLimit is a directive by which a kernel that took n registers without
// programs can be launched with as many threads as before.
func registerLimit(f *ptx.File, fn *ptx.Func, n int) string {
	if n <= launchRegisters && f.Attr(fn, ".minnctapersm") == nil {
		return ".maxntid 1024, 1, 1"
	}
	return fmt.Sprintf(".maxnreg %d", max(launchRegisters, (n+7)/8*8))
}

// launchRegisters are those that a thread may take in a block of 1,024.
const launchRegisters = 65536 / 1024
