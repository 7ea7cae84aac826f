package emu

import (
	"math/bits"
	"strings"

	"nvtrace/ptx"
)

// The video instructions work on bytes, halves or whole words of their operands,
// extended to numbers that cannot overflow (PTX ISA §9.7.18).

// A videoOp combines two extended operands.
type videoOp func(a, b int64) int64

func videoAbsdiff(a, b int64) int64 { return max(a, b) - min(a, b) }

// videoAverage rounds halves away from zero for sums that are not negative.
func videoAverage(a, b int64) int64 {
	s := a + b
	if s >= 0 {
		s++
	}
	return s >> 1
}

var videoOps = map[string]videoOp{
	"vadd":     func(a, b int64) int64 { return a + b },
	"vsub":     func(a, b int64) int64 { return a - b },
	"vabsdiff": videoAbsdiff,
	"vavrg":    videoAverage,
	"vmin":     func(a, b int64) int64 { return min(a, b) },
	"vmax":     func(a, b int64) int64 { return max(a, b) },
}

func videoBuilders() map[string]builder {
	m := map[string]builder{"vset": buildVideoSet, "vmad": buildVideoMad, "vshl": buildVideoShift, "vshr": buildVideoShift}
	for name, op := range videoOps {
		if name != "vavrg" {
			m[name] = func(x *insn) error { return x.videoScalar(x.typ(0), x.typ(1), x.typ(2), op) }
		}
		m[name+"2"] = func(x *insn) error { return x.videoPacked(2, x.typ(0), x.typ(1), x.typ(2), op) }
		m[name+"4"] = func(x *insn) error { return x.videoPacked(4, x.typ(0), x.typ(1), x.typ(2), op) }
	}
	m["vset2"] = func(x *insn) error { return x.videoPackedSet(2) }
	m["vset4"] = func(x *insn) error { return x.videoPackedSet(4) }
	return m
}

// selector is the text of an operand's ".b0", ".h1", ".b7610"; "" for none.
func (x *insn) selector(a *ptx.Operand) string {
	if a.Sel != ptx.SelOther {
		return ""
	}
	x.understood(a)
	return x.text(ptx.Span{Pos: a.Name.End, End: a.End})
}

// A part selects a byte, a half or the whole of a word.
type part struct {
	shift, width uint
}

func parsePart(s string) (part, bool) {
	if s == "" {
		return part{0, 32}, true
	}
	if len(s) != 3 || s[2] < '0' {
		return part{}, false
	}
	n := uint(s[2] - '0')
	switch {
	case s[1] == 'b' && n < 4:
		return part{8 * n, 8}, true
	case s[1] == 'h' && n < 2:
		return part{16 * n, 16}, true
	}
	return part{}, false
}

// extract reads the part as a number of the type's signedness.
func (p part) extract(v uint64, signed bool) int64 {
	return int64(intType{p.width, signed}.ext(v >> p.shift))
}

// clampTo saturates v to a number of width bits.
func clampTo(v int64, width uint, signed bool) int64 {
	if signed {
		return min(max(v, -1<<(width-1)), 1<<(width-1)-1)
	}
	return min(max(v, 0), 1<<width-1)
}

// A videoDst is what follows the operation: saturation, then a second operation
// with c or the insertion into c.
type videoDst struct {
	d      int32
	part   part
	signed bool
	sat    bool
	second string
	merge  bool
	c      int32
}

// videoDst reads destination, saturation and the third operand.
func (x *insn) videoDst(signed bool) (*videoDst, error) {
	if err := x.nargs(3, 4); err != nil {
		return nil, err
	}
	v := &videoDst{signed: signed, sat: x.take(".sat"), second: x.takeOne(".add", ".min", ".max")}
	sel := x.selector(&x.args[0])
	v.merge = sel != ""
	var ok bool
	if v.part, ok = parsePart(sel); !ok {
		return nil, errf(ErrInvalid, "selector %s", sel)
	}
	var err error
	if v.d, _, err = x.dst(&x.args[0]); err != nil {
		return nil, err
	}
	v.c = x.constant(0)
	if len(x.args) == 4 {
		v.c, err = x.src(&x.args[3], ptx.B32)
	} else if v.merge || v.second != "" {
		return nil, x.nargs(4)
	}
	return v, err
}

