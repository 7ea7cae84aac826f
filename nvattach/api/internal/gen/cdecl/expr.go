package cdecl

import "nvtrace/internal/gen/ctoken"

// expression reads a constant expression. It has 64 bits: a flag of 1 << 31 is
// that bit, and no negative number.
func (u *Unit) expression() int64 {
	e := ctoken.Evaluator{
		Cursor:   &u.cursor,
		Constant: func(name string) (ctoken.Value, bool) { v, ok := u.consts[name]; return v, ok },
		TypeName: u.typeName,
		Wide:     true,
	}
	v, err := e.Expression()
	if err != nil {
		u.Fail("%w", err)
	}
	return v.Int
}

// typeName reads a type's name inside an expression.
func (u *Unit) typeName() (ctoken.Sized, bool) {
	if !u.atType() {
		return ctoken.Sized{}, false
	}
	var s specifiers
	_, t := u.declarator(u.specifiers(&s), false)
	return ctoken.Sized{Size: t.Size(), Align: t.Align(), Signed: t.Base().Class == Int || t.Base().Class == Char}, true
}

// atType reports whether a type's name is ahead.
func (u *Unit) atType() bool {
	w := u.Peek()
	return u.AtIdent() && (spellings[w] != "" || w == "const" || w == "struct" || w == "union" || w == "enum" || u.Typedefs[w] != nil)
}
