package bpf

import (
	"math/bits"
	"slices"
	"strconv"
)

// alignOf is the alignment of the values of a map.
func (m *Map) alignOf() int {
	if m.Direct {
		return 8
	}
	if m.Align > 0 {
		return min(m.Align, 8)
	}
	return 1 << min(bits.TrailingZeros32(m.ValueSize), 3)
}

// access checks the use of size bytes at off behind register r.
func (a *analysis) access(s *state, i int, r uint8, off int64, size int, write bool) (access, error) {
	o := &a.ops[i]
	v := s.reg(o.depth, r)
	acc := access{kind: v.kind, depth: v.depth, size: size, maps: v.maps, direct: v.direct, align: 8}
	verb := "reads"
	if write {
		verb = "writes"
	}
	switch v.kind {
	case kNone:
		return acc, a.refuse(i, "", "%s through r%d, which was never written", verb, r)
	case kScalar:
		if v.isNull() {
			return acc, a.refuse(i, "test the pointer before", "%s through NULL", verb)
		}
		return acc, a.refuse(i, "only pointers from helpers, maps, the stack and the context can be followed; bpf_probe_read copies memory at an address", "%s through r%d, which is a number", verb, r)
	case kMixed:
		return acc, a.refuse(i, "use one variable for each", "%s through r%d, which holds different things on different paths", verb, r)
	case kMap:
		return acc, a.refuse(i, "look up a value", "%s through a map", verb)
	case kCtx, kText:
		if write {
			return acc, a.refuse(i, "", "writes to the context, which is read-only")
		}
		return a.accessContext(s, i, acc, r, off)
	case kStack:
		acc.object = StackSize
	default:
		acc.object = int(v.size)
		for _, m := range v.maps {
			acc.align = min(acc.align, a.env.Maps[m].alignOf())
			acc.readOnly = acc.readOnly || a.env.Maps[m].ReadOnly
			if write && a.env.Maps[m].ReadOnly {
				return acc, a.refuse(i, "", "writes to %s, which is read-only", a.env.Maps[m].Name)
			}
		}
	}
	if v.null {
		acc.null = true
		s.refineNull(o.depth, r, &v, false)
		v.null = false
	}
	acc, err := a.bounds(s, i, acc, r, v, off)
	if err == nil && v.kind == kValue && a.env.ownOf(v.maps) && !(acc.direct && acc.fixed) {
		return acc, a.refuse(i, "use constant indexes, or a map", "%s a variable that each thread has in registers at a computed place", verb)
	}
	return acc, err
}

// ownOf reports whether one of the maps is in registers.
func (e *Env) ownOf(maps []int32) bool {
	for _, m := range maps {
		if e.Maps[m].Thread {
			return true
		}
	}
	return false
}

// bounds holds the access against its object.
func (a *analysis) bounds(s *state, i int, acc access, r uint8, v val, off int64) (access, error) {
	at := v.n.add(constNum(uint64(off)))
	acc.align = at.align(acc.align)
	last := int64(acc.object - acc.size)
	outside := func() (access, error) {
		where := strconv.FormatInt(at.smin, 10)
		if at.smin != at.smax {
			where += " or more"
		}
		return acc, a.refuse(i, "", "%d bytes at offset %s of %s, which has %d", acc.size, where, v.kind, acc.object)
	}
	switch {
	case at.smin >= 0 && at.smax <= last:
		acc.fixed, acc.off = at.isConst(), int(at.smin)
		acc.lo, acc.hi = int(at.smin), int(at.smax)+acc.size
		return acc, nil
	case at.isConst() || at.smin > last || at.smax < 0 || last < 0:
		return outside()
	}
	acc.bound = true
	n, ok := at.meet(signedNum(0, last))
	if !ok {
		return outside()
	}
	acc.lo, acc.hi = int(n.smin), int(n.smax)+acc.size
	if r < 10 {
		s.frames[a.ops[i].depth].regs[r].n = n.sub(constNum(uint64(off)))
	}
	return acc, nil
}

// accessContext checks a load from the context.
func (a *analysis) accessContext(s *state, i int, acc access, r uint8, off int64) (access, error) {
	v := s.reg(a.ops[i].depth, r)
	if acc.kind == kText {
		acc.object = a.env.Context.Text
		return a.bounds(s, i, acc, r, v, off)
	}
	if a.env.Context == nil {
		return acc, a.refuse(i, "", "reads the context, but this kind of probe has none")
	}
	at := v.n.add(constNum(uint64(off)))
	if !at.isConst() {
		return acc, a.refuse(i, "read fields by name", "reads the context at a computed offset")
	}
	f := a.env.Context.field(at.smin, acc.size)
	if f < 0 {
		return acc, a.refuse(i, "", "the context has no field with the %d bytes at offset %d", acc.size, at.smin)
	}
	acc.fixed, acc.off = true, int(at.smin)
	return acc, nil
}

// field returns the index of the field that holds size bytes at off, or -1.
func (c *Context) field(off int64, size int) int {
	for i := range c.Fields {
		f := &c.Fields[i]
		if off >= int64(f.Offset) && off+int64(size) <= int64(f.Offset+f.Size) {
			return i
		}
	}
	return -1
}

