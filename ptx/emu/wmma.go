package emu

import "nvtrace/ptx"

// The fragments of wmma are opaque: which lane holds which element is for the
// machine to say. Here lane l holds the elements l·p to l·p+p-1 of the matrix in
// row order, p being its elements a lane. Where the ISA gives a fragment more registers
// than that, as for f16, the elements are repeated.

func buildWmma(x *insn) error {
	x.ignore(".sync", ".aligned")
	switch x.takeOne(".load", ".store", ".mma") {
	case ".load":
		return x.wmmaMove(false)
	case ".store":
		return x.wmmaMove(true)
	case ".mma":
		return x.wmmaMma()
	}
	return x.badType()
}

// wmmaFragment describes the registers of a rows×cols matrix; transposed gives
// its elements by column first.
func wmmaFragment(e elemType, regs []int32, rows, cols int, transposed bool) (fragment, error) {
	per := rows * cols / warpSize
	n := e.perReg()
	if have := len(regs) * n; per == 0 || have%per != 0 {
		return fragment{}, errf(ErrInvalid, "%d registers for %d elements a lane", len(regs), per)
	}
	return fragment{e, regs, func(lane, r, j int) (int, int) {
		i := lane*per + (r*n+j)%per
		if transposed {
			return i % cols, i / cols
		}
		return i / cols, i % cols
	}}, nil
}

// wmmaDims returns the matrix that an operand is.
func wmmaDims(which string, m, n, k int) (rows, cols int) {
	switch which {
	case ".a":
		return m, k
	case ".b":
		return k, n
	}
	return m, n
}

// wmmaMove compiles wmma.load and wmma.store.
func (x *insn) wmmaMove(store bool) error {
	which := x.takeOne(".a", ".b", ".c", ".d")
	colMajor := x.takeOne(".row", ".col") == ".col"
	m, n, k, ok := x.shape()
	space := x.space()
	types := x.elemTypes()
	if !ok || which == "" || len(types) != 1 || types[0].width < 8 {
		return x.badType()
	}
	e := types[0]
	if err := x.nargs(2, 3); err != nil {
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
	t := ptx.B32
	if e.width == 64 {
		t = ptx.F64
	}
	slots, err := x.elements(regs, t, !store)
	if err != nil {
		return err
	}
	rows, cols := wmmaDims(which, m, n, k)
	f, err := wmmaFragment(e, slots, rows, cols, false)
	if err != nil {
		return err
	}
	lead := cols
	if colMajor {
		lead = rows
	}
	stride := x.constant(uint64(lead))
	if len(x.args) == 3 {
		if stride, err = x.src(&x.args[2], ptx.B32); err != nil {
			return err
		}
	}
	mv := wmmaMove{addr: a, stride: stride, f: f, rows: rows, cols: cols, colMajor: colMajor, slot: uint32(len(x.out.code))}
	if store {
		return x.wholeWarp(mv.store)
	}
	return x.wholeWarp(mv.load)
}

type wmmaMove struct {
	addr       address
	stride     int32
	f          fragment
	rows, cols int
	colMajor   bool
	slot       uint32
}

// element returns the memory of one element; the address and stride are those of
// the first lane, as they must be the same for all.
func (mv *wmmaMove) element(w *warp, row, col int, write bool) []byte {
	size := uint64(mv.f.e.width / 8)
	stride := w.src(mv.stride)[0] & 0xffffffff
	i := uint64(row)*stride + uint64(col)
	if mv.colMajor {
		i = uint64(col)*stride + uint64(row)
	}
	addr := mv.addr.at(w, w.src(mv.addr.base), 0) + i*size
	return w.locate(mv.addr.space, addr, size, 0, write, mv.slot)
}

func (mv *wmmaMove) load(w *warp, _ uint32) {
	buf := make([]uint64, mv.rows*mv.cols)
	for r := range mv.rows {
		for c := range mv.cols {
			p := mv.element(w, r, c, false)
			if p == nil {
				return
			}
			buf[r*mv.cols+c] = loadBytes(p, int(mv.f.e.width/8))
		}
	}
	mv.f.write(w, buf, mv.cols)
}

func (mv *wmmaMove) store(w *warp, _ uint32) {
	buf := make([]uint64, mv.rows*mv.cols)
	mv.f.read(w, buf, mv.cols)
	for r := range mv.rows {
		for c := range mv.cols {
			p := mv.element(w, r, c, true)
			if p == nil {
				return
			}
			storeBytes(p, int(mv.f.e.width/8), buf[r*mv.cols+c])
		}
	}
}

// wmmaMma compiles wmma.mma. Fragments have no layout of their own, so .row and
// .col change nothing.
func (x *insn) wmmaMma() error {
	x.ignore(".row", ".col", ".rn")
	op := &matrixOp{satfinite: x.take(".satfinite")}
	var ok bool
	if op.m, op.n, op.k, ok = x.shape(); !ok || len(x.args) != 4 {
		return x.badType()
	}
	switch types := x.elemTypes(); len(types) {
	case 2: // f16 matrices: the types of d and c
		half, _ := elemOf(".f16")
		op.d, op.a, op.b, op.c = types[0], half, half, types[1]
	case 4:
		op.d, op.a, op.b, op.c = types[0], types[1], types[2], types[3]
	default:
		return x.badType()
	}
	if op.a.width < 8 || (op.a.f == nil) != (op.d.f == nil) || (op.a.f == nil) != (op.b.f == nil) || (op.a.f == nil) != (op.c.f == nil) {
		return x.badType()
	}
	k := op.k
	if op.a.name == ".tf32" {
		k = 4 // compilers make two instructions of it
	}
	if err := op.setUnit(&x.mod.machine.dev, k); err != nil {
		return err
	}
	var f [4]fragment
	for i, e := range []elemType{op.d, op.a, op.b, op.c} {
		t := ptx.B32
		if e.width == 64 {
			t = ptx.F64
		}
		regs, err := x.elements(&x.args[i], t, i == 0)
		if err != nil {
			return err
		}
		rows, cols := wmmaDims([]string{".d", ".a", ".b", ".c"}[i], op.m, op.n, op.k)
		if f[i], err = wmmaFragment(e, regs, rows, cols, i == 2); err != nil {
			return err
		}
	}
	return x.wholeWarp(func(w *warp, _ uint32) { op.multiply(w, &f[1], &f[2], &f[3], &f[0]) })
}

func matrixBuilders() map[string]builder {
	return map[string]builder{
		"mma": buildMma, "ldmatrix": buildLdmatrix, "stmatrix": buildLdmatrix, "movmatrix": buildMovmatrix, "wmma": buildWmma,
	}
}
