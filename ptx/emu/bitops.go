package emu

import "nvtrace/ptx"

func bitBuilders() map[string]builder {
	return map[string]builder{
		"and": logic(intType.and, "and", func(p, q uint32) uint32 { return p & q }),
		"or":  logic(intType.or, "or", func(p, q uint32) uint32 { return p | q }),
		"xor": logic(intType.xor, "xor", func(p, q uint32) uint32 { return p ^ q }),
		"not": buildNot, "cnot": int1(intType.cnot),
		"shl": shift(intType.shl), "shr": shift(intType.shr),
		"shf": buildShf, "bfe": buildBfe, "bfi": buildBfi, "bfind": buildBfind,
		"clz": countBits(intType.clz), "popc": countBits(intType.popc), "brev": int1(intType.brev),
		"bmsk": func(x *insn) error { return x.op2(ptx.B32, bmsk(x.takeOne(".clamp", ".wrap") == ".wrap"), nil) },
		"szext": func(x *insn) error {
			t, it, err := x.intType()
			if err != nil {
				return err
			}
			return x.op2(t, it.szext(x.takeOne(".clamp", ".wrap") == ".wrap"), nil)
		},
		"fns":  func(x *insn) error { return x.op3(ptx.B32, ptx.B32, fns, nil) },
		"lop3": buildLop3, "prmt": buildPrmt,
	}
}

// logic compiles and, or, xor on bits and on predicates.
func logic(f func(intType, uint64, uint64) uint64, fast string, pred func(p, q uint32) uint32) builder {
	return func(x *insn) error {
		if x.lastType() == ptx.Pred {
			return x.predOp(2, func(s []uint32) uint32 { return pred(s[0], s[1]) })
		}
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		return x.op2(t, func(a, b uint64) uint64 { return f(it, a, b) }, fast2[fast])
	}
}

func buildNot(x *insn) error {
	if x.lastType() == ptx.Pred {
		return x.predOp(1, func(s []uint32) uint32 { return ^s[0] })
	}
	return int1(intType.not)(x)
}

// predOp emits an operation on n predicates.
func (x *insn) predOp(n int, f func(s []uint32) uint32) error {
	if err := x.nargs(n + 1); err != nil {
		return err
	}
	d, err := x.predDst(&x.args[0])
	if err != nil {
		return err
	}
	slots, nots := make([]int32, n), make([]uint32, n)
	for i := range slots {
		if x.text(x.args[i+1].Name) == "%is_explicit_cluster" {
			return x.explicitCluster(d)
		}
		p, not, err := x.pred(&x.args[i+1])
		if err != nil {
			return err
		}
		if slots[i] = p; not {
			nots[i] = fullMask
		}
	}
	return x.step(func(w *warp, m uint32) {
		var in [2]uint32
		for i, p := range slots {
			in[i] = w.preds[p] ^ nots[i]
		}
		w.setPred(d, m, f(in[:n]))
	})
}

// explicitCluster reads the one special register that is a predicate.
func (x *insn) explicitCluster(d int32) error {
	return x.step(func(w *warp, m uint32) {
		var v uint32
		if w.wk.launch.explicit {
			v = m
		}
		w.setPred(d, m, v)
	})
}

// setPred writes the lanes in m of predicate p; -1 is the sink.
func (w *warp) setPred(p int32, m, v uint32) {
	if p >= 0 {
		w.preds[p] = w.preds[p]&^m | v&m
	}
}

// shift compiles shl and shr, whose count always has 32 bits.
func shift(f func(intType, uint64, uint64) uint64) builder {
	return func(x *insn) error {
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		key := "shl" + bySize(t)
		if x.op == "shr" {
			key = "shr.u" + bySize(t)[1:]
			if it.signed {
				key = "shr" + t.String()
			}
		}
		return x.op2types(t, ptx.B32, func(a, b uint64) uint64 { return f(it, a, b) }, fast2[key])
	}
}

