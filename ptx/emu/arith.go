package emu

import (
	"fmt"

	"nvtrace/ptx"
)

// lift1, lift2 and lift3 make a step of a lane function; fast, if not nil, is the
// same for all lanes at once.
func lift1(f fn1, fast vec1, d, a int32) step {
	return func(w *warp, m uint32) {
		r, x := &w.regs[d], w.src(a)
		if m == fullMask && fast != nil {
			fast(r, x)
			return
		}
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			r[i] = f(x[i])
		}
	}
}

func lift2(f fn2, fast vec2, d, a, b int32) step {
	return func(w *warp, m uint32) {
		r, x, y := &w.regs[d], w.src(a), w.src(b)
		if m == fullMask && fast != nil {
			fast(r, x, y)
			return
		}
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			r[i] = f(x[i], y[i])
		}
	}
}

func lift3(f fn3, fast vec3, d, a, b, c int32) step {
	return func(w *warp, m uint32) {
		r, x, y, z := &w.regs[d], w.src(a), w.src(b), w.src(c)
		if m == fullMask && fast != nil {
			fast(r, x, y, z)
			return
		}
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			r[i] = f(x[i], y[i], z[i])
		}
	}
}

// operands resolves an instruction of a destination and one source of each type.
func (x *insn) operands(types ...ptx.Type) (d int32, s []int32, err error) {
	if err := x.nargs(1 + len(types)); err != nil {
		return 0, nil, err
	}
	if d, _, err = x.dst(&x.args[0]); err != nil {
		return 0, nil, err
	}
	s = make([]int32, len(types))
	for i, t := range types {
		if s[i], err = x.src(&x.args[1+i], t); err != nil {
			return 0, nil, fmt.Errorf("operand %d: %w", 2+i, err)
		}
	}
	return d, s, nil
}

// op1 emits d = f(a) on operands of type t. The destination's register is as
// wide as t for all but cvt and ld, which extend themselves.
func (x *insn) op1(t ptx.Type, f fn1, fast vec1) error {
	d, s, err := x.operands(t)
	if err != nil {
		return err
	}
	return x.step(lift1(f, fast, d, s[0]))
}

// op2 emits d = f(a, b).
func (x *insn) op2(t ptx.Type, f fn2, fast vec2) error { return x.op2types(t, t, f, fast) }

// op2types is op2 with operands of different types.
func (x *insn) op2types(ta, tb ptx.Type, f fn2, fast vec2) error {
	d, s, err := x.operands(ta, tb)
	if err != nil {
		return err
	}
	return x.step(lift2(f, fast, d, s[0], s[1]))
}

// op3 emits d = f(a, b, c), c of type tc.
func (x *insn) op3(t, tc ptx.Type, f fn3, fast vec3) error {
	d, s, err := x.operands(t, t, tc)
	if err != nil {
		return err
	}
	return x.step(lift3(f, fast, d, s[0], s[1], s[2]))
}

// pair1, pair2 and pair3 apply a function to both halves of packed operands.
func pair1(f fn1, w uint) fn1 {
	m := widthMask(w)
	return func(a uint64) uint64 { return f(a>>w&m)<<w | f(a&m) }
}

func pair2(f fn2, w uint) fn2 {
	m := widthMask(w)
	return func(a, b uint64) uint64 { return f(a>>w&m, b>>w&m)<<w | f(a&m, b&m) }
}

func pair3(f fn3, w uint) fn3 {
	m := widthMask(w)
	return func(a, b, c uint64) uint64 { return f(a>>w&m, b>>w&m, c>>w&m)<<w | f(a&m, b&m, c&m) }
}

// packed reports whether t is two values in one register, and their width.
func packed(t ptx.Type) (uint, bool) {
	switch t {
	case ptx.F16x2, ptx.BF16x2, ptx.U16x2, ptx.S16x2:
		return 16, true
	case ptx.F32x2:
		return 32, true
	}
	return 0, false
}

// elem1, elem2 and elem3 emit a lane function on scalars or on each half.
func (x *insn) elem1(t ptx.Type, f fn1) error {
	if w, ok := packed(t); ok {
		f = pair1(f, w)
	}
	return x.op1(t, f, nil)
}

func (x *insn) elem2(t ptx.Type, f fn2, fast vec2) error {
	if w, ok := packed(t); ok {
		return x.op2(t, pair2(f, w), nil)
	}
	return x.op2(t, f, fast)
}

func (x *insn) elem3(t ptx.Type, f fn3, fast vec3) error {
	if w, ok := packed(t); ok {
		return x.op3(t, t, pair3(f, w), nil)
	}
	return x.op3(t, t, f, fast)
}

// intType is the integer type of the instruction.
func (x *insn) intType() (ptx.Type, intType, error) {
	t := x.lastType()
	it, ok := intOf(scalarOf(t))
	if !ok {
		return t, it, x.badType()
	}
	return t, it, nil
}

// bySize is the suffix of fast keys that do not depend on the sign.
func bySize(t ptx.Type) string {
	switch t.Size() {
	case 4:
		return ".32"
	case 8:
		return ".64"
	}
	return ".other"
}

func int1(f func(intType, uint64) uint64) builder {
	return func(x *insn) error {
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		return x.elem1(t, func(a uint64) uint64 { return f(it, a) })
	}
}

func int2(f func(intType, uint64, uint64) uint64) builder {
	return func(x *insn) error {
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		return x.elem2(t, func(a, b uint64) uint64 { return f(it, a, b) }, nil)
	}
}

