package bpf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptx"
)

// Verified is a program that was proven safe in its Env. It is safe for
// concurrent use.
type Verified struct {
	p       *Program
	env     *Env
	nodes   []node
	coder   coder
	remap   [classes][]int32 // register numbers to those that are written
	count   [classes]int32   // of those
	fails   bool
	never   bool // a helper does not come back
	slotted bool // values are where Site.Slot says
	vague   bool // what is returned is a number on some paths only
	why     reg  // index in Report.Ends
	fields  []int
	report  Report
}

// A Gen is the code of one program at one site while it is being written.
type Gen struct {
	*ptx.Builder // the code so far; what is written is added to it

	v      *Verified
	site   *Site
	prefix string
	coder  coder
	fields map[int]ptx.Arg
	slots  []ptx.Arg
	times  ptx.Arg // for how many threads it runs, if that is not one
	names  int     // registers and labels that helpers asked for
	modern bool    // the memory model of PTX ISA 6.0 can be spoken
	err    error
	last   *peers // of the atomic operation before, in the same block
	mask   ptx.Arg
}

// Emit writes the program for one site: PTX statements, to be put in a scope of
// their own as [ptx.Weaver] does.
func (v *Verified) Emit(s *Site) (string, error) {
	g := v.gen(s)
	if err := g.checkSite(); err != nil {
		return "", err
	}
	together := s.Reconverge && !v.never && v.report.branchy() && ptx.Needs("bar.warp.sync").Met(s.Version, s.Target) &&
		ptx.Needs("activemask.b32").Met(s.Version, s.Target)
	alone := v.collective() && s.Alone()
	var here ptx.Arg // the threads that came in together
	if together || v.collective() && !alone {
		here = g.Reg(ptx.B32)
		g.Inst("activemask.b32", here)
	}
	if g.mask = here; alone {
		g.mask = g.Reg(ptx.B32)
		g.Inst("mov.u32", g.mask, ptx.Name("%lanemask_eq"))
	}
	if s.Once == OfThread {
		if err := g.askSite(); err != nil {
			return "", err
		}
	}
	var met string
	if together && !s.ToolsPatch { // the weaver of machine code brings threads together itself
		met = g.enterTogether(here)
	}
	if s.Once != OfThread { // the other threads need nothing of the site
		g.once()
		if err := g.askSite(); err != nil {
			return "", err
		}
	}
	for i := range v.nodes {
		if n := &v.nodes[i]; !n.dead && !g.pointless(i) {
			g.render(n)
		}
		if v.nodes[i].kind == nLabel && v.nodes[i].label == labelDone && together {
			g.Inst("bar.warp.sync", here)
			if met != "" {
				g.Builder.Label(met)
			}
		}
	}
	body, err := g.Source()
	if g.err != nil {
		err = g.err
	}
	if err != nil {
		return "", fmt.Errorf("program %s: %w", v.p.Name, err)
	}
	return g.declarations() + body, nil
}

// setupMark stands where the fields and slots of a site are computed, for [Template.Emit].
const setupMark = "\t// the site\n"

// askSite has the site compute its fields and slots.
func (g *Gen) askSite() error {
	v, s := g.v, g.site
	if s.Field == nil && s.Slot == nil {
		return nil
	}
	if s.mark {
		g.Line(strings.TrimSpace(setupMark))
	}
	for _, i := range v.fields {
		x, err := s.Field(g, i)
		if err != nil {
			return fmt.Errorf("field %s of the context: %w", v.env.Context.Fields[i].Name, err)
		}
		g.fields[i] = x
	}
	if !v.slotted {
		return nil
	}
	for k := range v.report.Slots {
		x, err := s.Slot(g, k)
		if err != nil {
			return fmt.Errorf("slot %d: %w", k, err)
		}
		g.slots = append(g.slots, x)
	}
	return nil
}

