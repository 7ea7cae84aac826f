package mapmem

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"nvtrace/nvattach/object"
)

// A record of the ring of bpf_printk:
//
//	0   u32 number of the format, 1 and up; 0: the format is in the record
//	4   u32 arguments, printNewline added for ebpf_puts
//	8   arguments of 8 bytes
//	..  the format, up to the record's end or a NUL
//
// On the host the number is printTexts, and the strings are in the record, as they were:
//
//	..  u32 bytes of the format, the format, up to a multiple of 4 bytes
//	..  for each %s: u32 bytes of its string with the NUL, maxString bytes of room for it
//
// The GPU copies numbers and never waits; formatting is the host's.
const (
	PrintHead    = 8
	PrintNewline = 1 << 31 // end the line: ebpf_puts
	MaxPrintArgs = 12      // as the kernel's bpf_trace_vprintk
	MaxFormat    = 1000
	printTexts   = 1<<32 - 1
)

// A Printer reads what programs printed.
type Printer struct {
	formats func() []string
	reader  *Reader
	maps    *Maps
}

// NewPrinter returns a Printer of what programs print by bpf_printk; formats
// returns those that are known so far, as the plan does that weaves the programs
// ([nvtrace/nvattach.Plan.Formats]).
func (m *Maps) NewPrinter(formats func() []string) *Printer {
	if formats == nil {
		formats = func() []string { return nil }
	}
	return &Printer{formats: formats, reader: m.NewReader(m.Print), maps: m}
}

// Drain gives fn every text that was printed since the last call, as the program
// wrote it: mostly a line with its newline. See [Reader.Drain] for idle.
func (p *Printer) Drain(mem Memory, idle bool, fn func(sm int, text string)) error {
	return p.reader.Drain(mem, idle, func(r Record) {
		fn(r.SM, p.text(mem, r.Data))
	})
}

// Dropped returns how many texts found no room.
func (p *Printer) Dropped(mem Memory) (uint64, error) { return p.reader.Dropped(mem) }

func (p *Printer) text(mem Memory, b []byte) string {
	if len(b) < PrintHead {
		return fmt.Sprintf("(damaged record of %d bytes)\n", len(b))
	}
	id, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	end := n&PrintNewline != 0
	n &^= PrintNewline
	if uint64(n)*8 > uint64(len(b)-PrintHead) || n > MaxPrintArgs {
		return fmt.Sprintf("(damaged record with %d arguments)\n", n)
	}
	args := make([]uint64, n)
	for i := range args {
		args[i] = binary.LittleEndian.Uint64(b[PrintHead+8*i:])
	}
	rest := b[PrintHead+8*int(n):]
	if id == printTexts {
		return hostText(rest, args)
	}
	format, formats := "", p.formats()
	switch {
	case id == 0:
		format, _, _ = strings.Cut(string(rest), "\x00")
	case uint64(id) <= uint64(len(formats)):
		format = formats[id-1]
	default:
		return fmt.Sprintf("(record of unknown format %d)\n", id)
	}
	if end {
		return format + "\n"
	}
	return Sprintf(format, args, func(addr uint64) string { return p.maps.cString(mem, addr) })
}

