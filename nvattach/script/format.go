package script

import (
	"strings"
	"time"

	"nvtrace/nvattach/mapmem"
)

// printf checks the format of a call against its values.
func (c *checker) printf(x *call) {
	lit, ok := x.args[0].(*strLit)
	if !ok {
		c.fail(x.args[0].pos(), "printf begins with a format: printf(\"%%d\\n\", n)")
	}
	f := &format{}
	for _, a := range x.args[1:] {
		t := c.expr(a)
		if t == typeStack {
			c.fail(a.pos(), "a stack has its text when a map is shown: @[ustack] = count()")
		}
		if t == typeHeld && !holds(a) {
			c.fail(a.pos(), "a kept text has its bytes when a map is shown: print str(addr) or comm themselves")
		}
		f.types = append(f.types, t)
	}
	var out strings.Builder
	n := 0
	for i := 0; i < len(lit.s); {
		if lit.s[i] != '%' {
			out.WriteByte(lit.s[i])
			i++
			continue
		}
		end := i + 1
		for end < len(lit.s) && strings.IndexByte("-+ #0123456789.", lit.s[end]) >= 0 {
			end++
		}
		flags := lit.s[i+1 : end]
		for end < len(lit.s) && strings.IndexByte("lzthj", lit.s[end]) >= 0 {
			end++
		}
		if end == len(lit.s) {
			c.fail(lit.span, "the format ends in the midst of a conversion; a percent sign is %%%%")
		}
		verb := lit.s[end]
		i = end + 1
		if verb == '%' {
			out.WriteString("%%")
			continue
		}
		if strings.IndexByte("diuxXocps", verb) < 0 {
			c.fail(lit.span, "there is no conversion %%%c; there are %%d %%u %%x %%o %%c %%p of numbers, %%s of names and strings", verb)
		}
		if n == len(f.types) {
			c.fail(x.span, "the format wants more than the %d %s behind it", n, plural(n, "value"))
		}
		isText := f.types[n] != typeInt
		if isText != (verb == 's') {
			want := "%d"
			if isText {
				want = "%s"
			}
			c.fail(x.args[n+1].pos(), "this is a %s, which %%%c does not take: write %s", f.types[n].Name, verb, want)
		}
		n++
		out.WriteString("%" + flags)
		if verb != 's' && verb != 'c' && verb != 'p' {
			out.WriteString("ll")
		}
		out.WriteByte(verb)
	}
	if n < len(f.types) {
		c.fail(x.args[n+1].pos(), "the format has no conversion for this; it has %d", n)
	}
	f.text = out.String()
	x.fmt = f
}

// words is how many numbers a record of the format's values has.
func (f *format) words() (n int) {
	for _, t := range f.types {
		if n++; t == typeHeld {
			n += textBytes/8 - 1
		}
	}
	return n
}

// sprintf writes a format with its values.
func (f *format) sprintf(values []Value) string {
	args := make([]uint64, len(values))
	for i, v := range values {
		args[i] = uint64(v.N)
		if f.types[i] != typeInt {
			args[i] = uint64(i)
		}
	}
	return mapmem.Sprintf(f.text, args, func(i uint64) string {
		if i < uint64(len(values)) {
			return values[i].Text
		}
		return ""
	})
}

// timeForms are the conversions of time(), as Go has them.
var timeForms = map[byte]string{
	'H': "15", 'M': "04", 'S': "05", 'Y': "2006", 'm': "01", 'd': "02", 'b': "Jan", 'a': "Mon", 'y': "06", 'p': "PM", 'I': "03",
	'F': "2006-01-02", 'T': "15:04:05", 'Z': "MST", 'z': "-0700", 'j': "002", 'L': "000",
}

// time checks the format of a call.
func (c *checker) time(x *call) {
	x.fmt = &format{text: "%H:%M:%S\n"}
	if len(x.args) == 0 {
		return
	}
	lit, ok := x.args[0].(*strLit)
	if !ok {
		c.fail(x.args[0].pos(), "time wants a format: time(\"%%H:%%M:%%S\\n\")")
	}
	for rest := lit.s; ; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			break
		}
		if i+1 == len(rest) || rest[i+1] != '%' && timeForms[rest[i+1]] == "" {
			c.fail(lit.span, "there is no conversion %.2q; there are %%H %%M %%S %%L (milliseconds) %%F %%T and the others of a date", rest[i:])
		}
		rest = rest[i+2:]
	}
	x.fmt.text = lit.s
}

// strftime writes a moment by a format that time has checked.
func strftime(format string, at time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		switch {
		case format[i] != '%' || i+1 == len(format):
			b.WriteByte(format[i])
			continue
		case format[i+1] == 'L':
			b.WriteString(at.Format(".000")[1:])
		case format[i+1] == '%':
			b.WriteByte('%')
		default:
			b.WriteString(at.Format(timeForms[format[i+1]]))
		}
		i++
	}
	return b.String()
}
