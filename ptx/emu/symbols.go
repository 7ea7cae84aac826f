package emu

import (
	"fmt"

	"nvtrace/ptx"
)

// find resolves a name.
func (c *compiler) find(name string) (symbol, bool) {
	sym, ok := c.scope.lookup(name)
	if ok && sym.kind == symShared {
		placed, err := c.prog.sharedVar(sym.file, sym.decl, sym.name)
		return placed, err == nil
	}
	return sym, ok
}

// constant returns the operand of a constant value.
func (c *compiler) constant(v uint64) int32 {
	if i, ok := c.consts[v]; ok {
		return i
	}
	var l lanes
	for i := range l {
		l[i] = v
	}
	i := int32(^len(c.out.consts))
	c.out.consts = append(c.out.consts, l)
	c.consts[v] = i
	return i
}

// temp returns a fresh register slot.
func (c *compiler) temp() int32 {
	c.nregs++
	return int32(c.nregs - 1)
}

// emit appends an instruction.
func (c *compiler) emit(in inst) { c.out.code = append(c.out.code, in) }

// hidden appends a step of the compiler's own.
func (c *compiler) hidden(s step) {
	c.emit(inst{run: s, guard: -1, hidden: true, stmt: int32(c.stmt)})
}

// errAt returns an error with the position of the statement being compiled.
func (c *compiler) errAt(err error) error {
	st := &c.file.Stmts[c.stmt]
	return fmt.Errorf("%v: %s: %w", c.file.Position(st.Pos), c.file.Text(st.Span()), err)
}

// passedSlots is how many registers of the machine a register is.
func passedSlots(sym *symbol) int {
	if sym.kind == symPred {
		return 1
	}
	return sym.vec * slots(sym.typ)
}

// floatConst converts a floating-point constant to type t.
func floatConst(a *ptx.Operand, t ptx.Type) uint64 {
	double := t.Size() == 8
	switch {
	case a.Kind == ptx.OperandF32 && double && t == ptx.F64:
		return bits64(float64(f32(a.Bits)))
	case a.Kind == ptx.OperandF64 && !double && t != ptx.TypeNone:
		return bits32(float32(f64(a.Bits)))
	case a.Kind == ptx.OperandF32:
		return a.Bits & 0xffffffff
	}
	return a.Bits
}
