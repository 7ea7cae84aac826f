package traces

import (
	"errors"
	"math"
	"strconv"
	"unicode/utf8"
)

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\r', '\n':
			p.i++
		default:
			return
		}
	}
}

// peek returns the next byte after white space, 0 at the end.
func (p *parser) peek() byte {
	if p.i < len(p.b) && p.b[p.i] > ' ' {
		return p.b[p.i]
	}
	p.space()
	if p.i < len(p.b) {
		return p.b[p.i]
	}
	return 0
}

func (p *parser) open(c byte) error {
	if p.peek() != c {
		return p.unexpected("'" + string(c) + "'")
	}
	p.i++
	return nil
}

func (p *parser) unexpected(want string) error {
	if p.i >= len(p.b) {
		return p.errorf("the record ends where %s should be", want)
	}
	return p.errorf("%q where %s should be", p.b[p.i], want)
}

// key parses up to the value of an object's next member; more is false at its end.
func (p *parser) key(first bool) (key []byte, more bool, err error) {
	c := p.peek()
	if c == '}' {
		p.i++
		return nil, false, nil
	}
	if !first {
		if c != ',' {
			return nil, false, p.unexpected("',' or '}'")
		}
		p.i++
		c = p.peek()
	}
	if c != '"' {
		return nil, false, p.unexpected("a key")
	}
	if key, err = p.rawString(); err != nil {
		return nil, false, err
	}
	if p.peek() != ':' {
		return nil, false, p.unexpected("':'")
	}
	p.i++
	return key, true, nil
}

// element steps to an array's next element; more is false at its end.
func (p *parser) element(first bool) (more bool, err error) {
	c := p.peek()
	if c == ']' {
		p.i++
		return false, nil
	}
	if first {
		return true, nil
	}
	if c != ',' {
		return false, p.unexpected("',' or ']'")
	}
	p.i++
	return true, nil
}

func (p *parser) end() error {
	if p.peek() != 0 || p.i < len(p.b) {
		return p.errorf("text after the record")
	}
	return nil
}

// rawString parses a string and returns its bytes, good until the next string
// with escapes.
func (p *parser) rawString() ([]byte, error) {
	if p.peek() != '"' {
		return nil, p.unexpected("a string")
	}
	start := p.i + 1
	for i := start; i < len(p.b); i++ {
		switch c := p.b[i]; {
		case c == '"':
			p.i = i + 1
			return p.b[start:i], nil
		case c == '\\':
			return p.escaped(start, i)
		case c < 0x20:
			p.i = i
			return nil, p.errorf("control character %#02x in a string", c)
		}
	}
	p.i = len(p.b)
	return nil, p.errorf("the record ends inside a string")
}

// escaped parses the rest of a string whose first backslash is at i.
func (p *parser) escaped(start, i int) ([]byte, error) {
	out := append(p.scratch[:0], p.b[start:i]...)
	defer func() {
		if cap(out) <= MaxText {
			p.scratch = out
		}
	}()
	for i < len(p.b) {
		switch c := p.b[i]; {
		case c == '"':
			p.i = i + 1
			return out, nil
		case c < 0x20:
			p.i = i
			return nil, p.errorf("control character %#02x in a string", c)
		case c != '\\':
			out = append(out, c)
			i++
			continue
		}
		if i+1 >= len(p.b) {
			break
		}
		c := p.b[i+1]
		i += 2
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			r, ok := hex4(p.b[i:])
			if !ok {
				p.i = i
				return nil, p.errorf(`\u without four hexadecimal digits`)
			}
			i += 4
			if r >= 0xd800 && r < 0xdc00 && len(p.b) >= i+6 && p.b[i] == '\\' && p.b[i+1] == 'u' {
				if low, ok := hex4(p.b[i+2:]); ok && low >= 0xdc00 && low < 0xe000 {
					out = utf8.AppendRune(out, (r-0xd800)<<10+(low-0xdc00)+0x10000)
					i += 6
					continue
				}
			}
			if r >= 0xdc80 && r <= 0xdcff { // a byte that was not UTF-8, see appendString
				out = append(out, byte(r))
				continue
			}
			out = utf8.AppendRune(out, r)
		default:
			p.i = i - 1
			return nil, p.errorf(`unknown escape \%c in a string`, c)
		}
	}
	p.i = len(p.b)
	return nil, p.errorf("the record ends inside a string")
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		v := unhex[c]
		if v > 15 {
			return 0, false
		}
		r = r<<4 | rune(v)
	}
	return r, true
}