func buildShf(x *insn) error {
	left := x.takeOne(".l", ".r") == ".l"
	wrap := x.takeOne(".wrap", ".clamp") == ".wrap"
	return x.op3(ptx.B32, ptx.B32, shf(left, wrap), nil)
}

func buildBfe(x *insn) error {
	t, it, err := x.intType()
	if err != nil {
		return err
	}
	if err := x.nargs(4); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	a, err := x.src(&x.args[1], t)
	if err != nil {
		return err
	}
	s, err := x.srcs(2, 2, ptx.B32)
	if err != nil {
		return err
	}
	return x.step(lift3(it.bfe, nil, d, a, s[0], s[1]))
}

func buildBfi(x *insn) error {
	t, it, err := x.intType()
	if err != nil {
		return err
	}
	if err := x.nargs(5); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	v, err := x.srcs(1, 2, t)
	if err != nil {
		return err
	}
	s, err := x.srcs(3, 2, ptx.B32)
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		r, a, b, c, e := &w.regs[d], w.src(v[0]), w.src(v[1]), w.src(s[0]), w.src(s[1])
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			r[i] = it.bfi(a[i], b[i], c[i], e[i])
		}
	})
}

func buildBfind(x *insn) error {
	t, it, err := x.intType()
	if err != nil {
		return err
	}
	return x.op1(t, it.bfind(x.take(".shiftamt")), nil)
}

// countBits compiles clz and popc, whose result has 32 bits.
func countBits(f func(intType, uint64) uint64) builder {
	return func(x *insn) error {
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		return x.op1(t, func(a uint64) uint64 { return f(it, a) }, nil)
	}
}

func buildLop3(x *insn) error {
	boolOp := x.takeOne(".and", ".or")
	if boolOp != "" {
		return x.lop3Bool(boolOp)
	}
	if err := x.nargs(5); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, lut, err := x.lop3Sources()
	if err != nil {
		return err
	}
	return x.step(lift3(func(a, b, c uint64) uint64 { return lop3(a, b, c, lut) }, nil, d, s[0], s[1], s[2]))
}

// lop3Sources resolves "a, b, c, lut" behind the destination.
func (x *insn) lop3Sources() (s []int32, lut uint8, err error) {
	if s, err = x.srcs(1, 3, ptx.B32); err != nil {
		return nil, 0, err
	}
	v, err := x.immediate(4, 255)
	return s, uint8(v), err
}

// lop3Bool is lop3.BoolOp d|p, a, b, c, lut, q: p = (d != 0) BoolOp q.
func (x *insn) lop3Bool(boolOp string) error {
	if err := x.nargs(6); err != nil {
		return err
	}
	d, p, err := x.pairDst(&x.args[0])
	if err != nil {
		return err
	}
	s, lut, err := x.lop3Sources()
	if err != nil {
		return err
	}
	q, not, err := x.pred(&x.args[5])
	if err != nil {
		return err
	}
	join := boolOps[boolOp]
	return x.step(func(w *warp, m uint32) {
		r, a, b, c := &w.regs[d], w.src(s[0]), w.src(s[1]), w.src(s[2])
		v := w.preds[q]
		if not {
			v = ^v
		}
		var nz uint32
		for l := m; l != 0; l &= l - 1 {
			i := firstLane(l)
			r[i] = lop3(a[i], b[i], c[i], lut)
			nz |= bit(r[i] != 0) << i
		}
		w.setPred(p, m, join(nz, v))
	})
}

// immediate returns operand i, which must be a constant up to limit.
func (x *insn) immediate(i int, limit uint64) (uint64, error) {
	if i >= len(x.args) || x.args[i].Kind != ptx.OperandInt || x.args[i].Bits > limit {
		return 0, errf(ErrInvalid, "operand %d must be a constant up to %d", i+1, limit)
	}
	return x.args[i].Bits, nil
}

func buildPrmt(x *insn) error {
	for mode, sel := range prmtSelectors {
		if x.take(mode) {
			return x.op3(ptx.B32, ptx.B32, prmtMode(sel), nil)
		}
	}
	return x.op3(ptx.B32, ptx.B32, prmt, nil)
}
