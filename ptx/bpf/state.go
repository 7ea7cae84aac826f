package bpf

import "slices"

// A kind is what a register or a stack cell holds.
type kind uint8

const (
	kNone   kind = iota // never written, or no longer readable
	kMixed              // one thing or another, so that it may only be copied
	kScalar             // a number
	kCtx                // pointer into the context's structure
	kText               // pointer into the context's string
	kStack              // pointer into a function's stack
	kMap                // a map
	kValue              // pointer into a map's value
	kRecord             // pointer into a record
)

var kindNames = [...]string{
	kNone: "a register that was never written", kMixed: "a register that holds different things on different paths", kScalar: "a number",
	kCtx: "the context", kText: "the context", kStack: "the stack", kMap: "a map", kValue: "a map's value", kRecord: "a record",
}

// String says what it is, for a reason to refuse.
func (k kind) String() string { return kindNames[k] }

func (k kind) pointer() bool { return k >= kCtx }

// A val is what is known of one register or stack cell. At run time it is one
// 64-bit register: a number; an address for kValue and kRecord; the offset from
// the object's first byte for kCtx, kText and kStack; nothing for kMap, but on the host what
// helpers take for it.
type val struct {
	kind   kind
	depth  int8    // kStack: whose
	null   bool    // kValue, kRecord, kMap: it may be NULL
	direct bool    // kValue: the object is the whole value of a Direct map, at a known address
	id     int32   // kept by copies; 0: none
	size   uint32  // kValue, kRecord: bytes of the object
	maps   []int32 // kMap: one, or what it is like; kValue: those that it may be of, ascending; never changed in place
	n      num     // the number, or the pointer's offset from the object's first byte
}

func scalar(n num) val { return val{kind: kScalar, n: n} }

func (v *val) isNull() bool { return v.kind == kScalar && v.n.isConst() && v.n.umin == 0 }

func (v *val) equal(w *val) bool {
	return v.kind == w.kind && v.depth == w.depth && v.null == w.null && v.direct == w.direct && v.id == w.id &&
		v.size == w.size && v.n == w.n && slices.Equal(v.maps, w.maps)
}

// join merges what two paths know. A record or NULL is neither: a test of it for NULL
// does not say whether the program holds the record, and without its id it would
// outlive the record.
func (v *val) join(w *val, num func(a, b num) num) val {
	switch {
	case v.equal(w):
		return *v
	case v.kind == kNone || w.kind == kNone:
		return val{}
	case v.kind == kValue && w.isNull():
		j := *v
		j.null, j.id = true, 0
		return j
	case w.kind == kValue && v.isNull():
		j := *w
		j.null, j.id = true, 0
		return j
	case v.kind != w.kind || v.depth != w.depth || v.kind == kMixed:
		return val{kind: kMixed}
	case v.kind == kMap && v.maps[0] != w.maps[0]:
		return val{kind: kMixed}
	case v.kind == kRecord && (v.id != w.id || v.id == 0 || v.size != w.size):
		return val{kind: kMixed}
	}
	j := *v
	if v.id != w.id {
		j.id = 0
	}
	if j.n != w.n {
		j.n = num(v.n, w.n)
	}
	j.null = v.null || w.null
	if v.kind == kValue {
		j.size = min(v.size, w.size)
		j.direct = v.direct && w.direct && slices.Equal(v.maps, w.maps)
		if !slices.Equal(v.maps, w.maps) {
			j.maps = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(v.maps), w.maps...))))
		}
	}
	return j
}

// A cell is a part of a stack that was written as one.
type cell struct {
	off  uint16 // from the lowest byte of the function's stack
	size uint8  // 1 to 8
	v    val
}

// A frame is what is known of one active function: registers and stack cells,
// ascending and apart. Bytes in no cell were not written and read as 0.
type frame struct {
	regs  [10]val
	cells []cell
}

// A state is what is known at one point of the program.
type state struct {
	frames []frame
	held   []heldRecord
}

// A heldRecord is a record that was taken and not given back; maybe means on
// some paths to this point only.
type heldRecord struct {
	id    int32
	maybe bool
}

