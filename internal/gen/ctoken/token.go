// Package ctoken is the token level of C, for the generators that read headers:
// tokens, a place among them with which a parser goes on, and the value of
// constant expressions. What declarations mean is package cdecl's.
package ctoken

import "strings"

// Kind is the kind of a token.
type Kind uint8

// The kinds of tokens.
const (
	Ident Kind = iota + 1
	Number
	String
	Char
	Punct
)

// Token is a preprocessing token.
type Token struct {
	Kind  Kind
	Text  string
	Space bool     // white space stands before it
	Hide  []string // macros that a preprocessor must not expand in it again
}

// Lines returns the lines of a text, without comments and with continued lines joined.
func Lines(s string) []string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\\\n", "")
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case strings.HasPrefix(s[i:], "/*"):
			b.WriteByte(' ') // a comment is one blank; its line ends vanish
			end := strings.Index(s[i+2:], "*/")
			if end < 0 {
				i = len(s)
				break
			}
			i += end + 4
		case strings.HasPrefix(s[i:], "//"):
			end := strings.IndexByte(s[i:], '\n')
			if end < 0 {
				end = len(s) - i
			}
			i += end
		case c == '"' || c == '\'':
			j := quoted(s, i)
			b.WriteString(s[i:j])
			i = j
		default:
			b.WriteByte(c)
			i++
		}
	}
	return strings.Split(b.String(), "\n")
}

// quoted returns the end of the string or character constant at i, or of the
// line if it does not end there.
func quoted(s string, i int) int {
	j := i + 1
	for j < len(s) && s[j] != s[i] && s[j] != '\n' {
		if s[j] == '\\' {
			j++
		}
		j++
	}
	if j < len(s) && s[j] == s[i] {
		j++
	}
	return min(j, len(s))
}

func isLetter(c byte) bool { return c == '_' || c == '$' || c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }

// operators of more than one character, longest first.
var operators = [...]string{
	"<<=", ">>=", "...",
	"->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##",
}

// Lex splits a logical line into tokens.
func Lex(s string) []Token {
	var out []Token
	space := false
	for i := 0; i < len(s); {
		c := s[i]
		if strings.IndexByte(" \t\f\v\r\n", c) >= 0 {
			space = true
			i++
			continue
		}
		kind, n := measure(s[i:])
		out = append(out, Token{Kind: kind, Text: s[i : i+n], Space: space})
		space = false
		i += n
	}
	return out
}

// measure tells the token at the start of s.
func measure(s string) (Kind, int) {
	n := 1
	switch c := s[0]; {
	case isLetter(c):
		for n < len(s) && (isLetter(s[n]) || isDigit(s[n])) {
			n++
		}
		return Ident, n
	case isDigit(c), c == '.' && len(s) > 1 && isDigit(s[1]):
		hex := strings.HasPrefix(s, "0x") || strings.HasPrefix(s, "0X")
		for n < len(s) && (isLetter(s[n]) || isDigit(s[n]) || s[n] == '.' || !hex && (s[n] == '+' || s[n] == '-') && s[n-1]|0x20 == 'e') {
			n++
		}
		return Number, n
	case c == '"':
		return String, quoted(s, 0)
	case c == '\'':
		return Char, quoted(s, 0)
	}
	for _, op := range operators {
		if strings.HasPrefix(s, op) {
			return Punct, len(op)
		}
	}
	return Punct, 1
}

// spell returns the text of n tokens from i on, for messages.
func spell(l []Token, i, n int) string {
	var b strings.Builder
	for ; i < len(l) && n > 0; i, n = i+1, n-1 {
		b.WriteString(l[i].Text)
		b.WriteByte(' ')
	}
	return b.String()
}
