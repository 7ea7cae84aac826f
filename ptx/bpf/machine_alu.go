package bpf

import (
	"math"
	"math/bits"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf/internal/amd64"
)

// alu compiles an ALU op; s is the state behind it.
func (m *assembly) alu(s *state, o *op, fx *effect) {
	d := o.depth
	x, y := m.here.reg(d, o.dst), m.a.operand(m.here, o)
	after := s.reg(d, o.dst)
	dst := machineRegs[o.dst]
	if fx.null {
		if fx.swap {
			m.checkNull(o.src)
		} else {
			m.checkNull(o.dst)
		}
	}
	if o.alu == asm.Mov && !o.w32 && o.reg {
		m.copyOffset(d, o.src, d, o.dst)
		if o.src == 10 {
			m.reg(d, 10, dst)
		} else if o.src != o.dst {
			m.Mov(true, dst, machineRegs[o.src])
		}
		return
	}
	if m.offsets && after.pointsInto() {
		m.moveOffset(o, fx, &x, &y, &after)
	}
	if after.kind == kScalar && after.n.isConst() {
		m.MovImm(dst, after.n.umin)
		return
	}
	wide := !o.w32
	switch o.alu {
	case asm.Mov:
		if o.reg {
			m.Mov(wide, dst, machineRegs[o.src])
		} else {
			m.MovImm(dst, uint64(o.imm))
		}
	case asm.MovSX8:
		m.Extend(wide, true, 1, dst, machineRegs[o.src])
	case asm.MovSX16:
		m.Extend(wide, true, 2, dst, machineRegs[o.src])
	case asm.MovSX32:
		m.Extend(wide, true, 4, dst, machineRegs[o.src])
	case asm.Neg:
		m.Neg(wide, dst)
	case asm.Swap:
		m.swap(o, dst)
	case asm.LSh:
		m.shift(amd64.Shl, o, dst)
	case asm.RSh:
		m.shift(amd64.Shr, o, dst)
	case asm.ArSh:
		m.shift(amd64.Sar, o, dst)
	case asm.Mul:
		if o.reg {
			m.Mul(wide, dst, machineRegs[o.src])
		} else {
			m.times(wide, dst, int32(o.imm))
		}
	case asm.Div, asm.Mod, asm.SDiv, asm.SMod:
		m.divide(o, dst)
	default:
		op := map[asm.ALUOp]amd64.Op{asm.Add: amd64.Add, asm.Sub: amd64.Sub, asm.Or: amd64.Or, asm.And: amd64.And, asm.Xor: amd64.Xor}[o.alu]
		if o.reg {
			m.Op(op, wide, dst, m.reg(d, o.src, scratch1))
		} else {
			m.OpImm(op, wide, dst, int32(o.imm))
		}
	}
}

// moveOffset keeps the offset of a pointer up with arithmetic on it, before that is done.
func (m *assembly) moveOffset(o *op, fx *effect, x, y, after *val) {
	d := o.depth
	if after.n.isConst() {
		m.setOffset(d, o.dst, int64(after.n.umin))
		return
	}
	op := amd64.Add
	if o.alu == asm.Sub {
		op = amd64.Sub
	}
	if fx.swap {
		m.offset(y, d, o.src)
		m.Op(op, true, scratch1, machineRegs[o.dst])
	} else {
		m.offset(x, d, o.dst)
		if o.reg {
			m.Op(op, true, scratch1, machineRegs[o.src])
		} else {
			m.OpImm(op, true, scratch1, int32(o.imm))
		}
	}
	m.Store(8, m.comp(d, o.dst), scratch1)
}

// shift shifts by a constant or a register, whose count the machine masks as eBPF does.
func (m *assembly) shift(s amd64.Shift, o *op, dst amd64.Reg) {
	wide := !o.w32
	if !o.reg {
		last := uint8(63)
		if o.w32 {
			last = 31
		}
		m.Shift(s, wide, dst, uint8(o.imm)&last)
		return
	}
	switch src := machineRegs[o.src]; {
	case src == amd64.RCX && dst != amd64.RCX:
		m.ShiftCL(s, wide, dst)
	case dst == amd64.RCX:
		m.Mov(true, scratch1, dst)
		m.Mov(true, amd64.RCX, src)
		m.ShiftCL(s, wide, scratch1)
		m.Mov(true, amd64.RCX, scratch1)
	default:
		m.Mov(true, scratch1, amd64.RCX)
		m.Mov(true, amd64.RCX, src)
		m.ShiftCL(s, wide, dst)
		m.Mov(true, amd64.RCX, scratch1)
	}
}

// times multiplies by a constant, in less time than a multiplication takes where that can be.
func (m *assembly) times(wide bool, dst amd64.Reg, by int32) {
	switch {
	case by == 3 || by == 5 || by == 9:
		m.LeaTimes(wide, dst, dst, int(by)-1)
	case by > 1 && bits.OnesCount32(uint32(by)) == 1:
		m.Shift(amd64.Shl, wide, dst, uint8(bits.TrailingZeros32(uint32(by))))
	default:
		m.MulImm(wide, dst, dst, by)
	}
}