func (s *state) clone() *state {
	c := &state{frames: slices.Clone(s.frames), held: slices.Clone(s.held)}
	for i := range c.frames {
		c.frames[i].cells = slices.Clone(c.frames[i].cells)
	}
	return c
}

// join merges t into s and reports whether s changed.
func (s *state) join(t *state, num func(a, b num) num) bool {
	changed := false
	for i := range s.frames {
		a, b := &s.frames[i], &t.frames[i]
		for r := range a.regs {
			if !a.regs[r].equal(&b.regs[r]) {
				j := a.regs[r].join(&b.regs[r], num)
				changed = changed || !j.equal(&a.regs[r])
				a.regs[r] = j
			}
		}
		if a.joinCells(b, num) {
			changed = true
		}
	}
	return s.joinHeld(t) || changed
}

// joinCells merges stack cells. Where the two are cut differently the smaller
// cells win, as numbers of which nothing is known.
func (f *frame) joinCells(b *frame, num func(x, y num) num) bool {
	same := slices.EqualFunc(f.cells, b.cells, func(x, y cell) bool { return x.off == y.off && x.size == y.size && x.v.equal(&y.v) })
	if same {
		return false
	}
	var out []cell
	i, k := 0, 0
	for i < len(f.cells) || k < len(b.cells) {
		switch {
		case k >= len(b.cells) || i < len(f.cells) && f.cells[i].off+uint16(f.cells[i].size) <= b.cells[k].off:
			out = append(out, f.cells[i].withZero(num)) // b has zeros there
			i++
		case i >= len(f.cells) || b.cells[k].off+uint16(b.cells[k].size) <= f.cells[i].off:
			out = append(out, b.cells[k].withZero(num))
			k++
		case f.cells[i].off == b.cells[k].off && f.cells[i].size == b.cells[k].size:
			out = append(out, cell{f.cells[i].off, f.cells[i].size, f.cells[i].v.join(&b.cells[k].v, num)})
			i++
			k++
		default:
			i, k, out = joinOverlap(f.cells, b.cells, i, k, out)
		}
	}
	changed := !slices.EqualFunc(f.cells, out, func(x, y cell) bool { return x.off == y.off && x.size == y.size && x.v.equal(&y.v) })
	f.cells = out
	return changed
}

// withZero is a cell joined with bytes that were never written.
func (c cell) withZero(num func(x, y num) num) cell {
	zero := scalar(constNum(0))
	c.v = c.v.join(&zero, num)
	return c
}

// joinOverlap merges a run of cells that overlap without being the same: every
// byte becomes a cell of its own.
func joinOverlap(a, b []cell, i, k int, out []cell) (int, int, []cell) {
	lo := min(a[i].off, b[k].off)
	hi, plain := lo, true
	for {
		switch {
		case i < len(a) && (a[i].off < hi || a[i].off == lo):
			hi, plain = max(hi, a[i].off+uint16(a[i].size)), plain && a[i].v.kind == kScalar
			i++
		case k < len(b) && (b[k].off < hi || b[k].off == lo):
			hi, plain = max(hi, b[k].off+uint16(b[k].size)), plain && b[k].v.kind == kScalar
			k++
		case i < len(a) && hi == lo: // cannot be: the first two overlap
			return i + 1, k, out
		default:
			for at := lo; at < hi; at++ {
				v := scalar(bitsNum(8))
				if !plain {
					v = val{kind: kMixed}
				}
				out = append(out, cell{at, 1, v})
			}
			return i, k, out
		}
	}
}

func (s *state) joinHeld(t *state) bool {
	changed := false
	for i := range s.held {
		if k := slices.IndexFunc(t.held, func(h heldRecord) bool { return h.id == s.held[i].id }); k < 0 || t.held[k].maybe {
			changed = changed || !s.held[i].maybe
			s.held[i].maybe = true
		}
	}
	for _, h := range t.held {
		if !slices.ContainsFunc(s.held, func(x heldRecord) bool { return x.id == h.id }) {
			s.held = append(s.held, heldRecord{h.id, true})
			changed = true
		}
	}
	return changed
}

// each calls fn for every value that the state holds.
func (s *state) each(fn func(v *val)) {
	for i := range s.frames {
		f := &s.frames[i]
		for r := range f.regs {
			fn(&f.regs[r])
		}
		for c := range f.cells {
			fn(&f.cells[c].v)
		}
	}
}

