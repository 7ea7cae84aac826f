package emu

import "nvtrace/ptx"

// A cmpFn compares two operands.
type cmpFn func(a, b uint64) bool

// The outcomes of a comparison that an operator accepts, as a bit set.
const (
	cmpLess = 1 << iota
	cmpEqual
	cmpGreater
	cmpUnordered
)

// cmpOps lists the comparison operators of set, setp (PTX ISA §9.7.6). The
// unsigned names lo ls hi hs are spellings for unsigned and untyped operands.
var cmpOps = map[string]int{
	".eq": cmpEqual, ".ne": cmpLess | cmpGreater, ".lt": cmpLess, ".le": cmpLess | cmpEqual,
	".gt": cmpGreater, ".ge": cmpGreater | cmpEqual,
	".lo": cmpLess, ".ls": cmpLess | cmpEqual, ".hi": cmpGreater, ".hs": cmpGreater | cmpEqual,
	".equ": cmpEqual | cmpUnordered, ".neu": cmpLess | cmpGreater | cmpUnordered,
	".ltu": cmpLess | cmpUnordered, ".leu": cmpLess | cmpEqual | cmpUnordered,
	".gtu": cmpGreater | cmpUnordered, ".geu": cmpGreater | cmpEqual | cmpUnordered,
	".num": cmpLess | cmpEqual | cmpGreater, ".nan": cmpUnordered,
}

// compare returns the comparison of operands of scalar type t.
func compare(op string, t ptx.Type, ftz bool) (cmpFn, bool) {
	want, ok := cmpOps[op]
	if !ok {
		return nil, false
	}
	if it, ok := intOf(t); ok {
		switch op {
		case ".lo", ".ls", ".hi", ".hs":
			it.signed = false
		}
		return it.compare(want), true
	}
	f := formatOf(t)
	if f == nil {
		return nil, false
	}
	o := floatOp{f: f, ftz: ftz}
	return func(a, b uint64) bool { return o.outcome(a, b)&want != 0 }, true
}

// outcome classifies the order of two numbers; the zeros are equal.
func (o floatOp) outcome(a, b uint64) int {
	a, b = o.in(a), o.in(b)
	if o.f.isNaN(a) || o.f.isNaN(b) {
		return cmpUnordered
	}
	if (a|b)&^o.f.signBit() == 0 {
		return cmpEqual
	}
	x, y := o.f.order(a), o.f.order(b)
	switch {
	case x < y:
		return cmpLess
	case x == y:
		return cmpEqual
	}
	return cmpGreater
}

func (t intType) compare(want int) cmpFn {
	return func(a, b uint64) bool {
		switch {
		case t.less(a, b):
			return want&cmpLess != 0
		case (a^b)&t.mask() == 0:
			return want&cmpEqual != 0
		}
		return want&cmpGreater != 0
	}
}

// boolOps lists the operators that set and setp can join another predicate with.
var boolOps = map[string]func(p, c uint32) uint32{
	".and": func(p, c uint32) uint32 { return p & c },
	".or":  func(p, c uint32) uint32 { return p | c },
	".xor": func(p, c uint32) uint32 { return p ^ c },
}