// enterTogether begins what threads that came in together leave together, and returns the label that
// is to be placed behind the bar.warp.sync at its end.
//
// A bar.warp.sync alone does not make them run together: from sm_90 on, parts of a warp that come to
// it one by one go on one by one. What does is the barrier that compilers put behind a branch
// which threads may take differently. So there is one, from here to the label, that nobody takes:
// each thread is among those that are here, which compilers don't know. Nor would that barrier
// suffice: a YIELD, which they put into loops that wait for others, lets all go on that
// wait there. So threads wait in front of it first, until no one can run a YIELD any more.
func (g *Gen) enterTogether(here ptx.Arg) (met string) {
	met = g.Label()
	mine, none := g.Reg(ptx.B32), g.Reg(ptx.Pred)
	g.Mov(ptx.U32, mine, ptx.Name("%lanemask_eq"))
	g.And(ptx.B32, mine, mine, here)
	g.Setp("eq", ptx.U32, none, mine, ptx.Imm(0))
	g.On(none).Bra(met)
	return met
}

// defaultPrefix begins the names of registers and labels where the site says nothing.
const defaultPrefix = "nvb"

// collective reports whether the program calls what the threads of a warp do together.
func (v *Verified) collective() bool {
	return slices.ContainsFunc(v.report.Helpers, func(n int32) bool { return v.env.Helpers[n].Collective })
}

// Together returns the 32-bit register with the threads of the warp that came to the site
// together, a bit each, for the code of a [Helper] that is Collective: all of them come to it. On
// targets that can't tell, each thread is alone.
func (g *Gen) Together() ptx.Arg { return g.mask }

// gen returns a Gen that nothing was written with.
func (v *Verified) gen(s *Site) *Gen {
	o := &ptx.BuildOptions{Version: s.Version, Target: s.Target}
	g := &Gen{Builder: ptx.NewBuilder(o), v: v, site: s, prefix: s.Prefix, coder: v.coder, fields: map[int]ptx.Arg{}}
	if g.prefix == "" {
		g.prefix = defaultPrefix
	}
	g.coder.add = func(n node) { g.render(&n) }
	g.modern = s.Version == (ptx.Version{}) || ptx.Needs("ld.acquire.gpu.global.u64").Met(s.Version, s.Target)
	return g
}

// branchy reports whether threads may part in the program.
func (r *Report) branchy() bool {
	return r.Branches+r.Checks+r.FueledLoops+r.ProvenLoops > 0
}

// checkSite finds what the site lacks.
func (g *Gen) checkSite() error {
	v, s := g.v, g.site
	if v.slotted && s.Slot == nil {
		return fmt.Errorf("program %s: the site has no slots", v.p.Name)
	}
	if s.Once > v.report.Once {
		return fmt.Errorf("program %s: it can't be run once for others", v.p.Name)
	}
	if len(v.fields) > 0 && s.Field == nil {
		return fmt.Errorf("program %s: the site has no fields for the context", v.p.Name)
	}
	if v.report.TextInMemory && s.TextAddr == (Addr{}) {
		return fmt.Errorf("program %s: the context's text is needed in memory", v.p.Name)
	}
	if v.env.Context != nil && len(s.Text) > v.env.Context.Text {
		return fmt.Errorf("program %s: the context's text has %d bytes; at most %d are allowed", v.p.Name, len(s.Text), v.env.Context.Text)
	}
	for i := range v.env.Maps {
		if m := &v.env.Maps[i]; m.Direct && v.report.Maps[i].Used && i >= len(s.Maps) {
			return fmt.Errorf("program %s: the address of %s is missing", v.p.Name, m.Name)
		}
	}
	return nil
}

// declarations declares the registers and the stack.
func (g *Gen) declarations() string {
	var s strings.Builder
	for k, word := range [classes]string{"b64", "b32", "pred"} {
		if n := g.v.count[k] + g.coder.next[k] - g.v.coder.next[k]; n > 0 {
			fmt.Fprintf(&s, "\t.reg .%s %%%s%c<%d>;\n", word, g.prefix, "drp"[k], n)
		}
	}
	for d := range g.coder.layouts {
		if y := &g.coder.layouts[d]; y.hi > y.lo {
			fmt.Fprintf(&s, "\t.local .align 8 .b8 %s[%d];\n", g.stack(d), (y.hi-y.lo+7)&^7)
		}
	}
	return s.String()
}

func (g *Gen) stack(d int) string { return "_" + g.prefix + "s" + strconv.Itoa(d) }

