package ptx

import (
	"math"
	"strconv"
	"strings"
)

// operands parses a list of operands separated by commas and returns where it
// is in f.args.
func (p *parser) operands(call bool) (first, n uint32) {
	mark := len(p.stk)
	for {
		p.operand(call)
		if p.c != ',' {
			break
		}
		p.next()
	}
	return p.keep(mark)
}

// keep moves the operands above mark from the stack to f.args, where a list is
// contiguous.
func (p *parser) keep(mark int) (first, n uint32) {
	list := p.stk[mark:]
	first = uint32(len(p.f.args))
	p.f.args = append(p.f.args, list...)
	n = uint32(len(list))
	p.stk = p.stk[:mark]
	return first, n
}

// operand parses one operand and pushes it on the stack.
func (p *parser) operand(call bool) {
	mark, start := len(p.stk), p.pos
	switch {
	case p.tok == TokIdent:
		p.nameOperand(start)
	case p.c == '[':
		p.address()
	case p.c == '{':
		p.list(OperandVector, '}')
	case p.c == '(' && call:
		p.list(OperandGroup, ')')
	case p.tok == TokString:
		p.push(Operand{Kind: OperandString, Pos: Pos(start), Name: p.span()})
	case p.c == '!' || p.c == '-':
		p.signed()
	default:
		p.constOperand(start)
	}
	if p.c == '|' && p.tok == TokPunct {
		p.pair(mark, start)
	}
}

// push consumes the current token as the end of o.
func (p *parser) push(o Operand) {
	p.next()
	p.done(o)
}

// done pushes o, which ends with the last token consumed.
func (p *parser) done(o Operand) {
	o.End = Pos(p.prev)
	p.stk = append(p.stk, o)
}

// pair parses the rest of "a|b", whose first half is on the stack above mark.
func (p *parser) pair(mark, start int) {
	p.enter()
	for p.c == '|' {
		p.next()
		switch {
		case p.tok == TokIdent:
			p.name(p.pos)
		case p.c == '!':
			p.signed()
		default:
			p.fail("a register after '|'")
		}
	}
	p.leave()
	kid, n := p.keep(mark)
	p.done(Operand{Kind: OperandPair, Pos: Pos(start), kid: kid, nkids: n})
}

// list parses a vector or a group.
func (p *parser) list(kind OperandKind, closer byte) {
	p.enter()
	o := Operand{Kind: kind, Pos: Pos(p.pos)}
	p.next()
	if p.c == closer {
		o.kid = uint32(len(p.f.args))
	} else {
		o.kid, o.nkids = p.operands(false)
	}
	if p.c != closer {
		p.fail("',' or '" + string(rune(closer)) + "'")
	}
	p.push(o)
	p.leave()
}

// address parses "[base+displacement, more]" and a suffix.
func (p *parser) address() {
	p.enter()
	o := Operand{Kind: OperandAddr, Pos: Pos(p.pos)}
	mark := len(p.stk)
	p.next()
	at := p.pos
	p.operand(false)
	if p.err == nil {
		switch base := p.stk[mark]; base.Kind {
		case OperandName:
			o.Name, o.Bits, o.Sel, o.Flags = base.Name, base.Bits, base.Sel, base.Flags
		case OperandInt:
			o.Bits, o.Flags = base.Bits, base.Flags|HasOffset
		default:
			p.failAt(Pos(at), "expected a register, a variable or a constant as the address")
		}
	}
	p.stk = p.stk[:mark]
	o.kid = uint32(len(p.f.args))
	if p.c == ',' {
		p.next()
		o.kid, o.nkids = p.operands(false)
	}
	if p.c != ']' {
		p.fail("',' or ']' in the address")
	}
	p.next()
	if p.tok == TokDirective {
		if p.text() == ".unified" {
			o.Flags |= Unified
		}
		p.next()
	}
	p.done(o)
	p.leave()
}

// name parses a register or symbol with a selector, without displacement.
func (p *parser) name(start int) {
	o := Operand{Kind: OperandName, Pos: Pos(start), Name: p.span()}
	if p.end-p.pos == 1 && p.src[p.pos] == '_' {
		o.Kind = OperandSink
	}
	p.next()
	if p.tok == TokDirective {
		o.Sel = selectorOf(p.text())
		p.next()
	}
	p.done(o)
}

func selectorOf(s string) Selector {
	switch s {
	case ".x", ".r":
		return SelX
	case ".y", ".g":
		return SelY
	case ".z", ".b":
		return SelZ
	case ".w", ".a":
		return SelW
	}
	return SelOther
}

