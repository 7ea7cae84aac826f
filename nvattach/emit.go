package nvattach

import (
	"fmt"
	"strconv"
	"strings"

	"nvtrace/ptx"
)

// A sink is what code for a probe is written to.
type sink interface {
	// Line appends one line of PTX.
	Line(text string)
	// NewReg declares a register and returns its name.
	NewReg(t ptx.Type) string
	// NewLabel returns the name of a label that nothing else has.
	NewLabel() string
}

// bytesArg is memory that an argument of a helper points at.
type bytesArg interface {
	// Load returns size bytes (1, 2, 4 or 8) from offset off on, zero-extended: a
	// register of 32 bits, of 64 for a size of 8, or a number.
	Load(off uint64, size int) string
}

// code writes the PTX of helpers and map accesses.
type code struct {
	s       sink
	m       *Maps
	weak    bool   // the module is for GPUs before sm_70: no memory model, nanosleep
	inserts bool   // the update being written inserts a key, and adds to the value of one that is there
	apart   bool   // the target can't tell which threads of a warp have the same number
	block   string // the variable of the module with the maps that each block has
	sm      string // 32-bit register with the multiprocessor's place, below Maps.SMs; "" for the thread's own
}

func (c *code) f(format string, args ...any) { c.s.Line(fmt.Sprintf(format, args...)) }

func (c *code) reg(t ptx.Type) string { return c.s.NewReg(t) }

func (c *code) label() string { return c.s.NewLabel() }

func (c *code) at(label string) { c.f("%s:", label) }

// special returns a register with a special register's 32 bits.
func (c *code) special(name string) string {
	r := c.reg(ptx.B32)
	c.f("mov.u32 %s, %s;", r, name)
	return r
}

// wide widens 32 bits to 64.
func (c *code) wide(r32 string) string {
	r := c.reg(ptx.B64)
	c.f("cvt.u64.u32 %s, %s;", r, r32)
	return r
}

// smIndex returns a register with the multiprocessor's place, below Maps.SMs.
func (c *code) smIndex() string {
	if c.sm != "" {
		return c.sm
	}
	r := c.special("%smid")
	c.f("min.u32 %s, %s, %d;", r, r, c.m.SMs-1)
	return r
}

// perSM returns base + n*step, n being the multiprocessor's place.
func (c *code) perSM(base, step uint64) string {
	a := c.reg(ptx.B64)
	if c.m.SMs == 1 {
		c.f("mov.u64 %s, %#x;", a, base)
		return a
	}
	sm := c.smIndex()
	if step < 1<<32 {
		c.f("mul.wide.u32 %s, %s, %d;", a, sm, step)
	} else {
		c.f("cvt.u64.u32 %s, %s;", a, sm)
		c.f("mul.lo.s64 %s, %s, %d;", a, a, step)
	}
	c.f("add.s64 %s, %s, %#x;", a, a, base)
	return a
}

// count adds one to a counter, in the threads that come by.
func (c *code) count(counter int) {
	a := c.perSM(c.m.counterAddr(counter), c.m.counted)
	c.f("red.global.add.u64 [%s], 1;", a)
}

// order returns the modifiers of an access that other threads of the GPU see in
// order: ".acquire.gpu" where the target has a memory model, ".volatile" before.
func (c *code) order(mods string) string {
	if c.weak {
		return ".volatile"
	}
	return mods
}

// fence makes what was written visible, to all who use the map, before what is written next;
// a map that is nil is the GPU's alone.
func (c *code) fence(x *Map) {
	switch {
	case c.weak && x.scope() == ".sys":
		c.f("membar.sys;")
	case c.weak:
		c.f("membar.gl;")
	default:
		c.f("fence.acq_rel%s;", x.scope())
	}
}

// scope is that of what must be seen in order by all who use the map.
func (x *Map) scope() string {
	if x != nil && x.shared {
		return ".sys"
	}
	return ".gpu"
}