// reg returns the name of r.
func (g *Gen) reg(r reg) ptx.Arg {
	n := r.n - g.v.coder.next[r.class] + g.v.count[r.class]
	if r.n < g.v.coder.next[r.class] {
		n = g.v.remap[r.class][r.n]
	}
	name := "%" + g.prefix + "drp"[r.class:r.class+1] + strconv.Itoa(int(n))
	return ptx.TypedReg([classes]ptx.Type{ptx.B64, ptx.B32, ptx.Pred}[r.class], name)
}

// labelName returns the name of a label.
func (g *Gen) labelName(n int) string {
	switch {
	case n == labelFail:
		return "$" + g.prefix + "fail"
	case n == labelDone:
		return "$" + g.prefix + "done"
	case n <= labelEnd:
		return "$" + g.prefix + "end" + strconv.Itoa(labelEnd-n)
	}
	return "$" + g.prefix + "b" + strconv.Itoa(n)
}

// pointless reports whether node i is a branch to what comes next anyway.
func (g *Gen) pointless(i int) bool {
	b := &g.v.nodes[i]
	if b.kind != nBranch || b.guard != noReg {
		return false
	}
	for k := i + 1; k < len(g.v.nodes); k++ {
		n := &g.v.nodes[k]
		switch {
		case n.dead:
		case n.kind != nLabel:
			return false
		case n.label == b.label:
			return true
		case n.label == labelFail && g.v.fails && g.site.Failed != nil:
			return false
		}
	}
	return false
}

// render writes one node.
func (g *Gen) render(n *node) {
	if g.last != nil && (n.kind == nLabel || n.kind == nBranch || n.kind == nCall || n.dst == g.last.base.r) {
		g.last = nil
	}
	switch n.kind {
	case nInst:
		g.instruction(n)
	case nLabel:
		if n.label == labelFail && !g.v.fails {
			return
		}
		g.Builder.Label(g.labelName(n.label))
		if n.label == labelFail && g.site.Failed != nil {
			g.fail(g.site.Failed(g))
		}
	case nBranch:
		switch {
		case n.guard == noReg:
			g.Bra(g.labelName(n.label))
		case n.neg:
			g.OnNot(g.reg(n.guard)).Bra(g.labelName(n.label))
		default:
			g.On(g.reg(n.guard)).Bra(g.labelName(n.label))
		}
	case nLoad, nStore:
		space, at := g.shared(n)
		g.access(n, space, at)
	case nLocal:
		g.access(n, ".local", g.memory(n))
	case nOwn:
		g.Line("mov.b64 " + g.own(n.base).String() + ", " + g.operand(n.args[0]).String() + ";")
	case nAtomic:
		g.atomic(n)
	case nCall:
		g.call(n)
	case nResult:
		if g.site.Result != nil {
			g.fail(g.site.Result(g, g.operand(n.args[0])))
		}
	}
}

func (g *Gen) fail(err error) {
	if g.err == nil && err != nil {
		g.err = err
	}
}

// instruction writes an instruction that every target has.
func (g *Gen) instruction(n *node) {
	if n.op == "mov.b64" && (n.args[0].kind == aMap || n.args[0].kind == aLocal || n.args[0].kind == aTextAddr) {
		g.address(g.reg(n.dst), n.args[0])
		return
	}
	if how, wide := wideDivisions[n.op]; wide && g.site.ToolsPatch {
		g.divide(n, how)
		return
	}
	args := make([]string, len(n.args))
	for i, x := range n.args {
		args[i] = g.operand(x).String()
	}
	if n.op == "mov.b64 {}" {
		g.Line("mov.b64 " + g.reg(n.dst).String() + ", {" + strings.Join(args, ", ") + "};")
		return
	}
	g.Line(n.op + " " + g.reg(n.dst).String() + ", " + strings.Join(args, ", ") + ";")
}

// operand returns x as an operand; addresses are put in a register.
func (g *Gen) operand(x arg) ptx.Arg {
	switch x.kind {
	case aReg:
		return g.reg(x.r)
	case aField:
		return g.fields[int(x.m)]
	case aOwn:
		return g.own(x)
	case aSlot:
		return g.slots[x.v]
	case aText:
		text := make([]byte, x.n)
		if x.v < int64(len(g.site.Text)) {
			copy(text, g.site.Text[x.v:])
		}
		return ptx.Imm(int64(little(text)))
	case aImm:
		return ptx.Imm(x.v)
	}
	d := g.reg(g.coder.fresh(c64))
	g.address(d, x)
	return d
}