// finish turns the result of the first operation into the destination's value.
func (v *videoDst) finish(t int64, c uint64) uint64 {
	if v.sat {
		t = clampTo(t, v.part.width, v.signed)
	}
	it := intType{32, v.signed}
	switch {
	case v.second == ".add":
		return (uint64(t) + c) & 0xffffffff
	case v.second == ".min":
		return it.min(uint64(t), c)
	case v.second == ".max":
		return it.max(uint64(t), c)
	case v.merge:
		m := widthMask(v.part.width) << v.part.shift
		return c&^m&0xffffffff | uint64(t)<<v.part.shift&m
	}
	return uint64(t) & 0xffffffff
}

// videoScalar emits an operation on parts of words.
func (x *insn) videoScalar(td, ta, tb ptx.Type, op videoOp) error {
	v, err := x.videoDst(td.Signed())
	if err != nil {
		return err
	}
	pa, ok1 := parsePart(x.selector(&x.args[1]))
	pb, ok2 := parsePart(x.selector(&x.args[2]))
	if !ok1 || !ok2 {
		return errf(ErrInvalid, "selector of an operand")
	}
	s, err := x.srcs(1, 2, ptx.B32)
	if err != nil {
		return err
	}
	as, bs := ta.Signed(), tb.Signed()
	return x.step(lift3(func(a, b, c uint64) uint64 {
		return v.finish(op(pa.extract(a, as), pb.extract(b, bs)), c)
	}, nil, v.d, s[0], s[1], v.c))
}

// videoCompare takes the comparison of vset.
func (x *insn) videoCompare() (videoOp, bool) {
	for _, m := range []string{".eq", ".ne", ".lt", ".le", ".gt", ".ge"} {
		if !x.take(m) {
			continue
		}
		want := cmpOps[m]
		return func(a, b int64) int64 {
			switch {
			case a < b:
				return int64(boolBit(want&cmpLess != 0))
			case a == b:
				return int64(boolBit(want&cmpEqual != 0))
			}
			return int64(boolBit(want&cmpGreater != 0))
		}, true
	}
	return nil, false
}

func buildVideoSet(x *insn) error {
	op, ok := x.videoCompare()
	if !ok {
		return x.badType()
	}
	return x.videoScalar(ptx.U32, x.typ(0), x.typ(1), op)
}

// buildVideoShift compiles vshl and vshr: the count is unsigned, at most 32.
func buildVideoShift(x *insn) error {
	wrap := x.takeOne(".clamp", ".wrap") == ".wrap"
	left := x.op == "vshl"
	return x.videoScalar(x.typ(0), x.typ(1), ptx.U32, func(a, b int64) int64 {
		if wrap {
			b &= 31
		}
		b = min(b, 32)
		if !left {
			return a >> b
		}
		r := sext(uint64(a<<b), 34) // what an H200's intermediate has
		return r
	})
}

// buildVideoMad compiles vmad: a × b + c in 128 bits, scaled down.
func buildVideoMad(x *insn) error {
	if err := x.nargs(4); err != nil {
		return err
	}
	args := make([]ptx.Operand, 4)
	copy(args, x.args)
	var neg [4]bool
	for i := range args {
		neg[i] = args[i].Has(ptx.Minus)
		x.understood(&args[i])
		args[i].Flags &^= ptx.Minus
	}
	x.args = args
	pa, ok1 := parsePart(x.selector(&args[1]))
	pb, ok2 := parsePart(x.selector(&args[2]))
	if !ok1 || !ok2 {
		return errf(ErrInvalid, "selector of an operand")
	}
	m := videoMad{
		plusOne: x.take(".po"), negProduct: neg[1] != neg[2], negC: neg[3], sat: x.take(".sat"),
		shift: map[string]uint{".shr7": 7, ".shr15": 15}[x.takeOne(".shr7", ".shr15")],
	}
	as, bs := x.typ(1).Signed(), x.typ(2).Signed()
	m.signed = as || bs || m.negProduct || m.negC
	// An H200 multiplies whole words as signed numbers whatever their type, which
	// shows when the product is scaled; the ISA would have unsigned ones.
	as, bs = as || pa.width == 32, bs || pb.width == 32
	d, _, err := x.dst(&args[0])
	if err != nil {
		return err
	}
	s, err := x.srcs(1, 3, ptx.B32)
	if err != nil {
		return err
	}
	return x.step(lift3(func(a, b, c uint64) uint64 {
		return m.compute(pa.extract(a, as), pb.extract(b, bs), c)
	}, nil, d, s[0], s[1], s[2]))
}