// int2relu is int2 with the .relu of min and max.
func int2relu(f func(intType, uint64, uint64) uint64) builder {
	return func(x *insn) error {
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		relu := x.take(".relu")
		return x.elem2(t, func(a, b uint64) uint64 {
			r := f(it, a, b)
			if relu && sext(r, it.width) < 0 {
				return 0
			}
			return r
		}, nil)
	}
}

func buildIntAdd(add bool) builder {
	return func(x *insn) error {
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		if x.take(".cc") {
			return x.carry(t, it, add, false, true)
		}
		sat := x.take(".sat")
		switch {
		case add && sat:
			return x.elem2(t, it.addSat, nil)
		case sat:
			return x.op2(t, it.subSat, nil)
		case add:
			return x.elem2(t, it.add, fast2["add"+bySize(t)])
		}
		return x.elem2(t, it.sub, fast2["sub"+bySize(t)])
	}
}

// buildCarry compiles addc and subc.
func buildCarry(add bool) builder {
	return func(x *insn) error {
		t, it, err := x.intType()
		if err != nil {
			return err
		}
		return x.carry(t, it, add, true, x.take(".cc"))
	}
}

// carry emits an addition or subtraction that reads or writes the condition
// code register.
func (x *insn) carry(t ptx.Type, it intType, add, in, out bool) error {
	if err := x.nargs(3); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.srcs(1, 2, t)
	if err != nil {
		return err
	}
	f, none := it.addCarry, uint64(0)
	if !add {
		f, none = it.subCarry, 1
	}
	return x.step(func(w *warp, m uint32) {
		r, a, b := &w.regs[d], w.src(s[0]), w.src(s[1])
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			w.withCarry(i, none, in, out, func(c uint64) (v, co uint64) {
				v, co = f(a[i], b[i], c)
				r[i] = v
				return v, co
			})
		}
	})
}

// withCarry calls f with lane i's carry flag, which is none where the instruction
// does not read it, and keeps the flag that f returns if out is set.
func (w *warp) withCarry(i int, none uint64, in, out bool, f func(c uint64) (v, carry uint64)) {
	c := none
	if in {
		c = uint64(w.frame.carry >> i & 1)
	}
	_, co := f(c)
	if out {
		w.frame.carry = w.frame.carry&^(1<<i) | uint32(co)<<i
	}
}

// product returns the multiplication of a mul or mad: .lo, .hi or .wide, and the
// type of its result.
func (x *insn) product(t ptx.Type, it intType) (fn2, ptx.Type, string, error) {
	switch x.takeOne(".lo", ".hi", ".wide") {
	case ".hi":
		return it.mulHi, t, "", nil
	case ".wide":
		wide, ok := map[ptx.Type]ptx.Type{ptx.U16: ptx.U32, ptx.S16: ptx.S32, ptx.U32: ptx.U64, ptx.S32: ptx.S64}[t]
		if !ok {
			return nil, t, "", x.badType()
		}
		return it.mulWide, wide, ".wide" + t.String(), nil
	}
	return it.mulLo, t, ".lo" + bySize(t), nil
}

func buildIntMul(x *insn) error {
	t, it, err := x.intType()
	if err != nil {
		return err
	}
	f, _, key, err := x.product(t, it)
	if err != nil {
		return err
	}
	return x.op2(t, f, fast2["mul"+key])
}

// buildIntMad compiles mad, mad.cc and madc.
func buildIntMad(x *insn) error {
	t, it, err := x.intType()
	if err != nil {
		return err
	}
	mul, wide, key, err := x.product(t, it)
	if err != nil {
		return err
	}
	sum := intType{uint(wide.Size()) * 8, false}
	in, out := x.op == "madc", x.take(".cc")
	if in || out {
		return x.madCarry(t, mul, sum, in, out)
	}
	if x.take(".sat") {
		sum.signed = true
		return x.op3(t, wide, func(a, b, c uint64) uint64 { return sum.addSat(mul(a, b), c) }, nil)
	}
	return x.op3(t, wide, func(a, b, c uint64) uint64 { return sum.add(mul(a, b), c) }, fast3["mad"+key])
}

func (x *insn) madCarry(t ptx.Type, mul fn2, sum intType, in, out bool) error {
	if err := x.nargs(4); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.srcs(1, 3, t)
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		r, a, b, c := &w.regs[d], w.src(s[0]), w.src(s[1]), w.src(s[2])
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			w.withCarry(i, 0, in, out, func(carry uint64) (uint64, uint64) {
				v, co := sum.addCarry(mul(a[i], b[i]), c[i], carry)
				r[i] = v
				return v, co
			})
		}
	})
}

func (x *insn) shift24() uint {
	if x.takeOne(".lo", ".hi") == ".hi" {
		return 16
	}
	return 0
}

func buildMul24(x *insn) error {
	t, it, err := x.intType()
	if err != nil {
		return err
	}
	return x.op2(t, it.mul24(x.shift24()), nil)
}

func buildMad24(x *insn) error {
	t, it, err := x.intType()
	if err != nil {
		return err
	}
	mul := it.mul24(x.shift24())
	add := it.add
	if x.take(".sat") {
		add = it.addSat
	}
	return x.op3(t, t, func(a, b, c uint64) uint64 { return add(mul(a, b), c) }, nil)
}

// buildDot compiles dp4a and dp2a.
func buildDot(x *insn) error {
	a, b := x.typ(0).Signed(), x.typ(1).Signed()
	if x.op == "dp4a" {
		return x.op3(ptx.B32, ptx.B32, dp4a(a, b), nil)
	}
	return x.op3(ptx.B32, ptx.B32, dp2a(a, b, x.takeOne(".lo", ".hi") == ".hi"), nil)
}
