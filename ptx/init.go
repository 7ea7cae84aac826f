package ptx

import "iter"

// An InitValue is one element of an initialiser.
type InitValue struct {
	Index   uint64      // element number in the flattened variable, row-major
	Kind    OperandKind // OperandInt, OperandF32, OperandF64, OperandName for an address, OperandExpr for what is no number (sampler fields, strings)
	Bits    uint64      // value of a number; displacement (int64) of an address
	Symbol  string      // OperandName: the variable or function whose address it is
	Generic bool        // the address is a generic one: generic(sym)
	Mask    uint64      // 0xFF00(sym): the byte mask; 0 when none is written
}

// InitValues yields the elements of the initialiser of n in order; elements
// that are not written are zero and not yielded. It yields nothing when n has
// no initialiser. Parse has checked the syntax, so there is no error; elements
// beyond a row of the declared size keep counting into the next.
func (f *File) InitValues(n *Declarator) iter.Seq[InitValue] {
	return func(yield func(InitValue) bool) {
		if n.Init.Empty() {
			return
		}
		p := parser{f: f, src: f.Src[:n.Init.End], maxDepth: 1 << 16, end: int(n.Name.End)}
		w := initWalker{p: &p, yield: yield, dims: p.dimList()}
		p.rewind(int(n.Init.Pos))
		w.walk(0, 0)
	}
}

// dimList reads the dimensions of a declarator from behind its name.
func (p *parser) dimList() (dims []uint64) {
	for p.next(); p.c == '[' && p.err == nil; {
		p.next()
		size := uint64(0)
		if p.c != ']' {
			size = p.expr().bits
		}
		dims = append(dims, size)
		p.next()
	}
	return dims
}

type initWalker struct {
	p     *parser
	yield func(InitValue) bool
	dims  []uint64
	stop  bool
}

// walk parses the element or list at nesting level, which starts at index at,
// and returns the index after it.
func (w *initWalker) walk(level int, at uint64) uint64 {
	p := w.p
	if p.c != '{' {
		v := p.initElement()
		v.Index = at
		if p.err == nil && !w.stop {
			w.stop = !w.yield(v)
		}
		return at + 1
	}
	end := at + w.stride(level)
	p.next()
	for p.c != '}' && p.err == nil && !w.stop {
		at = w.walk(level+1, at)
		if p.c == ',' {
			p.next()
		}
	}
	p.next()
	return max(at, end)
}

// stride returns how many elements a braced list at nesting level stands for.
func (w *initWalker) stride(level int) uint64 {
	n := uint64(1)
	for i := level; i < len(w.dims); i++ {
		n *= w.dims[i]
	}
	return n
}

// initElement parses one element that is no list.
func (p *parser) initElement() InitValue {
	if p.tok == TokString {
		p.next()
		return InitValue{Kind: OperandExpr}
	}
	start := p.pos
	if p.tok == TokInt {
		mask, _ := intValue(p.text())
		p.next()
		if p.c == '(' {
			p.next()
			v := p.initElement()
			p.next()
			v.Mask = mask.bits
			return v
		}
		p.rewind(start)
	}
	if p.tok == TokIdent && p.text() != "WARP_SZ" {
		return p.initAddress()
	}
	v := p.expr()
	kind := [...]OperandKind{valInt: OperandInt, valUint: OperandInt, valF32: OperandF32, valF64: OperandF64, valSym: OperandExpr}
	return InitValue{Kind: kind[v.kind], Bits: v.bits}
}

// initAddress parses "sym+4", "generic(sym)+4" and a sampler's "field = value".
func (p *parser) initAddress() InitValue {
	v := InitValue{Kind: OperandName, Symbol: p.text()}
	p.next()
	switch {
	case p.c == '(' && v.Symbol == "generic":
		p.next()
		v = p.initElement()
		v.Generic = true
		p.next()
	case p.c == '=':
		p.next()
		p.expr()
		return InitValue{Kind: OperandExpr, Symbol: v.Symbol}
	}
	for p.c == '+' || p.c == '-' {
		minus := p.c == '-'
		p.next()
		d := p.binary(precMul).bits
		if minus {
			d = -d
		}
		v.Bits += d
	}
	return v
}
