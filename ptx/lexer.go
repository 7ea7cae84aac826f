package ptx

import (
	"iter"
	"strings"
)

// Character classes; one byte's class decides which token starts there.
const (
	clBad    = iota
	clSpace           // blank, tab, \n \r \f \v
	clAlpha           // letter
	clLead            // _ $ and %: an identifier when another identifier byte follows
	clDigit           // 0-9
	clDot             // .
	clQuote           // "
	clSlash           // /
	clPunct           // every other operator
	clAt              // @
	clHash            // #
	clNUL             // padding if only NULs follow
	clGlyph  = 1 << 4 // flag: may continue an identifier: letter, digit, _ or $
	clsMask  = clGlyph - 1
	clsAlpha = clAlpha | clGlyph
)

// class is indexed by byte.
var class = func() (t [256]uint8) {
	for _, c := range " \t\n\r\f\v" {
		t[c] = clSpace
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = clsAlpha, clsAlpha
	}
	for c := '0'; c <= '9'; c++ {
		t[c] = clDigit | clGlyph
	}
	for _, c := range "-+*&|^~!<>=?:;,(){}[]" {
		t[c] = clPunct
	}
	t['_'], t['$'], t['%'] = clLead|clGlyph, clLead|clGlyph, clLead
	t['.'], t['"'], t['/'], t['@'], t['#'], t[0] = clDot, clQuote, clSlash, clAt, clHash, clNUL
	return t
}()

// glyphs returns the offset of the first byte at or after i that can't continue
// an identifier.
func glyphs(src string, i int) int {
	for i < len(src) && class[src[i]]&clGlyph != 0 {
		i++
	}
	return i
}

func digits(src string, i int) int {
	for i < len(src) && src[i]-'0' < 10 {
		i++
	}
	return i
}

// Lex yields every token of src in order, trivia and bad bytes included; their
// texts concatenate to src. The TokEOF at the end is not yielded. Sources of
// 4 GiB and more are cut there.
func Lex(src string) iter.Seq[Token] {
	return func(yield func(Token) bool) {
		for i := 0; i < len(src) && i < maxSource; {
			k, end := scan(src, i)
			if !yield(Token{k, Span{Pos(i), Pos(end)}}) {
				return
			}
			i = end
		}
	}
}

// maxSource is the largest source a Pos can describe.
const maxSource = 1<<32 - 1

// scan returns the kind of the token that starts at i, which is less than
// len(src), and the offset after it, which is more than i.
func scan(src string, i int) (TokenKind, int) {
	switch class[src[i]] & clsMask {
	case clAlpha:
		return TokIdent, glyphs(src, i+1)
	case clLead:
		end := glyphs(src, i+1)
		if end > i+1 || src[i] == '_' {
			return TokIdent, end
		}
		if src[i] == '%' {
			return TokPunct, end
		}
		return TokBad, end
	case clSpace:
		for i++; i < len(src) && class[src[i]] == clSpace; i++ {
		}
		return TokSpace, i
	case clDot:
		return scanDot(src, i)
	case clDigit:
		return scanNumber(src, i)
	case clPunct:
		return TokPunct, i + 1
	case clQuote:
		return scanString(src, i)
	case clSlash:
		return scanSlash(src, i)
	case clAt:
		if i+2 < len(src) && src[i+1] == '@' && class[src[i+2]]&clGlyph != 0 {
			return TokMarker, lineEnd(src, i)
		}
		return TokPunct, i + 1
	case clHash:
		if startsLine(src, i) {
			return TokMarker, lineEnd(src, i)
		}
		return TokBad, i + 1
	case clNUL:
		return scanNUL(src, i)
	}
	for i++; i < len(src) && src[i] >= 0x80; i++ {
	}
	return TokBad, i
}

// lineEnd returns the offset of the newline that ends the line of i, or
// len(src).
func lineEnd(src string, i int) int {
	if n := strings.IndexByte(src[i:], '\n'); n >= 0 {
		return i + n
	}
	return len(src)
}

// startsLine reports whether only blanks stand between i and the line's start.
func startsLine(src string, i int) bool {
	for i--; i >= 0 && src[i] != '\n'; i-- {
		if src[i] != ' ' && src[i] != '\t' {
			return false
		}
	}
	return true
}

