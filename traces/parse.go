package traces

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of values under unknown keys.
const maxDepth = 64

// maxInterned bounds the table of shared strings.
const maxInterned = 4096

// parser reads the lines of a recording. It is made for what Writer writes, and
// takes any JSON of the same meaning: keys in any order, white space, unknown
// keys.
type parser struct {
	b       []byte
	i       int
	strings map[string]string // interned short strings: device names, kinds
	scratch []byte            // a string with escapes
	budget  int               // bytes of In and Out that the event may still have
}

// parseError is a syntax error with its place in the line.
type parseError struct {
	col  int
	what string
}

func (e *parseError) Error() string { return "column " + strconv.Itoa(e.col) + ": " + e.what }

func (p *parser) errorf(format string, args ...any) error {
	return &parseError{col: p.i + 1, what: fmt.Sprintf(format, args...)}
}

// header parses a header line.
func (p *parser) header(line []byte, h *Header) error {
	*h = Header{}
	kind := ""
	err := p.line(line, func(key []byte) (err error) {
		switch string(key) {
		case "k":
			kind, err = p.str()
		case "schema":
			var v int64
			v, err = p.rangedInt(math.MinInt32, math.MaxInt32)
			h.Schema = int(v)
		case "tool":
			h.Tool, err = p.str()
		case "start":
			h.Start, err = p.int()
		case "arch":
			h.Arch, err = p.str()
		case "kernel":
			h.Kernel, err = p.str()
		case "driver":
			h.Driver, err = p.str()
		case "argv":
			h.Argv, err = p.strs(nil)
		case "pid":
			h.PID, err = p.int32()
		case "uvm":
			var v int64
			v, err = p.rangedInt(0, math.MaxUint32)
			h.UVMMajor = uint32(v)
		default:
			err = p.skip(0)
		}
		return err
	})
	if err == nil && kind != "header" {
		err = fmt.Errorf("the first record is of kind %q, not a header", kind)
	}
	return err
}

// event parses an event line into e.
func (p *parser) event(line []byte, e *Event) error {
	e.Reset()
	p.budget = MaxEventBytes
	p.b, p.i = line, 0
	if err := p.open('{'); err != nil {
		return err
	}
	tid := false
	kind := false
	for first := true; ; first = false {
		key, more, err := p.key(first)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		switch string(key) {
		case "k":
			kind = true
			err = p.kind(e)
		case "t":
			e.Time, err = p.int()
		case "d":
			e.Dur, err = p.int()
		case "p":
			e.PID, err = p.int32()
		case "h":
			e.TID, err = p.int32()
			tid = true
		case "r":
			e.Ret, err = p.int()
		case "fd":
			e.FD, err = p.int32()
		case "file":
			var v int64
			v, err = p.rangedInt(0, math.MaxUint32)
			e.File = uint32(v)
		case "dev":
			e.Dev, err = p.shared()
		case "rdev":
			e.Rdev, err = p.hex()
		case "a":
			err = p.args(e)
		case "m":
			err = p.mem(e)
		default:
			err = p.rareKey(string(key), e)
		}
		if err != nil {
			return err
		}
	}
	if !tid {
		e.TID = e.PID
	}
	if !kind {
		return errors.New(`the record has no kind (key "k")`)
	}
	return p.end()
}

// rareKey parses the value of a key that most events lack.
func (p *parser) rareKey(key string, e *Event) (err error) {
	switch key {
	case "fl":
		e.Flags, err = p.flags()
	case "child":
		e.Child, err = p.int32()
	case "path":
		e.Path, err = p.str()
	case "argv":
		e.Argv, err = p.strs(e.Argv[:0])
	case "text":
		e.Text, err = p.str()
	case "cost":
		e.Cost, err = p.cost()
	default:
		err = p.skip(0)
	}
	return err
}

// line parses a whole object.
func (p *parser) line(line []byte, member func(key []byte) error) error {
	p.b, p.i = line, 0
	if err := p.object(member); err != nil {
		return err
	}
	return p.end()
}