// own returns the register with a word of a value that each thread has.
func (g *Gen) own(x arg) ptx.Arg {
	return ptx.TypedReg(ptx.B64, g.site.Maps[x.m].Symbol+strconv.FormatInt(x.v, 10))
}

// address puts the address x into d.
func (g *Gen) address(d ptx.Arg, x arg) {
	switch x.kind {
	case aMap:
		a := g.site.Maps[x.m]
		if g.v.env.Maps[x.m].Thread { // nobody follows it
			a.Symbol, a.Value = "", 8
		}
		a.Value += uint64(x.v)
		g.addressOf(d, a)
	case aLocal:
		g.Inst("mov.u64", d, ptx.Name(g.stack(int(x.m))))
	default:
		g.addressOf(d, g.site.TextAddr)
	}
}

func (g *Gen) addressOf(d ptx.Arg, a Addr) {
	if a.Symbol == "" {
		g.Inst("mov.u64", d, ptx.Hex(a.Value))
		return
	}
	g.Inst("mov.u64", d, ptx.Name(a.Symbol))
	if a.Value != 0 {
		g.Inst("add.s64", d, d, ptx.Imm(int64(a.Value)))
	}
}

// memory returns the address operand of a node.
func (g *Gen) memory(n *node) ptx.Arg {
	switch n.base.kind {
	case aLocal:
		return ptx.Addr(ptx.Name(g.stack(int(n.base.m))), n.off)
	case aMap:
		if a := g.site.Maps[n.base.m]; a.Symbol != "" {
			return ptx.Addr(ptx.Name(a.Symbol), int64(a.Value)+n.base.v+n.off)
		}
	}
	return ptx.Addr(g.operand(n.base), n.off)
}

// blocks reports whether values of some maps, of which there may be none, are in the memory of a
// block's threads: all of them, or any.
func (e *Env) blocks(maps []int32) (all, some bool) {
	all = len(maps) > 0
	for _, m := range maps {
		all, some = all && e.Maps[m].Block, some || e.Maps[m].Block
	}
	return all, some
}

// spaceOf returns the state space of a node's memory, and the scope of all who use it.
func (g *Gen) spaceOf(n *node) (space, scope string) {
	all, some := g.v.env.blocks(n.maps)
	switch {
	case all:
		return ".shared", ".cta"
	case n.sys:
		scope = ".sys"
	default:
		scope = ".gpu"
	}
	if some { // a generic address says it
		return "", scope
	}
	return ".global", scope
}

// shared returns the state space and the address operand of a node whose memory threads share.
func (g *Gen) shared(n *node) (space string, at ptx.Arg) {
	space, _ = g.spaceOf(n)
	if space != ".shared" {
		return space, g.memory(n)
	}
	return space, ptx.Addr(g.inBlock(g.operand(n.base)), n.off)
}

// inBlock returns where in the memory of its block a generic address is.
func (g *Gen) inBlock(at ptx.Arg) ptx.Arg {
	r := g.reg(g.coder.fresh(c64))
	g.Line("cvta.to.shared.u64 " + r.String() + ", " + at.String() + ";")
	return r
}

// access writes a load or a store.
func (g *Gen) access(n *node, space string, at ptx.Arg) {
	mods := ""
	switch {
	case n.mods != "":
		mods = g.semantics(n)
	case n.dst != noReg: // what every target has needs no look at the target
		g.Line("ld" + space + "." + n.op + " " + g.reg(n.dst).String() + ", " + at.String() + ";")
		return
	default:
		g.Line("st" + space + "." + n.op + " " + at.String() + ", " + g.operand(n.args[0]).String() + ";")
		return
	}
	if n.dst != noReg {
		g.Inst("ld"+mods+space+"."+n.op, g.reg(n.dst), at)
		if mods == ".volatile" {
			g.Line("membar.gl;")
		}
		return
	}
	if mods == ".volatile" {
		g.Line("membar.gl;")
	}
	g.Inst("st"+mods+space+"."+n.op, at, g.operand(n.args[0]))
}

