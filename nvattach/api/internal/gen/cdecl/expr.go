package cdecl

import (
	"strconv"
	"strings"
)

// expression reads a constant expression.
func (u *Unit) expression() int64 {
	c := u.binary(0)
	if u.accept("?") {
		a := u.expression()
		u.want(":")
		b := u.expression()
		if c != 0 {
			return a
		}
		return b
	}
	return c
}

// levels are the binary operators by precedence.
var levels = [][]string{
	{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"},
}

func (u *Unit) binary(level int) int64 {
	if level == len(levels) {
		return u.unary()
	}
	a := u.binary(level + 1)
next:
	for {
		for _, op := range levels[level] {
			if u.peek() == op {
				u.pos++
				a = u.apply(op, a, u.binary(level+1))
				continue next
			}
		}
		return a
	}
}

func (u *Unit) apply(op string, a, b int64) int64 {
	truth := func(v bool) int64 {
		if v {
			return 1
		}
		return 0
	}
	switch op {
	case "||":
		return truth(a != 0 || b != 0)
	case "&&":
		return truth(a != 0 && b != 0)
	case "|":
		return a | b
	case "^":
		return a ^ b
	case "&":
		return a & b
	case "==":
		return truth(a == b)
	case "!=":
		return truth(a != b)
	case "<":
		return truth(a < b)
	case ">":
		return truth(a > b)
	case "<=":
		return truth(a <= b)
	case ">=":
		return truth(a >= b)
	case "<<", ">>":
		if b < 0 || b > 63 {
			u.fail("shift by %d", b)
		}
		if op == "<<" {
			return a << b
		}
		return a >> b
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	}
	if b == 0 {
		u.fail("division by zero")
	}
	if op == "/" {
		return a / b
	}
	return a % b
}

func (u *Unit) unary() int64 {
	switch u.peek() {
	case "-":
		u.pos++
		return -u.unary()
	case "+":
		u.pos++
		return u.unary()
	case "~":
		u.pos++
		return ^u.unary()
	case "!":
		u.pos++
		if u.unary() == 0 {
			return 1
		}
		return 0
	case "(":
		u.pos++
		if u.atType() {
			var s specifiers
			base := u.specifiers(&s)
			_, t := u.declarator(base, false)
			u.want(")")
			return convert(u.unary(), t.Base())
		}
		v := u.expression()
		u.want(")")
		return v
	case "sizeof", "_Alignof", "__alignof__":
		return u.sizeOf()
	}
	tok := u.next()
	switch tok.kind {
	case number:
		return u.number(tok.text)
	case text:
		if s, err := strconv.Unquote(tok.text); err == nil && len(s) == 1 && tok.text[0] == '\'' {
			return int64(s[0])
		}
	case ident:
		if v, ok := u.consts[tok.text]; ok {
			return v
		}
	}
	u.fail("%q is no constant", tok.text)
	return 0
}

// convert is what a cast makes of a number.
func convert(v int64, t *Type) int64 {
	switch {
	case t.Class == Uint && t.Size() < 8:
		return v & (1<<(8*t.Size()) - 1)
	case t.Class == Int && t.Size() == 4:
		return int64(int32(v))
	}
	return v
}

func (u *Unit) sizeOf() int64 {
	word := u.next().text
	u.want("(")
	if !u.atType() {
		u.fail("%s of an expression", word)
	}
	var s specifiers
	base := u.specifiers(&s)
	_, t := u.declarator(base, false)
	u.want(")")
	if word == "sizeof" {
		return t.Size()
	}
	return t.Align()
}

// atType reports whether a type's name is ahead.
func (u *Unit) atType() bool {
	w := u.peek()
	return u.atIdent() && (spellings[w] != "" || w == "const" || w == "struct" || w == "union" || w == "enum" || u.Typedefs[w] != nil)
}

func (u *Unit) number(s string) int64 {
	digits := strings.TrimRight(s, "uUlL")
	v, err := strconv.ParseUint(digits, 0, 64)
	if err != nil {
		u.fail("number %q", s)
	}
	if v > 1<<31-1 && v < 1<<32 && !strings.ContainsAny(s[len(digits):], "lL") && !strings.HasPrefix(digits, "0") && !strings.ContainsAny(s[len(digits):], "uU") {
		return int64(v) // decimal without suffix becomes long
	}
	return int64(v)
}
