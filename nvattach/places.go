package nvattach

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
	"nvtrace/traces/glob"
)

func (g *weaving) entry(q *proof.Program, st *ptx.Sites) (int, error) {
	code, err := g.code(q, g.place(q, st, 0))
	if err != nil {
		return 0, err
	}
	if err := g.w.Entry(st, code); err != nil {
		return 0, g.refused(err)
	}
	return 1, nil
}

// exits puts a program before every way out of a function; for a kernel also
// before those in the device functions that it calls.
func (g *weaving) exits(q *proof.Program, st *ptx.Sites) (int, error) {
	n := 0
	g.dialect.leave = !q.Point.Func && !g.p.endsThreads() && !g.dialect.each && allLeave(st, q.AsksForPlace())
	defer func() { g.dialect.leave = false }()
	if q.WantsReturn() && st.Func.Kind == ptx.FuncDevice {
		if err := g.keepReturn(st); err != nil {
			return 0, err
		}
	}
	put := func(st *ptx.Sites, e *ptx.Exit) error {
		if e.AfterTrap || !e.Reachable {
			return nil
		}
		code, err := g.code(q, g.place(q, st, e.Stmt))
		if err != nil {
			return err
		}
		if at, ok := g.sooner(q, st, e); ok {
			g.putAt(st, at, code)
		} else if err := g.w.Exit(st, e, code); err != nil {
			return g.refused(err)
		}
		n++
		return nil
	}
	for i := range st.Exits {
		if err := put(st, &st.Exits[i]); err != nil {
			return n, err
		}
	}
	if st.Func.Kind == ptx.FuncDevice {
		return n, nil
	}
	for _, callee := range g.endings(st) {
		if !g.shared(q, callee) {
			g.note("threads that end in function %s, which others call too, are not seen", callee.Name)
			continue
		}
		if q.UsesOwn() {
			g.note("threads that end in function %s are not seen by program %s, whose variables of the thread are those of the kernel", callee.Name, q.Name)
			continue
		}
		if g.ended[ending{q, callee.Name}] {
			continue // by another kernel that calls it
		}
		g.ended[ending{q, callee.Name}] = true
		g.insn = nil // numbers of another function
		for i := range callee.Exits {
			if callee.Exits[i].Kind != ptx.ExitExit {
				continue
			}
			if err := put(callee, &callee.Exits[i]); err != nil {
				return n, err
			}
		}
		g.insn = nil
	}
	return n, nil
}

// sooner returns a statement before a way out at which a program does just the same: in
// the same basic block, if whoever comes there leaves without waiting for anything, and
// the program does nothing but count. Behind the block's last load, what an addition takes
// passes while the thread waits for that anyway; at the end it would wait for it.
func (g *weaving) sooner(q *proof.Program, st *ptx.Sites, e *ptx.Exit) (uint32, bool) {
	if e.Guarded || e.Kind == ptx.ExitEnd || !q.OnlyCounts() {
		return 0, false
	}
	blk := &st.Blocks[g.block[e.Stmt-st.Func.Open]]
	if e.Stmt < blk.First || e.Stmt > blk.Last {
		return 0, false
	}
	first := e.Stmt
	for i := e.Stmt; i >= blk.First && i > st.Func.Open; i-- {
		s := &g.f.Stmts[i]
		if s.Kind != ptx.StmtInstr {
			continue
		}
		switch s.Op {
		case ptx.OpCall, ptx.OpBar, ptx.OpBarrier, ptx.OpMbarrier, ptx.OpNanosleep, ptx.OpTrap, ptx.OpUnknown:
			return first, first != e.Stmt
		case ptx.OpLd:
			if g.f.HasMod(s, ".global") || !g.f.HasMod(s, ".param") && !g.f.HasMod(s, ".shared") {
				return first, first != e.Stmt
			}
		}
		if _, waits := slices.BinarySearchFunc(st.Syncs, i, func(y ptx.Sync, i uint32) int { return cmp.Compare(y.Stmt, i) }); waits {
			return first, first != e.Stmt
		}
		first = i
	}
	return first, first != e.Stmt
}

