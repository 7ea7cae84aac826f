package ctoken

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

// Sized is what expressions ask of a type.
type Sized struct {
	Size, Align int64 // bytes
	Signed      bool
}

// Evaluator computes constant expressions from where its cursor is.
type Evaluator struct {
	*Cursor
	Constant func(name string) (Value, bool) // enumerators; nil for none
	TypeName func() (Sized, bool)            // reads a type's name at the cursor, and leaves it alone where there is none; nil for none
	Wide     bool                            // 64-bit arithmetic
	Zero     bool                            // names that are not known are 0

	depth int
}

var errDeep = errors.New("expression is nested too deeply")

const maxDepth = 500

// Whole computes the expression that the tokens are, to their end.
func (e *Evaluator) Whole() (Value, error) {
	v, err := e.Expression()
	if err == nil && e.Pos != len(e.Tokens) {
		err = fmt.Errorf("%q after the expression", e.Peek())
	}
	return v, err
}

// Expression computes an expression and leaves the cursor behind it.
func (e *Evaluator) Expression() (Value, error) {
	if e.depth++; e.depth > maxDepth {
		return Value{}, errDeep
	}
	defer func() { e.depth-- }()
	c, err := e.binary(0)
	if err != nil || e.Peek() != "?" {
		return c, err
	}
	e.Pos++
	a, err := e.Expression()
	if err != nil {
		return a, err
	}
	if e.Peek() != ":" {
		return a, errors.New("conditional expression without a colon")
	}
	e.Pos++
	b, err := e.Expression()
	if c.Int != 0 {
		b = a
	}
	return b, err
}

// precedence of the binary operators, weakest first.
var precedence = [][]string{
	{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"},
}

func (e *Evaluator) binary(level int) (Value, error) {
	if level == len(precedence) {
		return e.unary()
	}
	a, err := e.binary(level + 1)
next:
	for err == nil {
		for _, op := range precedence[level] {
			if e.Peek() == op {
				e.Pos++
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
func (e *Evaluator) apply(op string, a, b Value) (Value, error) {
	r := Value{
		Wide:     a.Wide || b.Wide || e.Wide,
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
		if b.Int < 0 || b.Int > 63 {
			return a, fmt.Errorf("shift by %d", b.Int)
		}
		return e.shift(op, a, uint(b.Int)), nil
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
func (e *Evaluator) shift(op string, a Value, n uint) Value {
	r := Value{Wide: a.Wide || e.Wide, Unsigned: a.Unsigned}
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

func (e *Evaluator) unary() (Value, error) {
	if e.Pos >= len(e.Tokens) {
		return Value{}, errors.New("expression ends early")
	}
	if e.depth++; e.depth > maxDepth {
		return Value{}, errDeep
	}
	defer func() { e.depth-- }()
	t := e.Tokens[e.Pos]
	e.Pos++
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

func (e *Evaluator) sizeof(op string) (Value, error) {
	if e.Peek() == "(" && e.TypeName != nil {
		e.Pos++
		if t, ok := e.TypeName(); ok && e.Peek() == ")" {
			e.Pos++
			n := t.Size
			if op != "sizeof" {
				n = t.Align
			}
			return Value{Int: n, Wide: true, Unsigned: true}, nil
		}
	}
	return Value{}, fmt.Errorf("%s of no known type", op)
}

// parenthesis reads a cast or an expression in parentheses.
func (e *Evaluator) parenthesis() (Value, error) {
	if e.TypeName != nil {
		save := e.Pos
		if t, ok := e.TypeName(); ok && e.Peek() == ")" {
			e.Pos++
			if v, err := e.unary(); err == nil {
				return cast(v, t), nil
			}
		}
		e.Pos = save
	}
	v, err := e.Expression()
	if err != nil {
		return v, err
	}
	if e.Peek() != ")" {
		return v, errors.New("( without )")
	}
	e.Pos++
	return v, nil
}

// cast is what a cast to a type makes of a number.
func cast(v Value, t Sized) Value {
	v.Wide, v.Unsigned = false, false
	switch n := t.Size; {
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

func (e *Evaluator) primary(t Token) (Value, error) {
	switch t.Kind {
	case Number:
		return parseNumber(t.Text)
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
		if e.Constant != nil {
			if v, ok := e.Constant(t.Text); ok {
				return v, nil
			}
		}
		if e.Zero {
			e.skipCall()
			return Value{}, nil
		}
	}
	return Value{}, fmt.Errorf("%q is not constant", t.Text)
}

// skipCall passes over the arguments of something unknown in an #if.
func (e *Evaluator) skipCall() {
	if e.Peek() != "(" {
		return
	}
	for depth := 0; e.Pos < len(e.Tokens); {
		switch e.Peek() {
		case "(":
			depth++
		case ")":
			depth--
		}
		e.Pos++
		if depth == 0 {
			return
		}
	}
}

// parseNumber reads an integer constant with its suffixes.
func parseNumber(s string) (Value, error) {
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
