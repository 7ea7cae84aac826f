package ptx

import "math"

// foldUnary and foldBinary compute constant expressions as PTX ISA §4.5.5
// describes: integers in 64 bits, unsigned when an operand is; comparisons and
// logic give signed 0 and 1. An expression that the ISA leaves undefined
// (division by zero, operators that do not take floats) is not folded.

func foldUnary(op byte, v value) value {
	v.folded = true
	switch {
	case v.kind == valSym:
	case op == '!':
		return boolValue(v.float() == 0)
	case v.isInt() && op == '-':
		v.bits = -v.bits
	case v.isInt() && op == '~':
		v.bits = ^v.bits
	case v.kind == valF32 && op == '-':
		v.bits ^= 1 << 31
	case v.kind == valF64 && op == '-':
		v.bits ^= 1 << 63
	case op == '~':
		v.kind = valSym
	}
	return v
}

func boolValue(b bool) value {
	v := value{kind: valInt, folded: true}
	if b {
		v.bits = 1
	}
	return v
}

func foldBinary(op string, a, b value) value {
	if a.kind == valSym || b.kind == valSym {
		return value{kind: valSym}
	}
	switch op {
	case "&&":
		return boolValue(a.float() != 0 && b.float() != 0)
	case "||":
		return boolValue(a.float() != 0 || b.float() != 0)
	}
	if !a.isInt() || !b.isInt() {
		return foldFloat(op, a.float(), b.float())
	}
	v := value{kind: max(a.kind, b.kind), folded: true, over: a.over || b.over}
	if op == "<<" || op == ">>" {
		v.kind = a.kind
	}
	unsigned := v.kind == valUint
	x, y := a.bits, b.bits
	switch op {
	case "+":
		v.bits = x + y
	case "-":
		v.bits = x - y
	case "*":
		v.bits = x * y
	case "/", "%":
		return foldDivide(op, v, x, y)
	case "&":
		v.bits = x & y
	case "|":
		v.bits = x | y
	case "^":
		v.bits = x ^ y
	case "<<":
		v.bits = x << y
	case ">>":
		v.bits = uint64(int64(x) >> y)
		if unsigned {
			v.bits = x >> y
		}
	case "==":
		return boolValue(x == y)
	case "!=":
		return boolValue(x != y)
	default:
		return foldOrder(op, x, y, unsigned)
	}
	return v
}

func foldOrder(op string, x, y uint64, unsigned bool) value {
	if !unsigned {
		// Flipping the sign bits maps the signed order to the unsigned one.
		x, y = x^1<<63, y^1<<63
	}
	switch op {
	case "<":
		return boolValue(x < y)
	case ">":
		return boolValue(x > y)
	case "<=":
		return boolValue(x <= y)
	}
	return boolValue(x >= y)
}

func foldDivide(op string, v value, x, y uint64) value {
	switch {
	case y == 0:
		return value{kind: valSym}
	case v.kind == valUint && op == "/":
		v.bits = x / y
	case v.kind == valUint:
		v.bits = x % y
	case op == "/":
		v.bits = uint64(int64(x) / int64(y))
	default:
		v.bits = x % y // ptxas takes the operands of % as unsigned: -5 % 3 is 2
	}
	return v
}

func foldFloat(op string, x, y float64) value {
	var r float64
	switch op {
	case "+":
		r = x + y
	case "-":
		r = x - y
	case "*":
		r = x * y
	case "/":
		r = x / y
	case "==":
		return boolValue(x == y)
	case "!=":
		return boolValue(x != y)
	case "<":
		return boolValue(x < y)
	case ">":
		return boolValue(x > y)
	case "<=":
		return boolValue(x <= y)
	case ">=":
		return boolValue(x >= y)
	default:
		return value{kind: valSym}
	}
	return value{kind: valF64, folded: true, bits: math.Float64bits(r)}
}
