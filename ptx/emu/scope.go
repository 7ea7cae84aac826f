package emu

import (
	"strconv"

	"nvtrace/ptx"
)

type symbolKind uint8

const (
	symReg symbolKind = iota
	symPred
	symConstant // an address that is known when compiling: global, const, shared, kernel parameter, function
	symShared   // a shared variable at module level, placed when a kernel uses it
	symLocal    // offset from the frame's local memory: .local variables and parameters of functions
)

// A symbol is what a name stands for.
type symbol struct {
	kind  symbolKind
	space ptx.Space
	typ   ptx.Type
	slot  int32  // symReg, symPred: first slot
	vec   int    // symReg: number of components of a vector register, else 1
	addr  uint64 // symConstant, symLocal
	size  uint64
	fn    *ptx.Func // a function's name
	file  *ptx.File // of fn and decl
	decl  *ptx.Decl // symShared
	name  *ptx.Declarator
}

// slots is the number of register slots that a value of type t takes.
func slots(t ptx.Type) int {
	if t == ptx.B128 {
		return 2
	}
	return 1
}

// A regRange is "%r<n>": n registers of consecutive slots.
type regRange struct {
	n   uint32
	sym symbol
}

// A scope holds the names of one pair of braces.
type scope struct {
	parent *scope
	names  map[string]symbol
	ranges map[string]regRange
	labels map[string]*int
}

func newScope(parent *scope) *scope { return &scope{parent: parent} }

func (s *scope) define(name string, sym symbol) {
	if s.names == nil {
		s.names = map[string]symbol{}
	}
	s.names[name] = sym
}

func (s *scope) defineRange(prefix string, r regRange) {
	if s.ranges == nil {
		s.ranges = map[string]regRange{}
	}
	s.ranges[prefix] = r
}

func (s *scope) label(name string) *int {
	if s.labels == nil {
		s.labels = map[string]*int{}
	}
	p := s.labels[name]
	if p == nil {
		p = new(int)
		*p = -1
		s.labels[name] = p
	}
	return p
}

// lookup finds the innermost meaning of name.
func (s *scope) lookup(name string) (symbol, bool) {
	for ; s != nil; s = s.parent {
		if sym, ok := s.names[name]; ok {
			return sym, true
		}
		if sym, ok := s.inRange(name); ok {
			return sym, true
		}
	}
	return symbol{}, false
}

// inRange looks for name among the declarations like %r<5>. The number is a
// suffix of digits, but the prefix may end in digits itself.
func (s *scope) inRange(name string) (symbol, bool) {
	if len(s.ranges) == 0 {
		return symbol{}, false
	}
	for i := len(name) - 1; i > 0 && name[i] >= '0' && name[i] <= '9'; i-- {
		r, ok := s.ranges[name[:i]]
		if !ok || name[i] == '0' && i != len(name)-1 {
			continue
		}
		n, err := strconv.ParseUint(name[i:], 10, 32)
		if err != nil || n >= uint64(r.n) {
			continue
		}
		sym := r.sym
		if sym.kind == symPred {
			sym.slot += int32(n)
		} else {
			sym.slot += int32(n) * int32(slots(sym.typ)*sym.vec)
		}
		return sym, true
	}
	return symbol{}, false
}

// findLabel finds the innermost label of that name that is visible.
func (s *scope) findLabel(name string) *int {
	for ; s != nil; s = s.parent {
		if p := s.labels[name]; p != nil {
			return p
		}
	}
	return nil
}
