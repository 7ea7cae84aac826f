package emit

import (
	"fmt"
	"strconv"
	"strings"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
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

// BytesArg is memory that an argument of a helper points at.
type BytesArg interface {
	// Load returns size bytes (1, 2, 4 or 8) from offset off on, zero-extended: a
	// register of 32 bits, of 64 for a size of 8, or a number.
	Load(off uint64, size int) string
}

// Code writes the PTX of helpers and map accesses.
type Code struct {
	S       sink
	M       *mapmem.Maps
	Weak    bool   // the module is for GPUs before sm_70: no memory model, nanosleep
	Inserts bool   // the update being written inserts a key, and adds to the value of one that is there
	Apart   bool   // the target can't tell which threads of a warp have the same number
	Block   string // the variable of the module with the maps that each block has
	Sm      string // 32-bit register with the multiprocessor's place, below Maps.SMs; "" for the thread's own
}

// F writes a line, by a format.
func (c *Code) F(format string, args ...any) { c.S.Line(fmt.Sprintf(format, args...)) }

// Reg returns a new register.
func (c *Code) Reg(t ptx.Type) string { return c.S.NewReg(t) }

// Label returns a new label, which At places.
func (c *Code) Label() string { return c.S.NewLabel() }

// At places a label.
func (c *Code) At(label string) { c.F("%s:", label) }

// Special returns a register with a special register's 32 bits.
func (c *Code) Special(name string) string {
	r := c.Reg(ptx.B32)
	c.F("mov.u32 %s, %s;", r, name)
	return r
}

// Wide widens 32 bits to 64.
func (c *Code) Wide(r32 string) string {
	r := c.Reg(ptx.B64)
	c.F("cvt.u64.u32 %s, %s;", r, r32)
	return r
}

// smIndex returns a register with the multiprocessor's place, below Maps.SMs.
func (c *Code) smIndex() string {
	if c.Sm != "" {
		return c.Sm
	}
	r := c.Special("%smid")
	c.F("min.u32 %s, %s, %d;", r, r, c.M.SMs-1)
	return r
}

// PerSM returns base + n*step, n being the multiprocessor's place.
func (c *Code) PerSM(base, step uint64) string {
	a := c.Reg(ptx.B64)
	if c.M.SMs == 1 {
		c.F("mov.u64 %s, %#x;", a, base)
		return a
	}
	sm := c.smIndex()
	if step < 1<<32 {
		c.F("mul.wide.u32 %s, %s, %d;", a, sm, step)
	} else {
		c.F("cvt.u64.u32 %s, %s;", a, sm)
		c.F("mul.lo.s64 %s, %s, %d;", a, a, step)
	}
	c.F("add.s64 %s, %s, %#x;", a, a, base)
	return a
}

// count adds one to a counter, in the threads that come by.
func (c *Code) count(counter int) {
	a := c.PerSM(c.M.CounterAddr(counter), c.M.Counted)
	c.F("red.global.add.u64 [%s], 1;", a)
}

// Order returns the modifiers of an access that other threads of the GPU see in
// order: ".acquire.gpu" where the target has a memory model, ".volatile" before.
func (c *Code) Order(mods string) string {
	if c.Weak {
		return ".volatile"
	}
	return mods
}

// fence makes what was written visible, to all who use the map, before what is written next;
// a map that is nil is the GPU's alone.
func (c *Code) fence(x *mapmem.Map) {
	switch {
	case c.Weak && scope(x) == ".sys":
		c.F("membar.sys;")
	case c.Weak:
		c.F("membar.gl;")
	default:
		c.F("fence.acq_rel%s;", scope(x))
	}
}

// scope is that of what must be seen in order by all who use the map.
func scope(x *mapmem.Map) string {
	if x != nil && x.OfHost {
		return ".sys"
	}
	return ".gpu"
}

// ThreadIndex returns a 64-bit register with the thread's number in its grid,
// row by row: ((z*height)+y)*width+x of its place in the grid of threads. Most grids
// have one row: all of the GPU's threads know that alike, and skip the rest.
func (c *Code) ThreadIndex() string {
	place := func(axis string) string {
		r := c.Reg(ptx.B32)
		c.F("mad.lo.s32 %s, %s, %s, %s;", r, c.Special("%ctaid."+axis), c.Special("%ntid."+axis), c.Special("%tid."+axis))
		return r
	}
	width := func(axis string) string {
		r := c.Reg(ptx.B32)
		c.F("mul.lo.s32 %s, %s, %s;", r, c.Special("%nctaid."+axis), c.Special("%ntid."+axis))
		return r
	}
	t, y, w := c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.B64)
	rows, p, done := c.Reg(ptx.B32), c.Reg(ptx.Pred), c.Label()
	c.F("cvt.u64.u32 %s, %s;", t, place("x"))
	c.F("or.b32 %s, %s, %s;", rows, c.Special("%nctaid.y"), c.Special("%nctaid.z"))
	c.F("or.b32 %s, %s, %s;", rows, rows, c.Special("%ntid.y"))
	c.F("or.b32 %s, %s, %s;", rows, rows, c.Special("%ntid.z"))
	c.F("setp.eq.u32 %s, %s, 1;", p, rows)
	c.F("@%s bra.uni %s;", p, done)
	c.F("mul.wide.u32 %s, %s, %s;", y, place("z"), width("y"))
	c.F("add.s64 %s, %s, %s;", y, y, c.Wide(place("y")))
	c.F("cvt.u64.u32 %s, %s;", w, width("x"))
	c.F("mad.lo.s64 %s, %s, %s, %s;", t, y, w, t)
	c.At(done)
	return t
}

