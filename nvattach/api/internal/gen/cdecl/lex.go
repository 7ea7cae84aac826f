// Package cdecl reads preprocessed C as far as declarations go: types with
// their layout on x86-64, enumerations with their values, function prototypes
// with the names of their parameters. Bodies of functions are passed over.
package cdecl

import "strings"

// kind is what a token is.
type kind uint8

const (
	ident kind = iota
	number
	text // string or character
	punct
)

type token struct {
	kind kind
	text string
	line int
}

// lex cuts preprocessed text into tokens. Lines that begin with # are the
// preprocessor's remarks.
func lex(src string) []token {
	var out []token
	line := 1
	for i := 0; i < len(src); {
		c := src[i]
		switch {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			i++
		case c == '#':
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case strings.HasPrefix(src[i:], "//"):
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case strings.HasPrefix(src[i:], "/*"):
			end := strings.Index(src[i+2:], "*/")
			if end < 0 {
				return out
			}
			line += strings.Count(src[i:i+2+end], "\n")
			i += end + 4
		case isLetter(c):
			j := i
			for j < len(src) && (isLetter(src[j]) || isDigit(src[j])) {
				j++
			}
			out = append(out, token{ident, src[i:j], line})
			i = j
		case isDigit(c) || c == '.' && i+1 < len(src) && isDigit(src[i+1]):
			j := i
			for j < len(src) && (isLetter(src[j]) || isDigit(src[j]) || src[j] == '.' || (src[j] == '+' || src[j] == '-') && strings.ContainsRune("eEpP", rune(src[j-1])) && !strings.HasPrefix(src[i:], "0x")) {
				j++
			}
			out = append(out, token{number, src[i:j], line})
			i = j
		case c == '"' || c == '\'':
			j := i + 1
			for j < len(src) && src[j] != c && src[j] != '\n' {
				if src[j] == '\\' {
					j++
				}
				j++
			}
			j = min(j+1, len(src))
			out = append(out, token{text, src[i:j], line})
			i = j
		default:
			n := 1
			for _, p := range []string{"...", "<<", ">>", "==", "!=", "<=", ">=", "&&", "||"} {
				if strings.HasPrefix(src[i:], p) {
					n = len(p)
					break
				}
			}
			out = append(out, token{punct, src[i : i+n], line})
			i += n
		}
	}
	return out
}

func isLetter(c byte) bool { return c == '_' || c == '$' || c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