// hostText is the text of a record of the host's.
func hostText(b []byte, args []uint64) string {
	size := uint64(0)
	if len(b) >= 4 {
		size = uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	if uint64(len(b)) < object.RoundUp(size, 4) {
		return fmt.Sprintf("(damaged record with a format of %d bytes)\n", size)
	}
	format, _, _ := strings.Cut(string(b[:size]), "\x00")
	b = b[object.RoundUp(size, 4):]
	return Sprintf(format, args, func(addr uint64) string {
		if len(b) < 4+MaxString {
			return fmt.Sprintf("(unreadable %#x)", addr)
		}
		n := min(binary.LittleEndian.Uint32(b), MaxString)
		text, _, _ := strings.Cut(string(b[4:4+n]), "\x00")
		b = b[4+MaxString:]
		if n == 0 {
			return fmt.Sprintf("(unreadable %#x)", addr)
		}
		return text
	})
}

// MaxString is how much is printed of what %s points at.
const MaxString = 256

// cString reads the string that %s points at, in a map or a global variable: it may
// have changed since. A thread's stack is not there any more.
func (m *Maps) cString(mem Memory, addr uint64) string {
	var b []byte
	for _, x := range m.All {
		switch {
		case addr < x.Base || addr-x.Base >= x.size:
		case x.Def.Data && x.Def.ReadOnly: // which the host knows
			b = x.Def.Initial[min(addr-x.Base, uint64(len(x.Def.Initial))):]
			b = b[:min(len(b), MaxString)]
		default:
			b = make([]byte, min(MaxString, x.size-(addr-x.Base)))
			if err := mem.ReadMem(addr, b); err != nil {
				return fmt.Sprintf("(unreadable %#x)", addr)
			}
		}
	}
	if b == nil {
		return fmt.Sprintf("(unreadable %#x)", addr)
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// Sprintf formats as bpf_printk does: the conversions d i u x X o c p s with flags,
// width, precision and the sizes hh h l ll z t j; there are no floating-point
// numbers in eBPF. str gives the text that an argument of %s points at. What has
// no argument is written as it stands in the format.
func Sprintf(format string, args []uint64, str func(addr uint64) string) string {
	var out strings.Builder
	next := 0
	for i := 0; i < len(format); {
		if format[i] != '%' {
			out.WriteByte(format[i])
			i++
			continue
		}
		c, n := ParseConversion(format[i:])
		text := format[i : i+n]
		i += n
		switch {
		case c.Verb == '%':
			out.WriteByte('%')
			continue
		case c.Verb == 0 || next >= len(args):
			out.WriteString(text)
			continue
		}
		c.write(&out, args[next], str)
		next++
	}
	return out.String()
}

// conversion is one % of a format.
type conversion struct {
	minus, plus, space, zero, alt bool
	width, precision              int // precision -1: not written
	bits                          int
	Verb                          byte // 0: not known
}

// ParseConversion reads the conversion that s begins with and returns its length.
func ParseConversion(s string) (conversion, int) {
	c := conversion{precision: -1, bits: 32}
	i := 1
flags:
	for ; i < len(s); i++ {
		switch s[i] {
		case '-':
			c.minus = true
		case '+':
			c.plus = true
		case ' ':
			c.space = true
		case '0':
			c.zero = true
		case '#':
			c.alt = true
		default:
			break flags
		}
	}
	c.width, i = number(s, i)
	if i < len(s) && s[i] == '.' {
		c.precision, i = number(s, i+1)
	}
	for ; i < len(s) && strings.IndexByte("lztjLqh", s[i]) >= 0; i++ {
		if s[i] == 'h' {
			c.bits = max(c.bits/2, 8)
			continue
		}
		c.bits = 64
	}
	if i >= len(s) {
		return c, len(s)
	}
	switch s[i] {
	case 'd', 'i', 'u', 'x', 'X', 'o', 'c', 'p', 's', '%':
		c.Verb = s[i]
	}
	return c, i + 1
}

// number reads a decimal number of up to 4 digits; widths beyond mean nothing.
func number(s string, i int) (int, int) {
	n := 0
	for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		if n < 1000 {
			n = 10*n + int(s[i]-'0')
		}
	}
	return min(n, 1000), i
}

func (c *conversion) write(out *strings.Builder, v uint64, str func(uint64) string) {
	sign, digits := "", ""
	switch c.Verb {
	case 'c':
		digits, c.zero = string([]byte{byte(v)}), false
	case 's':
		digits, c.zero = str(v), false
		if c.precision >= 0 && c.precision < len(digits) {
			digits = digits[:c.precision]
		}
	case 'p':
		sign, digits = "0x", strconv.FormatUint(v, 16)
	case 'd', 'i':
		s := int64(v<<(64-c.bits)) >> (64 - c.bits)
		digits = strconv.FormatUint(uint64(max(s, -s)), 10)
		switch {
		case s < 0:
			sign, digits = "-", strconv.FormatUint(uint64(-s), 10)
		case c.plus:
			sign = "+"
		case c.space:
			sign = " "
		}
	default:
		v = v << (64 - c.bits) >> (64 - c.bits)
		base, lead := map[byte]int{'u': 10, 'x': 16, 'X': 16, 'o': 8}[c.Verb], ""
		digits = strconv.FormatUint(v, base)
		switch c.Verb {
		case 'x':
			lead = "0x"
		case 'X':
			lead, digits = "0X", strings.ToUpper(digits)
		case 'o':
			lead = "0"
		}
		if c.alt && v != 0 {
			sign = lead
		}
	}
	if c.precision >= 0 && c.Verb != 's' && c.Verb != 'c' {
		c.zero = false
		digits = strings.Repeat("0", max(c.precision-len(digits), 0)) + digits
	}
	pad := max(c.width-len(sign)-len(digits), 0)
	switch {
	case c.minus:
		out.WriteString(sign + digits + strings.Repeat(" ", pad))
	case c.zero:
		out.WriteString(sign + strings.Repeat("0", pad) + digits)
	default:
		out.WriteString(strings.Repeat(" ", pad) + sign + digits)
	}
}