// int parses an integer of 64 bits.
func (p *parser) int() (int64, error) {
	c := p.peek()
	neg := c == '-'
	i := p.i
	if neg {
		i++
	}
	start := i
	var v uint64
	for i < len(p.b) {
		d := p.b[i] - '0'
		if d > 9 {
			break
		}
		if i-start >= 19 { // 19 digits fit into 64 bits
			return 0, p.errorf("an integer of more than 63 bits")
		}
		v = v*10 + uint64(d)
		i++
	}
	switch {
	case i == start:
		return 0, p.unexpected("an integer")
	case i < len(p.b) && (p.b[i] == '.' || p.b[i] == 'e' || p.b[i] == 'E'):
		return 0, p.errorf("a fraction where an integer should be")
	case neg && v <= 1<<63:
		p.i = i
		return -int64(v), nil
	case neg || v > math.MaxInt64:
		return 0, p.errorf("an integer of more than 63 bits")
	}
	p.i = i
	return int64(v), nil
}

func (p *parser) rangedInt(lo, hi int64) (int64, error) {
	at := p.i
	v, err := p.int()
	if err == nil && (v < lo || v > hi) {
		p.i = at
		return 0, p.errorf("%d is not between %d and %d", v, lo, hi)
	}
	return v, err
}

func (p *parser) int32() (int32, error) {
	v, err := p.rangedInt(math.MinInt32, math.MaxInt32)
	return int32(v), err
}

// uint parses a non-negative integer of up to 64 bits.
func (p *parser) uint() (uint64, error) {
	c := p.peek()
	if c < '0' || c > '9' {
		return 0, p.unexpected("an integer that is not negative")
	}
	i := p.i
	for i < len(p.b) && p.b[i]-'0' <= 9 {
		i++
	}
	v, err := strconv.ParseUint(string(p.b[p.i:min(i, p.i+21)]), 10, 64)
	if err != nil {
		return 0, p.errorf("an integer of more than 64 bits")
	}
	p.i = i
	return v, nil
}

// unhex maps a digit to its value, everything else to 0xff.
var unhex = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range 10 {
		t['0'+i] = byte(i)
	}
	for i := range 6 {
		t['a'+i], t['A'+i] = byte(10+i), byte(10+i)
	}
	return t
}()

// hex parses a string "0x…".
func (p *parser) hex() (uint64, error) {
	if p.peek() != '"' {
		return 0, p.unexpected(`a string "0x…"`)
	}
	b := p.b[p.i+1:]
	if len(b) < 4 || b[0] != '0' || b[1] != 'x' {
		return 0, p.errorf(`a number that does not begin with "0x"`)
	}
	var v uint64
	i := 2
	for ; i < len(b); i++ {
		d := unhex[b[i]]
		if d > 15 {
			break
		}
		if v>>60 != 0 {
			return 0, p.errorf("a number of more than 64 bits")
		}
		v = v<<4 | uint64(d)
	}
	if i == 2 || i >= len(b) || b[i] != '"' {
		return 0, p.errorf("a malformed hexadecimal number")
	}
	p.i += i + 2
	return v, nil
}

// skip passes over a value of any type.
func (p *parser) skip(depth int) error {
	if depth > maxDepth {
		return p.errorf("values nested more than %d deep", maxDepth)
	}
	switch c := p.peek(); {
	case c == '"':
		_, err := p.rawString()
		return err
	case c == '{':
		return p.object(func([]byte) error { return p.skip(depth + 1) })
	case c == '[':
		p.i++
		for first := true; ; first = false {
			more, err := p.element(first)
			if err != nil || !more {
				return err
			}
			if err := p.skip(depth + 1); err != nil {
				return err
			}
		}
	case c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z':
		start := p.i
		for p.i < len(p.b) && isScalar(p.b[p.i]) {
			p.i++
		}
		return p.checkScalar(p.b[start:p.i])
	}
	return p.unexpected("a value")
}

func isScalar(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
}

func (p *parser) checkScalar(b []byte) error {
	switch string(b) {
	case "true", "false", "null":
		return nil
	}
	if _, err := strconv.ParseFloat(string(b[:min(len(b), 512)]), 64); err != nil && !errors.Is(err, strconv.ErrRange) {
		return p.errorf("%q is no value", b[:min(len(b), 32)])
	}
	return nil
}
