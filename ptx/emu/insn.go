package emu

import (
	"fmt"
	"slices"
	"strings"

	"nvtrace/ptx"
)

// typeNames maps ".u32" and so on to the type.
var typeNames = func() map[string]ptx.Type {
	m := map[string]ptx.Type{}
	for t := ptx.Pred; t <= ptx.S16x2; t++ {
		m[t.String()] = t
	}
	return m
}()

// instr compiles an instruction. One that the machine does not have becomes a
// step that fails when it is reached, so that kernels run as long as they do not
// get there.
func (c *compiler) instr(st *ptx.Stmt) error {
	x := &insn{compiler: c, st: st, op: c.file.Opcode(st), args: c.file.Args(st)}
	x.mods = c.file.AppendMods(nil, st)
	x.used = make([]bool, len(x.mods))
	for i, m := range x.mods {
		if t, ok := typeNames[m]; ok {
			x.types = append(x.types, t)
			x.used[i] = true
		}
	}
	mark := len(c.out.code)
	err := x.build()
	if err != nil {
		c.prog.missing = append(c.prog.missing, c.errAt(err))
		c.out.code = c.out.code[:mark]
		c.emit(inst{run: failStep(err), guard: -1, stmt: int32(c.stmt)})
		return x.guard(&c.out.code[mark])
	}
	return nil
}

// failStep is the step of an instruction that cannot be executed.
func failStep(err error) step {
	return func(w *warp, m uint32) { w.fail(firstLane(m), err) }
}

func (x *insn) build() error {
	b, ok := x.mod.machine.builders[x.op]
	if !ok {
		return errf(ErrNotImplemented, "opcode %s", x.op)
	}
	if !ptx.HasForm(x.st.Op, x.mods, len(x.args)) {
		return errf(ErrInvalid, "there is no %s", x.file.FullOpcode(x.st))
	}
	if err := b(x); err != nil {
		return err
	}
	for i, m := range x.mods {
		if !x.used[i] {
			return errf(ErrNotImplemented, "modifier %s of %s", m, x.op)
		}
	}
	return x.checkForms(x.args)
}

// understood marks an operand's sign, displacement or selector as taken.
func (x *insn) understood(a *ptx.Operand) { x.forms = append(x.forms, a.Pos) }

// checkForms fails for an operand that is more than a name, and whose builder has not
// looked at what more it is.
func (x *insn) checkForms(args []ptx.Operand) error {
	for i := range args {
		a := &args[i]
		more := a.Flags & (ptx.Not | ptx.Minus)
		if a.Kind == ptx.OperandName {
			more |= a.Flags & ptx.HasOffset
		}
		if (more != 0 || a.Sel == ptx.SelOther) && !slices.Contains(x.forms, a.Pos) {
			return errf(ErrNotImplemented, "operand %s of %s", x.text(a.Span()), x.op)
		}
		if err := x.checkForms(x.file.Kids(a)); err != nil {
			return err
		}
	}
	return nil
}

// take reports whether the modifier m is there, and marks it as understood.
func (x *insn) take(m string) bool {
	for i, s := range x.mods {
		if s == m && !x.used[i] {
			x.used[i] = true
			return true
		}
	}
	return false
}

// takeOne takes the first of ms that is there; "" if none.
func (x *insn) takeOne(ms ...string) string {
	for _, m := range ms {
		if x.take(m) {
			return m
		}
	}
	return ""
}

// ignore takes modifiers that change nothing here: cache hints, scopes.
func (x *insn) ignore(ms ...string) {
	for _, m := range ms {
		for x.take(m) {
		}
	}
}

// ignorePrefix is ignore for families such as .L2::128B.
func (x *insn) ignorePrefix(prefixes ...string) {
	for i, m := range x.mods {
		for _, p := range prefixes {
			if strings.HasPrefix(m, p) {
				x.used[i] = true
			}
		}
	}
}

// typ returns the n'th type modifier, TypeNone when there are fewer.
func (x *insn) typ(n int) ptx.Type {
	if n >= 0 && n < len(x.types) {
		return x.types[n]
	}
	return ptx.TypeNone
}

// lastType is the last type modifier.
func (x *insn) lastType() ptx.Type { return x.typ(len(x.types) - 1) }

// nargs checks the number of operands.
func (x *insn) nargs(n ...int) error {
	if slices.Contains(n, len(x.args)) {
		return nil
	}
	return errf(ErrInvalid, "%s has %d operands, %v expected", x.op, len(x.args), n)
}

func (x *insn) text(sp ptx.Span) string { return x.file.Text(sp) }

