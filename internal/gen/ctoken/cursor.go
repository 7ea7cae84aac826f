package ctoken

import "fmt"

// Cursor is a place in a list of tokens. Its methods that ask for what is not
// there end the declaration that is being read: see [Guard].
type Cursor struct {
	Tokens []Token
	Pos    int
}

// bail carries a syntax error up to the declaration that it is in.
type bail struct{ err error }

// Fail ends what [Guard] has started, with an error.
func (c *Cursor) Fail(format string, a ...any) { panic(bail{fmt.Errorf(format, a...)}) }

// Guard runs f and returns the error of the [Cursor.Fail] that ended it.
func Guard(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case bail:
			err = r.err
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// Each reads declarations to the end of the tokens. What cannot be read is
// passed over; the errors say where it begins.
func (c *Cursor) Each(declaration func()) (errs []error) {
	for c.Pos < len(c.Tokens) {
		start := c.Pos
		if err := Guard(declaration); err != nil {
			errs = append(errs, fmt.Errorf("%w, near: %s", err, spell(c.Tokens, start, 14)))
			c.Pos = start
			c.resync()
		}
		if c.Pos == start {
			c.Pos++
		}
	}
	return errs
}

// resync goes past the declaration that failed.
func (c *Cursor) resync() {
	depth := 0
	for c.Pos < len(c.Tokens) {
		t := c.Tokens[c.Pos]
		c.Pos++
		if t.Kind != Punct {
			continue
		}
		switch t.Text {
		case "{", "(", "[":
			depth++
		case "}", ")", "]":
			depth--
		}
		if depth <= 0 && (t.Text == ";" || t.Text == "}" && c.Peek() != ";" && !c.AtIdent()) {
			return
		}
	}
}

// Peek returns the text of the next token, "" at the end.
func (c *Cursor) Peek() string { return c.Ahead(0) }

// Ahead returns the text of the token that is n behind the next, "" past the end.
func (c *Cursor) Ahead(n int) string {
	if c.Pos+n < len(c.Tokens) {
		return c.Tokens[c.Pos+n].Text
	}
	return ""
}

// AtIdent reports whether the next token is a name.
func (c *Cursor) AtIdent() bool { return c.Pos < len(c.Tokens) && c.Tokens[c.Pos].Kind == Ident }

// Next takes a token.
func (c *Cursor) Next() Token {
	if c.Pos >= len(c.Tokens) {
		c.Fail("the text ends in a declaration")
	}
	c.Pos++
	return c.Tokens[c.Pos-1]
}

// Accept takes the next token if it is s, and reports whether it was.
func (c *Cursor) Accept(s string) bool {
	if c.Peek() != s {
		return false
	}
	c.Pos++
	return true
}

// Want takes the next token, which has to be s.
func (c *Cursor) Want(s string) {
	if !c.Accept(s) {
		c.Fail("%q where %q is due", c.Peek(), s)
	}
}

// Skip takes a token and, where it opens a bracket, all up to the closing one.
func (c *Cursor) Skip() {
	for depth := 0; ; {
		switch c.Next().Text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		}
		if depth <= 0 {
			return
		}
	}
}