type videoMad struct {
	plusOne, negProduct, negC, signed, sat bool
	shift                                  uint
}

func (m *videoMad) compute(a, b int64, c uint64) uint64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if a < 0 {
		hi -= uint64(b)
	}
	if b < 0 {
		hi -= uint64(a)
	}
	one := uint64(0)
	switch {
	case m.plusOne:
		one = 1
	case m.negProduct:
		hi, lo, one = ^hi, ^lo, 1
	case m.negC:
		c, one = ^c, 1
	}
	c = uint64(sext(c, 32)) // like the factors
	chi := uint64(int64(c) >> 63)
	lo, carry := bits.Add64(lo, c, 0)
	hi += chi + carry
	lo, carry = bits.Add64(lo, one, 0)
	hi += carry
	r := lo
	if m.shift != 0 {
		r = lo>>m.shift | hi<<(64-m.shift)
	}
	switch {
	case m.sat && m.signed:
		return uint64(clampTo(int64(r), 32, true)) & 0xffffffff
	case m.sat:
		return min(r, 0xffffffff)
	}
	return r & 0xffffffff
}

// videoPackedSet is vset2 and vset4, which have no destination type.
func (x *insn) videoPackedSet(n int) error {
	op, ok := x.videoCompare()
	if !ok {
		return x.badType()
	}
	return x.videoPacked(n, ptx.U32, x.typ(0), x.typ(1), op)
}

// laneSelect parses ".b7610" or ".h32" into the source of each of n lanes.
func laneSelect(s string, n int, first int) ([]int, bool) {
	out := make([]int, n)
	for i := range out {
		out[i] = first + i
	}
	if s == "" {
		return out, true
	}
	if len(s) != 2+n || s[1] != "?h?b"[n-1] {
		return nil, false
	}
	for i := range out {
		d := int(s[1+n-i]) - '0'
		if d < 0 || d >= 2*n {
			return nil, false
		}
		out[i] = d
	}
	return out, true
}

// videoPacked emits an operation on the n parts of words; parts n and above of a
// selection are those of the second operand.
func (x *insn) videoPacked(n int, td, ta, tb ptx.Type, op videoOp) error {
	if err := x.nargs(4); err != nil {
		return err
	}
	sat, add := x.take(".sat"), x.take(".add")
	sa, ok1 := laneSelect(x.selector(&x.args[1]), n, 0)
	sb, ok2 := laneSelect(x.selector(&x.args[2]), n, n)
	mask := x.selector(&x.args[0])
	if !ok1 || !ok2 || mask != "" && !strings.HasPrefix(mask, "."+"?h?b"[n-1:n]) {
		return errf(ErrInvalid, "selectors of %s", x.op)
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.srcs(1, 3, ptx.B32)
	if err != nil {
		return err
	}
	width := uint(32 / n)
	ia, ib := intType{width, ta.Signed()}, intType{width, tb.Signed()}
	signed := td.Signed()
	return x.step(lift3(func(a, b, c uint64) uint64 {
		src := b<<32 | a&0xffffffff
		r := c & 0xffffffff
		for i := range n {
			if mask != "" && strings.IndexByte(mask, byte('0'+i)) < 0 {
				continue
			}
			t := op(int64(ia.ext(src>>(uint(sa[i])*width))), int64(ib.ext(src>>(uint(sb[i])*width))))
			if sat {
				t = clampTo(t, width, signed)
			}
			if add {
				r += uint64(t)
				continue
			}
			at := uint(i) * width
			r = r&^(widthMask(width)<<at) | uint64(t)&widthMask(width)<<at
		}
		return r & 0xffffffff
	}, nil, d, s[0], s[1], s[2]))
}
