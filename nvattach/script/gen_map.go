package script

import (
	"encoding/binary"
	"math"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"

	"github.com/cilium/ebpf/asm"
)

// key evaluates the keys of a value of a map and puts them on the stack; bucket, if it is
// not 0, is where the number of the histogram's bucket is. It returns where the key is.
func (g *gen) key(x *mapRef, bucket int16) int16 {
	m := x.m
	if m.array() {
		key := g.alloc(1, x.span)
		if bucket == 0 {
			g.add(asm.StoreImm(asm.RFP, key, 0, asm.Word))
		} else {
			g.load(asm.R1, bucket)
			g.add(asm.StoreMem(asm.RFP, key, asm.R1, asm.Word))
		}
		return key
	}
	words := len(m.keys)
	if bucket != 0 {
		words++
	}
	key := g.alloc(words, x.span)
	for i, k := range x.keys {
		g.expr(k)
		g.store(key+int16(8*i), asm.R0)
	}
	if bucket != 0 {
		g.load(asm.R0, bucket)
		g.store(key+int16(8*len(x.keys)), asm.R0)
	}
	return key
}

// find puts the address of the value of a key into R0, or 0.
func (g *gen) find(m *mapInfo, key int16) {
	g.mapPointer(asm.R1, m.name)
	g.address(asm.R2, key)
	g.call(helper.MapLookup)
}

// lookup puts the address of a value into R0, or 0 if its key is not there.
func (g *gen) lookup(x *mapRef) {
	defer g.scope()()
	g.find(x.m, g.key(x, 0))
}

// insert puts the address of the value of a key into R0, which is inserted if it is not
// there, and jumps to a label if there is no room.
func (g *gen) insert(m *mapInfo, key int16, s span, none int) {
	if !m.array() && g.point.kind.host == object.HostNone {
		g.mapPointer(asm.R1, m.name)
		g.address(asm.R2, key)
		g.call(helper.MapValue)
		g.jump(asm.JEq.Imm(asm.R0, 0, ""), none)
		return
	}
	g.find(m, key)
	if m.array() {
		g.jump(asm.JEq.Imm(asm.R0, 0, ""), none)
		return
	}
	found := g.label()
	g.jump(asm.JNE.Imm(asm.R0, 0, ""), found)
	first := g.alloc(m.words(), s)
	for i := range m.words() {
		g.set(first+int16(8*i), 0)
	}
	g.update(m, key, first, flagNoExist)
	g.find(m, key)
	g.jump(asm.JEq.Imm(asm.R0, 0, ""), none)
	g.place(found)
}

func (g *gen) update(m *mapInfo, key, val int16, flags int64) {
	g.mapPointer(asm.R1, m.name)
	g.address(asm.R2, key)
	g.address(asm.R3, val)
	g.constant(asm.R4, flags)
	g.call(helper.MapUpdate)
}

