package cc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Value is an integer constant as C types it.
type Value struct {
	Int      int64
	Unsigned bool
	Wide     bool // 64 bits, else 32
}

// Bits returns the value as an unsigned number of its own width.
func (v Value) Bits() uint64 {
	if !v.Wide {
		return uint64(uint32(v.Int))
	}
	return uint64(v.Int)
}

// norm cuts a value to its width.
func (v Value) norm() Value {
	switch {
	case v.Wide:
	case v.Unsigned:
		v.Int = int64(uint32(v.Int))
	default:
		v.Int = int64(int32(v.Int))
	}
	return v
}

func truth(b bool) Value {
	if b {
		return Value{Int: 1}
	}
	return Value{}
}

// evaluator computes a constant expression.
type evaluator struct {
	tokens    []Token
	pos       int
	depth     int
	directive bool                            // of an #if: 64-bit arithmetic, unknown names are 0
	constant  func(name string) (Value, bool) // enumerators
	typeName  func(*evaluator) (*Type, bool)  // parses a type's name here
}

var errDeep = errors.New("expression is nested too deeply")

const maxDepth = 500

func (e *evaluator) peek() string {
	if e.pos < len(e.tokens) {
		return e.tokens[e.pos].Text
	}
	return ""
}

func (e *evaluator) whole() (Value, error) {
	v, err := e.ternary()
	if err == nil && e.pos != len(e.tokens) {
		err = fmt.Errorf("%q after the expression", e.peek())
	}
	return v, err
}

func (e *evaluator) ternary() (Value, error) {
	if e.depth++; e.depth > maxDepth {
		return Value{}, errDeep
	}
	defer func() { e.depth-- }()
	c, err := e.binary(0)
	if err != nil || e.peek() != "?" {
		return c, err
	}
	e.pos++
	a, err := e.ternary()
	if err != nil {
		return a, err
	}
	if e.peek() != ":" {
		return a, errors.New("conditional expression without a colon")
	}
	e.pos++
	b, err := e.ternary()
	if c.Int != 0 {
		b = a
	}
	return b, err
}

