// Package escape makes text from recordings, objects and programs fit to be shown:
// whatever could act on a terminal, or make a reader see other text than there is,
// is written as an escape sequence that can be read.
package escape

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Acts says whether a character does something instead of being seen: controls, the
// old ones and those from U+0080, line and paragraph separators, and format
// characters, which turn the direction of text around or can't be seen at all.
func Acts(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// String returns a text that stands in one line: what acts, line ends and tabs
// among it, becomes \n, \t, \x1b, \u202e, and a byte that is no UTF-8 \x9b. A text
// without such is returned as it is.
func String(s string) string {
	if clean(s, false) == len(s) {
		return s
	}
	return string(Append(make([]byte, 0, len(s)+16), s))
}

// Line formats a line of text, with its end: what the arguments bring in can't begin
// another.
func Line(format string, args ...any) string { return String(fmt.Sprintf(format, args...)) + "\n" }

// Append appends what [String] returns.
func Append[T string | []byte](dst []byte, s T) []byte { return appendText(dst, string(s), false) }

// AppendRune appends a character that acts as \uXXXX, one above U+FFFF as the two
// of its UTF-16 code: so it is in JSON, too.
func AppendRune(dst []byte, r rune) []byte {
	if r > 0xffff {
		r -= 0x10000
		dst = AppendRune(dst, 0xd800|r>>10)
		r = 0xdc00 | r&0x3ff
	}
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// AppendQuotable appends bytes of a program's that stand between quotes, as a C string has
// them: printable ASCII as it is, \n and \t, \xNN for all others. Nothing in it acts, or ends the
// quotes.
func AppendQuotable[T string | []byte](dst []byte, s T) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < 0x20 || c >= 0x7f:
			dst = append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// AppendQuoted appends bytes of a program's in quotes, as [AppendQuotable] has them.
func AppendQuoted[T string | []byte](dst []byte, s T) []byte {
	return append(AppendQuotable(append(dst, '"'), s), '"')
}

// AppendJSON appends a JSON string. What acts is escaped: it stands in one line for
// every reader, and does nothing on a terminal. Bytes that are no UTF-8 become U+FFFD.
func AppendJSON(dst []byte, s string) []byte { return appendJSON(dst, s, false) }

// AppendJSONBytes is [AppendJSON] for any bytes: those that are no UTF-8 become the lone
// surrogates U+DC80 to U+DCFF, by which a reader finds them again (the convention of
// PEP 383).
func AppendJSONBytes(dst []byte, s string) []byte { return appendJSON(dst, s, true) }

func appendJSON(dst []byte, s string, whole bool) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		bad := r == utf8.RuneError && size == 1
		if c >= utf8.RuneSelf && !bad && !Acts(r) {
			i += size
			continue
		}
		dst = append(dst, s[start:i]...)
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case bad && whole:
			dst = AppendRune(dst, 0xdc00|rune(c))
		case bad:
			dst = utf8.AppendRune(dst, utf8.RuneError)
		default:
			dst = AppendRune(dst, r)
		}
		i += size
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

const hexDigits = "0123456789abcdef"

// plain reports whether 8 characters are ASCII that shows, which most are.
func plain(s string) bool {
	const each = 0x0101010101010101
	_ = s[7]
	v := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	return (v|(v-' '*each)|(v+each))&(0x80*each) == 0
}

// clean returns how much of the front of s shows as it is.
func clean(s string, lines bool) int {
	for i := 0; i < len(s); {
		for i+8 <= len(s) && plain(s[i:i+8]) {
			i += 8
		}
		if i == len(s) {
			break
		}
		c := s[i]
		if c >= ' ' && c < 0x7f || lines && (c == '\n' || c == '\t') {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			return i
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || Acts(r) {
			return i
		}
		i += n
	}
	return len(s)
}

// appendText appends s; with lines, line ends and tabs stay.
func appendText(dst []byte, s string, lines bool) []byte {
	for s != "" {
		n := clean(s, lines)
		dst = append(dst, s[:n]...)
		if s = s[n:]; s == "" {
			break
		}
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, '\\', 'x', hexDigits[s[0]>>4], hexDigits[s[0]&15])
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r < ' ': // JSON has none
			dst = append(dst, '\\', 'x', hexDigits[r>>4], hexDigits[r&15])
		default:
			dst = AppendRune(dst, r)
		}
		s = s[size:]
	}
	return dst
}

// Lines returns a text of several lines: as [String], but line ends and tabs stay.
func Lines[T string | []byte](s T) T {
	if clean(string(s), true) == len(s) {
		return s
	}
	return T(appendText(make([]byte, 0, len(s)+16), string(s), true))
}

// Writer writes text as [Lines] returns it. It is the last that text goes through
// before a terminal or a file. JSON stays the same JSON. It may be used by several
// goroutines.
type Writer struct {
	w    io.Writer
	keep []string

	mu   sync.Mutex
	buf  []byte
	rest []byte // the beginning of a character whose end has not come
}

// NewWriter returns a Writer onto w. The sequences in keep, each of which begins with
// an ESC, are what the writer's owner itself does to a terminal; they stay.
func NewWriter(w io.Writer, keep ...string) *Writer { return &Writer{w: w, keep: keep} }

// Unwrap returns what the Writer writes to.
func (w *Writer) Unwrap() io.Writer { return w.w }

// Write implements io.Writer. The error is that of the writer beneath; nothing is
// known then of how much of p was written.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	if len(w.rest) > 0 {
		p = append(w.rest, p...)
		w.rest = nil
	}
	if k := partial(p); k > 0 {
		w.rest = append([]byte(nil), p[len(p)-k:]...)
		p = p[:len(p)-k]
	}
	if err := w.put(string(p)); err != nil {
		return 0, err
	}
	return n, nil
}

// Flush writes what looked like the beginning of a character, and was not.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := string(w.rest)
	w.rest = nil
	return w.put(rest)
}

func (w *Writer) put(s string) error {
	if s == "" {
		return nil
	}
	w.buf = w.buf[:0]
	for s != "" {
		n := clean(s, true)
		w.buf = append(w.buf, s[:n]...)
		if s = s[n:]; s == "" {
			break
		}
		if seq := w.kept(s); seq != "" {
			w.buf, s = append(w.buf, seq...), s[len(seq):]
			continue
		}
		_, size := utf8.DecodeRuneInString(s)
		w.buf, s = appendText(w.buf, s[:size], true), s[size:]
	}
	_, err := w.w.Write(w.buf)
	if cap(w.buf) > 1<<20 {
		w.buf = nil
	}
	return err
}

func (w *Writer) kept(s string) string {
	for _, seq := range w.keep {
		if strings.HasPrefix(s, seq) {
			return seq
		}
	}
	return ""
}

// partial returns how many bytes at the end of b begin a character of which more
// must come.
func partial(b []byte) int {
	for k := 1; k < utf8.UTFMax && k <= len(b); k++ {
		if c := b[len(b)-k]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-k:]) {
				return k
			}
			return 0
		}
	}
	return 0
}
