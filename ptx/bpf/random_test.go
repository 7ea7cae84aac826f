package bpf

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// A generator writes random programs that should be accepted. It keeps book of
// what registers and stack slots hold.
type generator struct {
	r      *rand.Rand
	out    asm.Instructions
	labels int
	label  string // for the next instruction
	regs   [10]gen
	spills map[int]gen // pointers on the stack, by offset
	depth  int         // of loops and branches around
	loops  int
	locked uint16 // registers that must not be written
	call   bool   // inside a called function
	funcs  int
	calls  []string // functions to write
	warp   bool     // it is for a warp; see warpStatement
}

// A gen is what a register holds.
type gen struct {
	kind byte // 0 unreadable, 's' number, 'v' value, 'n' value or NULL, 'd' .data, 'p' stack, 'c' context
	m    int  // map of a value
}

func newGenerator(seed uint64) *generator {
	return &generator{r: rand.New(rand.NewPCG(seed, 77)), spills: map[int]gen{}}
}

// program returns a whole program.
func (g *generator) program() *Program {
	g.regs[1] = gen{kind: 'c'}
	if g.r.IntN(4) > 0 {
		g.emit(asm.Mov.Reg(asm.R9, asm.R1))
		g.regs[9] = gen{kind: 'c'}
	}
	for r := range 9 {
		g.number(r)
	}
	for range 4 + g.r.IntN(30) {
		g.statement()
	}
	g.finish()
	for i := 0; i < len(g.calls); i++ {
		g.function(g.calls[i])
	}
	return &Program{Name: "random", Insns: g.out}
}

// finish makes r0 a mix of all that is readable.
func (g *generator) finish() {
	if g.regs[0].kind != 's' {
		g.locked = 0
		g.number(0)
	}
	for r := 1; r < 10; r++ {
		if g.regs[r].kind == 's' {
			g.emit(asm.Mul.Imm(asm.R0, 31), asm.Xor.Reg(asm.R0, asm.Register(r)))
		}
	}
	for range 3 { // and of the stack
		g.emit(asm.LoadMem(asm.R1, asm.R10, int16(-8*(9+g.r.IntN(8))), asm.DWord), asm.Add.Reg(asm.R0, asm.R1))
	}
	g.emit(asm.Return())
}

// function writes a function of two numbers.
func (g *generator) function(name string) {
	g.regs, g.spills, g.locked, g.call = [10]gen{1: {kind: 's'}, 2: {kind: 's'}}, map[int]gen{}, 0, true
	g.label = name
	for r := range 10 {
		if r != 1 && r != 2 {
			g.number(r)
		}
	}
	for range 2 + g.r.IntN(6) {
		g.statement()
	}
	g.finish()
}

func (g *generator) emit(ins ...asm.Instruction) {
	for _, i := range ins {
		if g.label != "" {
			i = i.WithSymbol(g.label)
			g.label = ""
		}
		g.out = append(g.out, i)
	}
}

// place sets a label for the next instruction.
func (g *generator) place(label string) {
	if g.label != "" {
		g.emit(asm.Mov.Reg(asm.R10-1, asm.R10-1).WithSymbol(""))
	}
	g.label = label
}

func (g *generator) newLabel() string {
	g.labels++
	return fmt.Sprintf("L%d", g.labels)
}

func (g *generator) imm32() int32 { return int32(anyValue(g.r)) }

// pick returns a register that holds one of the kinds, or -1.
func (g *generator) pick(kinds string) int {
	start := g.r.IntN(10)
	for i := range 10 {
		r := (start + i) % 10
		if strings.IndexByte(kinds, g.regs[r].kind) >= 0 {
			return r
		}
	}
	return -1
}

// free returns a register that may be written.
func (g *generator) free() int {
	for {
		if r := g.r.IntN(10); g.locked>>r&1 == 0 {
			return r
		}
	}
}

