package ptx

import "fmt"

// An Error says why a source is not PTX, and where.
type Error struct {
	File      string // as given to Parse
	Pos       Pos
	Line, Col int    // 1-based; Col counts bytes
	Want      string // what the grammar allows here: "an operand", "';' after the instruction"
	Got       string // what is there: "'}'", "end of file"
}

// Error returns "file:line:col: expected WANT, found GOT".
func (e *Error) Error() string {
	if e.Got == "" {
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Want)
	}
	return fmt.Sprintf("%s:%d:%d: expected %s, found %s", e.File, e.Line, e.Col, e.Want, e.Got)
}
