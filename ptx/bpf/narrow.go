package bpf

import (
	"strconv"
	"strings"

	"nvtrace/ptx"
)

// narrowOp begins the op of a nAtomic of 1 or 2 bytes: "narrow.add.u32.8".
const narrowOp = "narrow."

// narrow writes an atomic operation of 1 or 2 bytes, which GPUs do not have: it compares
// and exchanges the word of 4 bytes around them until no other thread was quicker. One
// of the threads that try always succeeds.
func (g *Gen) narrow(n *node, value ptx.Arg, mods string) {
	op, width, _ := strings.Cut(strings.TrimPrefix(n.op, narrowOp), "32.")
	bits, _ := strconv.Atoi(width)
	addr, word := g.Reg(ptx.U64), g.Reg(ptx.U64)
	shift, mask := g.Reg(ptx.B32), g.Reg(ptx.B32)
	old, got, part, fresh, p, again := g.Reg(ptx.B32), g.Reg(ptx.B32), g.Reg(ptx.B32), g.Reg(ptx.B32), g.Reg(ptx.Pred), g.Label()
	line := func(parts ...any) {
		var s strings.Builder
		for i, x := range parts {
			switch x := x.(type) {
			case string:
				s.WriteString(x)
			case ptx.Arg:
				s.WriteString(x.String())
			}
			if i == 0 {
				s.WriteString(" ")
			} else if i+1 < len(parts) {
				s.WriteString(", ")
			}
		}
		g.Line(s.String() + ";")
	}
	base, off := g.place(n)
	line("add.s64", addr, base, strconv.FormatInt(off, 10))
	line("and.b64", word, addr, "-4")
	line("cvt.u32.u64", shift, addr)
	line("and.b32", shift, shift, "3")
	line("shl.b32", shift, shift, "3")
	line("mov.u32", mask, "0x"+strconv.FormatUint(1<<bits-1, 16))
	line("shl.b32", mask, mask, shift)
	space, _ := g.spaceOf(n)
	if space == ".shared" {
		word = g.inBlock(word)
	}
	line("ld.volatile"+space+".u32", got, "["+word.String()+"]")
	g.Builder.Label(again)
	line("mov.b32", old, got)
	line("shr.u32", part, old, shift)
	line(op+"32", part, part, value)
	line("shl.b32", part, part, shift)
	line("xor.b32", part, part, old)
	line("and.b32", part, part, mask)
	line("xor.b32", fresh, old, part)
	line("atom"+mods+space+".cas.b32", got, "["+word.String()+"]", old, fresh)
	line("setp.ne.u32", p, got, old)
	g.On(p).Bra(again)
}

// place returns what an address is made of: a register, and an offset.
func (g *Gen) place(n *node) (base ptx.Arg, off int64) {
	if n.base.kind == aMap {
		d := g.reg(g.coder.fresh(c64))
		g.address(d, n.base)
		return d, n.off
	}
	return g.operand(n.base), n.off
}
