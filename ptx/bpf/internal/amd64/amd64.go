// Package amd64 encodes the machine instructions of x86-64 that eBPF programs become.
package amd64

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A Reg is a general-purpose register, by its number in instructions.
type Reg uint8

// The registers.
const (
	RAX Reg = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
)

// A Mem is the memory at a register's value plus a distance.
type Mem struct {
	Base Reg
	Off  int32
}

// An Op is an operation of two operands; its number is that of the group of
// instructions with a constant operand (opcode 81).
type Op uint8

// The operations.
const (
	Add Op = 0
	Or  Op = 1
	And Op = 4
	Sub Op = 5
	Xor Op = 6
	Cmp Op = 7
)

// A Shift is a shift or rotation; its number is that of opcode C1.
type Shift uint8

// The shifts.
const (
	Ror Shift = 1
	Shl Shift = 4
	Shr Shift = 5
	Sar Shift = 7
)

// A Cond is a condition of a jump; its number is that of opcode 0F 80.
type Cond uint8

// The conditions: below and above compare numbers without a sign, less and greater those
// with one.
const (
	Below        Cond = 2
	AboveEqual   Cond = 3
	Equal        Cond = 4
	NotEqual     Cond = 5
	BelowEqual   Cond = 6
	Above        Cond = 7
	Less         Cond = 12
	GreaterEqual Cond = 13
	LessEqual    Cond = 14
	Greater      Cond = 15
)

// A Label is a place in the code that jumps go to.
type Label int

// An Asm collects code. The zero value is ready.
type Asm struct {
	Code   []byte
	labels []int // offsets, -1 for those that have no place yet
	jumps  []fixup
}

// A fixup is a distance that is not known yet: 4 bytes at at, from behind them to to.
type fixup struct {
	at int
	to Label
}

// NewLabel returns a label without a place.
func (a *Asm) NewLabel() Label {
	a.labels = append(a.labels, -1)
	return Label(len(a.labels) - 1)
}

// Bind gives a label its place: here.
func (a *Asm) Bind(l Label) { a.labels[l] = len(a.Code) }

// Finish fills in the distances of jumps. The error names a label without a place.
func (a *Asm) Finish() error {
	for _, f := range a.jumps {
		to := a.labels[f.to]
		if to < 0 {
			return fmt.Errorf("a jump at %#x to label %d, which has no place", f.at, f.to)
		}
		binary.LittleEndian.PutUint32(a.Code[f.at:], uint32(to-f.at-4))
	}
	return nil
}

func (a *Asm) emit(b ...byte) { a.Code = append(a.Code, b...) }

func (a *Asm) imm32(v int32) { a.Code = binary.LittleEndian.AppendUint32(a.Code, uint32(v)) }

// rex writes the prefix for 64 bits and high registers. bytes says that a register is used
// as one of 8 bits, of which only those with a prefix are the low ones of RSI and RDI.
func (a *Asm) rex(wide bool, reg, rm Reg, bytes bool) {
	b := byte(0x40) | byte(reg>>3)<<2 | byte(rm>>3)
	if wide {
		b |= 8
	}
	if b != 0x40 || bytes {
		a.emit(b)
	}
}

// regs writes the operands reg and rm.
func (a *Asm) regs(reg, rm Reg) { a.emit(0xc0 | byte(reg&7)<<3 | byte(rm&7)) }

// mem writes the operands reg and m.
func (a *Asm) mem(reg Reg, m Mem) {
	mode := byte(0x80)
	switch {
	case m.Off == 0 && m.Base&7 != RBP:
		mode = 0
	case m.Off == int32(int8(m.Off)):
		mode = 0x40
	}
	a.emit(mode | byte(reg&7)<<3 | byte(m.Base&7))
	if m.Base&7 == RSP {
		a.emit(0x24)
	}
	switch mode {
	case 0x40:
		a.emit(byte(m.Off))
	case 0x80:
		a.imm32(m.Off)
	}
}

// Mov copies src.
func (a *Asm) Mov(wide bool, dst, src Reg) {
	a.rex(wide, src, dst, false)
	a.emit(0x89)
	a.regs(src, dst)
}

// MovImm sets dst to v.
func (a *Asm) MovImm(dst Reg, v uint64) {
	switch {
	case v == 0:
		a.rex(false, dst, dst, false) // xor
		a.emit(0x31)
		a.regs(dst, dst)
	case v <= math.MaxUint32:
		a.rex(false, 0, dst, false)
		a.emit(0xb8 | byte(dst&7))
		a.imm32(int32(v))
	case v == uint64(int32(v)):
		a.rex(true, 0, dst, false)
		a.emit(0xc7)
		a.regs(0, dst)
		a.imm32(int32(v))
	default:
		a.rex(true, 0, dst, false)
		a.emit(0xb8 | byte(dst&7))
		a.Code = binary.LittleEndian.AppendUint64(a.Code, v)
	}
}