// index returns base + key*step in a 64-bit register; key is 32 bits.
func (c *Code) index(key string, base, step uint64) string {
	a := c.Reg(ptx.B64)
	if step < 1<<32 {
		c.F("mul.wide.u32 %s, %s, %d;", a, key, step)
	} else {
		c.F("cvt.u64.u32 %s, %s;", a, key)
		c.F("mul.lo.s64 %s, %s, %d;", a, a, step)
	}
	c.F("add.s64 %s, %s, %#x;", a, a, base)
	return a
}

// Lookup returns a 64-bit register with the address of the value, 0 if there is
// none. found says that there is one.
func (c *Code) Lookup(x *mapmem.Map, key BytesArg, found bool) string {
	switch x.Kind {
	case object.LayoutHash:
		return c.hashLookup(x, key)
	case object.LayoutThread:
		return c.threadLookup(x, key.Load(0, 4))
	}
	return c.arrayLookup(x, key.Load(0, 4), found)
}

func (c *Code) arrayLookup(x *mapmem.Map, key string, found bool) string {
	if x.Def.PerBlock() {
		return c.blockLookup(x, key, found)
	}
	if n, ok := number32(key); ok {
		switch {
		case n >= x.Def.MaxEntries:
			return "0"
		case x.Copies > 1:
			return c.PerSM(x.Base+uint64(n)*x.Stride, x.CopyBytes)
		}
		a := c.Reg(ptx.B64)
		c.F("mov.u64 %s, %#x;", a, x.Base+uint64(n)*x.Stride)
		return a
	}
	a := c.index(key, x.Base, x.Stride)
	if x.Copies > 1 {
		c.F("add.s64 %s, %s, %s;", a, a, c.PerSM(0, x.CopyBytes))
	}
	if !found {
		p := c.Reg(ptx.Pred)
		c.F("setp.lt.u32 %s, %s, %d;", p, key, x.Def.MaxEntries)
		c.F("selp.b64 %s, %s, 0, %s;", a, a, p)
	}
	return a
}

// number32 returns a key that is a number and no register.
func number32(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 0, 32)
	return uint32(n), err == nil
}

