package emu

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"nvtrace/ptx"
)

// Matrix instructions work on fragments that are spread over the registers of a
// whole warp. The ISA leaves open how products are added ("the accumulation order is
// unspecified"); matrixUnit is how GPUs do it.

// wholeWarp emits s so that it runs when all lanes of the warp are there. Lanes
// that have diverged wait for one another first.
func (x *insn) wholeWarp(s step) error {
	sync := &syncInst{key: x.op, mask: x.constant(0xffffffff), pred: -1, d: -1, p: -1, exec: func(*syncIO) {}}
	if err := x.control(sync.control); err != nil {
		return err
	}
	x.out.code[len(x.out.code)-1].hidden = true
	return x.step(func(w *warp, m uint32) {
		if m != fullMask {
			w.fail(firstLane(m), errf(ErrInvalid, "executed by lanes %#x, it needs a whole warp together", m))
			return
		}
		s(w, m)
	})
}

// An elemType is the type of a matrix element.
type elemType struct {
	name  string
	width uint
	f     *format // nil for integers
	it    intType
}

func elemOf(mod string) (elemType, bool) {
	switch mod {
	case ".s4", ".u4":
		return elemType{mod, 4, nil, intType{4, mod == ".s4"}}, true
	case ".b1":
		return elemType{mod, 1, nil, intType{1, false}}, true
	}
	t, ok := typeNames[mod]
	if !ok {
		return elemType{}, false
	}
	w := uint(t.Size()) * 8
	if t == ptx.TF32 {
		return elemType{mod, 32, &fmtF32, intType{}}, true
	}
	it, _ := intOf(t)
	f := formatOf(t)
	return elemType{mod, w, f, it}, f != nil || it.width != 0
}

// perReg is the number of elements in one register.
func (e *elemType) perReg() int { return max(1, int(32/e.width)) }

// get extracts element j of a register. Of a tf32 only the upper 19 bits count.
func (e *elemType) get(v uint64, j int) uint64 {
	v = v >> (uint(j) * e.width) & widthMask(e.width)
	if e.name == ".tf32" {
		v &^= 1<<13 - 1
	}
	return v
}

// elemTypes takes the element types of the instruction in order.
func (x *insn) elemTypes() []elemType {
	var out []elemType
	for i, m := range x.mods {
		if e, ok := elemOf(m); ok {
			out = append(out, e)
			x.used[i] = true
		}
	}
	return out
}

// shape takes the modifier .mMnNkK.
func (x *insn) shape() (m, n, k int, ok bool) {
	for i, s := range x.mods {
		if strings.HasPrefix(s, ".m") {
			if c, err := fmt.Sscanf(s, ".m%dn%dk%d", &m, &n, &k); err == nil && c == 3 {
				x.used[i] = true
				return m, n, k, true
			}
		}
	}
	return 0, 0, 0, false
}

// A matrixOp multiplies: d = a·b + c of m×k, k×n and m×n elements.
type matrixOp struct {
	m, n, k    int
	a, b, c, d elemType
	satfinite  bool
	bitOp      string      // of .b1: .xor or .and
	unit       *matrixUnit // of floating-point types up to 32 bits
}

// setUnit takes the unit of the machine's device, where the types need one. k is how many
// products the GPU's instruction has.
func (op *matrixOp) setUnit(d *Device, k int) (err error) {
	if op.a.f == nil || op.a.f == &fmtF64 {
		return nil
	}
	if op.satfinite {
		return errf(ErrNotImplemented, ".satfinite of %s", op.a.name)
	}
	op.unit, err = matrixUnitOf(d, op.a, k)
	return err
}

// accumulate returns the element of d given its row of a and column of b, of types that
// need no unit.
func (op *matrixOp) accumulate(a, b []uint64, c uint64) uint64 {
	switch {
	case op.bitOp != "":
		n := 0
		for i := range a {
			v := a[i] & b[i]
			if op.bitOp == ".xor" {
				v = a[i] ^ b[i]
			}
			n += bits.OnesCount64(v & 1)
		}
		return (c + uint64(n)) & 0xffffffff
	case op.d.f == &fmtF64:
		s := f64(c)
		for i := range a {
			s = math.FMA(f64(a[i]), f64(b[i]), s)
		}
		return bits64(s)
	}
	s := sext(c, 32)
	for i := range a {
		s += int64(op.a.it.ext(a[i])) * int64(op.b.it.ext(b[i]))
	}
	if op.satfinite {
		return op.d.it.clamp(s)
	}
	return uint64(s) & 0xffffffff
}

// A fragment maps the elements of a matrix to registers: at returns the row and
// column of element j of register r in a lane.
type fragment struct {
	e    elemType
	regs []int32
	at   func(lane, r, j int) (row, col int)
}