// Extend copies the low size bytes of src, with their sign or with zeros above. wide says
// that the sign goes up to bit 63, not 31.
func (a *Asm) Extend(wide, signed bool, size int, dst, src Reg) {
	a.extension(wide, signed, size, dst, src, size == 1)
	a.regs(dst, src)
}

// Load reads size bytes, with their sign or with zeros above.
func (a *Asm) Load(signed bool, size int, dst Reg, m Mem) {
	a.extension(signed || size == 8, signed, size, dst, m.Base, false)
	a.mem(dst, m)
}

func (a *Asm) extension(wide, signed bool, size int, dst, rm Reg, bytes bool) {
	a.rex(wide && (signed || size == 8), dst, rm, bytes)
	switch {
	case size == 8, size == 4 && !signed:
		a.emit(0x8b)
	case size == 4:
		a.emit(0x63)
	case signed:
		a.emit(0x0f, byte(0xbe+size-1))
	default:
		a.emit(0x0f, byte(0xb6+size-1))
	}
}

// Store writes the low size bytes of src.
func (a *Asm) Store(size int, m Mem, src Reg) {
	if size == 2 {
		a.emit(0x66)
	}
	a.rex(size == 8, src, m.Base, size == 1)
	if size == 1 {
		a.emit(0x88)
	} else {
		a.emit(0x89)
	}
	a.mem(src, m)
}

// StoreImm writes the low size bytes of v.
func (a *Asm) StoreImm(size int, m Mem, v int32) {
	if size == 2 {
		a.emit(0x66)
	}
	a.rex(size == 8, 0, m.Base, false)
	if size == 1 {
		a.emit(0xc6)
	} else {
		a.emit(0xc7)
	}
	a.mem(0, m)
	switch size {
	case 1:
		a.emit(byte(v))
	case 2:
		a.emit(byte(v), byte(v>>8))
	default:
		a.imm32(v)
	}
}

// Lea sets dst to an address.
func (a *Asm) Lea(dst Reg, m Mem) {
	a.rex(true, dst, m.Base, false)
	a.emit(0x8d)
	a.mem(dst, m)
}

// Op computes dst op src in dst.
func (a *Asm) Op(op Op, wide bool, dst, src Reg) {
	a.rex(wide, src, dst, false)
	a.emit(byte(op)<<3 | 1)
	a.regs(src, dst)
}

// OpImm computes dst op v in dst.
func (a *Asm) OpImm(op Op, wide bool, dst Reg, v int32) {
	a.rex(wide, 0, dst, false)
	if v == int32(int8(v)) {
		a.emit(0x83)
		a.regs(Reg(op), dst)
		a.emit(byte(v))
		return
	}
	a.emit(0x81)
	a.regs(Reg(op), dst)
	a.imm32(v)
}

// OpMem computes m op src in m, of size bytes; at once for all threads if locked is set.
func (a *Asm) OpMem(op Op, locked bool, size int, m Mem, src Reg) {
	a.lock(locked, size, src, m)
	if size == 1 {
		a.emit(byte(op) << 3)
	} else {
		a.emit(byte(op)<<3 | 1)
	}
	a.mem(src, m)
}

// lock writes the prefixes of an operation on memory.
func (a *Asm) lock(locked bool, size int, src Reg, m Mem) {
	if locked {
		a.emit(0xf0)
	}
	if size == 2 {
		a.emit(0x66)
	}
	a.rex(size == 8, src, m.Base, size == 1)
}

// OpMemImm computes m op v in m, which has 4 bytes.
func (a *Asm) OpMemImm(op Op, m Mem, v int32) {
	a.rex(false, 0, m.Base, false)
	a.emit(0x81)
	a.mem(Reg(op), m)
	a.imm32(v)
}

// Xadd adds src to m, and sets src to what m was; 4 or 8 bytes.
func (a *Asm) Xadd(locked bool, size int, m Mem, src Reg) {
	a.lock(locked, size, src, m)
	a.emit(0x0f, 0xc1)
	a.mem(src, m)
}

// Xchg exchanges src and m, at once for all threads; 4 or 8 bytes.
func (a *Asm) Xchg(size int, m Mem, src Reg) {
	a.rex(size == 8, src, m.Base, false)
	a.emit(0x87)
	a.mem(src, m)
}

// Cmpxchg sets m to src if it is RAX, and else RAX to m; 4 or 8 bytes.
func (a *Asm) Cmpxchg(locked bool, size int, m Mem, src Reg) {
	a.lock(locked, size, src, m)
	a.emit(0x0f, 0xb1)
	a.mem(src, m)
}

// Test sets the flags by x & y.
func (a *Asm) Test(wide bool, x, y Reg) {
	a.rex(wide, y, x, false)
	a.emit(0x85)
	a.regs(y, x)
}

