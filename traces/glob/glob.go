// Package glob matches names with the patterns that users write: in filters, at
// the points of probes, and for functions, kernels and tables. Patterns of
// device nodes, which are paths, are those of package path.
package glob

import (
	"strings"
	"unicode/utf8"
)

// Match reports whether all of s matches pattern: '*' is any text, '?' any
// character, and every other character itself. No pattern is malformed. For
// each '*' it takes time linear in the length of s.
func Match(pattern, s string) bool { return match(pattern, s, false) }

// MatchFold is [Match] with ASCII letters of either case alike.
func MatchFold(pattern, s string) bool { return match(pattern, s, true) }

// Is reports whether a text has '*' or '?': whether it can match several names.
func Is(s string) bool { return strings.ContainsAny(s, "*?") }

func match(pattern, s string, fold bool) bool {
	p, i := 0, 0
	star, mark := -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && pattern[p] == '?':
			_, n := utf8.DecodeRuneInString(s[i:])
			p++
			i += n
		case p < len(pattern) && (pattern[p] == s[i] || fold && lower(pattern[p]) == lower(s[i])):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
