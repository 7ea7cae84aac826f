package object

import "fmt"

// marked is an error that has another one in its chain, by which callers know its kind,
// and not in its text, which says more.
type marked struct {
	error
	kind error
}

// Unwrap returns the error and its kind.
func (m marked) Unwrap() []error { return []error{m.error, m.kind} }

// Markf is fmt.Errorf of an error of a kind.
func Markf(kind error, format string, args ...any) error {
	return marked{fmt.Errorf(format, args...), kind}
}
