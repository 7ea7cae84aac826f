package channel

import (
	"fmt"
	"io"
	"strings"
)

// maxDataLines is how many words of a long run of data are printed.
const maxDataLines = 64

// Fprint prints a piece of pushbuffer as a disassembler prints code: address, word, what it means. What
// the piece has the engines do stands behind the command that starts it. name returns a kernel's name
// by its program's address, or ""; it may be nil.
func (r *Reader) Fprint(w io.Writer, words []uint32, address uint64, name func(program uint64) string) error {
	p := printer{w: w, name: name}
	work := map[uint64][]Work{}
	before := r.Subchannels
	r.Read(words, address, func(w Work) bool {
		if w.Kind != Write {
			work[w.At] = append(work[w.At], w)
		}
		return true
	})
	for c := range Commands(words, address) {
		before.Bind(&c)
		p.command(&before, &c)
		for _, w := range work[c.Address] {
			p.printf("%14s; %s\n", "", p.describe(&w))
		}
	}
	return p.err
}

// A printer remembers the first error.
type printer struct {
	w    io.Writer
	name func(uint64) string
	err  error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) command(s *Subchannels, c *Command) {
	p.printf("%#012x  %08x  %-6s subchannel %d  %d words\n", c.Address, c.Header, c.Op, c.Subchannel, len(c.Data))
	for i, v := range c.Data {
		if i == maxDataLines {
			p.printf("%14s… %d more words\n", "", len(c.Data)-i)
			break
		}
		at := c.Address + 4*uint64(i+1)
		if c.Op == Immediate {
			at = c.Address
		}
		p.printf("%#012x  %08x    %s\n", at, v, s.describe(c.Subchannel, c.Target(i), v))
	}
	if c.Cut {
		p.printf("%14s; the piece ends before the data that this header announces\n", "")
	}
}

// describe returns a method with its data: NAME field=value …
func (s *Subchannels) describe(sub uint8, offset uint16, v uint32) string {
	m, index := s.Method(sub, offset)
	if m == nil {
		return fmt.Sprintf("method %#x", offset)
	}
	var b strings.Builder
	b.WriteString(m.Name)
	if m.Stride != 0 {
		fmt.Fprintf(&b, "(%d)", index)
	}
	for i := range m.Fields {
		f := &m.Fields[i]
		n := uint64(v) >> f.Low & (1<<(f.High-f.Low+1) - 1)
		if n == 0 && len(m.Fields) > 1 {
			continue // what isn't set
		}
		if value := f.ValueName(n); value != "" {
			fmt.Fprintf(&b, " %s=%s", f.Name, value)
		} else {
			fmt.Fprintf(&b, " %s=%#x", f.Name, n)
		}
	}
	return b.String()
}

// describe returns what work is, in a line.
func (p *printer) describe(w *Work) string {
	sem := w.Semaphore
	switch w.Kind {
	case Kernel:
		return p.launch(w)
	case Null:
		return fmt.Sprintf("QMD %#x starts no kernel: it orders others", w.QMD)
	case Release:
		return fmt.Sprintf("release %#x = %d%s", sem.Address, sem.Payload, map[bool]string{true: ", with the time"}[sem.Timed])
	case Acquire:
		return fmt.Sprintf("wait until %#x %s %d", sem.Address, w.Test, sem.Payload)
	case Move:
		return fmt.Sprintf("copy %d bytes from %#x to %#x", w.Size, w.From, w.To)
	}
	return fmt.Sprintf("write %d bytes to %#x", w.Size, w.To)
}

func (p *printer) launch(w *Work) string {
	if w.Unread {
		return fmt.Sprintf("launch: QMD %#x can't be read", w.QMD)
	}
	l := w.Launch
	name := fmt.Sprintf("program %#x", l.Program)
	if p.name != nil {
		if n := p.name(l.Program); n != "" {
			name = n + " (" + name + ")"
		}
	}
	text := fmt.Sprintf("launch %s grid %s block %s registers %d shared memory %d B", name, gridText(&l), Dimensions(l.Block), l.Registers, l.SharedMemory)
	if w.Arguments != nil {
		text += " arguments " + Hex(w.Arguments)
	}
	if s := l.Done; s.Address != 0 {
		text += fmt.Sprintf(", its end releases %#x = %d", s.Address, s.Payload)
	}
	return text
}

// gridText is a launch's grid, which may be known in clusters alone.
func gridText(l *Launch) string {
	if l.Clustered {
		return Dimensions(l.Grid) + " clusters"
	}
	return Dimensions(l.Grid)
}

// Dimensions returns a grid or a block as text: 309x3x2, 42.
func Dimensions(d [3]uint32) string {
	switch {
	case d[2] != 1:
		return fmt.Sprintf("%dx%dx%d", d[0], d[1], d[2])
	case d[1] != 1:
		return fmt.Sprintf("%dx%d", d[0], d[1])
	}
	return fmt.Sprint(d[0])
}

// Hex returns bytes as words of 64 bits in hexadecimal, the way arguments are read: the last may be shorter.
func Hex(b []byte) string {
	var words []string
	for len(b) > 0 {
		n := min(8, len(b))
		var v uint64
		for i := n - 1; i >= 0; i-- {
			v = v<<8 | uint64(b[i])
		}
		words = append(words, fmt.Sprintf("%0*x", 2*n, v))
		b = b[n:]
	}
	return strings.Join(words, " ")
}