// precedence of the binary operators, weakest first.
var precedence = [][]string{
	{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"},
}

func (e *evaluator) binary(level int) (Value, error) {
	if level == len(precedence) {
		return e.unary()
	}
	a, err := e.binary(level + 1)
next:
	for err == nil {
		for _, op := range precedence[level] {
			if e.peek() == op {
				e.pos++
				var b Value
				if b, err = e.binary(level + 1); err == nil {
					a, err = e.apply(op, a, b)
				}
				continue next
			}
		}
		break
	}
	return a, err
}

// apply computes one binary operation with C's conversions.
func (e *evaluator) apply(op string, a, b Value) (Value, error) {
	r := Value{
		Wide:     a.Wide || b.Wide || e.directive,
		Unsigned: a.Unsigned && (a.Wide || !b.Wide) || b.Unsigned && (b.Wide || !a.Wide),
	}
	switch op {
	case "||":
		return truth(a.Int != 0 || b.Int != 0), nil
	case "&&":
		return truth(a.Int != 0 && b.Int != 0), nil
	case "==":
		return truth(a.Int == b.Int), nil
	case "!=":
		return truth(a.Int != b.Int), nil
	case "<", ">=":
		less := a.Int < b.Int
		if r.Unsigned {
			less = uint64(a.Int) < uint64(b.Int)
		}
		return truth(less == (op == "<")), nil
	case ">", "<=":
		more := a.Int > b.Int
		if r.Unsigned {
			more = uint64(a.Int) > uint64(b.Int)
		}
		return truth(more == (op == ">")), nil
	case "<<", ">>":
		return e.shift(op, a, b), nil
	case "|":
		r.Int = a.Int | b.Int
	case "^":
		r.Int = a.Int ^ b.Int
	case "&":
		r.Int = a.Int & b.Int
	case "+":
		r.Int = a.Int + b.Int
	case "-":
		r.Int = a.Int - b.Int
	case "*":
		r.Int = a.Int * b.Int
	case "/", "%":
		if b.Int == 0 {
			return a, errors.New("division by zero")
		}
		r.Int = divide(op, a.Int, b.Int, r.Unsigned)
	}
	return r.norm(), nil
}

func divide(op string, a, b int64, unsigned bool) int64 {
	switch {
	case unsigned && op == "/":
		return int64(uint64(a) / uint64(b))
	case unsigned:
		return int64(uint64(a) % uint64(b))
	case op == "/":
		return a / b
	}
	return a % b
}

// shift has the type of its left side.
func (e *evaluator) shift(op string, a, b Value) Value {
	r := Value{Wide: a.Wide || e.directive, Unsigned: a.Unsigned}
	n := uint(b.Int & 63)
	switch {
	case op == "<<":
		r.Int = a.Int << n
	case a.Unsigned && a.Wide:
		r.Int = int64(uint64(a.Int) >> n)
	case a.Unsigned:
		r.Int = int64(uint32(a.Int) >> (n & 31))
	default:
		r.Int = a.Int >> n
	}
	return r.norm()
}

func (e *evaluator) unary() (Value, error) {
	if e.pos >= len(e.tokens) {
		return Value{}, errors.New("expression ends early")
	}
	if e.depth++; e.depth > maxDepth {
		return Value{}, errDeep
	}
	defer func() { e.depth-- }()
	t := e.tokens[e.pos]
	e.pos++
	switch t.Text {
	case "-", "+", "~", "!":
		v, err := e.unary()
		switch t.Text {
		case "-":
			v.Int = -v.Int
		case "~":
			v.Int = ^v.Int
		case "!":
			v = truth(v.Int == 0)
		}
		return v.norm(), err
	case "sizeof", "_Alignof", "__alignof__":
		return e.sizeof(t.Text)
	case "(":
		return e.parenthesis()
	}
	return e.primary(t)
}

func (e *evaluator) sizeof(op string) (Value, error) {
	if e.peek() == "(" && e.typeName != nil {
		e.pos++
		if t, ok := e.typeName(e); ok && e.peek() == ")" {
			e.pos++
			n := t.SizeOf()
			if op != "sizeof" {
				n = t.AlignOf()
			}
			return Value{Int: n, Wide: true, Unsigned: true}, nil
		}
	}
	return Value{}, fmt.Errorf("%s of no known type", op)
}

// parenthesis reads a cast or an expression in parentheses.
func (e *evaluator) parenthesis() (Value, error) {
	if e.typeName != nil {
		save := e.pos
		if t, ok := e.typeName(e); ok && e.peek() == ")" {
			e.pos++
			if v, err := e.unary(); err == nil {
				return cast(v, t.Base()), nil
			}
		}
		e.pos = save
	}
	v, err := e.ternary()
	if err != nil {
		return v, err
	}
	if e.peek() != ")" {
		return v, errors.New("( without )")
	}
	e.pos++
	return v, nil
}

func cast(v Value, t *Type) Value {
	v.Wide, v.Unsigned = false, false
	switch n := t.SizeOf(); {
	case n == 1 && t.Signed:
		v.Int = int64(int8(v.Int))
	case n == 1:
		v.Int = int64(uint8(v.Int))
	case n == 2 && t.Signed:
		v.Int = int64(int16(v.Int))
	case n == 2:
		v.Int = int64(uint16(v.Int))
	default:
		v.Wide, v.Unsigned = n != 4, !t.Signed
	}
	return v.norm()
}

func (e *evaluator) primary(t Token) (Value, error) {
	switch t.Kind {
	case Number:
		return ParseNumber(t.Text)
	case Char:
		s := strings.Trim(t.Text, "'")
		if r, _, tail, err := strconv.UnquoteChar(s, '\''); err == nil && tail == "" {
			return Value{Int: int64(r)}, nil
		}
		var n int64 // 'ABCD'
		for i := range len(s) {
			n = n<<8 | int64(s[i])
		}
		return Value{Int: n}, nil
	case Ident:
		if e.constant != nil {
			if v, ok := e.constant(t.Text); ok {
				return v, nil
			}
		}
		if e.directive {
			e.skipCall()
			return Value{}, nil
		}
	}
	return Value{}, fmt.Errorf("%q is not constant", t.Text)
}

// skipCall passes over the arguments of something unknown in an #if.
func (e *evaluator) skipCall() {
	if e.peek() != "(" {
		return
	}
	for depth := 0; e.pos < len(e.tokens); {
		switch e.peek() {
		case "(":
			depth++
		case ")":
			depth--
		}
		e.pos++
		if depth == 0 {
			return
		}
	}
}

// ParseNumber reads an integer constant with its suffixes.
func ParseNumber(s string) (Value, error) {
	var v Value
	digits := s
	hex := strings.HasPrefix(s, "0x") || strings.HasPrefix(s, "0X")
	for digits != "" {
		c := digits[len(digits)-1] | 0x20
		switch {
		case c == 'u':
			v.Unsigned = true
		case c == 'l':
			v.Wide = true
		case c == 'f' && !hex:
			return v, fmt.Errorf("%s is no integer", s)
		default:
			c = 0
		}
		if c == 0 {
			break
		}
		digits = digits[:len(digits)-1]
	}
	u, err := strconv.ParseUint(digits, 0, 64)
	if err != nil {
		return v, fmt.Errorf("%s is no integer", s)
	}
	v.Int = int64(u)
	switch decimal := digits[0] != '0'; {
	case v.Wide || u <= 0x7fffffff:
	case u <= 0xffffffff && (v.Unsigned || !decimal):
		v.Unsigned = true
	default:
		v.Wide = true
		v.Unsigned = v.Unsigned || u > 0x7fffffffffffffff
	}
	return v, nil
}