// threadIndex returns a 64-bit register with the thread's number in its grid,
// row by row: ((z*height)+y)*width+x of its place in the grid of threads. Most grids
// have one row: all of the GPU's threads know that alike, and skip the rest.
func (c *code) threadIndex() string {
	place := func(axis string) string {
		r := c.reg(ptx.B32)
		c.f("mad.lo.s32 %s, %s, %s, %s;", r, c.special("%ctaid."+axis), c.special("%ntid."+axis), c.special("%tid."+axis))
		return r
	}
	width := func(axis string) string {
		r := c.reg(ptx.B32)
		c.f("mul.lo.s32 %s, %s, %s;", r, c.special("%nctaid."+axis), c.special("%ntid."+axis))
		return r
	}
	t, y, w := c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64)
	rows, p, done := c.reg(ptx.B32), c.reg(ptx.Pred), c.label()
	c.f("cvt.u64.u32 %s, %s;", t, place("x"))
	c.f("or.b32 %s, %s, %s;", rows, c.special("%nctaid.y"), c.special("%nctaid.z"))
	c.f("or.b32 %s, %s, %s;", rows, rows, c.special("%ntid.y"))
	c.f("or.b32 %s, %s, %s;", rows, rows, c.special("%ntid.z"))
	c.f("setp.eq.u32 %s, %s, 1;", p, rows)
	c.f("@%s bra.uni %s;", p, done)
	c.f("mul.wide.u32 %s, %s, %s;", y, place("z"), width("y"))
	c.f("add.s64 %s, %s, %s;", y, y, c.wide(place("y")))
	c.f("cvt.u64.u32 %s, %s;", w, width("x"))
	c.f("mad.lo.s64 %s, %s, %s, %s;", t, y, w, t)
	c.at(done)
	return t
}

// index returns base + key*step in a 64-bit register; key is 32 bits.
func (c *code) index(key string, base, step uint64) string {
	a := c.reg(ptx.B64)
	if step < 1<<32 {
		c.f("mul.wide.u32 %s, %s, %d;", a, key, step)
	} else {
		c.f("cvt.u64.u32 %s, %s;", a, key)
		c.f("mul.lo.s64 %s, %s, %d;", a, a, step)
	}
	c.f("add.s64 %s, %s, %#x;", a, a, base)
	return a
}

// lookup returns a 64-bit register with the address of the value, 0 if there is
// none. found says that there is one.
func (c *code) lookup(x *Map, key bytesArg, found bool) string {
	switch x.kind {
	case layoutHash:
		return c.hashLookup(x, key)
	case layoutThread:
		return c.threadLookup(x, key.Load(0, 4))
	}
	return c.arrayLookup(x, key.Load(0, 4), found)
}

func (c *code) arrayLookup(x *Map, key string, found bool) string {
	if x.Def.PerBlock() {
		return c.blockLookup(x, key, found)
	}
	if n, ok := number32(key); ok {
		switch {
		case n >= x.Def.MaxEntries:
			return "0"
		case x.copies > 1:
			return c.perSM(x.base+uint64(n)*x.stride, x.copyBytes)
		}
		a := c.reg(ptx.B64)
		c.f("mov.u64 %s, %#x;", a, x.base+uint64(n)*x.stride)
		return a
	}
	a := c.index(key, x.base, x.stride)
	if x.copies > 1 {
		c.f("add.s64 %s, %s, %s;", a, a, c.perSM(0, x.copyBytes))
	}
	if !found {
		p := c.reg(ptx.Pred)
		c.f("setp.lt.u32 %s, %s, %d;", p, key, x.Def.MaxEntries)
		c.f("selp.b64 %s, %s, 0, %s;", a, a, p)
	}
	return a
}

// number32 returns a key that is a number and no register.
func number32(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 0, 32)
	return uint32(n), err == nil
}

