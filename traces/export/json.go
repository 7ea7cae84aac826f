package export

import (
	"strconv"
	"unicode/utf8"

	"nvtrace/traces/escape"
)

// jsonText is JSON that is being written. Its methods put commas where they
// belong, and escape.
type jsonText struct{ b []byte }

func (j *jsonText) open() { j.b = append(j.b, '{') }

func (j *jsonText) close() { j.b = append(j.b, '}') }

// key appends a key, which needs no escaping, and the comma before it.
func (j *jsonText) key(name string) {
	if j.b[len(j.b)-1] != '{' {
		j.b = append(j.b, ',')
	}
	j.b = append(j.b, '"')
	j.b = append(j.b, name...)
	j.b = append(j.b, `":`...)
}

func (j *jsonText) str(name, v string) {
	j.key(name)
	j.b = appendString(j.b, v)
}

// opt appends a text unless it is empty.
func (j *jsonText) opt(name, v string) {
	if v != "" {
		j.str(name, clip(v, maxText))
	}
}

func (j *jsonText) int(name string, v int64) {
	j.key(name)
	j.b = strconv.AppendInt(j.b, v, 10)
}

func (j *jsonText) uint(name string, v uint64) {
	j.key(name)
	j.b = strconv.AppendUint(j.b, v, 10)
}

// hex appends a number as a string: an address or a handle.
func (j *jsonText) hex(name string, v uint64) {
	j.key(name)
	j.b = append(j.b, `"0x`...)
	j.b = strconv.AppendUint(j.b, v, 16)
	j.b = append(j.b, '"')
}

// micros appends nanoseconds as microseconds, the unit of trace events.
func (j *jsonText) micros(name string, ns int64) {
	j.key(name)
	u := uint64(ns)
	if ns < 0 {
		j.b = append(j.b, '-')
		u = -u
	}
	j.b = strconv.AppendUint(j.b, u/1000, 10)
	if f := u % 1000; f != 0 {
		j.b = append(j.b, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
	}
}

// appendString appends a JSON string. Bytes that are not UTF-8 become U+FFFD,
// what a terminal or a script could take for something else is escaped.
func appendString[T string | []byte](dst []byte, v T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(v); {
		c := v[i]
		if c >= 0x20 && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, v[from:i]...)
		r, n := utf8.DecodeRuneInString(string(v[i:min(i+utf8.UTFMax, len(v))]))
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', c)
		case escape.Acts(r):
			dst = escape.AppendRune(dst, r)
		default:
			dst = utf8.AppendRune(dst, r)
		}
		i += n
		from = i
	}
	dst = append(dst, v[from:]...)
	return append(dst, '"')
}
