package traces

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
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
		case "host":
			h.Host, err = p.str()
		case "boot":
			h.Boot, err = p.str()
		case "gpus":
			h.GPUs, err = p.strs(nil)
		case "container":
			h.Container, err = p.str()
		case "rank":
			h.Rank, err = p.rank()
		case "api":
			h.API, err = p.str()
		case "calls_from":
			h.CallsFrom, err = p.int()
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
		e.Path, err = p.shared()
	case "argv":
		e.Argv, err = p.strs(e.Argv[:0])
	case "text":
		e.Text, err = p.str()
	case "name":
		// A kind of its own name stands in Name already.
		var name string
		if name, err = p.shared(); e.Kind != KindOther {
			e.Name = name
		}
	case "data":
		e.Data, err = p.str()
	case "image":
		e.Image, err = p.image()
	case "captured":
		e.Captured, err = p.captured()
	case "probe":
		e.Probe, err = p.probe()
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

// kindByName are the kinds that a file may have.
var kindByName = func() map[string]Kind {
	m := make(map[string]Kind)
	for k := KindOpen; k < KindOther; k++ {
		m[kindNames[k]] = k
	}
	return m
}()

func (p *parser) kind(e *Event) error {
	b, err := p.rawString()
	if err != nil {
		return err
	}
	if k, ok := kindByName[string(b)]; ok {
		e.Kind = k
		return nil
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

func (p *parser) image() (*Image, error) {
	m := new(Image)
	err := p.object(func(key []byte) (err error) {
		switch string(key) {
		case "sha256":
			m.SHA256, err = p.shared()
		case "size":
			m.Size, err = p.int()
		case "format":
			m.Format, err = p.shared()
		case "file":
			m.File, err = p.shared()
		case "offset":
			m.Offset, err = p.int()
		case "handle":
			m.Handle, err = p.hex()
		case "origin":
			m.Origin, err = p.shared()
		case "replaced":
			m.Replaced, err = p.shared()
		default:
			err = p.skip(0)
		}
		return err
	})
	return m, err
}

func (p *parser) probe() (*Probe, error) {
	m := new(Probe)
	err := p.object(func(key []byte) (err error) {
		var n int32
		switch string(key) {
		case "images":
			n, err = p.int32()
			m.Images = int(n)
		case "sites":
			n, err = p.int32()
			m.Sites = int(n)
		case "launched":
			n, err = p.int32()
			m.Launched = n != 0
		case "reason":
			m.Reason, err = p.shared()
		case "unprobed":
			n, err = p.int32()
			m.Unprobed = int(n)
		case "unprobed_why":
			m.UnprobedWhy, err = p.shared()
		case "launches":
			m.Launches, err = p.uint()
		case "machine":
			n, err = p.int32()
			m.Machine = n != 0
		default:
			err = p.skip(0)
		}
		return err
	})
	return m, err
}

func (p *parser) captured() (*Captured, error) {
	c := new(Captured)
	err := p.object(func(key []byte) (err error) {
		switch string(key) {
		case "mode":
			c.Mode, err = p.shared()
		case "images":
			c.Images, err = p.uint()
		case "loads":
			c.Loads, err = p.uint()
		case "bytes":
			c.Bytes, err = p.uint()
		case "drivers":
			c.Drivers, err = p.uint()
		case "kernels":
			c.Kernels, err = p.uint()
		case "gaps":
			c.Gaps, err = p.uint()
		default:
			err = p.skip(0)
		}
		return err
	})
	return c, err
}

// rank parses the header's variables of launchers.
func (p *parser) rank() (map[string]string, error) {
	vars := make(map[string]string)
	left := MaxText
	err := p.object(func(key []byte) error {
		name := string(key)
		value, err := p.str()
		if err != nil {
			return err
		}
		if left -= len(name) + len(value); left < 0 {
			return p.errorf("the variables are longer than %d bytes together", MaxText)
		}
		vars[name] = value
		return nil
	})
	return vars, err
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