// number makes a register a number.
func (g *generator) number(r int) {
	d := asm.Register(r)
	switch c := g.pick("c"); {
	case c >= 0 && g.r.IntN(3) == 0:
		f := []struct {
			off  int16
			size asm.Size
		}{{0, asm.DWord}, {0, asm.Word}, {4, asm.Half}, {7, asm.Byte}, {8, asm.Word}, {10, asm.Half}, {12, asm.Half}, {14, asm.Byte}}[g.r.IntN(8)]
		g.emit(asm.LoadMem(d, asm.Register(c), f.off, f.size))
	case g.r.IntN(2) == 0:
		g.emit(asm.LoadImm(d, int64(anyValue(g.r)), asm.DWord))
	default:
		g.emit(asm.Mov.Imm(d, g.imm32()))
	}
	g.regs[r] = gen{kind: 's'}
}

// source returns a readable number.
func (g *generator) source() asm.Register {
	r := g.pick("s")
	if r < 0 {
		r = g.free()
		g.number(r)
	}
	return asm.Register(r)
}

// target returns a register that holds a number and may be changed.
func (g *generator) target() asm.Register {
	r := g.free()
	if g.regs[r].kind != 's' {
		g.number(r)
	}
	return asm.Register(r)
}

func (g *generator) statement() {
	if g.warp {
		g.warpStatement()
		return
	}
	switch n := g.r.IntN(100); {
	case n < 35:
		g.arithmetic()
	case n < 48:
		g.stack()
	case n < 56:
		g.pointer()
	case n < 70:
		g.memory()
	case n < 78:
		g.atomic()
	case n < 86:
		g.branch()
	case n < 90:
		g.loop()
	case n < 97:
		g.helper()
	default:
		g.callFunction()
	}
}

func (g *generator) arithmetic() {
	ops := []asm.ALUOp{
		asm.Add, asm.Sub, asm.Mul, asm.Div, asm.Mod, asm.SDiv, asm.SMod, asm.Or, asm.And, asm.Xor, asm.LSh, asm.RSh, asm.ArSh,
		asm.Mov, asm.MovSX8, asm.MovSX16, asm.MovSX32, asm.Neg, asm.Swap,
	}
	d, op := g.target(), ops[g.r.IntN(len(ops))]
	w32 := g.r.IntN(2) == 0
	switch op {
	case asm.Neg:
		if w32 {
			g.emit(asm.Neg.Imm32(d, 0))
		} else {
			g.emit(asm.Neg.Imm(d, 0))
		}
	case asm.Swap:
		size := []asm.Size{asm.Half, asm.Word, asm.DWord}[g.r.IntN(3)]
		g.emit([]asm.Instruction{asm.HostTo(asm.BE, d, size), asm.HostTo(asm.LE, d, size), asm.BSwap(d, size)}[g.r.IntN(3)])
	case asm.MovSX8, asm.MovSX16, asm.MovSX32:
		if w32 && op != asm.MovSX32 {
			g.emit(op.Reg32(d, g.source()))
		} else {
			g.emit(op.Reg(d, g.source()))
		}
	default:
		switch g.r.IntN(4) {
		case 0:
			g.emit(op.Imm(d, g.imm32()))
		case 1:
			g.emit(op.Imm32(d, g.imm32()))
		case 2:
			g.emit(op.Reg(d, g.source()))
		default:
			g.emit(op.Reg32(d, g.source()))
		}
	}
}

// storeImm is asm.StoreImm, with 8 bytes too.
func storeImm(dst asm.Register, off int16, v int64, size asm.Size) asm.Instruction {
	i := asm.StoreImm(dst, off, v, asm.Word)
	i.OpCode = i.OpCode.SetSize(size)
	return i
}

var sizes = []asm.Size{asm.Byte, asm.Half, asm.Word, asm.DWord}

// slot is a place for numbers on the stack: bytes -512 to -65.
func (g *generator) slot(size asm.Size) int16 {
	off := -512 + g.r.IntN(512-64-8)
	if g.r.IntN(3) > 0 {
		off = -64 - 8*(1+g.r.IntN(6)) // few places, so that they overlap
		if g.r.IntN(3) == 0 {
			off -= g.r.IntN(8)
		}
	}
	_ = size
	return int16(off)
}

