package bpf

import (
	"math"

	"github.com/cilium/ebpf/asm"
)

// alu lowers an ALU op; s is the state behind it.
func (l *lowering) alu(s *state, o *op, fx *effect) {
	d := o.depth
	x, y := l.here.reg(d, o.dst), l.a.operand(l.here, o)
	after := s.reg(d, o.dst)
	dst := l.regs[d][o.dst]
	if fx.null {
		p, r := &x, o.dst
		if fx.swap {
			p, r = &y, o.src
		}
		l.checkNull(p, d, r)
	}
	pointer := after.kind == kValue || after.kind == kRecord
	if o.alu == asm.Mov && !o.w32 && o.reg {
		l.copyReg(d, o.src, d, o.dst)
		return
	}
	if pointer {
		l.moveOffset(o, fx, &x, &y, &after)
	}
	if l.define(s, d, o.dst) {
		return
	}
	xa, ya := l.value(&x, d, o.dst), l.value(&y, d, o.src)
	if !o.w32 {
		l.alu64(o, dst, xa, ya, &x, &y)
		return
	}
	if r := l.alu32(o, l.half(xa), l.half(ya), &x, &y); r.kind == aImm {
		l.inst("mov.b64", dst, imm(uint64(uint32(r.v))))
	} else {
		l.inst("cvt.u64.u32", dst, r)
	}
}

// moveOffset keeps the offset of a pointer up with arithmetic on it.
func (l *lowering) moveOffset(o *op, fx *effect, x, y, after *val) {
	d := o.depth
	comp := l.comps[d][o.dst]
	if after.n.isConst() {
		l.inst("mov.b64", comp, imm(after.n.umin))
		return
	}
	base, by := l.offset(x, d, o.dst), l.value(y, d, o.src)
	if fx.swap {
		base, by = l.offset(y, d, o.src), l.value(x, d, o.dst)
	}
	op := "add.s64"
	if o.alu == asm.Sub {
		op = "sub.s64"
	}
	l.inst(op, comp, base, by)
}

// plain ALU operations by width, with the type's letter.
var aluNames = map[asm.ALUOp]string{
	asm.Add: "add.s", asm.Sub: "sub.s", asm.Mul: "mul.lo.s", asm.Or: "or.b", asm.And: "and.b", asm.Xor: "xor.b",
	asm.LSh: "shl.b", asm.RSh: "shr.u", asm.ArSh: "shr.s",
}

func (l *lowering) alu64(o *op, dst reg, x, y arg, xv, yv *val) {
	switch o.alu {
	case asm.Mov:
		l.inst("mov.b64", dst, y)
	case asm.MovSX8:
		l.inst("cvt.s64.s8", dst, y)
	case asm.MovSX16:
		l.inst("cvt.s64.s16", dst, y)
	case asm.MovSX32:
		l.inst("cvt.s64.s32", dst, y)
	case asm.Neg:
		l.inst("neg.s64", dst, x)
	case asm.Swap:
		l.swap(o, dst, x)
	case asm.LSh, asm.RSh, asm.ArSh:
		l.inst(aluNames[o.alu]+"64", dst, x, l.count(y, 63))
	case asm.Div, asm.Mod, asm.SDiv, asm.SMod:
		l.divide(o, dst, x, y, xv, yv)
	default:
		l.inst(aluNames[o.alu]+"64", dst, x, y)
	}
}

// count masks a shift count, which PTX would clamp. It has 32 bits.
func (l *lowering) count(y arg, mask uint64) arg {
	if y.kind == aImm {
		return imm(uint64(y.v) & mask)
	}
	if y.r.class == c64 {
		y = l.half(y)
	}
	t := l.fresh(c32)
	l.inst("and.b32", t, y, imm(mask))
	return t.arg()
}

// alu32 works on halves and returns the resulting half.
func (l *lowering) alu32(o *op, x, y arg, xv, yv *val) arg {
	t := l.fresh(c32)
	switch o.alu {
	case asm.Mov:
		return y
	case asm.MovSX8:
		l.inst("cvt.s32.s8", t, y)
	case asm.MovSX16:
		l.inst("cvt.s32.s16", t, y)
	case asm.Neg:
		l.inst("neg.s32", t, x)
	case asm.LSh, asm.RSh, asm.ArSh:
		l.inst(aluNames[o.alu]+"32", t, x, l.count(y, 31))
	case asm.Div, asm.Mod, asm.SDiv, asm.SMod:
		l.divide(o, t, x, y, xv, yv)
	default:
		l.inst(aluNames[o.alu]+"32", t, x, y)
	}
	return t.arg()
}