// semantics spells the node's ordering and scope.
func (g *Gen) semantics(n *node) string {
	switch {
	case !g.modern && n.kind != nAtomic:
		return ".volatile"
	case !g.modern && n.sys && ptx.Needs("atom.sys.global.add.u32").Met(g.site.Version, g.site.Target):
		return ".sys"
	case !g.modern:
		return ""
	}
	_, scope := g.spaceOf(n)
	return "." + n.mods + scope
}

// atomic writes an atomic operation, without a result if nobody reads it.
func (g *Gen) atomic(n *node) {
	args := make([]ptx.Arg, len(n.args))
	for i, x := range n.args {
		args[i] = g.operand(x)
	}
	plain := strings.HasPrefix(n.op, "exch") || strings.HasPrefix(n.op, "cas")
	if n.dst == noReg && !plain {
		relaxed := *n
		relaxed.mods = "relaxed" // there is no other that has no result
		n = &relaxed
	}
	mods := g.semantics(n)
	if strings.HasPrefix(n.op, narrowOp) {
		g.narrow(n, args[0], mods)
		return
	}
	if g.times != (ptx.Arg{}) && n.adds() {
		g.addTimes(n, args[0], mods)
		return
	}
	space, at := g.shared(n)
	fenced := n.mods == "acq_rel" && !g.modern
	if fenced {
		g.Line("membar.gl;")
	}
	if (n.apart || n.alike && strings.HasPrefix(args[0].String(), "%")) && g.together(n, at, args[0], mods+space) || n.sum && n.adds() && g.sum(n, at, args[0], mods+space) {
		return
	}
	if n.dst == noReg && !plain {
		g.Inst("red"+mods+space+"."+n.op, append([]ptx.Arg{at}, args...)...)
		return
	}
	dst := n.dst
	if dst == noReg {
		k := c64
		if strings.HasSuffix(n.op, "32") {
			k = c32
		}
		dst = g.coder.fresh(k)
	}
	g.Inst("atom"+mods+space+"."+n.op, append([]ptx.Arg{g.reg(dst), at}, args...)...)
	if fenced {
		g.Line("membar.gl;")
	}
}

// call writes a helper's code.
func (g *Gen) call(n *node) {
	h := n.call.op.helper
	if n.label > 0 { // an early end, with a record that may be held
		g.release(n)
		return
	}
	if h.Emit == nil {
		g.fail(fmt.Errorf("helper %d (%s) has no code", n.call.op.id, h.Name))
		return
	}
	c := &Call{CallInfo: n.call.info, Used: n.call.used}
	for k := range n.call.args {
		c.Args[k] = Value{g: g, a: &n.call.args[k]}
	}
	r, err := h.Emit(g, c)
	if err != nil {
		g.fail(fmt.Errorf("helper %d (%s), called by instruction %d: %w", n.call.op.id, h.Name, n.call.op.at, err))
		return
	}
	if !n.call.used {
		return
	}
	if r == (ptx.Arg{}) {
		g.fail(fmt.Errorf("helper %d (%s) returns nothing, but its result is read", n.call.op.id, h.Name))
		return
	}
	g.Line("mov.b64 " + g.reg(n.dst).String() + ", " + r.String() + ";")
}

func (g *Gen) release(n *node) {
	h := n.call.op.helper
	if h.Release == nil {
		g.fail(fmt.Errorf("helper %d (%s) has no code to release a record", n.call.op.id, h.Name))
		return
	}
	rec, p, after := g.operand(n.call.args[0].value), g.Reg(ptx.Pred), g.Label()
	g.Setp("eq", ptx.U64, p, rec, ptx.Imm(0))
	g.On(p).Bra(after)
	g.fail(h.Release(g, rec))
	g.Builder.Label(after)
}

// Why returns the 32-bit register with the index in [Report.Ends] of what ended the
// run. It is only set for the code of [Site.Failed].
func (g *Gen) Why() ptx.Arg { return g.reg(g.v.why) }

// Site returns the site that the code is for.
func (g *Gen) Site() *Site { return g.site }

// Reg declares a new register.
func (g *Gen) Reg(t ptx.Type) ptx.Arg {
	g.names++
	return g.Builder.Reg(t, "%"+g.prefix+"x"+strconv.Itoa(g.names))
}