// scanDot scans a directive or modifier (.reg, .2d, .shared::cta) or a float
// without integer part (.5). No modifier consists of digits only.
func scanDot(src string, i int) (TokenKind, int) {
	end := glyphs(src, i+1)
	if end == i+1 {
		return TokBad, end
	}
	if src[i+1]-'0' < 10 {
		if k, e := scanFraction(src, i); k == TokFloat {
			return k, e
		}
	}
	for end+2 < len(src) && src[end] == ':' && src[end+1] == ':' && class[src[end+2]]&clGlyph != 0 {
		end = glyphs(src, end+3)
	}
	return TokDirective, end
}

// scanFraction scans ".123e-4" from the dot on.
func scanFraction(src string, dot int) (TokenKind, int) {
	end := exponent(src, digits(src, dot+1))
	if end < len(src) && class[src[end]]&clGlyph != 0 {
		return TokBad, glyphs(src, end)
	}
	return TokFloat, end
}

func exponent(src string, i int) int {
	if i >= len(src) || src[i]|0x20 != 'e' {
		return i
	}
	j := i + 1
	if j < len(src) && (src[j] == '+' || src[j] == '-') {
		j++
	}
	if end := digits(src, j); end > j {
		return end
	}
	return i
}

// scanNumber scans an integer or a float. A number that runs into other
// identifier bytes is bad as a whole.
func scanNumber(src string, i int) (TokenKind, int) {
	if src[i] == '0' && i+1 < len(src) {
		if k, end := scanPrefixed(src, i); k != TokEOF {
			return k, end
		}
	}
	end := digits(src, i)
	if end < len(src) && src[end] == '.' {
		return scanFraction(src, end)
	}
	if e := exponent(src, end); e > end {
		if e < len(src) && class[src[e]]&clGlyph != 0 {
			return TokBad, glyphs(src, e)
		}
		return TokFloat, e
	}
	if end < len(src) && src[end] == 'U' {
		end++
	}
	if end < len(src) && class[src[end]]&clGlyph != 0 {
		return TokBad, glyphs(src, end)
	}
	return TokInt, end
}

// scanPrefixed scans 0x1F, 0b11, 0f3F800000 and 0d3FF0000000000000; TokEOF says
// that there is no such prefix at i.
func scanPrefixed(src string, i int) (TokenKind, int) {
	end := glyphs(src, i)
	body := src[i+2 : max(end, i+2)]
	kind, base, width := TokInt, 16, 0
	switch src[i+1] | 0x20 {
	case 'x':
	case 'b':
		base = 2
	case 'f':
		kind, width = TokFloat, 8
	case 'd':
		kind, width = TokFloat, 16
	default:
		return TokEOF, i
	}
	if kind == TokInt {
		body = strings.TrimSuffix(body, "U")
	} else if len(body) != width {
		return TokBad, end
	}
	if body == "" || !allDigits(body, base) {
		return TokBad, end
	}
	return kind, end
}

func allDigits(s string, base int) bool {
	for i := range len(s) {
		if digitVal(s[i]) >= base {
			return false
		}
	}
	return true
}

// digitVal returns the value of a digit in bases up to 16, 16 for other bytes.
func digitVal(c byte) int {
	switch {
	case c-'0' < 10:
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return 16
}

func scanString(src string, i int) (TokenKind, int) {
	for i++; i < len(src); i++ {
		switch src[i] {
		case '"':
			return TokString, i + 1
		case '\\':
			i++
		}
	}
	return TokBad, len(src)
}

func scanSlash(src string, i int) (TokenKind, int) {
	if i+1 < len(src) && src[i+1] == '/' {
		return TokLineComment, lineEnd(src, i)
	}
	if i+1 < len(src) && src[i+1] == '*' {
		if n := strings.Index(src[i+2:], "*/"); n >= 0 {
			return TokComment, i + 2 + n + 2
		}
		return TokBad, len(src)
	}
	return TokPunct, i + 1
}

// scanNUL takes the NULs at the end of src as padding. Anywhere else a NUL is a
// bad byte: the driver would stop reading there.
func scanNUL(src string, i int) (TokenKind, int) {
	end := i
	for end < len(src) && src[end] == 0 {
		end++
	}
	if end == len(src) {
		return TokPadding, end
	}
	return TokBad, end
}