func (x *insn) badType() error {
	return errf(ErrNotImplemented, "%s of these types", x.file.FullOpcode(x.st))
}

// rounding takes a rounding modifier of floating-point arithmetic.
func (x *insn) rounding() rounding {
	switch x.takeOne(".rn", ".rz", ".rm", ".rp", ".rna") {
	case ".rz":
		return roundZero
	case ".rm":
		return roundDown
	case ".rp":
		return roundUp
	case ".rna":
		return roundAway
	}
	return roundNearest
}

// guard resolves the statement's guard predicate into in.
func (x *insn) guard(in *inst) error {
	in.guard = -1
	if !x.st.Guarded() {
		return nil
	}
	name := x.text(x.st.Guard)
	sym, ok := x.find(name)
	if !ok || sym.kind != symPred {
		return x.errAt(errf(ErrInvalid, "guard %s is no predicate", name))
	}
	in.guard, in.guardNot = sym.slot, x.st.Flags&ptx.GuardNot != 0
	return nil
}

// step emits the instruction proper.
func (x *insn) step(s step) error {
	in := inst{run: s, stmt: int32(x.stmt)}
	if err := x.guard(&in); err != nil {
		return err
	}
	x.emit(in)
	return nil
}

// control emits a control instruction.
func (x *insn) control(ctl control) error {
	in := inst{ctl: ctl, stmt: int32(x.stmt)}
	if err := x.guard(&in); err != nil {
		return err
	}
	x.emit(in)
	return nil
}

// lookup resolves an operand's name.
func (x *insn) lookup(a *ptx.Operand) (symbol, error) {
	name := x.text(a.Name)
	sym, ok := x.find(name)
	if !ok {
		return sym, errf(ErrInvalid, "unknown name %q", name)
	}
	return sym, nil
}

// src returns the operand of a source of type t.
func (x *insn) src(a *ptx.Operand, t ptx.Type) (int32, error) {
	if t == ptx.B128 && !x.isWide(a) {
		return 0, errf(ErrInvalid, "operand %s is no register of 128 bits", x.text(a.Span()))
	}
	switch a.Kind {
	case ptx.OperandInt:
		return x.constant(a.Bits & typeMask(t)), nil
	case ptx.OperandF32, ptx.OperandF64:
		return x.constant(floatConst(a, t)), nil
	case ptx.OperandName:
		return x.srcName(a, t)
	}
	return 0, errf(ErrNotImplemented, "operand %s", x.text(a.Span()))
}

// typeMask covers the bits of a value of type t; all 64 for unknown types.
func typeMask(t ptx.Type) uint64 {
	if n := t.Size(); n != 0 && n < 8 {
		return widthMask(uint(n) * 8)
	}
	return ^uint64(0)
}

func (x *insn) srcName(a *ptx.Operand, t ptx.Type) (int32, error) {
	name := x.text(a.Name)
	sym, ok := x.find(name)
	if !ok {
		if name == "WARP_SZ" && a.Flags == 0 {
			return x.constant(warpSize), nil
		}
		return x.special(a, name)
	}
	switch sym.kind {
	case symReg:
		if (t == ptx.B128) != (sym.typ == ptx.B128) {
			return 0, errf(ErrInvalid, "register %s of %d bits in a %v instruction", name, sym.typ.Size()*8, t)
		}
		slot, err := x.component(a, &sym)
		if err != nil || !a.Has(ptx.HasOffset) {
			return slot, err
		}
		return x.displaced(a, slot, sym.typ)
	case symConstant:
		x.understoodOffset(a)
		return x.constant(sym.addr + a.Bits), nil
	case symLocal:
		x.understoodOffset(a)
		return x.localAddress(sym.addr + a.Bits), nil
	}
	return 0, errf(ErrInvalid, "operand %s is no value", name)
}

// understoodOffset is understood for an operand that may have a displacement and nothing
// else.
func (x *insn) understoodOffset(a *ptx.Operand) {
	if a.Flags&(ptx.Not|ptx.Minus) == 0 {
		x.understood(a)
	}
}

// displaced is the value of %r+5. ptxas adds at the width of the register, whatever the
// instruction's type; registers of floating-point types it does not take.
func (x *insn) displaced(a *ptx.Operand, slot int32, t ptx.Type) (int32, error) {
	if t.Float() || t == ptx.B128 {
		return 0, errf(ErrNotImplemented, "operand %s", x.text(a.Span()))
	}
	x.understoodOffset(a)
	d, off, mask := x.temp(), a.Bits, typeMask(t)
	x.hidden(func(w *warp, m uint32) {
		r, v := &w.regs[d], w.src(slot)
		for i := range r {
			r[i] = (v[i] + off) & mask
		}
	})
	return d, nil
}

