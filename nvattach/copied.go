package nvattach

import (
	"fmt"
	"strconv"
	"strings"

	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
)

// What an asynchronous copy carries reaches no register, and shared memory only when the copy is
// over. So programs are told what lies at the address that is copied from when the copy is issued,
// which a load right before finds there. It must read no byte that the instruction does not: that
// may be memory that there is not. Its .cg finds what the multiprocessors share, and leaves
// the kernel's cache as it is.

// mostCopied is how many bytes one cp.async copies at most, and a row of ldmatrix has.
const mostCopied = 16

// copied writes code that puts what an asynchronous copy, or a thread's row of ldmatrix, is in memory
// into registers. What is not known stays 0.
func (g *weaving) copied(out *strings.Builder, st *ptx.Sites, a *ptx.Access, at *proof.Place) {
	s := &g.f.Stmts[a.Stmt]
	switch {
	case a.Class == ptx.AccessAsync && s.Op == ptx.OpCp:
		g.copiedAsync(out, st, a, at)
	case a.Class == ptx.AccessMatrix && s.Op == ptx.OpLdmatrix:
		g.copiedRow(out, a, at)
	}
}

// copiedAsync is for cp.async, which has two accesses: both carry the same.
func (g *weaving) copiedAsync(out *strings.Builder, st *ptx.Sites, a *ptx.Access, at *proof.Place) {
	s := &g.f.Stmts[a.Stmt]
	args := g.f.Args(s)
	most := int(a.Bytes)
	if len(args) < 3 || most != 4 && most != 8 && most != mostCopied {
		return
	}
	var code strings.Builder
	from := at.Addr
	if a.Flags&ptx.AccessReads == 0 {
		source, there := *a, proof.Place{}
		source.Addr = 1
		g.address(&code, st, &source, &there)
		from = there.Addr
	}
	rest := args[3:]
	if a.Flags&ptx.AccessPolicy != 0 && len(rest) > 0 {
		rest = rest[:len(rest)-1]
	}
	n := ""
	if len(rest) > 0 {
		// How many bytes there are of the source, or a predicate that says that there are none.
		size, ok := g.number64(&code, st, a.Stmt, &rest[0], 4)
		if !ok {
			return
		}
		n = g.w.Fresh('%', "n")
		fmt.Fprintf(&code, "\t.reg .b64 %s;\n", n)
		if rest[0].Kind == ptx.OperandName && g.regType(st, a.Stmt, strings.TrimSpace(g.f.Text(rest[0].Span()))) == ptx.Pred {
			fmt.Fprintf(&code, "\txor.b64 %s, %s, 1;\n\tmul.lo.u64 %s, %s, %d;\n", n, size, n, n, most)
		} else {
			fmt.Fprintf(&code, "\tmin.u64 %s, %s, %d;\n", n, size, most)
		}
	}
	at.Value, at.Value2 = g.bytesAt(&code, from, n, most)
	out.WriteString(code.String())
}

