package script

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"nvtrace/ioctl/nearest"
)

// An Error says what is wrong with a program, and where.
type Error struct {
	File   string // "-e" for a program of the command line
	Line   int    // from 1 on
	Col    int    // byte of the line, from 1 on
	Width  int    // bytes that it is about, 0 for a place between two
	Source string // the line
	Reason string
}

// maxShown bounds the part of a long line that is shown.
const maxShown = 120

// Error returns the place and the reason, then the line with a mark below.
func (e *Error) Error() string {
	from, to := min(e.Col-1, len(e.Source)), min(e.Col-1+max(e.Width, 1), len(e.Source))
	start := 0
	if from > maxShown {
		start = from - maxShown/2
		for start > 0 && !utf8.RuneStart(e.Source[start]) {
			start--
		}
	}
	stop := min(len(e.Source), max(to, start+maxShown))
	plain := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\t", " "), "\r", " ") }
	marks := max(1, utf8.RuneCountInString(e.Source[from:max(from, to)]))
	return fmt.Sprintf("%s:%d:%d: %s\n  %s\n  %s%s", e.File, e.Line, utf8.RuneCountInString(e.Source[:from])+1, e.Reason,
		plain(e.Source[start:stop]), strings.Repeat(" ", utf8.RuneCountInString(e.Source[start:from])), "^"+strings.Repeat("~", marks-1))
}

// like returns "; did you mean X?" where names are like a word, otherwise what there is.
func like(word string, names []string) string {
	near := nearest.Names(word, slices.Values(names), 2)
	if len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return "; there are " + list(names)
}

// list joins names.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