// nameOperand parses an operand that starts with a name at start.
func (p *parser) nameOperand(start int) {
	p.name(start)
	switch p.c {
	case ',', ';', '}', ']', ')', '|', 0:
		return
	case '+', '-':
		p.displacement()
	case '[':
		p.subscript()
	}
	switch p.c {
	case '(', '*', '/', '%', '<', '>', '=', '!', '&', '^', '?':
		// A constant expression that begins with a name: WARP_SZ*2, generic(x)+4.
		p.stk = p.stk[:len(p.stk)-1]
		p.rewind(start)
		p.constOperand(start)
	}
}

// displacement parses "+4", "+-4", "-8+16" after the name on top of the stack.
func (p *parser) displacement() {
	o := &p.stk[len(p.stk)-1]
	pos := o.Pos
	sum, expr := uint64(0), false
	for p.c == '+' || p.c == '-' {
		minus := p.c == '-'
		p.next()
		v := p.binary(precMul)
		if minus {
			v.bits = -v.bits
		}
		expr = expr || v.kind != valInt && v.kind != valUint
		sum += v.bits
	}
	o = &p.stk[len(p.stk)-1]
	if expr {
		*o = Operand{Kind: OperandExpr, Pos: pos}
	} else {
		o.Bits, o.Flags = sum, o.Flags|HasOffset
	}
	o.End = Pos(p.prev)
}

// subscript parses "[2]" after the name on top of the stack.
func (p *parser) subscript() {
	p.next()
	v := p.expr()
	if !p.want(']', "']' after the index") {
		return
	}
	o := &p.stk[len(p.stk)-1]
	o.Bits, o.Flags, o.End = o.Bits+v.bits, o.Flags|HasOffset, Pos(p.prev)
}

// signed parses "!p", "-r" and constants that begin with these operators.
func (p *parser) signed() {
	start, op := p.pos, p.c
	p.next()
	if p.tok != TokIdent || p.text() == "WARP_SZ" {
		p.rewind(start)
		p.constOperand(start)
		return
	}
	p.name(start)
	flag := Not
	if op == '-' {
		flag = Minus
	}
	p.stk[len(p.stk)-1].Flags |= flag
}

// constOperand parses a constant expression that starts at start.
func (p *parser) constOperand(start int) {
	plain := p.tok
	v := p.expr()
	o := Operand{Pos: Pos(start), Bits: v.bits}
	switch v.kind {
	case valInt, valUint:
		o.Kind = OperandInt
		if v.kind == valUint {
			o.Flags |= Unsigned
		}
		if plain != TokInt || v.folded {
			o.Flags |= Folded
		}
	case valF32:
		o.Kind = OperandF32
	case valF64:
		o.Kind = OperandF64
	default:
		o.Kind = OperandExpr
	}
	if v.over {
		o.Flags |= Overflow
	}
	p.done(o)
}

// Kinds of a constant value. PTX ISA §4.5: integers are 64-bit, signed unless
// they have the suffix U or do not fit; 0f constants are 32-bit, other floats
// 64-bit.
const (
	valInt = iota
	valUint
	valF32
	valF64
	valSym // has a name in it: no number
)

type value struct {
	kind   uint8
	folded bool
	over   bool
	bits   uint64
}

func (v value) isInt() bool { return v.kind <= valUint }

func (v value) float() float64 {
	switch v.kind {
	case valInt:
		return float64(int64(v.bits))
	case valUint:
		return float64(v.bits)
	case valF32:
		return float64(math.Float32frombits(uint32(v.bits)))
	}
	return math.Float64frombits(v.bits)
}

// Precedences of the binary operators, PTX ISA §4.5.4.
const (
	precNone = iota
	precOrOr
	precAndAnd
	precOr
	precXor
	precAnd
	precEq
	precRel
	precShift
	precAdd
	precMul
	precTop
)

// binop returns the operator at the current token, its length and precedence.
func (p *parser) binop() (op string, prec int) {
	two := ""
	if p.end < len(p.src) {
		two = p.src[p.pos : p.end+1]
	}
	switch two {
	case "||":
		return two, precOrOr
	case "&&":
		return two, precAndAnd
	case "==", "!=":
		return two, precEq
	case "<=", ">=":
		return two, precRel
	case "<<", ">>":
		return two, precShift
	}
	one := p.src[p.pos:p.end]
	switch p.c {
	case '|':
		return one, precOr
	case '^':
		return one, precXor
	case '&':
		return one, precAnd
	case '<', '>':
		return one, precRel
	case '+', '-':
		return one, precAdd
	case '*', '/', '%':
		return one, precMul
	}
	return "", precNone
}