// Label returns a new label, to be placed with [ptx.Builder.Label] (which is
// g.Builder.Label, since this method has its name).
func (g *Gen) Label() string {
	g.names++
	return "$" + g.prefix + "x" + strconv.Itoa(g.names)
}

// End returns the label of the program's regular end; branching there ends the
// program. Records that it holds stay held: a helper may only do it where it
// knows better.
func (g *Gen) End() string { return g.labelName(labelDone) }

// Address returns a 64-bit register with the address a.
func (g *Gen) Address(a Addr) ptx.Arg {
	d := g.reg(g.coder.fresh(c64))
	g.addressOf(d, a)
	return d
}

// A Call is one call of a helper while its code is being written.
type Call struct {
	CallInfo
	Args [5]Value
	Used bool // the result is read, or may be
}

// A Value is an argument of a call.
type Value struct {
	g *Gen
	a *callArg
}

// Const returns the argument when it is the same number on every path.
func (v *Value) Const() (uint64, bool) {
	return uint64(v.a.value.v), v.a.spec != nil && v.number() && v.a.value.kind == aImm
}

// number reports whether the argument is a number, not a pointer.
func (v *Value) number() bool {
	switch v.a.spec.Kind {
	case ArgAny, ArgScalar, ArgConst:
		return true
	}
	return v.a.value.kind == aImm && v.a.size == 0
}

// Range returns the lowest and the highest value of a number, unsigned.
func (v *Value) Range() (lo, hi uint64) { return v.a.n.umin, v.a.n.umax }

// Reg returns the number, the address of a record, or that of a map's value for an
// ArgAny or ArgShared: a 64-bit register, which must not be written, or an integer constant. For
// other pointers it is 0, since what they point at is not memory that others could use.
func (v *Value) Reg() ptx.Arg { return v.g.operand(v.a.value) }

// Space returns the state space of the memory behind an argument of ArgShared: ".global", ".shared"
// for a block's (see [Map].Block), or "" where it may be either. The address is a generic one in any case.
func (v *Value) Space() string {
	space, _ := v.g.spaceOf(&node{maps: v.a.place.maps})
	return space
}

// Size returns how many bytes the pointer's ArgSpec lets the helper access; 0
// for numbers, and for a pointer with size 0.
func (v *Value) Size() int { return v.a.size }

// Load returns size (1 to 8) bytes at offset off behind the pointer as an
// unsigned little-endian number: a 64-bit register, which must not be written,
// or an integer. It costs nothing for a stack in registers.
func (v *Value) Load(off, size int) ptx.Arg {
	if !v.inside(off, size) {
		return ptx.Imm(0)
	}
	if v.a.known {
		return ptx.Imm(int64(little(v.a.bytes[off : off+size])))
	}
	return v.g.operand(v.g.coder.load(&v.a.place, off, size))
}

// Store sets size (1 to 8) bytes at offset off behind the pointer, of an
// ArgWrite, to the low bytes of x: a 64-bit register or an integer.
func (v *Value) Store(off, size int, x ptx.Arg) {
	if !v.inside(off, size) {
		return
	}
	if v.a.spec.Kind != ArgWrite {
		v.g.fail(fmt.Errorf("argument of kind %d is written", v.a.spec.Kind))
		return
	}
	t := v.g.coder.fresh(c64)
	v.g.Line("mov.b64 " + v.g.reg(t).String() + ", " + x.String() + ";")
	v.g.coder.store(&v.a.place, off, size, t.arg())
}

func (v *Value) inside(off, size int) bool {
	if size < 1 || size > 8 || off < 0 || off+size > v.a.size {
		v.g.fail(fmt.Errorf("%d bytes at %d of an argument that has %d", size, off, v.a.size))
		return false
	}
	return true
}

// Bytes returns the memory behind the pointer if it is the same on every path;
// for an ArgString up to the NUL, without it.
func (v *Value) Bytes() ([]byte, bool) {
	if p := &v.a.place; v.a.size > 0 && p.kind == kText && p.fixed {
		text := make([]byte, v.a.size)
		if p.off < len(v.g.site.Text) {
			copy(text, v.g.site.Text[p.off:])
		}
		if end := slices.Index(text, 0); end >= 0 && v.a.spec.Kind == ArgString {
			text = text[:end]
		}
		return text, true
	}
	return v.a.bytes, v.a.known
}