// divide writes a division by eBPF's rules: by zero it is 0, and the remainder
// the dividend; the lowest number by -1 is itself, and the remainder 0.
func (l *lowering) divide(o *op, dst reg, x, y arg, xv, yv *val) {
	signed, mod := o.alu == asm.SDiv || o.alu == asm.SMod, o.alu == asm.Mod || o.alu == asm.SMod
	width := "64"
	if o.w32 {
		width = "32"
	}
	name := "div.u"
	switch {
	case mod && signed:
		name = "rem.s"
	case mod:
		name = "rem.u"
	case signed:
		name = "div.s"
	}
	k := dst.class
	if y.kind == aImm {
		l.divideBy(o, dst, x, y.v, name+width, mod, signed)
		return
	}
	if !o.w32 && !signed && xv.n.umax <= math.MaxUint32 && yv.n.umax <= math.MaxUint32 {
		h, t := l.fresh(c32), *o
		t.w32 = true
		l.divide(&t, h, l.half(x), l.half(y), xv, yv)
		l.inst("cvt.u64.u32", dst, h.arg())
		return
	}
	if x.kind == aImm { // PTX takes one there, but a register is sure
		r := l.fresh(k)
		l.inst("mov.b"+width, r, x)
		x = r.arg()
	}
	by, p := y, l.fresh(cPred)
	zero := yv.n.umin == 0 || o.w32 && yv.n.umax > math.MaxUint32
	if zero {
		t := l.fresh(k)
		l.inst("setp.eq.u"+width, p, y, imm(0))
		l.inst("selp.b"+width, t, imm(1), by, p.arg())
		by = t.arg()
	}
	minus := l.fresh(cPred)
	if signed {
		t := l.fresh(k)
		l.inst("setp.eq.s"+width, minus, y, imm(math.MaxUint64))
		l.inst("selp.b"+width, t, imm(1), by, minus.arg())
		by = t.arg()
	}
	q := l.fresh(k)
	l.inst(name+width, q, x, by)
	if signed {
		special := imm(0)
		if !mod {
			n := l.fresh(k)
			l.inst("neg.s"+width, n, x)
			special = n.arg()
		}
		t := l.fresh(k)
		l.inst("selp.b"+width, t, special, q.arg(), minus.arg())
		q = t
	}
	if zero {
		special := imm(0)
		if mod {
			special = x
		}
		t := l.fresh(k)
		l.inst("selp.b"+width, t, special, q.arg(), p.arg())
		q = t
	}
	l.inst("mov.b"+width, dst, q.arg())
}

// divideBy divides by a constant.
func (l *lowering) divideBy(o *op, dst reg, x arg, by int64, name string, mod, signed bool) {
	width := "64"
	if o.w32 {
		width, by = "32", int64(int32(by))
	}
	mov, neg := "mov.b"+width, "neg.s"+width
	switch {
	case by == 0 && mod:
		l.inst(mov, dst, x)
	case by == 0 || signed && mod && by == -1:
		l.inst(mov, dst, imm(0))
	case signed && by == -1:
		l.inst(neg, dst, x)
	default:
		l.inst(name, dst, x, imm(uint64(by)))
	}
}

// swap lowers byte swaps and the truncations that go for them on a
// little-endian machine.
func (l *lowering) swap(o *op, dst reg, x arg) {
	if !o.big {
		switch o.width {
		case 64:
			l.inst("mov.b64", dst, x)
		default:
			l.inst("mov.b64", dst, l.masked(x, int(o.width)/8))
		}
		return
	}
	prmt := func(h arg, sel uint64) arg {
		t := l.fresh(c32)
		l.inst("prmt.b32", t, h, imm(0), imm(sel))
		return t.arg()
	}
	switch o.width {
	case 16:
		l.inst("cvt.u64.u32", dst, prmt(l.half(x), 0x4401))
	case 32:
		l.inst("cvt.u64.u32", dst, prmt(l.half(x), 0x0123))
	default:
		lo, hi := l.fresh(c32), l.fresh(c32)
		l.inst("cvt.u32.u64", lo, x)
		l.inst("cvt.u32.u64", hi, l.shifted(x, -32))
		l.inst("mov.b64 {}", dst, prmt(hi.arg(), 0x0123), prmt(lo.arg(), 0x0123))
	}
}