// threadLookup counts the threads that the map has no room for.
func (c *Code) threadLookup(x *mapmem.Map, key string) string {
	if n, ok := number32(key); ok && n >= x.Def.MaxEntries {
		return "0"
	}
	a, p, t := c.Reg(ptx.B64), c.Reg(ptx.Pred), c.ThreadIndex()
	room, end := c.Label(), c.Label()
	c.F("setp.lt.u64 %s, %s, %d;", p, t, x.Threads)
	c.F("@%s bra %s;", p, room)
	c.count(x.Counter)
	c.F("mov.u64 %s, 0;", a)
	c.F("bra %s;", end)
	c.At(room)
	if n, ok := number32(key); ok {
		c.F("mad.lo.s64 %s, %s, %d, %#x;", a, t, x.Stride, x.Base+uint64(n)*x.Threads*x.Stride)
		c.At(end)
		return a
	}
	c.F("setp.lt.u32 %s, %s, %d;", p, key, x.Def.MaxEntries)
	c.F("mad.lo.s64 %s, %s, %d, %s;", a, t, x.Stride, c.index(key, x.Base, x.Threads*x.Stride))
	c.F("selp.b64 %s, %s, 0, %s;", a, a, p)
	c.At(end)
	return a
}

// Result returns a 64-bit register that gets a helper's result.
func (c *Code) Result(v int64) string {
	r := c.Reg(ptx.B64)
	c.F("mov.s64 %s, %d;", r, v)
	return r
}

// Update writes a value and returns a register with the result, or a number. flags
// is a register of 64 bits, or a number. found says that there is such a key, uniform
// that all threads write the same value to the same key, used that the result is
// looked at.
func (c *Code) Update(x *mapmem.Map, key, value BytesArg, flags string, found, uniform, used bool) string {
	if x.Kind == object.LayoutHash {
		return c.hashUpdate(x, key, value, flags, used)
	}
	n, known := number32(flags)
	// bpftime's arrays take any flags.
	strict := x.Def.Type == object.MapArray || x.Def.Type == object.MapPerCPUArray || x.Def.PerBlock()
	if known && strict && n > helper.FlagExist {
		return itoa64(helper.EINVAL)
	}
	if known && n == helper.FlagNoExist { // an element of an array is always there
		return itoa64(helper.EEXIST)
	}
	a := c.Lookup(x, key, found)
	if a == "0" {
		return itoa64(helper.E2BIG)
	}
	if known && found {
		c.put(x, a, value, uniform)
		return "0"
	}
	r, p := c.Result(0), c.Reg(ptx.Pred)
	end := c.Label()
	if !known {
		c.F("setp.eq.u64 %s, %s, %d;", p, flags, helper.FlagNoExist)
		c.F("selp.b64 %s, %d, 0, %s;", r, helper.EEXIST, p)
		c.F("@%s bra %s;", p, end)
	}
	if !known && strict {
		c.F("setp.gt.u64 %s, %s, %d;", p, flags, helper.FlagExist)
		c.F("selp.b64 %s, %d, 0, %s;", r, helper.EINVAL, p)
		c.F("@%s bra %s;", p, end)
	}
	if !found {
		c.F("setp.eq.u64 %s, %s, 0;", p, a)
		c.F("selp.b64 %s, %d, 0, %s;", r, helper.E2BIG, p)
		c.F("@%s bra %s;", p, end)
	}
	c.put(x, a, value, uniform)
	c.At(end)
	return r
}

// put stores a whole value, 16 bytes at once where it is aligned so. A value that is
// uniform is not stored where it is there already: one thread's store is as good as
// all of them, and that of a thread that sees the value comes before what others store.
func (c *Code) put(x *mapmem.Map, a string, value BytesArg, uniform bool) {
	size, space := uint64(x.Def.ValueSize), ".global"
	if x.Def.PerBlock() {
		space, a = ".shared", c.inBlock(a)
	}
	if uniform && x.Kind == object.LayoutArray && (size == 4 || size == 8) {
		old, p := c.Reg([]ptx.Type{ptx.B32, ptx.B64}[size/8]), c.Reg(ptx.Pred)
		c.F("ld%s.u%d %s, [%s];", space, 8*size, old, a)
		c.F("setp.ne.u%d %s, %s, %s;", 8*size, p, old, value.Load(0, int(size)))
		c.F("@%s st%s.u%d [%s], %s;", p, space, 8*size, a, value.Load(0, int(size)))
		return
	}
	if size%16 != 0 || x.Base%16 != 0 || x.CopyBytes%16 != 0 {
		c.copyTo(space, a, 0, value, size)
		return
	}
	reg := func(off uint64) string {
		r := c.Reg(ptx.B64)
		c.F("mov.b64 %s, %s;", r, value.Load(off, 8))
		return r
	}
	for off := uint64(0); off < size; off += 16 {
		lo, hi := reg(off), reg(off+8)
		c.F("st%s.v2.b64 [%s+%d], {%s, %s};", space, a, off, lo, hi)
	}
}