// reciprocal returns a factor and a shift by which numbers n of 64 bits are divided by d,
// which is not a power of two, without a division: with q the upper half of n*factor,
// n/d = ((n-q)/2 + q) >> shift.
func reciprocal(d uint64) (factor uint64, shift uint8) {
	n := bits.Len64(d - 1)
	factor, _ = bits.Div64(1<<n-d, 0, d)
	return factor + 1, uint8(n - 1)
}

// divideBy divides by a constant without a sign, by its reciprocal.
func (m *assembly) divideBy(wide, mod bool, dst amd64.Reg, by uint64) {
	factor, shift := reciprocal(by)
	m.Mov(wide, scratch1, dst)
	m.Mov(true, scratch3, amd64.RAX)
	m.Mov(true, scratch2, amd64.RDX)
	m.MovImm(amd64.RAX, factor)
	m.MulHigh(scratch1)
	m.Mov(true, amd64.RAX, scratch1)
	m.Op(amd64.Sub, true, amd64.RAX, amd64.RDX)
	m.Shift(amd64.Shr, true, amd64.RAX, 1)
	m.Op(amd64.Add, true, amd64.RAX, amd64.RDX)
	m.Shift(amd64.Shr, true, amd64.RAX, shift)
	if mod {
		m.MulImm(true, amd64.RAX, amd64.RAX, int32(by))
		m.Op(amd64.Sub, true, scratch1, amd64.RAX)
	} else {
		m.Mov(true, scratch1, amd64.RAX)
	}
	m.divided(dst)
}

// divided puts a division's result from scratch1 to where it belongs, and the others back.
func (m *assembly) divided(dst amd64.Reg) {
	if dst != amd64.RAX {
		m.Mov(true, amd64.RAX, scratch3)
	}
	if dst != amd64.RDX {
		m.Mov(true, amd64.RDX, scratch2)
	}
	m.Mov(true, dst, scratch1)
}

// swap compiles byte swaps, and the truncations that go for them on a little-endian
// machine.
func (m *assembly) swap(o *op, dst amd64.Reg) {
	switch {
	case o.width == 16:
		if o.big {
			m.Swap16(dst)
		}
		m.Extend(false, false, 2, dst, dst)
	case o.big:
		m.Bswap(o.width == 64, dst)
	case o.width == 32:
		m.Mov(false, dst, dst)
	}
}

// divide compiles a division by eBPF's rules: by zero it is 0, and the remainder the
// dividend; the lowest number by -1 is itself, and the remainder 0.
func (m *assembly) divide(o *op, dst amd64.Reg) {
	signed, mod := o.alu == asm.SDiv || o.alu == asm.SMod, o.alu == asm.Mod || o.alu == asm.SMod
	wide := !o.w32
	by := uint64(o.imm)
	if o.w32 {
		by = uint64(uint32(o.imm))
	}
	if !o.reg && !signed && bits.OnesCount64(by) == 1 {
		n := bits.TrailingZeros64(by)
		switch {
		case !mod:
			m.Shift(amd64.Shr, wide, dst, uint8(n))
		case n < 32:
			m.OpImm(amd64.And, wide, dst, int32(by-1)) // for n = 31 its highest bit is 0
		default: // a constant of 64 bits can only be one by its sign
			m.MovImm(scratch1, by-1)
			m.Op(amd64.And, wide, dst, scratch1)
		}
		return
	}
	if !o.reg && !signed && by > 2 && by <= math.MaxInt32 {
		m.divideBy(wide, mod, dst, by)
		return
	}
	m.Mov(true, scratch3, amd64.RAX)
	m.Mov(true, scratch2, amd64.RDX)
	if o.reg {
		m.Mov(wide, scratch1, machineRegs[o.src])
	} else {
		m.MovImm(scratch1, by)
	}
	if dst != amd64.RAX {
		m.Mov(true, amd64.RAX, dst)
	}
	zero, minus, divided, done := m.NewLabel(), m.NewLabel(), m.NewLabel(), m.NewLabel()
	m.Test(wide, scratch1, scratch1)
	m.Jcc(amd64.Equal, zero)
	if signed {
		m.OpImm(amd64.Cmp, wide, scratch1, -1)
		m.Jcc(amd64.Equal, minus)
		m.SignRDX(wide)
	} else {
		m.MovImm(amd64.RDX, 0)
	}
	m.Div(wide, signed, scratch1)
	m.Bind(divided)
	if mod {
		m.Mov(wide, scratch1, amd64.RDX)
	} else {
		m.Mov(wide, scratch1, amd64.RAX)
	}
	m.Jmp(done)
	if signed {
		m.Bind(minus)
		m.Neg(wide, amd64.RAX)
		m.MovImm(amd64.RDX, 0)
		m.Jmp(divided)
	}
	m.Bind(zero)
	if mod {
		m.Mov(wide, scratch1, amd64.RAX)
	} else {
		m.MovImm(scratch1, 0)
	}
	m.Bind(done)
	m.divided(dst)
}