// component picks the slot of v or v.x.
func (x *insn) component(a *ptx.Operand, sym *symbol) (int32, error) {
	n := int(a.Sel)
	switch {
	case a.Sel == ptx.SelNone && sym.vec == 1, a.Sel == ptx.SelOther && sym.vec == 1:
		return sym.slot, nil
	case n >= 1 && n <= sym.vec:
		return sym.slot + int32((n-1)*slots(sym.typ)), nil
	}
	return 0, errf(ErrInvalid, "component %s", x.text(a.Span()))
}

// localAddress computes the frame's base plus off.
func (x *insn) localAddress(off uint64) int32 {
	d := x.temp()
	x.hidden(func(w *warp, m uint32) {
		r, v := &w.regs[d], w.frame.local+off
		for i := range r {
			r[i] = v
		}
	})
	return d
}

// isWide reports whether the operand is a register of 128 bits.
func (x *insn) isWide(a *ptx.Operand) bool {
	if a.Kind != ptx.OperandName {
		return false
	}
	sym, ok := x.find(x.text(a.Name))
	return ok && sym.kind == symReg && sym.typ == ptx.B128
}

// dst128 is dst for a register of 128 bits, which has two slots.
func (x *insn) dst128(a *ptx.Operand) (int32, error) {
	if !x.isWide(a) {
		return 0, errf(ErrInvalid, "destination %s is no register of 128 bits", x.text(a.Span()))
	}
	slot, _, err := x.dst(a)
	return slot, err
}

// dst returns the slot of a destination and the mask of its register's width.
func (x *insn) dst(a *ptx.Operand) (int32, uint64, error) {
	if a.Kind == ptx.OperandSink {
		return 0, ^uint64(0), nil
	}
	if a.Kind != ptx.OperandName {
		return 0, 0, errf(ErrInvalid, "destination %s", x.text(a.Span()))
	}
	sym, err := x.lookup(a)
	if err != nil {
		return 0, 0, err
	}
	if sym.kind != symReg {
		return 0, 0, errf(ErrInvalid, "destination %s is no register", x.text(a.Name))
	}
	slot, err := x.component(a, &sym)
	return slot, typeMask(sym.typ), err
}

// pred returns the slot of a predicate operand and whether it is negated.
func (x *insn) pred(a *ptx.Operand) (int32, bool, error) {
	if a.Flags&(ptx.Minus|ptx.HasOffset) == 0 {
		x.understood(a)
	}
	if a.Kind == ptx.OperandInt {
		return 0, (a.Bits != 0) != a.Has(ptx.Not), nil
	}
	sym, err := x.lookup(a)
	if err != nil {
		return 0, false, err
	}
	if sym.kind != symPred {
		return 0, false, errf(ErrInvalid, "operand %s is no predicate", x.text(a.Span()))
	}
	return sym.slot, a.Has(ptx.Not), nil
}

// predDst returns the slot of a predicate destination, -1 for the sink.
func (x *insn) predDst(a *ptx.Operand) (int32, error) {
	if a.Kind == ptx.OperandSink {
		return -1, nil
	}
	p, not, err := x.pred(a)
	if err == nil && (not || p == 0) {
		err = errf(ErrInvalid, "destination %s", x.text(a.Span()))
	}
	return p, err
}

// isPred reports whether the operand names a predicate.
func (x *insn) isPred(a *ptx.Operand) bool {
	if a.Kind != ptx.OperandName {
		return false
	}
	sym, ok := x.find(x.text(a.Name))
	return ok && sym.kind == symPred
}

// srcs resolves consecutive source operands of one type.
func (x *insn) srcs(from, n int, t ptx.Type) ([]int32, error) {
	out := make([]int32, n)
	for i := range out {
		if from+i >= len(x.args) {
			return nil, errf(ErrInvalid, "%s has %d operands, more expected", x.op, len(x.args))
		}
		v, err := x.src(&x.args[from+i], t)
		if err != nil {
			return nil, fmt.Errorf("operand %d: %w", from+i+1, err)
		}
		out[i] = v
	}
	return out, nil
}

// pairDst resolves "d|p", or "d" alone with p = -1.
func (x *insn) pairDst(a *ptx.Operand) (d, p int32, err error) {
	if a.Kind != ptx.OperandPair {
		d, _, err = x.dst(a)
		return d, -1, err
	}
	kids := x.file.Kids(a)
	if d, _, err = x.dst(&kids[0]); err != nil {
		return 0, 0, err
	}
	p, err = x.predDst(&kids[1])
	return d, p, err
}