// copyTo stores size bytes of src from address a+off on, in the largest pieces
// that the alignment of map values, 8, allows.
func (c *Code) copyTo(space, a string, off uint64, src BytesArg, size uint64) {
	for i := uint64(0); i < size; {
		n := PieceOf(i, size-i)
		c.F("st%s.u%d [%s+%d], %s;", space, 8*n, a, off+i, src.Load(i, n))
		i += uint64(n)
	}
}

// PieceOf returns how many bytes can be accessed at once at offset off of
// something that is aligned to 8, when left bytes are left.
func PieceOf(off, left uint64) int {
	for n := uint64(8); n > 1; n /= 2 {
		if off%n == 0 && left >= n {
			return int(n)
		}
	}
	return 1
}

// Remove deletes a key and returns a register with the result.
func (c *Code) Remove(x *mapmem.Map, key BytesArg) string {
	if x.Kind == object.LayoutHash {
		return c.hashDelete(x, key)
	}
	return c.Result(helper.EINVAL)
}

// keyWords returns the key as 32-bit registers, the last filled with zeros.
func (c *Code) keyWords(x *mapmem.Map, key BytesArg) []string {
	var words []string
	size := uint64(x.Def.KeySize)
	for i := uint64(0); i < size; i += 4 {
		if size-i >= 4 {
			words = append(words, key.Load(i, 4))
			continue
		}
		w := c.Reg(ptx.B32)
		c.F("mov.b32 %s, 0;", w)
		for j := i; j < size; j++ {
			t := c.Reg(ptx.B32)
			c.F("shl.b32 %s, %s, %d;", t, key.Load(j, 1), 8*(j-i))
			c.F("or.b32 %s, %s, %s;", w, w, t)
		}
		words = append(words, w)
	}
	return words
}

// Itoa returns a number's digits.
func Itoa(n uint64) string { return strconv.FormatUint(n, 10) }

func itoa64(n int64) string { return strconv.FormatInt(n, 10) }

// Low returns the low 32 bits of a 64-bit register.
func (c *Code) Low(r64 string) string {
	r := c.Reg(ptx.B32)
	c.F("cvt.u32.u64 %s, %s;", r, r64)
	return r
}

// Counted adds up what the multiprocessors have counted in an array's entry.
func (c *Code) Counted(x *mapmem.Map, key uint32) BytesArg {
	sum, a, v := c.Result(0), c.Reg(ptx.B64), c.Reg(ptx.B64)
	n, q, loop := c.Reg(ptx.B32), c.Reg(ptx.Pred), c.Label()
	c.F("mov.u64 %s, %#x;", a, x.Base+uint64(key)*x.Stride)
	c.F("mov.u32 %s, 0;", n)
	c.F(".pragma \"nounroll\";")
	c.At(loop)
	// Several at once, since each takes long.
	step := 1
	for step < 12 && x.Copies%(step+1) == 0 {
		step++
	}
	values := []string{v}
	for len(values) < step {
		values = append(values, c.Reg(ptx.B64))
	}
	for i, v := range values {
		c.F("ld%s.global.u%d %s, [%s+%d];", c.Order(".relaxed.gpu"), 8*x.Def.ValueSize, v, a, uint64(i)*x.CopyBytes)
	}
	for _, v := range values {
		c.F("add.s64 %s, %s, %s;", sum, sum, v)
	}
	c.F("add.s64 %s, %s, %d;", a, a, uint64(step)*x.CopyBytes)
	c.F("add.u32 %s, %s, %d;", n, n, step)
	c.F("setp.lt.u32 %s, %s, %d;", q, n, x.Copies)
	c.F("@%s bra %s;", q, loop)
	return oneWord{c, sum}
}