// bytesAt writes code that puts up to 16 bytes of global memory, and zeros behind them, into two new
// registers of 64 bits. There are n, a register of 64 bits, or most if that is "". The address is a
// multiple of most, a power of two.
func (g *weaving) bytesAt(out *strings.Builder, addr, n string, most int) (lo, hi string) {
	lo, hi = g.w.Fresh('%', "v"), g.w.Fresh('%', "v")
	f := func(format string, args ...any) { fmt.Fprintf(out, "\t"+format+"\n", args...) }
	f(".reg .b64 %s, %s;", lo, hi)
	f("mov.b64 %s, 0;", lo)
	f("mov.b64 %s, 0;", hi)
	guard := ""
	bit, p := g.w.Fresh('%', "n"), g.w.Fresh('%', "p")
	if n != "" {
		f(".reg .b64 %s;", bit)
		f(".reg .pred %s;", p)
		guard = "@" + p + " "
	}
	// Each bit of the number is a piece, the largest first, so that all are aligned.
	for piece := most; piece > 0; piece /= 2 {
		if n != "" {
			f("and.b64 %s, %s, %d;", bit, n, piece)
			f("setp.ne.u64 %s, %s, 0;", p, bit)
		}
		switch {
		case piece == mostCopied && g.dialect.patch: // four registers in a row are hard to find in machine code
			f("%sld.global.cg.u64 %s, [%s];", guard, lo, addr)
			f("%sld.global.cg.u64 %s, [%s+8];", guard, hi, addr)
		case piece == mostCopied:
			f("%sld.global.cg.v2.u64 {%s, %s}, [%s];", guard, lo, hi, addr)
		case piece == most || piece == 8: // none is before it
			f("%sld.global.cg.u%d %s, [%s];", guard, 8*piece, lo, addr)
		default:
			v, off, behind := g.w.Fresh('%', "v"), g.w.Fresh('%', "o"), g.w.Fresh('%', "p")
			shift := g.w.Fresh('%', "s")
			f(".reg .b64 %s, %s;", v, off)
			f(".reg .b32 %s;", shift)
			f(".reg .pred %s;", behind)
			f("mov.b64 %s, 0;", v)
			f("and.b64 %s, %s, %d;", off, n, (mostCopied-1)&^(2*piece-1))
			f("setp.ge.u64 %s, %s, 8;", behind, off)
			f("cvt.u32.u64 %s, %s;", shift, off)
			f("and.b32 %s, %s, 7;", shift, shift)
			f("shl.b32 %s, %s, 3;", shift, shift)
			f("add.s64 %s, %s, %s;", off, addr, off)
			f("%sld.global.cg.u%d %s, [%s];", guard, 8*piece, v, off)
			f("shl.b64 %s, %s, %s;", v, v, shift)
			f("@!%s or.b64 %s, %s, %s;", behind, lo, lo, v)
			f("@%s or.b64 %s, %s, %s;", behind, hi, hi, v)
		}
		if n == "" {
			break
		}
	}
	return lo, hi
}

// copiedRow is for ldmatrix: of a thread whose address the instruction uses, the row there.
func (g *weaving) copiedRow(out *strings.Builder, a *ptx.Access, at *proof.Place) {
	s := &g.f.Stmts[a.Stmt]
	rows := 8
	switch {
	case g.f.HasMod(s, ".m8n8") && g.f.HasMod(s, ".b16"):
	case g.f.HasMod(s, ".m16n16") && g.f.HasMod(s, ".b8"):
		rows = 16
	default: // rows with gaps
		return
	}
	switch {
	case g.f.HasMod(s, ".x4"):
		rows *= 4
	case g.f.HasMod(s, ".x2"):
		rows *= 2
	}
	space := ""
	if a.Space == ptx.SpaceShared {
		space = ".shared"
	}
	at.Value, at.Value2 = g.rowAt(out, space, at.Addr, strconv.Itoa(rows))
}

// rowAt writes code that puts 16 bytes of shared memory into two new registers of 64 bits, in the first
// n threads of a warp; 0 in others. n is a number, or a register of 64 bits.
func (g *weaving) rowAt(out *strings.Builder, space, addr, n string) (lo, hi string) {
	lo, hi = g.w.Fresh('%', "v"), g.w.Fresh('%', "v")
	lane, wide, p := g.w.Fresh('%', "w"), g.w.Fresh('%', "n"), g.w.Fresh('%', "p")
	fmt.Fprintf(out, "\t.reg .b64 %s, %s, %s;\n\t.reg .b32 %s;\n\t.reg .pred %s;\n\tmov.b64 %s, 0;\n\tmov.b64 %s, 0;\n", lo, hi, wide, lane, p, lo, hi)
	fmt.Fprintf(out, "\tmov.u32 %s, %%laneid;\n\tcvt.u64.u32 %s, %s;\n\tsetp.lt.u64 %s, %s, %s;\n", lane, wide, lane, p, wide, n)
	if g.dialect.patch { // four registers in a row are hard to find in machine code
		fmt.Fprintf(out, "\t@%s ld%s.u64 %s, [%s];\n\t@%s ld%s.u64 %s, [%s+8];\n", p, space, lo, addr, p, space, hi, addr)
	} else {
		fmt.Fprintf(out, "\t@%s ld%s.v2.u64 {%s, %s}, [%s];\n", p, space, lo, hi, addr)
	}
	return lo, hi
}