// threadLookup counts the threads that the map has no room for.
func (c *code) threadLookup(x *Map, key string) string {
	if n, ok := number32(key); ok && n >= x.Def.MaxEntries {
		return "0"
	}
	a, p, t := c.reg(ptx.B64), c.reg(ptx.Pred), c.threadIndex()
	room, end := c.label(), c.label()
	c.f("setp.lt.u64 %s, %s, %d;", p, t, x.threads)
	c.f("@%s bra %s;", p, room)
	c.count(x.counter)
	c.f("mov.u64 %s, 0;", a)
	c.f("bra %s;", end)
	c.at(room)
	if n, ok := number32(key); ok {
		c.f("mad.lo.s64 %s, %s, %d, %#x;", a, t, x.stride, x.base+uint64(n)*x.threads*x.stride)
		c.at(end)
		return a
	}
	c.f("setp.lt.u32 %s, %s, %d;", p, key, x.Def.MaxEntries)
	c.f("mad.lo.s64 %s, %s, %d, %s;", a, t, x.stride, c.index(key, x.base, x.threads*x.stride))
	c.f("selp.b64 %s, %s, 0, %s;", a, a, p)
	c.at(end)
	return a
}

// result returns a 64-bit register that gets a helper's result.
func (c *code) result(v int64) string {
	r := c.reg(ptx.B64)
	c.f("mov.s64 %s, %d;", r, v)
	return r
}

// update writes a value and returns a register with the result, or a number. flags
// is a register of 64 bits, or a number. found says that there is such a key, uniform
// that all threads write the same value to the same key, used that the result is
// looked at.
func (c *code) update(x *Map, key, value bytesArg, flags string, found, uniform, used bool) string {
	if x.kind == layoutHash {
		return c.hashUpdate(x, key, value, flags, used)
	}
	n, known := number32(flags)
	// bpftime's arrays take any flags.
	strict := x.Def.Type == MapArray || x.Def.Type == MapPerCPUArray || x.Def.PerBlock()
	if known && strict && n > flagExist {
		return itoa64(errInval)
	}
	if known && n == flagNoExist { // an element of an array is always there
		return itoa64(errExist)
	}
	a := c.lookup(x, key, found)
	if a == "0" {
		return itoa64(errTooBig)
	}
	if known && found {
		c.put(x, a, value, uniform)
		return "0"
	}
	r, p := c.result(0), c.reg(ptx.Pred)
	end := c.label()
	if !known {
		c.f("setp.eq.u64 %s, %s, %d;", p, flags, flagNoExist)
		c.f("selp.b64 %s, %d, 0, %s;", r, errExist, p)
		c.f("@%s bra %s;", p, end)
	}
	if !known && strict {
		c.f("setp.gt.u64 %s, %s, %d;", p, flags, flagExist)
		c.f("selp.b64 %s, %d, 0, %s;", r, errInval, p)
		c.f("@%s bra %s;", p, end)
	}
	if !found {
		c.f("setp.eq.u64 %s, %s, 0;", p, a)
		c.f("selp.b64 %s, %d, 0, %s;", r, errTooBig, p)
		c.f("@%s bra %s;", p, end)
	}
	c.put(x, a, value, uniform)
	c.at(end)
	return r
}

// put stores a whole value, 16 bytes at once where it is aligned so. A value that is
// uniform is not stored where it is there already: one thread's store is as good as
// all of them, and that of a thread that sees the value comes before what others store.
func (c *code) put(x *Map, a string, value bytesArg, uniform bool) {
	size, space := uint64(x.Def.ValueSize), ".global"
	if x.Def.PerBlock() {
		space, a = ".shared", c.inBlock(a)
	}
	if uniform && x.kind == layoutArray && (size == 4 || size == 8) {
		old, p := c.reg([]ptx.Type{ptx.B32, ptx.B64}[size/8]), c.reg(ptx.Pred)
		c.f("ld%s.u%d %s, [%s];", space, 8*size, old, a)
		c.f("setp.ne.u%d %s, %s, %s;", 8*size, p, old, value.Load(0, int(size)))
		c.f("@%s st%s.u%d [%s], %s;", p, space, 8*size, a, value.Load(0, int(size)))
		return
	}
	if size%16 != 0 || x.base%16 != 0 || x.copyBytes%16 != 0 {
		c.copyTo(space, a, 0, value, size)
		return
	}
	reg := func(off uint64) string {
		r := c.reg(ptx.B64)
		c.f("mov.b64 %s, %s;", r, value.Load(off, 8))
		return r
	}
	for off := uint64(0); off < size; off += 16 {
		lo, hi := reg(off), reg(off+8)
		c.f("st%s.v2.b64 [%s+%d], {%s, %s};", space, a, off, lo, hi)
	}
}

