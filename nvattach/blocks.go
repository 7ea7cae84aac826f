package nvattach

import (
	"fmt"
	"slices"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
)

// Maps of which each block of threads has its own are one variable of the module in shared memory, which
// a block has if its kernel refers to it. So a kernel has less left that it could use; launches for which
// that is too little are made without programs, see Twins.

// staticShared is how many bytes of variables a kernel may have in shared memory, on all GPUs.
const staticShared = 48 << 10

// blockName is the variable with the maps that each block has.
func (g *weaving) blockName() string { return "_" + g.w.Stem() + "block" }

// beginBlock has a kernel's threads make the maps of their block zero, before all else.
func (g *weaving) beginBlock(fn *ptx.Func) {
	name := g.blockName()
	if !g.begun {
		g.begun = true
		g.w.Module(fmt.Sprintf(".shared .align 16 .b8 %s[%d];\n", name, g.maps.BlockSize()))
	}
	var s weaverSink
	s.w = g.w
	c := &emit.Code{S: &s, M: g.maps}
	place, threads, base := c.Special("%tid.z"), c.Special("%ntid.x"), c.Reg(ptx.B32)
	for _, axis := range []string{"y", "x"} {
		c.F("mad.lo.s32 %s, %s, %s, %s;", place, place, c.Special("%ntid."+axis), c.Special("%tid."+axis))
	}
	for _, axis := range []string{"y", "z"} {
		c.F("mul.lo.s32 %s, %s, %s;", threads, threads, c.Special("%ntid."+axis))
	}
	at, zero, p, again, done := c.Reg(ptx.B32), c.Reg(ptx.B64), c.Reg(ptx.Pred), c.Label(), c.Label()
	c.F("mov.u32 %s, %s;", base, name)
	c.F("mov.u64 %s, 0;", zero)
	c.F("shl.b32 %s, %s, 3;", place, place)
	c.F("shl.b32 %s, %s, 3;", threads, threads)
	c.F(".pragma \"nounroll\";")
	c.At(again)
	c.F("setp.ge.u32 %s, %s, %d;", p, place, g.maps.Block)
	c.F("@%s bra %s;", p, done)
	c.F("add.u32 %s, %s, %s;", at, base, place)
	c.F("st.shared.u64 [%s], %s;", at, zero)
	c.F("add.u32 %s, %s, %s;", place, place, threads)
	c.F("bra %s;", again)
	c.At(done)
	// No thread has parted from the others yet, or has come to a barrier.
	c.F("bar.sync 0;")
	g.w.Declare(fn, "{\n"+s.String()+"\t}")
	g.report.Blocks = true
}

// wantsBlocks reports whether a program that a kernel is to get uses maps of blocks.
func (g *weaving) wantsBlocks(kernel string) bool {
	return slices.ContainsFunc(g.p.Programs, func(q *proof.Program) bool { return q.UsesBlocks() != nil && g.p.kernelWanted(q, kernel, false) })
}

// tooMuchShared says why a kernel can't have the maps of blocks; "" if it can, or need not.
func (g *weaving) tooMuchShared(st *ptx.Sites) string {
	if st.Func.Kind != ptx.FuncEntry || !g.wantsBlocks(st.Name) {
		return ""
	}
	if own, more := g.sharedBytes(st), g.maps.BlockSize(); own+more > staticShared {
		return fmt.Sprintf("its variables take %d bytes of shared memory, and maps of type %s %d more: %d is the most", own, object.MapBlockArray, more, staticShared)
	}
	return ""
}

// sharedBytes returns what the variables in shared memory take that a kernel and the functions that it
// may call refer to.
func (g *weaving) sharedBytes(kernel *ptx.Sites) uint64 {
	within := g.reached(kernel)
	words := map[string]bool{}
	for _, st := range within {
		text := g.f.Src[g.f.Stmts[st.Func.Open].Pos:g.f.Stmts[st.Func.Close].End]
		for t := range ptx.Lex(text) {
			if t.Kind == ptx.TokIdent {
				words[text[t.Pos:t.End]] = true
			}
		}
	}
	inside := func(d *ptx.Decl) bool {
		fn := g.functionAt(d.Pos)
		return fn == nil || slices.ContainsFunc(within, func(st *ptx.Sites) bool { return st.Func == fn })
	}
	size := uint64(0)
	for i := range g.f.Stmts {
		if g.f.Stmts[i].Kind != ptx.StmtDecl {
			continue
		}
		d := g.f.Decl(&g.f.Stmts[i])
		if d.Space != ptx.SpaceShared || d.Linkage&ptx.Extern != 0 || !inside(d) {
			continue
		}
		for _, n := range g.f.Names(d) {
			if n.Flex || !words[g.f.Text(n.Name)] {
				continue
			}
			element := uint64(d.Type.Size()) * uint64(max(d.Vec, 1))
			size = object.RoundUp(size, 1<<align(uint64(d.Align), element)) + object.Mul(element, max(n.Elems, 1))
		}
	}
	return size
}

// align returns the binary logarithm of a variable's alignment: what is written, or an element's size.
func align(written, element uint64) (n int) {
	for to := max(written, element); 1<<n < to && n < 12; {
		n++
	}
	return n
}

// functionAt returns the function in whose body a declaration stands, nil for the module's.
func (g *weaving) functionAt(at ptx.Pos) *ptx.Func {
	for i := range g.f.Funcs {
		if fn := &g.f.Funcs[i]; fn.HasBody() && g.f.Stmts[fn.Open].Pos <= at && at < g.f.Stmts[fn.Close].End {
			return fn
		}
	}
	return nil
}

// reached returns a kernel and the functions with a body that it calls, directly or not: all of the
// module where it calls some by addresses.
func (g *weaving) reached(kernel *ptx.Sites) []*ptx.Sites {
	list, seen := []*ptx.Sites{kernel}, map[*ptx.Func]bool{}
	add := func(fn *ptx.Func) {
		if fn != nil && fn.HasBody() && fn.Kind == ptx.FuncDevice && !seen[fn] {
			seen[fn] = true
			list = append(list, g.sites(fn))
		}
	}
	for i := 0; i < len(list); i++ {
		for k := range list[i].Calls {
			if c := &list[i].Calls[k]; !c.Indirect {
				add(g.f.Lookup(c.Callee))
				continue
			}
			for f := range g.f.Funcs {
				add(&g.f.Funcs[f])
			}
		}
	}
	return list
}

// withBlocks names the kernels of a woven module whose blocks have maps.
func (w *Woven) withBlocks() []string {
	var names []string
	for i := range w.Kernels {
		if w.Kernels[i].Blocks {
			names = append(names, w.Kernels[i].Name)
		}
	}
	return names
}

// errBlocks is why machine code can't have a program that uses a map of blocks: where in shared memory
// something is, its instructions say already.
var errBlocks = fmt.Errorf("maps of type %s can be had in PTX only: %w", object.MapBlockArray, ErrNotWoven)