// read gathers the fragment into dst, row by row with the given length.
func (f *fragment) read(w *warp, dst []uint64, cols int) {
	for r, slot := range f.regs {
		v := w.src(slot)
		for lane := range warpSize {
			for j := range f.e.perReg() {
				row, col := f.at(lane, r, j)
				dst[row*cols+col] = f.e.get(v[lane], j)
			}
		}
	}
}

// write scatters src into the fragment's registers.
func (f *fragment) write(w *warp, src []uint64, cols int) {
	for r, slot := range f.regs {
		reg := &w.regs[slot]
		for lane := range warpSize {
			v := uint64(0)
			for j := range f.e.perReg() {
				row, col := f.at(lane, r, j)
				v |= src[row*cols+col] << (uint(j) * f.e.width)
			}
			reg[lane] = v
		}
	}
}

// The fragments of mma (PTX ISA §9.7.15.5). A quad of lanes holds a row of a, or a
// column of b; registers alternate between the upper and lower eight rows.
func mmaA(e elemType, regs []int32, m int) fragment {
	n := e.perReg()
	return fragment{e, regs, func(lane, r, j int) (int, int) {
		g, t := lane>>2, lane&3
		if m == 8 {
			return g, (r*4+t)*n + j
		}
		return g + 8*(r&1), (r>>1*4+t)*n + j
	}}
}

// mmaB is given transposed: rows are the columns of b.
func mmaB(e elemType, regs []int32) fragment {
	n := e.perReg()
	return fragment{e, regs, func(lane, r, j int) (int, int) { return lane >> 2, (r*4+lane&3)*n + j }}
}

func mmaC(e elemType, regs []int32) fragment {
	n := e.perReg()
	return fragment{e, regs, func(lane, r, j int) (int, int) {
		i := r*n + j // the element's number in the lane
		return lane>>2 + 8*(i>>1), lane&3*2 + i&1
	}}
}

// multiply computes the product for a whole warp; b is read transposed.
func (op *matrixOp) multiply(w *warp, fa, fb, fc, fd *fragment) {
	a, b := make([]uint64, op.m*op.k), make([]uint64, op.n*op.k)
	c, d := make([]uint64, op.m*op.n), make([]uint64, op.m*op.n)
	fa.read(w, a, op.k)
	fb.read(w, b, op.k)
	fc.read(w, c, op.n)
	if op.unit != nil {
		op.addUp(d, a, b, c)
	} else {
		for i := range d {
			row, col := i/op.n*op.k, i%op.n*op.k
			d[i] = op.accumulate(a[row:row+op.k], b[col:col+op.k], c[i])
		}
	}
	fd.write(w, d, op.n)
}

// addUp computes d by the unit, in f32 where c or d is of that type.
func (op *matrixOp) addUp(d, a, b, c []uint64) {
	f := op.c.f
	if op.d.f == &fmtF32 {
		f = op.d.f
	}
	x, y := op.unit.unpack(a, op.a.f, op.k), op.unit.unpack(b, op.b.f, op.k)
	for i := range d {
		row, col := i/op.n*op.k, i%op.n*op.k
		v := c[i]
		if f != op.c.f {
			v = unpack(v, op.c.f).pack(f, roundNearest)
		}
		v = op.unit.sum(x[row:row+op.k], y[col:col+op.k], op.a.f, op.b.f, v, f)
		if f != op.d.f {
			v = unpack(v, f).pack(op.d.f, roundNearest)
		}
		d[i] = v
	}
}

// mmaShapes lists the shapes by the width of an element of a.
var mmaShapes = map[uint][][3]int{
	64: {{8, 8, 4}, {16, 8, 4}, {16, 8, 8}, {16, 8, 16}},
	32: {{16, 8, 4}, {16, 8, 8}},
	16: {{16, 8, 8}, {16, 8, 16}},
	8:  {{8, 8, 16}, {16, 8, 16}, {16, 8, 32}},
	4:  {{8, 8, 32}, {16, 8, 32}, {16, 8, 64}},
	1:  {{8, 8, 128}, {16, 8, 128}, {16, 8, 256}},
}

func buildMma(x *insn) error {
	x.ignore(".sync", ".aligned", ".row", ".col", ".popc")
	op := &matrixOp{satfinite: x.take(".satfinite"), bitOp: x.takeOne(".xor", ".and")}
	var ok bool
	if op.m, op.n, op.k, ok = x.shape(); !ok {
		return x.badType()
	}
	types := x.elemTypes()
	if len(types) != 4 || len(x.args) != 4 {
		return x.badType()
	}
	op.d, op.a, op.b, op.c = types[0], types[1], types[2], types[3]
	if !op.valid() {
		return x.badType()
	}
	if err := op.setUnit(&x.mod.machine.dev, op.k); err != nil {
		return err
	}
	fd, err := x.fragment(0, op.d, op.m*op.n, true)
	if err != nil {
		return err
	}
	fa, err := x.fragment(1, op.a, op.m*op.k, false)
	if err != nil {
		return err
	}
	fb, err := x.fragment(2, op.b, op.n*op.k, false)
	if err != nil {
		return err
	}
	fc, err := x.fragment(3, op.c, op.m*op.n, false)
	if err != nil {
		return err
	}
	a, b, c, d := mmaA(op.a, fa, op.m), mmaB(op.b, fb), mmaC(op.c, fc), mmaC(op.d, fd)
	return x.wholeWarp(func(w *warp, _ uint32) { op.multiply(w, &a, &b, &c, &d) })
}