// putAt puts a program before a statement, for all threads that come there.
func (g *weaving) putAt(st *ptx.Sites, first uint32, code string) {
	// A pragma about the next instruction stays with it.
	for first > st.Func.Open+1 && g.f.Stmts[first-1].Kind == ptx.StmtDirective {
		first--
	}
	g.w.Edits().InsertBefore(g.f.Stmts[first].Pos, "{\n"+strings.TrimSuffix(code, "\n")+"\n\t}\n\t")
}

// An ending is a function in which threads end, with a program that was put there.
type ending struct {
	q    *proof.Program
	name string
}

// endings returns the functions that st calls, directly or not, in which threads
// can end.
func (g *weaving) endings(st *ptx.Sites) []*ptx.Sites {
	var list []*ptx.Sites
	seen := map[string]bool{st.Name: true}
	for todo := []*ptx.Sites{st}; len(todo) > 0; {
		x := todo[0]
		todo = todo[1:]
		for i := range x.Calls {
			c := &x.Calls[i]
			if c.Indirect || seen[c.Callee] {
				continue
			}
			seen[c.Callee] = true
			fn := g.f.Lookup(c.Callee)
			if fn == nil || !fn.HasBody() {
				continue
			}
			callee := g.sites(fn)
			if slices.ContainsFunc(callee.Exits, func(e ptx.Exit) bool { return e.Kind == ptx.ExitExit && e.Reachable && !e.AfterTrap }) {
				list = append(list, callee)
			}
			todo = append(todo, callee)
		}
	}
	return list
}

// shared reports whether all kernels that call a function, directly or not, get the
// program, so that it may stand in the function: as far as the text says, for one whose
// address is taken may be called by anyone. A program that asks for parameters would
// get the function's.
func (g *weaving) shared(q *proof.Program, callee *ptx.Sites) bool {
	if q.AsksForArguments() || q.WantsReturn() || callee.Func.Linkage&(ptx.Visible|ptx.Weak) != 0 {
		return false
	}
	callers := map[string]bool{callee.Name: true}
	all := g.allSites()
	for grown := true; grown; {
		grown = false
		for _, x := range all {
			if callers[x.Name] {
				continue
			}
			if slices.ContainsFunc(x.Calls, func(c ptx.Call) bool { return !c.Indirect && callers[c.Callee] }) {
				callers[x.Name], grown = true, true
			}
		}
	}
	for _, x := range all {
		if callers[x.Name] && x.Func.Kind == ptx.FuncEntry && (!g.p.kernelWanted(q, x.Name, false) || g.tooMuchShared(x) != "") {
			return false
		}
		if slices.ContainsFunc(x.Calls, func(c ptx.Call) bool { return c.Indirect }) {
			return false
		}
	}
	return true
}

// decoded reports whether an access has an address that a program can be told.
func decoded(a *ptx.Access) bool {
	switch a.Class {
	case ptx.AccessLoad, ptx.AccessStore, ptx.AccessAtomic, ptx.AccessReduce, ptx.AccessAsync, ptx.AccessMatrix:
	case ptx.AccessBulk:
		if a.Flags&(ptx.AccessTensor|ptx.AccessDescriptor) != 0 {
			return false
		}
	default:
		return false
	}
	return a.Addr != ptx.NoOperand
}

func (g *weaving) accesses(q *proof.Program, st *ptx.Sites) (int, error) {
	n := 0
	for i := range st.Accesses {
		a := &st.Accesses[i]
		if a.Space == ptx.SpaceParam {
			continue
		}
		if !decoded(a) {
			g.note("accesses of class %s are not shown to programs", a.Class)
			continue
		}
		if err := g.access(q, st, a); err != nil {
			if err := g.refused(err); err != nil {
				return n, err
			}
			continue
		}
		n++
	}
	return n, nil
}

