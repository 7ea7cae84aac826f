package script

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Bounds of a program's text.
const (
	maxSource = 64 << 10
	maxDepth  = 64 // of expressions and statements in one another
)

// A span is a part of the text, in bytes.
type span struct{ at, end int }

func (s span) pos() span { return s }

// to returns the span from s to the end of t.
func (s span) to(t span) span { return span{s.at, max(s.end, t.end)} }

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokInt
	tokString
	tokName // of a built-in, a function, a keyword
	tokMap  // "@name"
	tokVar  // "$name"
	tokPunct
)

type token struct {
	span
	kind tokenKind
	text string // of a string, what it stands for
	n    int64
}

// is reports whether a token is that punctuation or keyword.
func (t *token) is(text string) bool {
	return (t.kind == tokPunct || t.kind == tokName) && t.text == text
}

// describe names a token for a message.
func (t *token) describe() string {
	switch t.kind {
	case tokEOF:
		return "the end of the program"
	case tokString:
		return "a string"
	}
	return "'" + t.text + "'"
}

// A lexer cuts the text into tokens.
type lexer struct {
	name string // of the file, "-e" for the command line
	text string
	at   int
}

// fail ends the work on the program with an error about a part of it.
func (l *lexer) fail(s span, format string, args ...any) {
	panic(l.errorAt(s, format, args...))
}

func (l *lexer) errorAt(s span, format string, args ...any) *Error {
	s.at = min(max(s.at, 0), len(l.text))
	s.end = min(max(s.end, s.at), len(l.text))
	start := strings.LastIndexByte(l.text[:s.at], '\n') + 1
	line, _, _ := strings.Cut(l.text[start:], "\n")
	return &Error{
		File: l.name, Line: 1 + strings.Count(l.text[:s.at], "\n"), Col: s.at - start + 1, Source: line,
		Width: min(s.end, start+len(line)) - s.at, Reason: fmt.Sprintf(format, args...),
	}
}

// space skips what separates tokens.
func (l *lexer) space() {
	for l.at < len(l.text) {
		rest := l.text[l.at:]
		switch {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			l.at++
		case strings.HasPrefix(rest, "//"), l.at == 0 && strings.HasPrefix(rest, "#!"):
			if n := strings.IndexByte(rest, '\n'); n >= 0 {
				l.at += n
			} else {
				l.at = len(l.text)
			}
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				l.fail(span{l.at, l.at + 2}, "this comment has no end")
			}
			l.at += n + 4
		default:
			return
		}
	}
}

// puncts are longest first.
var puncts = []string{
	"<<=", ">>=", "...", "..",
	"++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "==", "!=", "<=", ">=", "<<", ">>", "&&", "||",
	"{", "}", "(", ")", "[", "]", ";", ",", ".", "=", "<", ">", "+", "-", "*", "/", "%", "&", "|", "^", "!", "~", "?", ":",
}

// next returns the next token.
func (l *lexer) next() token {
	l.space()
	t := token{span: span{l.at, l.at}}
	if l.at == len(l.text) {
		return t
	}
	c, rest := l.text[l.at], l.text[l.at:]
	switch {
	case isLetter(c):
		t.kind, t.text = tokName, l.word(0)
	case c == '@' || c == '$':
		t.kind, t.text = tokMap, l.word(1)
		if c == '$' {
			if t.kind = tokVar; len(t.text) == 1 {
				l.fail(span{t.at, t.at + 1}, "a variable needs a name: $x")
			}
		}
	case c >= '0' && c <= '9':
		t.kind, t.text = tokInt, l.word(0)
		t.n = l.number(span{t.at, l.at}, t.text)
	case c == '"':
		t.kind, t.text = tokString, l.quoted()
	default:
		for _, p := range puncts {
			if strings.HasPrefix(rest, p) {
				t.kind, t.text = tokPunct, p
				l.at += len(p)
				break
			}
		}
		if t.kind == tokEOF {
			l.strange(rest)
		}
	}
	t.end = l.at
	return t
}