func (a *analysis) stepLoad(s *state, i int, fx *effect) error {
	o := &a.ops[i]
	acc, err := a.access(s, i, o.src, int64(o.off), int(o.size), false)
	if err != nil {
		return err
	}
	fx.acc = acc
	v := scalar(bitsNum(int(o.size) * 8))
	switch {
	case acc.kind == kStack && acc.fixed:
		var torn bool
		v, torn = s.frames[acc.depth].read(acc.off, acc.size)
		if torn || v.kind != kScalar && acc.size != 8 {
			return a.refuse(i, "", "reads a part of a pointer as a number")
		}
		if v.kind == kScalar && v.id == 0 && !v.n.isConst() && !o.signed {
			v.id = s.fresh(int32(i) + 1)
			s.frames[acc.depth].identify(acc.off, acc.size, v.id)
		}
	case acc.kind == kStack:
		if s.frames[acc.depth].holdsPointer(acc.lo, acc.hi) {
			return a.refuse(i, "", "reads the stack at a computed offset, where a pointer may lie")
		}
	case acc.readOnly && acc.direct && acc.fixed:
		if data := a.env.Maps[acc.maps[0]].Contents; acc.off+acc.size <= len(data) {
			v = scalar(constNum(little(data[acc.off : acc.off+acc.size])))
		}
	}
	if o.sync && acc.kind != kStack && acc.align < acc.size {
		return a.refuse(i, "align the field", "an atomic load at an address that may not be a multiple of %d", acc.size)
	}
	if o.signed && v.kind == kScalar {
		v = scalar(v.n.extend(int(o.size) * 8))
	} else if o.signed {
		return a.refuse(i, "", "reads a part of a pointer as a number")
	}
	s.set(o.depth, o.dst, v)
	return nil
}

func little(b []byte) (v uint64) {
	for _, x := range slices.Backward(b) {
		v = v<<8 | uint64(x)
	}
	return v
}

// identify gives the cell at off an id that a register shares.
func (f *frame) identify(off, size int, id int32) {
	for i := range f.cells {
		if c := &f.cells[i]; int(c.off) == off && int(c.size) == size {
			c.v.id = id
		}
	}
}

func (a *analysis) stepStore(s *state, i int, fx *effect) error {
	o := &a.ops[i]
	v := a.operand(s, o)
	if v.kind == kNone {
		return a.refuse(i, "", "reads r%d, which was never written", o.src)
	}
	acc, err := a.access(s, i, o.dst, int64(o.off), int(o.size), true)
	if err != nil {
		return err
	}
	fx.acc = acc
	switch {
	case v.kind == kScalar:
	case acc.kind != kStack:
		return a.refuse(i, "", "stores %s in %s", describe(&v), acc.kind)
	case !acc.fixed || acc.size != 8:
		return a.refuse(i, "", "stores a pointer at a computed offset or in part")
	}
	if o.sync && acc.kind != kStack && acc.align < acc.size {
		return a.refuse(i, "align the field", "an atomic store at an address that may not be a multiple of %d", acc.size)
	}
	if acc.kind != kStack {
		return nil
	}
	f := &s.frames[acc.depth]
	if !acc.fixed {
		f.smear(acc.lo, acc.hi)
		return nil
	}
	if v.kind == kScalar && acc.size < 8 {
		if v.n.umax > bitsNum(acc.size*8).umax {
			v = scalar(v.n.low(acc.size * 8))
		}
	}
	f.write(acc.off, acc.size, v)
	return nil
}

func describe(v *val) string {
	switch v.kind {
	case kMixed, kMap, kScalar:
		return v.kind.String()
	}
	return "a pointer to " + v.kind.String()
}

func (a *analysis) stepAtomic(s *state, i int, fx *effect) error {
	o := &a.ops[i]
	operands := []uint8{o.src}
	if o.atomic == cmpXchg {
		operands = append(operands, 0)
	}
	for _, r := range operands {
		v := s.reg(o.depth, r)
		if v.kind == kNone {
			return a.refuse(i, "", "reads r%d, which was never written", r)
		}
		if v.kind != kScalar {
			return a.refuse(i, "", "stores %s by an atomic operation", describe(&v))
		}
	}
	acc, err := a.access(s, i, o.dst, int64(o.off), int(o.size), true)
	if err != nil {
		return err
	}
	if acc.kind != kStack && acc.fixed && acc.align < acc.size {
		return a.refuse(i, "align the field", "an atomic operation at an address that is no multiple of %d", acc.size)
	}
	fx.acc = acc
	if acc.kind == kStack {
		f := &s.frames[acc.depth]
		if f.holdsPointer(acc.lo, acc.hi) {
			return a.refuse(i, "", "an atomic operation where a pointer may lie")
		}
		f.smear(acc.lo, acc.hi)
		if acc.fixed {
			f.write(acc.off, acc.size, scalar(bitsNum(acc.size*8)))
		}
	}
	if r, ok := o.fetches(); ok {
		s.set(o.depth, r, scalar(bitsNum(acc.size*8)))
	}
	return nil
}