// copyTo stores size bytes of src from address a+off on, in the largest pieces
// that the alignment of map values, 8, allows.
func (c *code) copyTo(space, a string, off uint64, src bytesArg, size uint64) {
	for i := uint64(0); i < size; {
		n := pieceOf(i, size-i)
		c.f("st%s.u%d [%s+%d], %s;", space, 8*n, a, off+i, src.Load(i, n))
		i += uint64(n)
	}
}

// pieceOf returns how many bytes can be accessed at once at offset off of
// something that is aligned to 8, when left bytes are left.
func pieceOf(off, left uint64) int {
	for n := uint64(8); n > 1; n /= 2 {
		if off%n == 0 && left >= n {
			return int(n)
		}
	}
	return 1
}

// remove deletes a key and returns a register with the result.
func (c *code) remove(x *Map, key bytesArg) string {
	if x.kind == layoutHash {
		return c.hashDelete(x, key)
	}
	return c.result(errInval)
}

// keyWords returns the key as 32-bit registers, the last filled with zeros.
func (c *code) keyWords(x *Map, key bytesArg) []string {
	var words []string
	size := uint64(x.Def.KeySize)
	for i := uint64(0); i < size; i += 4 {
		if size-i >= 4 {
			words = append(words, key.Load(i, 4))
			continue
		}
		w := c.reg(ptx.B32)
		c.f("mov.b32 %s, 0;", w)
		for j := i; j < size; j++ {
			t := c.reg(ptx.B32)
			c.f("shl.b32 %s, %s, %d;", t, key.Load(j, 1), 8*(j-i))
			c.f("or.b32 %s, %s, %s;", w, w, t)
		}
		words = append(words, w)
	}
	return words
}

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

func itoa64(n int64) string { return strconv.FormatInt(n, 10) }

// low returns the low 32 bits of a 64-bit register.
func (c *code) low(r64 string) string {
	r := c.reg(ptx.B32)
	c.f("cvt.u32.u64 %s, %s;", r, r64)
	return r
}

// counted adds up what the multiprocessors have counted in an array's entry.
func (c *code) counted(x *Map, key uint32) bytesArg {
	sum, a, v := c.result(0), c.reg(ptx.B64), c.reg(ptx.B64)
	n, q, loop := c.reg(ptx.B32), c.reg(ptx.Pred), c.label()
	c.f("mov.u64 %s, %#x;", a, x.base+uint64(key)*x.stride)
	c.f("mov.u32 %s, 0;", n)
	c.f(".pragma \"nounroll\";")
	c.at(loop)
	// Several at once, since each takes long.
	step := 1
	for step < 12 && x.copies%(step+1) == 0 {
		step++
	}
	values := []string{v}
	for len(values) < step {
		values = append(values, c.reg(ptx.B64))
	}
	for i, v := range values {
		c.f("ld%s.global.u%d %s, [%s+%d];", c.order(".relaxed.gpu"), 8*x.Def.ValueSize, v, a, uint64(i)*x.copyBytes)
	}
	for _, v := range values {
		c.f("add.s64 %s, %s, %s;", sum, sum, v)
	}
	c.f("add.s64 %s, %s, %d;", a, a, uint64(step)*x.copyBytes)
	c.f("add.u32 %s, %s, %d;", n, n, step)
	c.f("setp.lt.u32 %s, %s, %d;", q, n, x.copies)
	c.f("@%s bra %s;", q, loop)
	return oneWord{c, sum}
}