func (g *generator) stack() {
	size := sizes[g.r.IntN(4)]
	off := g.slot(size)
	base := asm.R10
	if p := g.pick("p"); p >= 0 && g.r.IntN(2) == 0 {
		base, off = asm.Register(p), off+128 // such pointers are r10-128
	}
	switch g.r.IntN(7) {
	case 0, 1:
		g.emit(asm.StoreMem(base, off, g.source(), size))
	case 2:
		g.emit(storeImm(base, off, int64(g.imm32()), size))
	case 3:
		r := g.free()
		g.emit(asm.LoadMem(asm.Register(r), base, off, size))
		g.regs[r] = gen{kind: 's'}
	case 4:
		r := g.free()
		if size != asm.DWord {
			g.emit(asm.LoadMemSX(asm.Register(r), base, off, size))
			g.regs[r] = gen{kind: 's'}
		}
	case 5: // a computed offset, masked to 0..31: bytes -480 to -449
		r, i := g.free(), g.source()
		d := asm.Register(r)
		if d == i {
			return
		}
		g.emit(asm.Mov.Reg(d, i), asm.And.Imm(d, 31), asm.Add.Reg(d, asm.R10))
		if g.r.IntN(2) == 0 {
			g.emit(asm.StoreMem(d, -480, i, size))
		}
		g.emit(asm.LoadMem(d, d, -480, size))
		g.regs[r] = gen{kind: 's'}
	default: // spill or fill a pointer
		at := -8 * (1 + g.r.IntN(6))
		if s, ok := g.spills[at]; ok && g.r.IntN(2) == 0 {
			r := g.free()
			g.emit(asm.LoadMem(asm.Register(r), asm.R10, int16(at), asm.DWord))
			g.regs[r] = s
		} else if r := g.pick("vdpc"); r >= 0 {
			g.emit(asm.StoreMem(asm.R10, int16(at), asm.Register(r), asm.DWord))
			g.spills[at] = g.regs[r]
		}
	}
}

// pointer makes a pointer of some kind.
func (g *generator) pointer() {
	r := g.free()
	d := asm.Register(r)
	switch g.r.IntN(4) {
	case 0:
		g.emit(asm.Mov.Reg(d, asm.R10), asm.Add.Imm(d, -128))
		g.regs[r] = gen{kind: 'p'}
	case 1:
		g.emit(direct(d, mapData, uint32(g.r.IntN(3)*8)))
		g.regs[r] = gen{kind: 'd'}
	default:
		g.lookup(true)
	}
}

func direct(d asm.Register, m int, off uint32) asm.Instruction {
	return asm.LoadMapValue(d, m, off)
}

// lookup looks a value up; the result is in r0 and, if checked, no NULL.
func (g *generator) lookup(checked bool) {
	if g.locked&0x3f != 0 {
		return
	}
	m := g.r.IntN(mapData)
	key := -136 - 4*int16(g.r.IntN(3))
	if g.r.IntN(2) == 0 {
		g.emit(asm.StoreImm(asm.R10, key, int64(g.r.IntN(6)), asm.Word))
	} else {
		s := g.source()
		if g.r.IntN(4) > 0 && g.locked>>s&1 == 0 {
			g.emit(asm.And.Imm32(s, 3))
		}
		g.emit(asm.StoreMem(asm.R10, key, s, asm.Word))
	}
	g.emit(asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, int32(key)), asm.LoadMapPtr(asm.R1, m), asm.FnMapLookupElem.Call())
	clear(g.regs[:6])
	g.regs[0] = gen{'n', m}
	if checked && g.r.IntN(3) > 0 {
		l := g.newLabel()
		if g.r.IntN(2) == 0 {
			g.emit(asm.JNE.Imm(asm.R0, 0, l), asm.Mov.Imm(asm.R0, 7), asm.Return())
		} else {
			l2 := g.newLabel()
			g.emit(asm.JEq.Imm(asm.R0, 0, l2), asm.Ja.Label(l))
			g.place(l2)
			g.emit(asm.Mov.Imm(asm.R0, 9), asm.Return())
		}
		g.place(l)
		g.regs[0].kind = 'v'
	}
	for r := 1; r < 6; r++ {
		g.number(r)
	}
	if r := 6 + g.r.IntN(4); g.locked>>r&1 == 0 {
		g.emit(asm.Mov.Reg(asm.Register(r), asm.R0))
		g.regs[r] = g.regs[0]
	}
}

