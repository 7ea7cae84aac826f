package bpf

import (
	"bytes"
	"fmt"

	"nvtrace/ptx"
)

// What programs on the host have besides: helpers that write a part of what they may, whose sizes
// are known when they run only, or that read a constant text; and maps whose values are maps.

// innerMaps are the maps in mapOuter by key.
var innerMaps = map[uint32]int{0: mapWide, 1: mapOther}

// hostHelpers are those of programs on the host. Each is also in testdata/machine.c.
func hostHelpers() map[int32]*Helper {
	size := func(k int) ArgSpec { return ArgSpec{Kind: ArgWrite, SizeArg: k} }
	text := ArgSpec{Kind: ArgString, Size: 64}
	return map[int32]*Helper{
		4:   {Name: "read", Args: []ArgSpec{{Kind: ArgWrite, SizeArg: 1, Whole: true}, {Kind: ArgScalar}, {Kind: ArgScalar}}, Emit: emitRead, Interpret: readBytes},
		45:  {Name: "read_str", Args: []ArgSpec{size(1), {Kind: ArgScalar}, {Kind: ArgScalar}}, Emit: emitReadStr, Interpret: readStr},
		165: {Name: "format", Args: []ArgSpec{size(1), {Kind: ArgScalar}, text, {Kind: ArgRead, SizeArg: 4}, {Kind: ArgConst}}, Emit: emitFormat, Interpret: formatted},
		182: {Name: "compare", Args: []ArgSpec{{Kind: ArgRead, SizeArg: 1}, {Kind: ArgScalar}, text}, Emit: emitCompare, Interpret: compared},
	}
}

// emitBytes stores bytes in argument 0 from the first to the last, of those that it has, which are so
// many as argument 1 says: byte off is what of returns. last is signed; bytes behind stay.
func emitBytes(g *Gen, c *Call, last ptx.Arg, of func(off int) ptx.Arg) {
	for off := range c.Args[0].Size() {
		p, v, was := g.Reg(ptx.Pred), g.Reg(ptx.U64), g.Reg(ptx.U64)
		g.Mov(ptx.U64, was, c.Args[0].Load(off, 1))
		g.Mov(ptx.U64, v, of(off))
		g.Setp("ge", ptx.S64, p, last, ptx.Imm(int64(off)))
		g.Selp(ptx.U64, v, v, was, p)
		c.Args[0].Store(off, 1, v)
	}
}

// lastOf is the index of the last byte that there is room for, -1 for no room, or most if that is less.
func lastOf(g *Gen, size ptx.Arg, most ptx.Arg) ptx.Arg {
	last := g.Reg(ptx.S64)
	g.Mov(ptx.U64, last, size)
	g.Sub(ptx.S64, last, last, ptx.Imm(1))
	g.Line("min.s64 " + last.String() + ", " + last.String() + ", " + most.String() + ";")
	return last
}

// read writes all of the bytes: those of a number, again and again.
func emitRead(g *Gen, c *Call) (ptx.Arg, error) {
	v := g.Reg(ptx.U64)
	g.Mov(ptx.U64, v, c.Args[2].Reg())
	emitBytes(g, c, lastOf(g, c.Args[1].Reg(), ptx.Imm(1<<30)), func(off int) ptx.Arg {
		b := g.Reg(ptx.U64)
		g.Line(fmt.Sprintf("shr.u64 %s, %s, %d;", b, v, 8*(off%8)))
		return b
	})
	return ptx.Imm(0), nil
}

func readBytes(in *Interpreter, a [5]uint64) (uint64, error) {
	b := make([]byte, a[1])
	for i := range b {
		b[i] = byte(a[2] >> (8 * (i % 8)))
	}
	return 0, in.WriteMem(a[0], b)
}

// read_str writes "abc…", of a length that its third argument says, and a NUL, and leaves the rest.
func emitReadStr(g *Gen, c *Call) (ptx.Arg, error) {
	n, last, r := g.Reg(ptx.U64), g.Reg(ptx.S64), g.Reg(ptx.U64)
	g.And(ptx.B64, n, c.Args[2].Reg(), ptx.Imm(15))
	g.Mov(ptx.U64, last, lastOf(g, c.Args[1].Reg(), n))
	emitBytes(g, c, last, func(off int) ptx.Arg {
		b, p := g.Reg(ptx.U64), g.Reg(ptx.Pred)
		g.Setp("eq", ptx.S64, p, last, ptx.Imm(int64(off)))
		g.Selp(ptx.U64, b, ptx.Imm(0), ptx.Imm(int64('a'+off)), p)
		return b
	})
	g.Add(ptx.U64, r, last, ptx.Imm(1))
	return r, nil
}

