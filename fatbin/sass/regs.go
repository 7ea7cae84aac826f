package sass

import (
	"math/bits"
	"strconv"
)

// RegKind is a kind of register.
type RegKind uint8

// The kinds of registers.
const (
	NoReg   RegKind = iota
	GPR             // R0 … R254; RZ (255) is none
	Pred            // P0 … P6; PT (7) is none
	UGPR            // UR0 …; URZ (63, from sm_100 on 255) is none
	UPred           // UP0 … UP6; UPT (7) is none
	Barrier         // B0 … B15: masks of threads that meet again
	numRegKinds
)

var regPrefix = [numRegKinds]string{"?", "R", "P", "UR", "UP", "B"}

// String returns the letters in front of a register's number.
func (k RegKind) String() string {
	if k < numRegKinds {
		return regPrefix[k]
	}
	return "?"
}

// Operand is a run of registers that an instruction reads or writes.
//
// An operand with Len 0 is not named by a field of the word: the instruction
// always uses these registers.
type Operand struct {
	Kind        RegKind
	Reg         uint8 // the first
	Count       uint8 // how many
	Pos, Len    uint8 // the bits of the word that name the first
	Read, Write bool
	Guard       bool // it is the guard, bits 12 to 14
	Inverted    bool // the field holds the number's complement (7 - Reg)
}

// String returns "R4", "R4..R7", "UR6".
func (o Operand) String() string {
	s := o.Kind.String() + strconv.Itoa(int(o.Reg))
	if o.Count > 1 {
		s += ".." + o.Kind.String() + strconv.Itoa(int(o.Reg)+int(o.Count)-1)
	}
	return s
}

// Set is a set of registers.
type Set struct {
	R  [4]uint64 // general registers, register n is bit n%64 of word n/64
	UR [4]uint64
	P  uint8
	UP uint8
	B  uint16
}

// allRegs is every register of every kind, which is what an unknown word may read.
func allRegs() Set {
	const all = ^uint64(0)
	// RZ and URZ are no registers.
	return Set{R: [4]uint64{all, all, all, all >> 1}, UR: [4]uint64{all, all, all, all >> 1}, P: 0x7f, UP: 0x7f, B: 0xffff}
}

// Add adds count registers from reg on. What is above the last register of the
// kind is left out.
func (s *Set) Add(k RegKind, reg, count uint8) {
	switch k {
	case GPR:
		addRange(&s.R, int(reg), int(count))
	case UGPR:
		addRange(&s.UR, int(reg), int(count))
	case Pred:
		s.P |= uint8((1<<count - 1) << reg & 0x7f)
	case UPred:
		s.UP |= uint8((1<<count - 1) << reg & 0x7f)
	case Barrier:
		s.B |= uint16((1<<count - 1) << reg)
	}
}

func addRange(w *[4]uint64, reg, count int) {
	if count == 1 {
		if reg < 255 {
			w[reg>>6] |= 1 << (reg & 63)
		}
		return
	}
	for i := reg; i < min(reg+count, 255); i++ {
		w[i>>6] |= 1 << (i & 63)
	}
}

// addOperand adds an operand's registers.
func (s *Set) addOperand(o *Operand) { s.Add(o.Kind, o.Reg, o.Count) }

// Has says whether the register is in the set.
func (s *Set) Has(k RegKind, reg uint8) bool {
	switch k {
	case GPR:
		return s.R[reg>>6]>>(reg&63)&1 != 0
	case UGPR:
		return s.UR[reg>>6]>>(reg&63)&1 != 0
	case Pred:
		return s.P>>(reg&7)&1 != 0
	case UPred:
		return s.UP>>(reg&7)&1 != 0
	case Barrier:
		return s.B>>(reg&15)&1 != 0
	}
	return false
}

// Union adds t and says whether s grew.
func (s *Set) Union(t *Set) bool {
	var grown uint64
	for i := range s.R {
		grown |= t.R[i]&^s.R[i] | t.UR[i]&^s.UR[i]
		s.R[i] |= t.R[i]
		s.UR[i] |= t.UR[i]
	}
	grown |= uint64(t.P&^s.P) | uint64(t.UP&^s.UP) | uint64(t.B&^s.B)
	s.P |= t.P
	s.UP |= t.UP
	s.B |= t.B
	return grown != 0
}

// Minus removes what is in t.
func (s *Set) Minus(t *Set) {
	for i := range s.R {
		s.R[i] &^= t.R[i]
		s.UR[i] &^= t.UR[i]
	}
	s.P &^= t.P
	s.UP &^= t.UP
	s.B &^= t.B
}

// Empty says whether no register is in the set.
func (s *Set) Empty() bool {
	var x uint64
	for i := range s.R {
		x |= s.R[i] | s.UR[i]
	}
	return x|uint64(s.P)|uint64(s.UP)|uint64(s.B) == 0
}

// Len returns how many registers of a kind are in the set.
func (s *Set) Len(k RegKind) int {
	n := 0
	switch k {
	case GPR:
		for _, w := range s.R {
			n += bits.OnesCount64(w)
		}
	case UGPR:
		for _, w := range s.UR {
			n += bits.OnesCount64(w)
		}
	case Pred:
		n = bits.OnesCount8(s.P)
	case UPred:
		n = bits.OnesCount8(s.UP)
	case Barrier:
		n = bits.OnesCount16(s.B)
	}
	return n
}

// highest returns the highest register of a kind in the set, or -1.
func (s *Set) highest(k RegKind) int {
	switch k {
	case GPR:
		return highest(&s.R)
	case UGPR:
		return highest(&s.UR)
	case Pred:
		return bits.Len8(s.P) - 1
	case UPred:
		return bits.Len8(s.UP) - 1
	case Barrier:
		return bits.Len16(s.B) - 1
	}
	return -1
}

func highest(w *[4]uint64) int {
	for i := 3; i >= 0; i-- {
		if w[i] != 0 {
			return i*64 + bits.Len64(w[i]) - 1
		}
	}
	return -1
}

// size is how many registers of a kind a set can hold.
func (k RegKind) size() int {
	switch k {
	case GPR, UGPR:
		return 256
	case Barrier:
		return 16
	}
	return 7
}

// Append appends the set as text: "R0-R3,R8,P0,UR4-UR5".
func (s *Set) Append(b []byte) []byte {
	first := true
	for k := GPR; k < numRegKinds; k++ {
		for i := 0; i < k.size(); i++ {
			if !s.Has(k, uint8(i)) {
				continue
			}
			j := i
			for j+1 < k.size() && s.Has(k, uint8(j+1)) {
				j++
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			b = strconv.AppendInt(append(b, k.String()...), int64(i), 10)
			if j > i {
				b = strconv.AppendInt(append(append(b, '-'), k.String()...), int64(j), 10)
			}
			i = j
		}
	}
	return b
}

// String returns what [Set.Append] appends.
func (s *Set) String() string { return string(s.Append(nil)) }

// A placement says which registers of the kernel a body uses.
type placement struct {
	r    [256]uint8 // by register of the body
	p    [8]uint8
	b    [16]uint8
	meet uint8 // convergence barrier at which threads meet behind the body; noBarrier if they need not
	used Set   // all of them
	save uint8 // mask of predicates that are saved and restored
	keep uint8 // the register that they are saved in
	high int   // highest register
	// spilled are registers that are saved in local memory.
	spilled []uint8
	// local are the slots of variables in local memory, lowered is by how much the stack
	// pointer is lower than it began.
	local   []int
	lowered int
}