// strange refuses a character that no token begins with.
func (l *lexer) strange(rest string) {
	for _, r := range rest {
		s := span{l.at, l.at + len(string(r))}
		switch r {
		case '\'':
			l.fail(s, "strings stand between double quotes: \"…\"")
		case '“', '”', '„':
			l.fail(s, "%q is no quote of a program: write \"", string(r))
		case '#':
			l.fail(s, "a comment begins with //")
		}
		l.fail(s, "%q means nothing here", string(r))
	}
}

func isLetter(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// word takes a word of letters, digits and "_", behind skip bytes.
func (l *lexer) word(skip int) string {
	from := l.at
	for l.at += skip; l.at < len(l.text) && (isLetter(l.text[l.at]) || l.text[l.at] >= '0' && l.text[l.at] <= '9'); {
		l.at++
	}
	return l.text[from:l.at]
}

// units are what a number may end with: times in nanoseconds.
var units = map[string]int64{"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}

// number reads 10, 0x1f, 1_000, 1e6 or 10ms.
func (l *lexer) number(s span, text string) int64 {
	clean := strings.ReplaceAll(text, "_", "")
	if n, err := strconv.ParseInt(clean, 0, 64); err == nil {
		return n
	}
	if n, err := strconv.ParseUint(clean, 0, 64); err == nil {
		return int64(n) // of 64 bits, such as 0xffffffffffffffff
	}
	end := strings.IndexFunc(clean, func(r rune) bool { return r < '0' || r > '9' })
	if end > 0 {
		n, err := strconv.ParseInt(clean[:end], 10, 64)
		unit := clean[end:]
		if zeros, isExp := strings.CutPrefix(strings.ToLower(unit), "e"); isExp && err == nil {
			if k, kerr := strconv.Atoi(zeros); kerr == nil && k <= 18 {
				for ; k > 0 && err == nil; k-- {
					n, err = times(n, 10)
				}
				if err == nil {
					return n
				}
			}
		}
		if u := units[unit]; u != 0 && err == nil {
			if n, err = times(n, u); err == nil {
				return n
			}
		}
	}
	l.fail(s, "%s is no number of 64 bits; write 10, 0x1f, 1e6, 1_000, or a time as 10ms", text)
	return 0
}

func times(a, b int64) (int64, error) {
	if hi, lo := bits.Mul64(uint64(a), uint64(b)); hi != 0 || int64(lo) < 0 {
		return 0, strconv.ErrRange
	}
	return a * b, nil
}

// quoted reads a string with its escapes.
func (l *lexer) quoted() string {
	from := l.at
	for l.at++; l.at < len(l.text) && l.text[l.at] != '"'; l.at++ {
		switch l.text[l.at] {
		case '\\':
			l.at++
		case '\n':
			l.fail(span{from, l.at}, "this string has no end")
		}
	}
	if l.at >= len(l.text) {
		l.fail(span{from, len(l.text)}, "this string has no end")
	}
	l.at++
	s, err := strconv.Unquote(l.text[from:l.at])
	if err != nil {
		l.fail(span{from, l.at}, "this string has an escape that there is not; there are \\n \\t \\\" \\\\ \\x1b and the like")
	}
	return s
}

// glob reads the raw text of a pattern: up to a space, a comma, a brace, or a slash that
// begins a filter. Any part of it may be quoted, which then has no such end:
// uprobe:./x:"void f<int, 4>*".
func (l *lexer) glob(stops string) token {
	t := token{span: span{l.at, l.at}, kind: tokString}
	var b strings.Builder
	for l.at < len(l.text) && strings.IndexByte(stops, l.text[l.at]) < 0 && !strings.HasPrefix(l.text[l.at:], "//") {
		if l.text[l.at] == '"' {
			b.WriteString(l.quoted())
			continue
		}
		for _, quote := range []string{"“", "”", "„", "'"} {
			if strings.HasPrefix(l.text[l.at:], quote) {
				l.strange(l.text[l.at:])
			}
		}
		b.WriteByte(l.text[l.at])
		l.at++
	}
	t.end, t.text = l.at, b.String()
	return t
}