// valueSize is the size of what a pointer points into.
func valueSize(x gen) int {
	switch {
	case x.kind == 'd':
		return 24 // from any of the offsets
	}
	return []int{8, 32, 12}[x.m]
}

// memory loads from and stores to values, at offsets that may be computed.
func (g *generator) memory() {
	p := g.pick("vnd")
	if p < 0 {
		g.pointer()
		return
	}
	size := sizes[g.r.IntN(4)]
	n := valueSize(g.regs[p])
	if size.Sizeof() > n {
		size = asm.Word
	}
	base, off := asm.Register(p), int16(g.r.IntN(n-size.Sizeof()+1))
	if g.regs[p].kind != 'n' && g.r.IntN(3) == 0 { // computed
		r, i := g.free(), g.source()
		if asm.Register(r) == i || r == p {
			return
		}
		d := asm.Register(r)
		mask := int32(3)
		if g.r.IntN(2) == 0 {
			mask = 31 // may be outside
		}
		c := g.pick("c")
		if c < 0 || r == c {
			return
		}
		g.emit(asm.LoadMem(d, asm.Register(c), 0, asm.DWord), asm.RSh.Imm(d, int32(g.r.IntN(60)))) // not known before
		i = d
		switch g.r.IntN(3) {
		case 0:
			g.emit(asm.Mov.Reg(d, i), asm.And.Imm(d, mask), asm.Add.Reg(d, base))
		case 1:
			g.emit(asm.Mov.Reg(d, i), asm.And.Imm32(d, mask), asm.Add.Reg(d, base))
		default:
			g.emit(asm.Mov.Reg(d, i), asm.And.Imm(d, mask), asm.Neg.Imm(d, 0), asm.Add.Reg(d, base), asm.Add.Imm(d, 3))
		}
		base, off = d, 0
		g.regs[r] = gen{}
		defer func() { g.number(r) }()
	}
	switch g.r.IntN(4) {
	case 0:
		g.emit(asm.StoreMem(base, off, g.source(), size))
	case 1:
		g.emit(storeImm(base, off, int64(g.imm32()), size))
	default:
		r := g.free()
		if size != asm.DWord && g.r.IntN(3) == 0 {
			g.emit(asm.LoadMemSX(asm.Register(r), base, off, size))
		} else {
			g.emit(asm.LoadMem(asm.Register(r), base, off, size))
		}
		g.regs[r] = gen{kind: 's'}
	}
	if g.r.IntN(6) == 0 { // read-only data
		r := g.free()
		g.emit(direct(asm.Register(r), mapRodata, 8), asm.LoadMem(asm.Register(r), asm.Register(r), int16(g.r.IntN(5)), size))
		g.regs[r] = gen{kind: 's'}
	}
}

func (g *generator) atomic() {
	size := []asm.Size{asm.Word, asm.DWord}[g.r.IntN(2)]
	base, off := asm.R10, int16(-64-8*(1+g.r.IntN(6)))
	if p := g.pick("vnd"); p >= 0 && g.r.IntN(4) > 0 {
		base, off = asm.Register(p), 0
		if size == asm.DWord && g.regs[p].m == 2 && g.regs[p].kind != 'd' {
			size = asm.Word // values of 12 bytes
		}
		if n := valueSize(g.regs[p]) / size.Sizeof(); n > 1 {
			off = int16(g.r.IntN(n) * size.Sizeof())
		}
	}
	ops := []asm.AtomicOp{
		asm.AddAtomic, asm.FetchAdd, asm.AndAtomic, asm.FetchAnd, asm.OrAtomic, asm.FetchOr, asm.XorAtomic, asm.FetchXor,
		asm.Xchg, asm.CmpXchg,
	}
	op := ops[g.r.IntN(len(ops))]
	src := g.source()
	fetch := op&0x100 != 0
	if fetch && (g.locked>>src&1 != 0 || src == base) {
		return
	}
	if op == asm.CmpXchg {
		if g.locked&1 != 0 || base == asm.R0 {
			return
		}
		if g.regs[0].kind != 's' || g.r.IntN(2) == 0 {
			g.emit(asm.LoadMem(asm.R0, base, off, size)) // so that it succeeds
			g.regs[0] = gen{kind: 's'}
		}
	}
	g.emit(op.Mem(base, src, size, off))
}