func readStr(in *Interpreter, a [5]uint64) (uint64, error) {
	if a[1] == 0 {
		return 0, nil
	}
	n := min(a[2]&15, a[1]-1)
	return n + 1, in.WriteMem(a[0], append([]byte("abcdefghijklmnop")[:n:n], 0))
}

// format writes a text, some bytes, and a NUL, as far as there is room.
func emitFormat(g *Gen, c *Call) (ptx.Arg, error) {
	text, ok := c.Args[2].Bytes()
	if !ok {
		return ptx.Arg{}, fmt.Errorf("text is not known")
	}
	var all []ptx.Arg
	for _, b := range text {
		all = append(all, ptx.Imm(int64(b)))
	}
	for off := range c.Args[3].Size() {
		b := g.Reg(ptx.U64)
		g.Mov(ptx.U64, b, c.Args[3].Load(off, 1))
		all = append(all, b)
	}
	last := lastOf(g, c.Args[1].Reg(), ptx.Imm(int64(len(all))))
	emitBytes(g, c, last, func(off int) ptx.Arg {
		b, p := g.Reg(ptx.U64), g.Reg(ptx.Pred)
		g.Mov(ptx.U64, b, append(all, ptx.Imm(0))[min(off, len(all))])
		g.Setp("eq", ptx.S64, p, last, ptx.Imm(int64(off)))
		g.Selp(ptx.U64, b, ptx.Imm(0), b, p)
		return b
	})
	return ptx.Imm(int64(len(all) + 1)), nil
}

func formatted(in *Interpreter, a [5]uint64) (uint64, error) {
	text, err := textAt(in, a[2])
	if err != nil {
		return 0, err
	}
	args := make([]byte, a[4])
	if err := in.ReadMem(a[3], args); err != nil && len(args) > 0 {
		return 0, err
	}
	all := append(append(text, args...), 0)
	if a[1] == 0 {
		return uint64(len(all)), nil
	}
	shown := bytes.Clone(all[:min(uint64(len(all)), a[1])])
	shown[len(shown)-1] = 0
	return uint64(len(all)), in.WriteMem(a[0], shown)
}

// textAt reads up to a NUL.
func textAt(in *Interpreter, addr uint64) (text []byte, err error) {
	for {
		var b [1]byte
		if err := in.ReadMem(addr+uint64(len(text)), b[:]); err != nil || b[0] == 0 {
			return text, err
		}
		text = append(text, b[0])
	}
}

// compare is strncmp.
func emitCompare(g *Gen, c *Call) (ptx.Arg, error) {
	text, ok := c.Args[2].Bytes()
	if !ok {
		return ptx.Arg{}, fmt.Errorf("text is not known")
	}
	r, n := g.Reg(ptx.U64), g.Reg(ptx.U64)
	g.Mov(ptx.U64, r, ptx.Imm(0))
	g.Mov(ptx.U64, n, c.Args[1].Reg())
	for off := min(c.Args[0].Size(), len(text)+1) - 1; off >= 0; off-- {
		x, d, p := g.Reg(ptx.U64), g.Reg(ptx.U64), g.Reg(ptx.Pred)
		b := int64(append(bytes.Clone(text), 0)[off])
		g.Mov(ptx.U64, x, c.Args[0].Load(off, 1))
		g.Sub(ptx.S64, d, x, ptx.Imm(b))
		g.Setp("eq", ptx.U64, p, x, ptx.Imm(0))
		g.Selp(ptx.U64, r, d, r, p)
		g.Setp("ne", ptx.U64, p, x, ptx.Imm(b))
		g.Selp(ptx.U64, r, d, r, p)
		g.Setp("le", ptx.U64, p, n, ptx.Imm(int64(off)))
		g.Selp(ptx.U64, r, ptx.Imm(0), r, p)
	}
	return r, nil
}

func compared(in *Interpreter, a [5]uint64) (uint64, error) {
	x := make([]byte, a[1])
	if err := in.ReadMem(a[0], x); err != nil && len(x) > 0 {
		return 0, err
	}
	text, err := textAt(in, a[2])
	for i, c := range x {
		b := append(text, 0)[i]
		if c != b || c == 0 {
			return uint64(int64(c) - int64(b)), err
		}
	}
	return 0, err
}