// oneWord is memory of 4 or 8 bytes that is in a register.
type oneWord struct {
	c   *code
	reg string
}

// Load implements bytesArg.
func (w oneWord) Load(off uint64, size int) string {
	if size == 8 {
		return w.reg
	}
	t := w.c.reg(ptx.B64)
	w.c.f("shr.u64 %s, %s, %d;", t, w.reg, 8*off)
	if size < 4 {
		w.c.f("and.b64 %s, %s, %s;", t, t, hexMask(size))
	}
	return w.c.low(t)
}

// inBlock returns where in the memory of its block a generic address is.
func (c *code) inBlock(a string) string {
	r := c.reg(ptx.B64)
	c.f("cvta.to.shared.u64 %s, %s;", r, a)
	return r
}

// blockLookup is arrayLookup of a map that each block has.
func (c *code) blockLookup(x *Map, key string, found bool) string {
	a := c.reg(ptx.B64)
	n, known := number32(key)
	if known && n >= x.Def.MaxEntries {
		return "0"
	}
	c.f("mov.u64 %s, %s;", a, c.block)
	c.f("cvta.shared.u64 %s, %s;", a, a)
	if known {
		c.f("add.s64 %s, %s, %d;", a, a, x.base+uint64(n)*x.stride)
		return a
	}
	c.f("add.s64 %s, %s, %s;", a, a, c.index(key, x.base, x.stride))
	if !found {
		p := c.reg(ptx.Pred)
		c.f("setp.lt.u32 %s, %s, %d;", p, key, x.Def.MaxEntries)
		c.f("selp.b64 %s, %s, 0, %s;", a, a, p)
	}
	return a
}

func hexMask(size int) string { return "0x" + strings.Repeat("ff", size) }

// param loads up to 8 bytes of a parameter in pieces that its alignment allows.
func (c *code) param(p *ptx.Param, off uint64) string {
	r := c.result(0)
	align := max(p.Align, 1)
	for i := uint64(0); i < 8 && off+i < p.Size; {
		n := min(uint64(pieceOf(i, min(8, p.Size-off)-i)), align)
		w := c.reg(ptx.B64)
		c.f("ld.param.u%d %s, [%s+%d];", 8*n, w, p.Name, off+i)
		if i > 0 {
			c.f("shl.b64 %s, %s, %d;", w, w, 8*i)
		}
		c.f("or.b64 %s, %s, %s;", r, r, w)
		i += n
	}
	return r
}

// widen returns a parameter that is in a register as 64 bits.
func (c *code) widen(p *ptx.Param) (string, error) {
	r, bits := c.reg(ptx.B64), 8*p.Size
	switch p.Size {
	case 8:
		c.f("mov.b64 %s, %s;", r, p.Name)
	case 4:
		w := c.reg(ptx.B32)
		c.f("mov.b32 %s, %s;", w, p.Name)
		c.f("cvt.u64.u32 %s, %s;", r, w)
	case 2:
		w := c.reg(ptx.B16)
		c.f("mov.b16 %s, %s;", w, p.Name)
		c.f("cvt.u64.u16 %s, %s;", r, w)
	default:
		return "", fmt.Errorf("parameter %s has %d bits in a register and can't be read", p.Name, bits)
	}
	return r, nil
}

// ended counts a run that was ended, and notes where: why and where are registers of 32
// bits.
func (c *code) ended(first int, why, where string) {
	a, t := c.perSM(c.m.counterAddr(first), c.m.counted), c.reg(ptx.U64)
	c.f("mul.wide.u32 %s, %s, %d;", t, why, endSlots*counterBytes)
	c.f("add.s64 %s, %s, %s;", a, a, t)
	c.f("red.global.add.u64 [%s], 1;", a)
	c.f("st.global.u32 [%s+%d], %s;", a, counterBytes, where)
}

// endSlots is how many counters each test of a program takes: of the runs that it ended,
// and for the number of the place where that was last.
const endSlots = 2
