package script

import "strconv"

// Params are the values of a program's parameters.
type Params struct {
	Positional []string          // $1, $2 …; those that are not given are 0
	Named      map[string]string // by name, without the "$"
	Start      int64             // CLOCK_MONOTONIC, from which elapsed counts at functions and system calls
}

// parameterNumber reads a number as programs have them, with a sign.
func (l *lexer) parameterNumber() (n int64, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ours := r.(*Error)
			if !ours {
				panic(r)
			}
			err = e
		}
	}()
	text, negative := l.text, false
	if len(text) > 1 && text[0] == '-' {
		text, negative = text[1:], true
	}
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, strconv.ErrSyntax
	}
	if n = l.number(span{}, text); negative {
		n = -n
	}
	return n, nil
}
