package emu

import "nvtrace/ptx"

func floatBuilders() map[string]builder {
	return map[string]builder{
		"fma": buildFma,
		"rcp": buildUnary(floatOp.rcp), "sqrt": buildUnary(floatOp.sqrt), "rsqrt": buildUnary(nil),
		"sin": buildUnary(nil), "cos": buildUnary(nil), "lg2": buildUnary(nil), "ex2": buildUnary(nil), "tanh": buildUnary(nil),
		"copysign": func(x *insn) error {
			o, t, err := x.floatOp()
			if err != nil {
				return err
			}
			return x.op2(t, o.copysign(), nil)
		},
		"testp": buildTestp,
	}
}

// floatOp reads the modifiers common to floating-point instructions.
func (x *insn) floatOp() (floatOp, ptx.Type, error) {
	t := x.lastType()
	o := floatOp{f: formatOf(t)}
	if o.f == nil || o.f == &fmtE4M3 || o.f == &fmtE5M2 || o.f == &fmtTF32 {
		return o, t, x.badType()
	}
	if len(x.types) > 1 {
		return o, t, x.badType() // mixed precision
	}
	o.mode = x.rounding()
	o.ftz = x.take(".ftz")
	o.sat = x.take(".sat")
	o.relu = x.take(".relu")
	return o, t, nil
}

// plain reports whether the fast loops of single precision apply.
func (o *floatOp) plain() bool {
	return o.f == &fmtF32 && o.mode == roundNearest && !o.ftz && !o.sat && !o.relu
}

func floatArith2(name string, f func(floatOp) fn2) builder {
	return func(x *insn) error {
		o, t, err := x.floatOp()
		if err != nil {
			return err
		}
		var fast vec2
		if o.plain() && t == ptx.F32 {
			fast = fast2[name+".f32"]
		}
		return x.elem2(t, f(o), fast)
	}
}

// buildFma compiles fma and the floating-point mad, which is fused on every
// target of sm_20 and later.
func buildFma(x *insn) error {
	o, t, err := x.floatOp()
	if err != nil {
		return err
	}
	var fast vec3
	if o.plain() && t == ptx.F32 {
		fast = fast3["fma.f32"]
	}
	return x.elem3(t, o.fma(), fast)
}

func floatSign(f func(floatOp) fn1) builder {
	return func(x *insn) error {
		o, t, err := x.floatOp()
		if err != nil {
			return err
		}
		return x.elem1(t, f(o))
	}
}

func buildMinmax(isMax bool) builder {
	return func(x *insn) error {
		o, t, err := x.floatOp()
		if err != nil {
			return err
		}
		o.nan = x.take(".NaN")
		o.xabs = x.take(".xorsign")
		o.abs = x.take(".abs")
		if len(x.args) == 4 {
			return x.elem3(t, o.minmax3(isMax), nil)
		}
		return x.elem2(t, o.minmax(isMax), nil)
	}
}

func buildFloatDiv(x *insn) error {
	o, t, err := x.floatOp()
	if err != nil {
		return err
	}
	switch x.takeOne(".approx", ".full") {
	case ".approx":
		return x.op2(t, o.approxDiv(false), nil)
	case ".full":
		return x.op2(t, o.approxDiv(true), nil)
	}
	return x.op2(t, o.div(), nil)
}

// buildUnary compiles the one-operand functions. exact is the rounding form, nil
// when there is none.
func buildUnary(exact func(floatOp) fn1) builder {
	return func(x *insn) error {
		o, t, err := x.floatOp()
		if err != nil {
			return err
		}
		approx := x.take(".approx")
		switch {
		case t == ptx.F64 && approx && o.ftz:
			return x.op1(t, approxGross(approxTable[x.op]), nil)
		case t == ptx.F64 && approx:
			f := approxTable[x.op]
			return x.op1(t, func(a uint64) uint64 { return o.outNaN(bits64(f(f64(a))), a) }, nil)
		case approx || exact == nil || x.file.Version.Major < 2 && !hasRounding(x.mods):
			return x.elem1(t, o.approx1(approxTable[x.op]))
		}
		return x.elem1(t, exact(o))
	}
}

func hasRounding(mods []string) bool {
	for _, m := range mods {
		switch m {
		case ".rn", ".rz", ".rm", ".rp":
			return true
		}
	}
	return false
}

func buildTestp(x *insn) error {
	t := x.lastType()
	o := floatOp{f: formatOf(t)}
	if t != ptx.F32 && t != ptx.F64 {
		return x.badType()
	}
	f, ok := o.testp(x.takeOne(".finite", ".infinite", ".number", ".notanumber", ".normal", ".subnormal"))
	if !ok {
		return x.badType()
	}
	if err := x.nargs(2); err != nil {
		return err
	}
	p, err := x.predDst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.srcs(1, 1, t)
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		a := w.src(s[0])
		var v uint32
		for l := m; l != 0; l &= l - 1 {
			i := firstLane(l)
			v |= bit(f(a[i])) << i
		}
		w.setPred(p, m, v)
	})
}

func compareBuilders() map[string]builder {
	return map[string]builder{"setp": buildSetp, "set": buildSet, "selp": buildSelp, "slct": buildSlct}
}

// A comparison is what set and setp share.
type comparison struct {
	t    ptx.Type
	cmp  cmpFn
	fast func(a, b *lanes) uint32
	join func(p, c uint32) uint32
	a, b int32
	q    int32 // joined predicate, -1 for none
	not  bool
}