// valid reports whether the shape and the types go together.
func (op *matrixOp) valid() bool {
	known := false
	for _, s := range mmaShapes[op.a.width] {
		known = known || s == [3]int{op.m, op.n, op.k}
	}
	ints := op.a.f == nil
	return known && op.a.width == op.b.width && ints == (op.b.f == nil) && ints == (op.c.f == nil) && ints == (op.d.f == nil) &&
		(op.a.width == 1) == (op.bitOp != "") && (op.a.width == 64) == (op.d.width == 64) && (op.a.name != ".f32")
}

// fragment resolves operand i as the registers of count elements.
func (x *insn) fragment(i int, e elemType, count int, dst bool) ([]int32, error) {
	t := ptx.B32
	if e.width == 64 {
		t = ptx.F64
	} else if e.f == &fmtF32 {
		t = ptx.F32
	}
	regs, err := x.elements(&x.args[i], t, dst)
	if err != nil {
		return nil, err
	}
	if want := count / warpSize / e.perReg(); len(regs) != want {
		return nil, errf(ErrInvalid, "%d registers for operand %d, want %d", len(regs), i+1, want)
	}
	return regs, nil
}

// buildLdmatrix compiles ldmatrix and stmatrix of 8×8 matrices of 16 bits. Lanes
// 8i to 8i+7 give the addresses of the rows of matrix i.
func buildLdmatrix(x *insn) error {
	store := x.op == "stmatrix"
	x.ignore(".sync", ".aligned")
	if !x.take(".m8n8") || x.lastType() != ptx.B16 {
		return x.badType()
	}
	n := map[string]int{".x1": 1, ".x2": 2, ".x4": 4}[x.takeOne(".x1", ".x2", ".x4")]
	trans := x.take(".trans")
	space := x.space()
	if err := x.nargs(2); err != nil {
		return err
	}
	addr, regs := &x.args[1], &x.args[0]
	if store {
		addr, regs = regs, addr
	}
	a, err := x.address(addr, space)
	if err != nil {
		return err
	}
	slots, err := x.elements(regs, ptx.B32, !store)
	if err != nil {
		return err
	}
	if len(slots) != n {
		return errf(ErrInvalid, "%d registers for %d matrices", len(slots), n)
	}
	slot := uint32(len(x.out.code))
	return x.wholeWarp(func(w *warp, _ uint32) {
		r := *w.src(a.base)
		rows := make([][]byte, 8*n)
		for i := range rows {
			if rows[i] = w.locate(a.space, a.at(w, &r, i), 16, i, store, slot); rows[i] == nil {
				return
			}
		}
		for k, s := range slots {
			if m := rows[8*k : 8*k+8]; store {
				storeMatrix(m, w.src(s), trans)
			} else {
				loadMatrix(m, &w.regs[s], trans)
			}
		}
	})
}

// matrixIndex is where half j of a lane's register lies in an 8×8 matrix.
func matrixIndex(lane, j int, trans bool) (row, col int) {
	row, col = lane>>2, lane&3*2+j
	if trans {
		row, col = col, row
	}
	return row, col
}

func loadMatrix(rows [][]byte, r *lanes, trans bool) {
	for lane := range r {
		v := uint64(0)
		for j := range 2 {
			row, col := matrixIndex(lane, j, trans)
			v |= loadBytes(rows[row][2*col:], 2) << (16 * j)
		}
		r[lane] = v
	}
}

func storeMatrix(rows [][]byte, r *lanes, trans bool) {
	for lane := range r {
		for j := range 2 {
			row, col := matrixIndex(lane, j, trans)
			storeBytes(rows[row][2*col:], 2, r[lane]>>(16*j))
		}
	}
}

// buildMovmatrix compiles movmatrix, which transposes an 8×8 matrix.
func buildMovmatrix(x *insn) error {
	x.ignore(".sync", ".aligned")
	if !x.take(".m8n8") || !x.take(".trans") || x.lastType() != ptx.B16 {
		return x.badType()
	}
	if err := x.nargs(2); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.src(&x.args[1], ptx.B32)
	if err != nil {
		return err
	}
	return x.wholeWarp(func(w *warp, _ uint32) {
		var buf [8][16]byte
		rows := make([][]byte, 8)
		for i := range rows {
			rows[i] = buf[i][:]
		}
		storeMatrix(rows, w.src(s), false)
		loadMatrix(rows, &w.regs[d], true)
	})
}
