// Package syntax is how nvdisasm writes instructions, as far as it was learned from what it
// writes: names with their modifiers, and operands.
//
// What is a word in the text is found by decision trees over the bits of the instruction; what is a
// number is a sum of its bits, each with a weight. The trees were made from words that nvdisasm has
// shown (see ../gen), so that a text is what it would say of these and of words like them.
package syntax

import (
	"bytes"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Word is an instruction: its lower and upper 64 bits.
type Word struct{ Lo, Hi uint64 }

// Field returns n bits from bit pos on, n being 1 to 64.
func (w Word) Field(pos, n uint) uint64 {
	v := w.Hi >> (pos & 63)
	if pos < 64 {
		v = w.Lo>>pos | w.Hi<<(64-pos)
	}
	if n == 64 {
		return v
	}
	return v & (1<<n - 1)
}

// A Test is something about a word that is true or false: below 128 that this bit is set,
// from there on that a field of [Fields] has only ones, only zeros, or one bit set.
type Test uint16

// Fields are the fields that tests are about as a whole: position and length. They are where
// instructions have registers, predicates, immediate values, offsets and constants.
var Fields = [...][2]uint8{
	{16, 8},
	{24, 8},
	{32, 8},
	{64, 8},
	{24, 6},
	{32, 6},
	{64, 6},
	{16, 6},
	{68, 3},
	{77, 3},
	{81, 3},
	{84, 3},
	{87, 3},
	{32, 32},
	{40, 24},
	{40, 14},
	{38, 16},
	{54, 5},
	{34, 30},
	{32, 16},
	{48, 16},
	{72, 8},
}

// Tests is how many tests there are.
const Tests = 128 + 3*len(Fields)

// Holds says whether a test is true of a word.
func (w Word) Holds(t Test) bool {
	if t < 128 {
		return w.Field(uint(t), 1) != 0
	}
	f := Fields[(t-128)/3]
	v := w.Field(uint(f[0]), uint(f[1]))
	switch (t - 128) % 3 {
	case 0:
		return v == 1<<f[1]-1
	case 1:
		return v == 0
	}
	return bits.OnesCount64(v) == 1
}

// Node is a node of a tree: Next[1] is where to go on if the test is true of the word, Next[0] if
// it is not. What is below 0 is a leaf, of the value ^Next.
type Node struct {
	Test Test
	Next [2]int32
}

// Tree is a decision tree; its root is node 0. Without nodes its value is Leaf.
type Tree struct {
	Leaf  int32
	Nodes []Node
}

// Of returns the tree's value for a word.
func (t *Tree) Of(w Word) int {
	if len(t.Nodes) == 0 {
		return int(t.Leaf)
	}
	at := int32(0)
	for at >= 0 {
		n := &t.Nodes[at]
		if w.Holds(n.Test) {
			at = n.Next[1]
		} else {
			at = n.Next[0]
		}
	}
	return int(^at)
}

// Run is a part of a number: N bits of the word from Pos on, the lowest of which has the weight 1<<Shift.
// Negative says that they are subtracted.
type Run struct {
	Pos, N, Shift uint8
	Negative      bool
}

// Kind is how a number is written.
type Kind byte

// Kinds of numbers.
const (
	Reg     Kind = 'R' // R7, RZ
	UReg    Kind = 'U' // UR7, URZ
	Pred    Kind = 'P' // P3, PT
	UPred   Kind = 'Q' // UP3, UPT
	Barrier Kind = 'B' // B3
	Score   Kind = 'S' // SB3
	Hex     Kind = 'x' // 0x1f, -0x8
	Target  Kind = 't' // hexadecimal, from the next instruction on
	Float16 Kind = 'h'
	BFloat  Kind = 'b' // the upper half of a Float32
	Float32 Kind = 'f'
	Float64 Kind = 'd' // the upper half
)

// Number is a number in an operand.
type Number struct {
	Kind Kind
	Base int64
	Runs []Run
}

// Value returns the number.
func (n *Number) Value(w Word) int64 {
	v := n.Base
	for _, r := range n.Runs {
		p := int64(w.Field(uint(r.Pos), uint(r.N)) << r.Shift)
		if r.Negative {
			p = -p
		}
		v += p
	}
	return v
}

// None says whether all bits of the number's field are set, which of registers is none of them. Behind the
// last one that there is, neither is one.
func (n *Number) None(w Word) bool {
	if n.Kind != Reg && n.Kind != UReg && n.Kind != Pred && n.Kind != UPred {
		return false
	}
	if n.Base > 0 && len(n.Runs) == 1 && !n.Runs[0].Negative && n.Value(w) == 1<<n.Runs[0].N-1 {
		return true
	}
	for _, r := range n.Runs {
		if v := w.Field(uint(r.Pos), uint(r.N)); r.Negative && v != 0 || !r.Negative && v != 1<<r.N-1 {
			return false
		}
	}
	return true
}

// Form is an operand: Text[0], the first number, Text[1] …
type Form struct {
	Text []string
	Nums []Number
}

// Slot is the place of an operand: which form it has.
type Slot struct {
	Which Tree
	Forms []Form
}

// Op is how an opcode is written.
type Op struct {
	Names  []string // parts of the name, in order
	Has    []Tree   // whether each is there
	Which  Tree     // which of Frames
	Frames [][]Slot // the operands
	// Reuse is where the register is that bits 122, 123 and 124 say is used again; 0: there is none.
	Reuse [3]uint8
}

// AppendName appends the name with its modifiers.
func (o *Op) AppendName(b []byte, w Word) []byte {
	for i, name := range o.Names {
		if o.Has[i].Of(w) != 0 {
			b = append(b, name...)
		}
	}
	return b
}

// Append appends the instruction without its guard. pc is where it stands.
func (o *Op) Append(b []byte, w Word, pc uint64) []byte {
	b = o.AppendName(b, w)
	sep := " "
	frame := o.Frames[o.Which.Of(w)]
	for i := range frame {
		b = append(b, sep...)
		sep = ", "
		b = o.appendForm(b, &frame[i].Forms[frame[i].Which.Of(w)], w, pc)
	}
	return b
}

const reuse = ".reuse"

func (o *Op) appendForm(b []byte, f *Form, w Word, pc uint64) []byte {
	again := false
	for i, text := range f.Text {
		// It stands behind the register, or behind the bar of an absolute value.
		if again {
			if bar, ok := strings.CutPrefix(text, "|"); ok {
				b, text = append(b, '|'), bar
			}
			b = append(b, reuse...)
		}
		b = append(b, text...)
		if again = false; i < len(f.Nums) {
			b = f.Nums[i].append(b, w, pc)
			again = o.again(&f.Nums[i], w)
		}
	}
	return b
}

// Registers returns where the general registers of the operands are in the word, in the order of the text.
func (o *Op) Registers(w Word) []uint8 {
	var out []uint8
	frame := o.Frames[o.Which.Of(w)]
	for i := range frame {
		for _, n := range frame[i].Forms[frame[i].Which.Of(w)].Nums {
			if n.Kind == Reg && len(n.Runs) == 1 {
				out = append(out, n.Runs[0].Pos)
			}
		}
	}
	return out
}

// again says whether a register is marked as used again.
func (o *Op) again(n *Number, w Word) bool {
	if n.Kind != Reg || len(n.Runs) != 1 {
		return false
	}
	for i, pos := range o.Reuse {
		if pos == n.Runs[0].Pos && w.Field(uint(122+i), 1) != 0 {
			return true
		}
	}
	return false
}

var prefix = map[Kind]string{Reg: "R", UReg: "UR", Pred: "P", UPred: "UP", Barrier: "B", Score: "SB"}

func (n *Number) append(b []byte, w Word, pc uint64) []byte {
	v := n.Value(w)
	switch n.Kind {
	case Reg, UReg, Pred, UPred:
		b = append(b, prefix[n.Kind]...)
		if n.None(w) {
			if n.Kind == Reg || n.Kind == UReg {
				return append(b, 'Z')
			}
			return append(b, 'T')
		}
		return strconv.AppendInt(b, v, 10)
	case Barrier, Score:
		return strconv.AppendInt(append(b, prefix[n.Kind]...), v, 10)
	case Target:
		v += int64(pc) + 16
	case Float16:
		return appendFloat(b, Half(uint16(v)), v&0x8000 != 0, v&0x200 != 0)
	case BFloat:
		return appendFloat(b, float64(math.Float32frombits(uint32(v)<<16)), v&0x8000 != 0, v&0x40 != 0)
	case Float32:
		return appendFloat(b, float64(math.Float32frombits(uint32(v))), v&0x80000000 != 0, v&0x400000 != 0)
	case Float64:
		return appendFloat(b, math.Float64frombits(uint64(v)<<32), v&0x80000000 != 0, v&0x80000 != 0)
	}
	if v < 0 && slices.ContainsFunc(n.Runs, func(r Run) bool { return r.Negative }) {
		b, v = append(b, '-'), -v
	}
	return strconv.AppendUint(append(b, "0x"...), uint64(v), 16)
}

// Half is the value of a number of 16 bits.
func Half(h uint16) float64 {
	e, m := int(h>>10&31), float64(h&1023)
	var v float64
	switch {
	case e == 31 && m != 0:
		v = math.NaN()
	case e == 31:
		v = math.Inf(1)
	case e == 0:
		v = math.Ldexp(m, -24)
	default:
		v = math.Ldexp(1024+m, e-25)
	}
	if h&0x8000 != 0 {
		return -v
	}
	return v
}

// appendFloat writes a number as C's %.20g does, and from 10⁹ on as %.20e.
func appendFloat(b []byte, v float64, negative, quiet bool) []byte {
	switch {
	case math.IsNaN(v):
		sign, name := "+", "SNAN"
		if negative {
			sign = "-"
		}
		if quiet {
			name = "QNAN"
		}
		return append(append(b, sign...), name...)
	case math.IsInf(v, 0):
		if v < 0 {
			return append(b, "-INF"...)
		}
		return append(b, "+INF"...)
	case v == 0:
		if negative {
			return append(b, "-0.0"...)
		}
		return append(b, '0')
	case math.Abs(v) >= 1e9:
		return strconv.AppendFloat(b, v, 'e', 20, 64)
	}
	e := strconv.AppendFloat(nil, v, 'e', 19, 64) // d.ddde±dd
	at := bytes.IndexByte(e, 'e')
	exp, _ := strconv.Atoi(string(e[at+1:]))
	if exp < -4 {
		return append(append(b, trim(e[:at])...), e[at:]...)
	}
	return append(b, trim(strconv.AppendFloat(nil, v, 'f', 19-exp, 64))...)
}

// trim takes zeros at the end of a fraction away.
func trim(digits []byte) []byte {
	if bytes.IndexByte(digits, '.') < 0 {
		return digits
	}
	return bytes.TrimSuffix(bytes.TrimRight(digits, "0"), []byte{'.'})
}
