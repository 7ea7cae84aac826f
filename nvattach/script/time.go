package script

import (
	"strings"
	"time"
)

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