// access puts a program before an access; behind it if the program wants the value
// that a load or an atomic operation gave.
func (g *weaving) access(q *proof.Program, st *ptx.Sites, a *ptx.Access) error {
	at := g.place(q, st, a.Stmt)
	at.Access, at.Size = a, a.Bytes
	var before, between strings.Builder
	g.address(&before, st, a, at)
	after := false
	if q.ReadsValue() {
		after = g.value(&between, st, a, at)
	}
	at.Setup = before.String() + between.String()
	code, err := g.code(q, at)
	if err != nil {
		return err
	}
	if after {
		return g.w.Around(st, a.Stmt, before.String(), between.String()+code)
	}
	return g.w.Before(st, a.Stmt, at.Setup+code)
}

// regType returns the type of a register that a function declares, as seen from a
// statement: of several with the name, that of the last declaration before it.
func (g *weaving) regType(st *ptx.Sites, stmt uint32, name string) ptx.Type {
	t := ptx.TypeNone
	for i := range st.Regs {
		r := &st.Regs[i]
		if r.Stmt > stmt {
			break
		}
		if r.Name == name && r.Count == 0 {
			t = r.Type
			continue
		}
		if num, ok := strings.CutPrefix(name, r.Name); ok && r.Count > 0 && below(num, r.Count) {
			t = r.Type
		}
	}
	return t
}

// below reports whether s is a decimal number less than n, as %r<n> declares them.
func below(s string, n uint32) bool {
	if s == "" || len(s) > 10 || s[0] == '0' && s != "0" {
		return false
	}
	v := uint64(0)
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
		v = 10*v + uint64(c-'0')
	}
	return v < uint64(n)
}

// address writes code that puts the address of an access into a register: in its
// state space, or a generic one.
func (g *weaving) address(out *strings.Builder, st *ptx.Sites, a *ptx.Access, at *proof.Place) {
	args := g.f.Args(&g.f.Stmts[a.Stmt])
	if int(a.Addr) >= len(args) {
		return
	}
	text := g.f.Text(args[a.Addr].Span())
	text = strings.TrimSpace(text)
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if i := strings.IndexByte(text, ','); i >= 0 {
		text = text[:i]
	}
	base, off, _ := strings.Cut(text, "+")
	base, off = strings.TrimSpace(base), strings.TrimSpace(off)
	r := g.w.Fresh('%', "a")
	out.WriteString("\t.reg .b64 " + r + ";\n")
	switch t := g.regType(st, a.Stmt, base); {
	case t.Size() == 4:
		out.WriteString("\tcvt.u64.u32 " + r + ", " + base + ";\n")
		if off != "" {
			// The sum has the base's width.
			w := g.w.Fresh('%', "a")
			out.Reset()
			out.WriteString("\t.reg .b64 " + r + ";\n\t.reg .b32 " + w + ";\n\tadd.s32 " + w + ", " + base + ", " + off + ";\n\tcvt.u64.u32 " + r + ", " + w + ";\n")
		}
	case off != "":
		out.WriteString("\tmov.u64 " + r + ", " + base + ";\n\tadd.s64 " + r + ", " + r + ", " + off + ";\n")
	default:
		out.WriteString("\tmov.u64 " + r + ", " + base + ";\n")
	}
	at.Addr = r
}