// oneWord is memory of 4 or 8 bytes that is in a register.
type oneWord struct {
	c   *Code
	reg string
}

// Load implements bytesArg.
func (w oneWord) Load(off uint64, size int) string {
	if size == 8 {
		return w.reg
	}
	t := w.c.Reg(ptx.B64)
	w.c.F("shr.u64 %s, %s, %d;", t, w.reg, 8*off)
	if size < 4 {
		w.c.F("and.b64 %s, %s, %s;", t, t, HexMask(size))
	}
	return w.c.Low(t)
}

// inBlock returns where in the memory of its block a generic address is.
func (c *Code) inBlock(a string) string {
	r := c.Reg(ptx.B64)
	c.F("cvta.to.shared.u64 %s, %s;", r, a)
	return r
}

// blockLookup is arrayLookup of a map that each block has.
func (c *Code) blockLookup(x *mapmem.Map, key string, found bool) string {
	a := c.Reg(ptx.B64)
	n, known := number32(key)
	if known && n >= x.Def.MaxEntries {
		return "0"
	}
	c.F("mov.u64 %s, %s;", a, c.Block)
	c.F("cvta.shared.u64 %s, %s;", a, a)
	if known {
		c.F("add.s64 %s, %s, %d;", a, a, x.Base+uint64(n)*x.Stride)
		return a
	}
	c.F("add.s64 %s, %s, %s;", a, a, c.index(key, x.Base, x.Stride))
	if !found {
		p := c.Reg(ptx.Pred)
		c.F("setp.lt.u32 %s, %s, %d;", p, key, x.Def.MaxEntries)
		c.F("selp.b64 %s, %s, 0, %s;", a, a, p)
	}
	return a
}

// HexMask returns the mask of so many bytes.
func HexMask(size int) string { return "0x" + strings.Repeat("ff", size) }

// Param loads up to 8 bytes of a parameter in pieces that its alignment allows.
func (c *Code) Param(p *ptx.Param, off uint64) string {
	r := c.Result(0)
	align := max(p.Align, 1)
	for i := uint64(0); i < 8 && off+i < p.Size; {
		n := min(uint64(PieceOf(i, min(8, p.Size-off)-i)), align)
		w := c.Reg(ptx.B64)
		c.F("ld.param.u%d %s, [%s+%d];", 8*n, w, p.Name, off+i)
		if i > 0 {
			c.F("shl.b64 %s, %s, %d;", w, w, 8*i)
		}
		c.F("or.b64 %s, %s, %s;", r, r, w)
		i += n
	}
	return r
}

// Widen returns a parameter that is in a register as 64 bits.
func (c *Code) Widen(p *ptx.Param) (string, error) {
	r, bits := c.Reg(ptx.B64), 8*p.Size
	switch p.Size {
	case 8:
		c.F("mov.b64 %s, %s;", r, p.Name)
	case 4:
		w := c.Reg(ptx.B32)
		c.F("mov.b32 %s, %s;", w, p.Name)
		c.F("cvt.u64.u32 %s, %s;", r, w)
	case 2:
		w := c.Reg(ptx.B16)
		c.F("mov.b16 %s, %s;", w, p.Name)
		c.F("cvt.u64.u16 %s, %s;", r, w)
	default:
		return "", fmt.Errorf("parameter %s has %d bits in a register and can't be read", p.Name, bits)
	}
	return r, nil
}

// Ended counts a run that was ended, and notes where: why and where are registers of 32
// bits.
func (c *Code) Ended(first int, why, where string) {
	a, t := c.PerSM(c.M.CounterAddr(first), c.M.Counted), c.Reg(ptx.U64)
	c.F("mul.wide.u32 %s, %s, %d;", t, why, EndSlots*mapmem.CounterBytes)
	c.F("add.s64 %s, %s, %s;", a, a, t)
	c.F("red.global.add.u64 [%s], 1;", a)
	c.F("st.global.u32 [%s+%d], %s;", a, mapmem.CounterBytes, where)
}

// EndSlots is how many counters each test of a program takes: of the runs that it ended,
// and for the number of the place where that was last.
const EndSlots = 2