// comparison reads the operator and the operands from args[1] on.
func (x *insn) comparison(t ptx.Type) (*comparison, error) {
	c := &comparison{t: t, q: -1}
	var op string
	for m := range cmpOps {
		if x.take(m) {
			op = m
			break
		}
	}
	ftz := x.take(".ftz")
	var ok bool
	if c.cmp, ok = compare(op, scalarOf(t), ftz); !ok {
		return nil, x.badType()
	}
	if !ftz {
		c.fast = fastCmp[op+t.String()]
		if c.fast == nil && (op == ".eq" || op == ".ne") && !t.Float() {
			c.fast = fastCmp[op+bySize(t)]
		}
	}
	for m, f := range boolOps {
		if x.take(m) {
			c.join = f
		}
	}
	want := 3
	if c.join != nil {
		want = 4
	}
	if err := x.nargs(want); err != nil {
		return nil, err
	}
	s, err := x.srcs(1, 2, t)
	if err != nil {
		return nil, err
	}
	c.a, c.b = s[0], s[1]
	if c.join != nil {
		if c.q, c.not, err = x.pred(&x.args[3]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// eval compares bits from shift on of both operands, for the lanes in m.
func (c *comparison) eval(w *warp, m uint32, shift uint) uint32 {
	a, b := w.src(c.a), w.src(c.b)
	if m == fullMask && c.fast != nil {
		return c.fast(a, b)
	}
	var v uint32
	for l := m; l != 0; l &= l - 1 {
		i := firstLane(l)
		v |= bit(c.cmp(a[i]>>shift, b[i]>>shift)) << i
	}
	return v
}

// joined is the outcome v joined with the predicate operand.
func (c *comparison) joined(w *warp, v uint32) uint32 {
	if c.join == nil {
		return v
	}
	q := w.preds[c.q]
	if c.not {
		q = ^q
	}
	return c.join(v, q)
}

func buildSetp(x *insn) error {
	t := x.lastType()
	c, err := x.comparison(t)
	if err != nil {
		return err
	}
	p, q := int32(-1), int32(-1)
	if d := &x.args[0]; d.Kind == ptx.OperandPair {
		kids := x.file.Kids(d)
		if p, err = x.predDst(&kids[0]); err != nil {
			return err
		}
		if q, err = x.predDst(&kids[1]); err != nil {
			return err
		}
	} else if p, err = x.predDst(d); err != nil {
		return err
	}
	if w16, ok := packed(t); ok { // p is the lower half's outcome, q the upper half's
		return x.step(func(w *warp, m uint32) {
			lo, hi := c.joined(w, c.eval(w, m, 0)), c.joined(w, c.eval(w, m, w16))
			w.setPred(p, m, lo)
			w.setPred(q, m, hi)
		})
	}
	return x.step(func(w *warp, m uint32) {
		v := c.eval(w, m, 0)
		r, s := c.joined(w, v), c.joined(w, ^v)
		w.setPred(p, m, r)
		w.setPred(q, m, s)
	})
}

// setValues are what set writes for true, by destination type.
func setValue(t ptx.Type) (uint64, uint, bool) {
	switch t {
	case ptx.U32, ptx.S32, ptx.B32:
		return 0xffffffff, 0, true
	case ptx.F32, ptx.F16, ptx.BF16:
		return formatOf(t).one(), 0, true
	case ptx.F16x2, ptx.BF16x2:
		return formatOf(t).one(), 16, true
	case ptx.U16, ptx.S16:
		return 0xffff, 0, true
	}
	return 0, 0, false
}

func buildSet(x *insn) error {
	t := x.lastType()
	truth, half, ok := setValue(x.typ(0))
	w16, isPacked := packed(t)
	if isPacked && half == 0 {
		half, truth = 16, 0xffff
	}
	if !ok || len(x.types) != 2 || (half != 0) != isPacked {
		return x.badType()
	}
	c, err := x.comparison(t)
	if err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		lo, hi := c.joined(w, c.eval(w, m, 0)), uint32(0)
		if isPacked {
			hi = c.joined(w, c.eval(w, m, w16))
		}
		r := &w.regs[d]
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			r[i] = truth*uint64(lo>>i&1) | truth<<half*uint64(hi>>i&1)
		}
	})
}

func buildSelp(x *insn) error {
	if err := x.nargs(4); err != nil {
		return err
	}
	t := x.lastType()
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.srcs(1, 2, t)
	if err != nil {
		return err
	}
	p, not, err := x.pred(&x.args[3])
	if err != nil {
		return err
	}
	var flip uint32
	if not {
		flip = fullMask
	}
	return x.step(func(w *warp, m uint32) {
		r, a, b, v := &w.regs[d], w.src(s[0]), w.src(s[1]), w.preds[p]^flip
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			if v>>i&1 != 0 {
				r[i] = a[i]
			} else {
				r[i] = b[i]
			}
		}
	})
}

// buildSlct selects by the sign of c, -0 counting as not negative.
func buildSlct(x *insn) error {
	tc := x.lastType()
	ftz := x.take(".ftz")
	var ge func(c uint64) bool
	switch tc {
	case ptx.S32:
		ge = func(c uint64) bool { return int32(c) >= 0 }
	case ptx.F32:
		ge = func(c uint64) bool {
			if ftz {
				c = flush32(c)
			}
			return f32(c) >= 0
		}
	default:
		return x.badType()
	}
	return x.op3(x.typ(0), tc, func(a, b, c uint64) uint64 {
		if ge(c) {
			return a
		}
		return b
	}, nil)
}