// value writes code that puts the value of an access into registers: the number, or the first 16
// bytes of several. It reports whether that can be had only after the access.
func (g *weaving) value(out *strings.Builder, st *ptx.Sites, a *ptx.Access, at *proof.Place) (after bool) {
	if a.Class == ptx.AccessAsync || a.Class == ptx.AccessMatrix {
		g.copied(out, st, a, at)
		return false
	}
	args := g.f.Args(&g.f.Stmts[a.Stmt])
	size := a.Type.Size()
	if a.Vec < 1 || size < 1 || size > 8 {
		return false
	}
	var o *ptx.Operand
	switch a.Class {
	case ptx.AccessLoad, ptx.AccessAtomic:
		o, after = &args[0], true
	case ptx.AccessStore, ptx.AccessReduce:
		if len(args) < 2 {
			return false
		}
		o = &args[1]
	default:
		return false
	}
	parts := []ptx.Operand{*o}
	if a.Vec > 1 {
		if parts = g.f.Kids(o); o.Kind != ptx.OperandVector || len(parts) != int(a.Vec) {
			return false
		}
	}
	var code strings.Builder
	sum, second := "", ""
	const most = 16 // bytes that programs see
	parts = parts[:min(len(parts), most/size)]
	for i := range parts {
		r, ok := g.number64(&code, st, a.Stmt, &parts[i], size)
		if !ok {
			return false
		}
		to, shift := &sum, 8*size*i
		if shift >= 64 {
			to, shift = &second, shift-64
		}
		if *to == "" {
			*to = r
			continue
		}
		fmt.Fprintf(&code, "\tshl.b64 %s, %s, %d;\n\tor.b64 %s, %s, %s;\n", r, r, shift, *to, *to, r)
	}
	out.WriteString(code.String())
	at.Value, at.Value2 = sum, second
	return after
}

// number64 writes code that puts an operand of size bytes into a new register of 64 bits, with
// zeros above.
func (g *weaving) number64(out *strings.Builder, st *ptx.Sites, stmt uint32, o *ptx.Operand, size int) (string, bool) {
	src := strings.TrimSpace(g.f.Text(o.Span()))
	r := g.w.Fresh('%', "v")
	decl := "\t.reg .b64 " + r + ";\n"
	switch {
	case o.Kind == ptx.OperandInt:
		out.WriteString(decl + "\tmov.b64 " + r + ", " + src + ";\n")
	case src == "_": // nobody wants it
		out.WriteString(decl + "\tmov.b64 " + r + ", 0;\n")
	case o.Kind == ptx.OperandName:
		w := g.w.Fresh('%', "w")
		switch g.regType(st, stmt, src).Size() {
		case 8:
			out.WriteString(decl + "\tmov.b64 " + r + ", " + src + ";\n")
		case 4:
			out.WriteString(decl + "\t.reg .b32 " + w + ";\n\tmov.b32 " + w + ", " + src + ";\n\tcvt.u64.u32 " + r + ", " + w + ";\n")
		case 2:
			out.WriteString(decl + "\t.reg .b16 " + w + ";\n\tmov.b16 " + w + ", " + src + ";\n\tcvt.u64.u16 " + r + ", " + w + ";\n")
		case 0:
			if g.regType(st, stmt, src) != ptx.Pred {
				return "", false
			}
			out.WriteString(decl + "\tselp.b64 " + r + ", 1, 0, " + src + ";\n")
		default:
			return "", false
		}
	default:
		return "", false
	}
	if size < 8 {
		out.WriteString("\tand.b64 " + r + ", " + r + ", " + emit.HexMask(size) + ";\n")
	}
	return r, true
}

func (g *weaving) instructions(q *proof.Program, st *ptx.Sites) (int, error) {
	n := 0
	for i := st.Func.Open + 1; i < st.Func.Close; i++ {
		s := &g.f.Stmts[i]
		if s.Kind != ptx.StmtInstr || !glob.Match(q.Point.Opcode, g.f.FullOpcode(s)) {
			continue
		}
		at := g.place(q, st, i)
		at.Guarded = s.Guarded()
		g.operands(q, st, i, at)
		ok, err := g.before(q, st, i, at)
		if err != nil {
			return n, err
		}
		if ok {
			n++
		}
	}
	return n, nil
}

// before puts a program before a statement.
func (g *weaving) before(q *proof.Program, st *ptx.Sites, stmt uint32, at *proof.Place) (bool, error) {
	code, err := g.code(q, at)
	if err != nil {
		return false, err
	}
	if err := g.w.Before(st, stmt, at.Setup+code); err != nil {
		return false, g.refused(err)
	}
	return true, nil
}