// object parses an object whose values member parses.
func (p *parser) object(member func(key []byte) error) error {
	if err := p.open('{'); err != nil {
		return err
	}
	for first := true; ; first = false {
		key, more, err := p.key(first)
		if err != nil || !more {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
	}
}

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

// str parses a string into memory of its own.
func (p *parser) str() (string, error) {
	b, err := p.rawString()
	if len(b) > MaxText {
		return "", p.errorf("a string of %d bytes is longer than %d", len(b), MaxText)
	}
	return string(b), err
}

// shared parses a string that recurs in many events.
func (p *parser) shared() (string, error) {
	b, err := p.rawString()
	if err != nil {
		return "", err
	}
	if s, ok := p.strings[string(b)]; ok {
		return s, nil
	}
	if len(b) > MaxText {
		return "", p.errorf("a string of %d bytes is longer than %d", len(b), MaxText)
	}
	s := string(b)
	if len(p.strings) < maxInterned && len(s) <= 256 {
		p.strings[s] = s
	}
	return s, nil
}

// strs parses an array of strings, appending them to dst.
func (p *parser) strs(dst []string) ([]string, error) {
	if err := p.open('['); err != nil {
		return nil, err
	}
	left := MaxText
	for first := true; ; first = false {
		more, err := p.element(first)
		if err != nil || !more {
			return dst, err
		}
		s, err := p.str()
		if err != nil {
			return nil, err
		}
		if left -= len(s) + 1; left < 0 {
			return nil, p.errorf("the strings are longer than %d bytes together", MaxText)
		}
		dst = append(dst, s)
	}
}

func (p *parser) kind(e *Event) error {
	b, err := p.rawString()
	if err != nil {
		return err
	}
	for k := KindOpen; k < KindOther; k++ {
		if string(b) == kindNames[k] {
			e.Kind = k
			return nil
		}
	}
	if len(b) == 0 || len(b) > 64 {
		return p.errorf("a kind of %d bytes", len(b))
	}
	if string(b) == "header" {
		return p.errorf("a second header")
	}
	e.Kind, e.Name = KindOther, string(b)
	return nil
}

func (p *parser) flags() (Flags, error) {
	b, err := p.rawString()
	if err != nil {
		return 0, err
	}
	var f Flags
	for len(b) > 0 {
		word := b
		if i := bytes.IndexByte(b, '|'); i >= 0 {
			word, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		bit, ok := flagBit(word)
		if !ok {
			continue // a later version's flag: says more about the event, changes nothing else
		}
		f |= bit
	}
	return f, nil
}

func flagBit(word []byte) (Flags, bool) {
	for i, name := range flagNames {
		if string(word) == name {
			return 1 << i, true
		}
	}
	if len(word) > 2 && word[0] == '0' && word[1] == 'x' {
		v, err := strconv.ParseUint(string(word[2:]), 16, 16)
		return Flags(v), err == nil
	}
	return 0, false
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

func (p *parser) args(e *Event) error {
	if err := p.open('['); err != nil {
		return err
	}
	for n := 0; ; n++ {
		more, err := p.element(n == 0)
		if err != nil || !more {
			return err
		}
		if n >= len(e.Args) {
			return p.errorf("more than %d arguments", len(e.Args))
		}
		if e.Args[n], err = p.hex(); err != nil {
			return err
		}
	}
}

func (p *parser) mem(e *Event) error {
	if err := p.open('['); err != nil {
		return err
	}
	e.Mem = e.Mem[:0]
	for first := true; ; first = false {
		more, err := p.element(first)
		if err != nil || !more {
			return err
		}
		if len(e.Mem) >= MaxSegs {
			return p.errorf("more than %d segments", MaxSegs)
		}
		e.Mem = append(e.Mem, Seg{})
		if err := p.seg(e, &e.Mem[len(e.Mem)-1]); err != nil {
			return err
		}
	}
}

// seg parses one segment. Its bytes are made once all keys are known: their
// number stands in other keys.
func (p *parser) seg(e *Event, s *Seg) error {
	if err := p.open('{'); err != nil {
		return err
	}
	var in, out []byte // digits
	var hasIn, hasOut, same bool
	inLen, outLen := int64(-1), int64(-1)
	for first := true; ; first = false {
		key, more, err := p.key(first)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		switch string(key) {
		case "a":
			s.Addr, err = p.hex()
		case "n":
			var v int64
			v, err = p.rangedInt(0, math.MaxUint32)
			s.Len = uint32(v)
		case "i":
			in, err = p.digits()
			hasIn = true
		case "in":
			inLen, err = p.rangedInt(0, MaxEventBytes)
		case "o":
			if out, err = p.digits(); err == nil && len(out) == 1 && out[0] == '=' {
				same = true
			}
			hasOut = true
		case "on":
			outLen, err = p.rangedInt(0, MaxEventBytes)
		default:
			err = p.skip(0)
		}
		if err != nil {
			return err
		}
	}
	var err error
	if hasIn {
		if s.In, err = p.payload(e, in, inLen, s.Len); err != nil {
			return err
		}
	}
	switch {
	case same && !hasIn:
		return p.errorf(`a segment with "o":"=" but without "i"`)
	case same:
		if p.budget -= len(s.In); p.budget < 0 {
			return p.errorf("the event has more than %d bytes of memory", MaxEventBytes)
		}
		s.Out = s.In
	case hasOut:
		s.Out, err = p.payload(e, out, outLen, s.Len)
	}
	return err
}

// digits returns a string without escapes; payload checks that it is hexadecimal.
func (p *parser) digits() ([]byte, error) {
	if p.peek() != '"' {
		return nil, p.unexpected("a string of hexadecimal digits")
	}
	start := p.i + 1
	i := bytes.IndexByte(p.b[start:], '"')
	if i < 0 {
		p.i = len(p.b)
		return nil, p.errorf("the record ends inside a string")
	}
	p.i = start + i + 1
	return p.b[start : start+i], nil
}

// payload turns digits into n bytes, or as many as the segment refers to if n is
// negative, filling up with zeros.
func (p *parser) payload(e *Event, digits []byte, n int64, segLen uint32) ([]byte, error) {
	if n < 0 {
		n = int64(segLen)
	}
	if len(digits)%2 != 0 || int64(len(digits)/2) > n {
		return nil, p.errorf("%d hexadecimal digits for %d bytes", len(digits), n)
	}
	if n > int64(p.budget) {
		return nil, p.errorf("the event has more than %d bytes of memory", MaxEventBytes)
	}
	p.budget -= int(n)
	b := e.Alloc(int(n))
	if b == nil {
		b = []byte{}
	}
	bad := byte(0)
	for i := range len(digits) / 2 {
		hi, lo := unhex[digits[2*i]], unhex[digits[2*i+1]]
		bad |= hi | lo
		b[i] = hi<<4 | lo&15
	}
	if bad > 15 {
		return nil, p.errorf("a character that is no hexadecimal digit")
	}
	clear(b[len(digits)/2:])
	return b, nil
}

func (p *parser) cost() (*Cost, error) {
	c := new(Cost)
	err := p.object(func(key []byte) (err error) {
		switch string(key) {
		case "stops":
			c.Stops, err = p.uint()
		case "events":
			c.Events, err = p.uint()
		case "bytes":
			c.Bytes, err = p.uint()
		case "cpu":
			c.TracerCPU, err = p.int()
		case "wall":
			c.Wall, err = p.int()
		default:
			err = p.skip(0)
		}
		return err
	})
	return c, err
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