func (g *gen) assign(s *assign) {
	if v, ok := s.to.(*varRef); ok {
		x := s.x
		if s.op != "" {
			x = &binExpr{value{s.span, typeInt}, s.op, s.to, s.x}
		}
		g.expr(x)
		g.store(g.vars[v.name], asm.R0)
		return
	}
	to := s.to.(*mapRef)
	if c, ok := s.x.(*call); ok {
		g.aggregate(to, c)
		return
	}
	val := g.alloc(1, s.span)
	g.expr(s.x)
	if s.op == "-" {
		g.add(asm.Neg.Imm(asm.R0, 0))
	}
	g.store(val, asm.R0)
	key := g.key(to, 0)
	if s.op == "" && !to.m.array() {
		g.update(to.m, key, val, 0)
		return
	}
	none := g.label()
	g.insert(to.m, key, s.span, none)
	g.load(asm.R1, val)
	switch s.op {
	case "":
		g.add(asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord))
	case "|":
		g.add(asm.OrAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	default:
		g.add(asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	}
	g.place(none)
}

// aggregate adds a value to an aggregation.
func (g *gen) aggregate(to *mapRef, c *call) {
	m, none := to.m, g.label()
	val := g.alloc(1, c.span)
	if len(c.args) > 0 {
		g.expr(c.args[0])
		switch m.agg {
		case aggHist:
			g.bucket(c.span)
		case aggLhist:
			g.step(m)
		case aggMin: // the highest of what is turned around is the lowest
			g.add(asm.Xor.Imm(asm.R0, -1))
		}
		g.store(val, asm.R0)
	}
	bucket := int16(0)
	if m.buckets() > 1 {
		bucket = val
	}
	key := g.key(to, bucket)
	g.insert(m, key, c.span, none)
	switch m.agg {
	case aggCount, aggHist, aggLhist:
		g.constant(asm.R1, 1)
		g.add(asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	case aggSum:
		g.load(asm.R1, val)
		g.add(asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	case aggAvg, aggStats:
		g.load(asm.R1, val)
		g.add(asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
		g.constant(asm.R1, 1)
		g.add(asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 8))
	case aggMin, aggMax:
		// A value that was never set is 0, the least that there is: with the sign
		// turned around, numbers are in the order of those without.
		g.load(asm.R2, val)
		if m.array() {
			g.constant(asm.R1, 1)
			g.add(asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord))
		}
		g.constant(asm.R1, math.MinInt64)
		g.add(asm.Xor.Reg(asm.R2, asm.R1), asm.Mov.Reg(asm.R1, asm.R0))
		g.call(helper.Max)
	}
	g.place(none)
}

// bucket makes of the number in R0 that of its bucket in a histogram of powers of two.
func (g *gen) bucket(s span) {
	positive, out := g.label(), g.label()
	g.jump(asm.JSGT.Imm(asm.R0, 0, ""), positive)
	zero := g.label()
	g.jump(asm.JEq.Imm(asm.R0, 0, ""), zero)
	g.constant(asm.R0, 0)
	g.always(out)
	g.place(zero)
	g.constant(asm.R0, 1)
	g.always(out)
	g.place(positive)
	g.add(asm.Mov.Reg(asm.R1, asm.R0))
	g.call(helper.Log2)
	g.add(asm.Add.Imm(asm.R0, 2))
	g.place(out)
}

// step makes of the number in R0 that of its bucket in a histogram of equal steps.
func (g *gen) step(m *mapInfo) {
	low, high, out := g.label(), g.label(), g.label()
	lo, hi, step := m.lhist[0], m.lhist[1], m.lhist[2]
	g.constant(asm.R1, lo)
	g.jump(asm.JSLT.Reg(asm.R0, asm.R1, ""), low)
	g.constant(asm.R2, hi)
	g.jump(asm.JSGE.Reg(asm.R0, asm.R2, ""), high)
	g.add(asm.Sub.Reg(asm.R0, asm.R1))
	g.constant(asm.R1, step)
	g.add(asm.Div.Reg(asm.R0, asm.R1), asm.Add.Imm(asm.R0, 1))
	g.always(out)
	g.place(low)
	g.constant(asm.R0, 0)
	g.always(out)
	g.place(high)
	g.constant(asm.R0, (hi-lo)/step+1)
	g.place(out)
}

func (g *gen) callStmt(c *call) {
	switch c.fn.Name {
	case "printf":
		g.printf(c)
	case "delete":
		x := c.args[0].(*mapRef)
		key := g.key(x, 0)
		g.mapPointer(asm.R1, x.m.name)
		g.address(asm.R2, key)
		g.call(helper.MapDelete)
	default:
		panic("BUG: " + c.fn.Name + " in a kernel")
	}
}

// printf sends the number of the format and its values; the text is the host's work.
func (g *gen) printf(c *call) {
	n := 0
	for n < len(g.p.formats) && g.p.formats[n] != c {
		n++
	}
	if n == len(g.p.formats) {
		g.p.formats = append(g.p.formats, c)
	}
	words := 1 + c.fmt.words()
	rec := g.alloc(words, c.span)
	g.set(rec, int64(n))
	at := rec + 8
	for i, a := range c.args[1:] {
		if c.fmt.types[i] != typeHeld {
			g.expr(a)
			g.store(at, asm.R0)
			at += 8
			continue
		}
		used := g.scope()
		buf := g.held(a)
		for k := range int16(textBytes / 8) {
			g.load(asm.R0, buf+8*k)
			g.store(at, asm.R0)
			at += 8
		}
		used()
	}
	g.mapPointer(asm.R1, ringName)
	g.address(asm.R2, rec)
	g.constant(asm.R3, int64(8*words))
	g.constant(asm.R4, 0)
	g.call(helper.RingOutput)
}

// written is what a name at a point stands for that is known from the text of the program.
func (g *gen) written(name string) string {
	if name == "probe" {
		return g.p.lexer.text[g.point.at:g.point.end]
	}
	return g.point.named()
}

// held puts a text of the program's memory on the stack, with zeros behind it, and returns where.
func (g *gen) held(x expr) int16 {
	buf := g.alloc(textBytes/8, x.pos())
	var literal []byte
	if lit, ok := x.(*strLit); ok {
		literal = []byte(lit.s)
	}
	for i := range textBytes / 8 {
		g.set(buf+int16(8*i), word(literal, i))
	}
	switch x := x.(type) {
	case *nameRef: // comm
		g.address(asm.R1, buf)
		g.constant(asm.R2, commBytes)
		g.call(helper.Comm)
	case *call:
		size := int64(textBytes)
		if len(x.args) > 1 {
			size = x.args[1].(*intLit).n
		}
		g.expr(x.args[0])
		g.add(asm.Mov.Reg(asm.R3, asm.R0))
		g.address(asm.R1, buf)
		g.constant(asm.R2, size)
		g.call(helper.ReadUserStr)
	}
	return buf
}

// commBytes is the size of a thread's name, with the zero behind it.
const commBytes = 16

// word is the i-th of the words that a text lies in, with zeros behind it.
func word(text []byte, i int) int64 {
	var w [8]byte
	if 8*i < len(text) {
		copy(w[:], text[8*i:])
	}
	return int64(binary.LittleEndian.Uint64(w[:]))
}

// intern puts the number of a text into R0: that by which the map of texts has it, or 0 where
// there is no room for it.
func (g *gen) intern(x expr) {
	defer g.scope()()
	buf, key, val := g.held(x), g.alloc(1, x.pos()), g.alloc(1, x.pos())
	find := func() {
		g.mapPointer(asm.R1, textsName)
		g.address(asm.R2, buf)
		g.call(helper.MapLookup)
	}
	found, none, out := g.label(), g.label(), g.label()
	find()
	g.jump(asm.JNE.Imm(asm.R0, 0, ""), found)
	g.set(key, 0)
	g.mapPointer(asm.R1, countName)
	g.address(asm.R2, key)
	g.call(helper.MapLookup)
	g.jump(asm.JEq.Imm(asm.R0, 0, ""), none)
	g.constant(asm.R1, 1)
	g.add(asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0), asm.Add.Imm(asm.R1, 1))
	g.store(val, asm.R1)
	g.mapPointer(asm.R1, textsName)
	g.address(asm.R2, buf)
	g.address(asm.R3, val)
	g.constant(asm.R4, flagNoExist)
	g.call(helper.MapUpdate)
	find() // another thread may have been first
	g.jump(asm.JEq.Imm(asm.R0, 0, ""), none)
	g.place(found)
	g.add(asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord))
	g.always(out)
	g.place(none)
	g.constant(asm.R0, 0)
	g.place(out)
}

// strncmp puts 0 into R0 if a text begins with the same bytes as a literal, and 1 otherwise.
func (g *gen) strncmp(x *call) {
	defer g.scope()()
	n := int(x.args[2].(*intLit).n)
	literal := []byte(x.args[1].(*strLit).s)
	if n > len(literal) {
		n = len(literal) + 1 // the zero behind it
	}
	n = min(n, textBytes)
	literal = literal[:min(n, len(literal))]
	buf, differ, out := g.held(x.args[0]), g.label(), g.label()
	for i := 0; 8*i < n; i++ {
		g.load(asm.R0, buf+int16(8*i))
		if rest := n - 8*i; rest < 8 { // the bytes behind do not count
			g.add(asm.LSh.Imm(asm.R0, int32(64-8*rest)), asm.RSh.Imm(asm.R0, int32(64-8*rest)))
		}
		g.constant(asm.R1, word(literal, i))
		g.jump(asm.JNE.Reg(asm.R0, asm.R1, ""), differ)
	}
	g.constant(asm.R0, 0)
	g.always(out)
	g.place(differ)
	g.constant(asm.R0, 1)
	g.place(out)
}