// operands writes code that puts the values of an instruction's operands, as they are before it
// runs, into registers: those that a program reads and that are numbers in a register.
func (g *weaving) operands(q *proof.Program, st *ptx.Sites, stmt uint32, at *proof.Place) {
	args := g.f.Args(&g.f.Stmts[stmt])
	var code strings.Builder
	for n := range min(proof.MostOperands, len(args)) {
		if slices.ContainsFunc(q.Report.Fields, func(i int) bool { return q.Fields[i] == proof.FieldOperand0+n }) {
			at.Operands[n], _ = g.number64(&code, st, stmt, &args[n], 8) // "" if it has none
		}
	}
	at.Setup = code.String()
}

// blocks puts a program in front of the first instruction of every basic block. A
// guard on that instruction does not keep threads from the block.
func (g *weaving) blocks(q *proof.Program, st *ptx.Sites) (int, error) {
	n := 0
	for b := range st.Blocks {
		blk := &st.Blocks[b]
		if !blk.Reachable {
			continue
		}
		first, count := uint32(0), uint32(0)
		for i := blk.First; i <= blk.Last && i < st.Func.Close; i++ {
			if g.f.Stmts[i].Kind == ptx.StmtInstr {
				if count == 0 {
					first = i
				}
				count++
			}
		}
		if count == 0 {
			continue
		}
		at := g.place(q, st, first)
		at.Block, at.Insns = uint32(b), count
		code, err := g.code(q, at)
		if err != nil {
			return n, err
		}
		g.putAt(st, first, code)
		n++
	}
	return n, nil
}

// captures puts a program behind every ld and st but those of parameters, as
// bpftime's kprobe/__memcapture does where it finds them.
func (g *weaving) captures(q *proof.Program, st *ptx.Sites) (int, error) {
	n := 0
	for i := range st.Accesses {
		a := &st.Accesses[i]
		if a.Space == ptx.SpaceParam || a.Class != ptx.AccessLoad && a.Class != ptx.AccessStore {
			continue
		}
		code, err := g.code(q, g.place(q, st, a.Stmt))
		if err != nil {
			return n, err
		}
		if err := g.w.After(st, a.Stmt, code); err != nil {
			if err := g.refused(err); err != nil {
				return n, err
			}
			continue
		}
		n++
	}
	return n, nil
}

// runModule returns a module with a kernel that only runs a program of
// KindRun, and the kernel's name. The kernel has no parameters.
func (p *Plan) runModule(q *proof.Program, maps *mapmem.Maps, version ptx.Version, target ptx.Target) (text, kernel string, err error) {
	if q.Point.Kind != object.KindRun {
		return "", "", errors.New("program " + q.Name + " is in no section kprobe/__directly_run")
	}
	kernel = "nvtrace_run_" + q.Name
	src := ".version " + version.String() + "\n.target " + target.String() + "\n.address_size 64\n\n.visible .entry " + kernel + "()\n{\n\tret;\n}\n"
	f, err := ptx.Parse(kernel, src, nil)
	if err != nil {
		return "", "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := newWeaving(p, f, maps, &WeaveOptions{})
	if _, err := g.entry(q, g.allSites()[0]); err != nil {
		return "", "", err
	}
	text, err = g.w.Source()
	return text, kernel, err
}

// allLeave reports whether all threads that come to a kernel leave it, at one place if that is asked for, and nothing on
// their way, such as a loop, a barrier or a call, can keep some of them: what all of them do there can be done by one. Of
// other kernels, which may hang, it is to be seen how many threads have left.
func allLeave(st *ptx.Sites, place bool) bool {
	if st.Func.Kind == ptx.FuncDevice || len(st.Calls)+len(st.Traps) > 0 {
		return false
	}
	for _, s := range st.Syncs {
		if s.Kind != ptx.SyncExchange && s.Kind != ptx.SyncFence {
			return false
		}
	}
	for i, b := range st.Blocks {
		if b.Indirect || slices.ContainsFunc(b.Succs, func(next int) bool { return next <= i }) {
			return false
		}
	}
	ways := 0
	for _, e := range st.Exits {
		if e.Reachable {
			ways++
		}
	}
	return ways == 1 || ways > 1 && !place
}