// fresh makes id mean something new: what held it no longer shares it.
func (s *state) fresh(id int32) int32 {
	s.each(func(v *val) {
		if v.id == id {
			v.id = 0
		}
	})
	return id
}

// read returns what is known of size bytes at off, a pointer or a number, and
// whether a part of a pointer is among them.
func (f *frame) read(off, size int) (v val, torn bool) {
	for i := range f.cells {
		c := &f.cells[i]
		if int(c.off) == off && int(c.size) == size {
			return c.v, false
		}
	}
	n := constNum(0)
	for i := range f.cells {
		c := &f.cells[i]
		lo, hi := max(off, int(c.off)), min(off+size, int(c.off)+int(c.size))
		if lo >= hi {
			continue
		}
		if c.v.kind != kScalar {
			return val{}, true
		}
		part := c.v.n.rsh(uint(lo-int(c.off)) * 8).low((hi - lo) * 8)
		n = n.or(part.lsh(uint(lo-off) * 8))
	}
	return scalar(n), false
}

// write puts v into size bytes at off. What is left of cells that it cuts stays
// known as far as it is numbers.
func (f *frame) write(off, size int, v val) {
	for i := range f.cells {
		if c := &f.cells[i]; int(c.off) == off && int(c.size) == size {
			c.v = v
			return
		}
	}
	out := make([]cell, 0, len(f.cells)+2)
	put := false
	for _, c := range f.cells {
		end := int(c.off) + int(c.size)
		if end <= off || int(c.off) >= off+size {
			if int(c.off) > off && !put {
				out, put = append(out, cell{uint16(off), uint8(size), v}), true
			}
			out = append(out, c)
			continue
		}
		if int(c.off) < off {
			out = append(out, c.part(int(c.off), off))
		}
		if !put {
			out, put = append(out, cell{uint16(off), uint8(size), v}), true
		}
		if end > off+size {
			out = append(out, c.part(off+size, end))
		}
	}
	if !put {
		out = append(out, cell{uint16(off), uint8(size), v})
	}
	f.cells = out
}

// part is the rest of a cell from lo to hi.
func (c *cell) part(lo, hi int) cell {
	v := val{kind: kMixed}
	if c.v.kind == kScalar {
		v = scalar(c.v.n.rsh(uint(lo-int(c.off)) * 8).low((hi - lo) * 8))
	}
	return cell{uint16(lo), uint8(hi - lo), v}
}

// smear says that bytes from lo to hi may have been written with numbers.
func (f *frame) smear(lo, hi int) {
	for i := range f.cells {
		c := &f.cells[i]
		if int(c.off) >= hi || int(c.off)+int(c.size) <= lo {
			continue
		}
		if c.v.kind == kScalar {
			c.v = scalar(bitsNum(int(c.size) * 8))
		} else {
			c.v = val{kind: kMixed}
		}
	}
	for at := lo; at < hi; {
		if at%8 == 0 && at+8 <= hi && f.free(at, at+8) {
			f.write(at, 8, scalar(anyNum))
			at += 8
			continue
		}
		if f.free(at, at+1) {
			f.write(at, 1, scalar(bitsNum(8)))
		}
		at++
	}
}

// free reports whether no cell has bytes of [lo, hi).
func (f *frame) free(lo, hi int) bool {
	return !slices.ContainsFunc(f.cells, func(c cell) bool { return int(c.off) < hi && int(c.off)+int(c.size) > lo })
}

// holdsPointer reports whether a cell with bytes of [lo, hi) is no number.
func (f *frame) holdsPointer(lo, hi int) bool {
	return slices.ContainsFunc(f.cells, func(c cell) bool {
		return int(c.off) < hi && int(c.off)+int(c.size) > lo && c.v.kind != kScalar
	})
}

// constant returns n bytes at off if all of them are known.
func (f *frame) constant(off, n int) ([]byte, bool) {
	out := make([]byte, n)
	for i := range n {
		v, torn := f.read(off+i, 1)
		if torn || !v.n.isConst() {
			return out[:i], false
		}
		out[i] = byte(v.n.umin)
	}
	return out, true
}