// expr parses a constant expression.
func (p *parser) expr() value {
	v := p.binary(precOrOr)
	if p.c != '?' {
		return v
	}
	p.enter()
	defer p.leave()
	p.next()
	a := p.expr()
	if !p.want(':', "':' of the conditional expression") {
		return v
	}
	b := p.expr()
	switch {
	case v.kind == valSym:
		return value{kind: valSym}
	case v.float() == 0:
		a = b
	}
	a.folded = true
	return a
}

// binary parses operators of precedence prec and higher, left-associative.
func (p *parser) binary(prec int) value {
	v := p.unary()
	for p.tok == TokPunct {
		op, q := p.binop()
		if q == precNone || q < prec {
			break
		}
		p.next()
		if len(op) == 2 {
			p.next()
		}
		p.enter()
		v = foldBinary(op, v, p.binary(q+1))
		p.leave()
	}
	return v
}

func (p *parser) unary() value {
	switch p.c {
	case '+', '-', '!', '~':
		op := p.c
		p.enter()
		p.next()
		v := foldUnary(op, p.unary())
		p.leave()
		return v
	case '(':
		p.enter()
		defer p.leave()
		return p.paren()
	}
	switch p.tok {
	case TokInt:
		return p.intValue()
	case TokFloat:
		v := floatValue(p.text())
		p.next()
		return v
	case TokIdent:
		return p.symbolValue()
	}
	p.fail("an operand")
	return value{}
}

// paren parses "(expr)" and the casts "(.s64) x" and "(.u64) x".
func (p *parser) paren() value {
	p.next()
	if p.tok == TokDirective {
		cast := p.text()
		p.next()
		if !p.want(')', "')' after the type of the cast") {
			return value{}
		}
		v := p.unary()
		if v.isInt() {
			v.kind = valInt
			if cast == ".u64" {
				v.kind = valUint
			}
		}
		v.folded = true
		return v
	}
	v := p.expr()
	p.want(')', "')'")
	v.folded = true
	return v
}

// symbolValue parses WARP_SZ, a name, and the name(expr) of generic() and
// mask operators.
func (p *parser) symbolValue() value {
	v := value{kind: valSym}
	if p.text() == "WARP_SZ" {
		v = value{kind: valInt, bits: 32, folded: true}
	}
	p.next()
	if p.tok == TokDirective {
		p.next()
	}
	if p.c == '(' {
		p.enter()
		p.next()
		p.expr()
		p.want(')', "')'")
		p.leave()
		v = value{kind: valSym}
	}
	return v
}

// intValue parses an integer constant, and the mask form 0xFF(symbol) that
// initialisers have.
func (p *parser) intValue() value {
	v, ok := intValue(p.text())
	if !ok {
		p.fail("octal digits after the leading 0")
		return v
	}
	p.next()
	if p.c == '(' {
		p.enter()
		p.next()
		p.expr()
		p.want(')', "')'")
		p.leave()
		return value{kind: valSym}
	}
	return v
}

// intValue returns the value of an integer token; !ok if an octal number has
// the digits 8 or 9.
func intValue(s string) (v value, ok bool) {
	if len(s) == 1 {
		return value{bits: uint64(s[0] - '0')}, true
	}
	if s[len(s)-1] == 'U' {
		v.kind = valUint
		s = s[:len(s)-1]
	}
	base := uint64(10)
	if s[0] == '0' && len(s) > 1 {
		switch s[1] {
		case 'x', 'X':
			base, s = 16, s[2:]
		case 'b', 'B':
			base, s = 2, s[2:]
		default:
			base, s = 8, s[1:]
		}
	}
	for i := range len(s) {
		d := uint64(digitVal(s[i]))
		if d >= base {
			return v, false
		}
		if v.bits > (math.MaxUint64-d)/base {
			v.over = true
		}
		v.bits = v.bits*base + d
	}
	if v.bits > math.MaxInt64 {
		v.kind = valUint
	}
	return v, true
}

func floatValue(s string) value {
	if len(s) > 2 && s[0] == '0' {
		switch s[1] | 0x20 {
		case 'f':
			b, _ := strconv.ParseUint(s[2:], 16, 32)
			return value{kind: valF32, bits: b}
		case 'd':
			b, _ := strconv.ParseUint(s[2:], 16, 64)
			return value{kind: valF64, bits: b}
		}
	}
	// The lexer lets nothing through that ParseFloat rejects but for the range,
	// where it returns the infinity or zero wanted.
	x, _ := strconv.ParseFloat(strings.TrimSuffix(s, "."), 64)
	return value{kind: valF64, bits: math.Float64bits(x)}
}