// TestImm sets the flags by x & v.
func (a *Asm) TestImm(wide bool, x Reg, v int32) {
	a.rex(wide, 0, x, false)
	a.emit(0xf7)
	a.regs(0, x)
	a.imm32(v)
}

// Mul multiplies dst by src.
func (a *Asm) Mul(wide bool, dst, src Reg) {
	a.rex(wide, dst, src, false)
	a.emit(0x0f, 0xaf)
	a.regs(dst, src)
}

// MulImm sets dst to src times v.
func (a *Asm) MulImm(wide bool, dst, src Reg, v int32) {
	a.rex(wide, dst, src, false)
	a.emit(0x69)
	a.regs(dst, src)
	a.imm32(v)
}

// Div divides RDX:RAX by the register; RAX is the result, RDX the remainder.
func (a *Asm) Div(wide, signed bool, by Reg) {
	a.rex(wide, 0, by, false)
	a.emit(0xf7)
	if signed {
		a.regs(7, by)
	} else {
		a.regs(6, by)
	}
}

// MulHigh multiplies RAX by the register, without a sign; RDX:RAX is the result.
func (a *Asm) MulHigh(by Reg) {
	a.rex(true, 0, by, false)
	a.emit(0xf7)
	a.regs(4, by)
}

// LeaTimes sets dst to src + src*scale; scale is 2, 4 or 8, and src not RSP.
func (a *Asm) LeaTimes(wide bool, dst, src Reg, scale int) {
	rex := byte(0x40) | byte(dst>>3)<<2 | byte(src>>3)<<1 | byte(src>>3)
	if wide {
		rex |= 8
	}
	shift := map[int]byte{2: 1, 4: 2, 8: 3}[scale]
	a.emit(rex, 0x8d, 0x44|byte(dst&7)<<3, shift<<6|byte(src&7)<<3|byte(src&7), 0)
}

// SignRDX fills RDX with the sign of RAX.
func (a *Asm) SignRDX(wide bool) {
	a.rex(wide, 0, 0, false)
	a.emit(0x99)
}

// Neg negates a register.
func (a *Asm) Neg(wide bool, r Reg) {
	a.rex(wide, 0, r, false)
	a.emit(0xf7)
	a.regs(3, r)
}

// Bswap reverses the bytes of a register.
func (a *Asm) Bswap(wide bool, r Reg) {
	a.rex(wide, 0, r, false)
	a.emit(0x0f, 0xc8|byte(r&7))
}

// Swap16 exchanges the two low bytes of a register.
func (a *Asm) Swap16(r Reg) {
	a.emit(0x66)
	a.rex(false, 0, r, false)
	a.emit(0xc1)
	a.regs(Reg(Ror), r)
	a.emit(8)
}

// Shift shifts a register by n.
func (a *Asm) Shift(s Shift, wide bool, r Reg, n uint8) {
	a.rex(wide, 0, r, false)
	a.emit(0xc1)
	a.regs(Reg(s), r)
	a.emit(n)
}

// ShiftCL shifts a register by CL.
func (a *Asm) ShiftCL(s Shift, wide bool, r Reg) {
	a.rex(wide, 0, r, false)
	a.emit(0xd3)
	a.regs(Reg(s), r)
}

// Push puts a register on the stack.
func (a *Asm) Push(r Reg) {
	a.rex(false, 0, r, false)
	a.emit(0x50 | byte(r&7))
}

// Pop takes a register from the stack.
func (a *Asm) Pop(r Reg) {
	a.rex(false, 0, r, false)
	a.emit(0x58 | byte(r&7))
}

// Jmp jumps.
func (a *Asm) Jmp(l Label) {
	a.emit(0xe9)
	a.distance(l)
}

// Jcc jumps if a condition holds.
func (a *Asm) Jcc(c Cond, l Label) {
	a.emit(0x0f, 0x80|byte(c))
	a.distance(l)
}

func (a *Asm) distance(l Label) {
	a.jumps = append(a.jumps, fixup{len(a.Code), l})
	a.imm32(0)
}

// CallMem calls the function whose address is at m.
func (a *Asm) CallMem(m Mem) {
	a.rex(false, 0, m.Base, false)
	a.emit(0xff)
	a.mem(2, m)
}

// Ret returns.
func (a *Asm) Ret() { a.emit(0xc3) }

// FrameSize subtracts a number from RSP that [Asm.SetFrameSize] sets later.
func (a *Asm) FrameSize() (at int) {
	a.emit(0x48, 0x81, 0xec)
	a.imm32(0)
	return len(a.Code) - 4
}

// SetFrameSize sets the number of [Asm.FrameSize].
func (a *Asm) SetFrameSize(at int, n int32) {
	binary.LittleEndian.PutUint32(a.Code[at:], uint32(n))
}

// Endbr64 is what functions begin with where indirect branches are tracked.
func (a *Asm) Endbr64() { a.emit(0xf3, 0x0f, 0x1e, 0xfa) }
