package allow

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"nvtrace/ioctl"
)

// Run names a recording that a list was made of.
type Run struct {
	Name   string `json:"name"`
	Driver string `json:"driver,omitempty"`
}

// AppendText appends the text form.
func (l *List) AppendText(dst []byte, runs []Run) []byte {
	dst = append(dst, "# nvtrace allowlist: what these recordings use of the driver\n"...)
	for _, r := range runs {
		dst = fmt.Appendf(dst, "# %s", strconv.QuoteToASCII(r.Name))
		if r.Driver != "" {
			dst = fmt.Appendf(dst, " driver %s", r.Driver)
		}
		dst = append(dst, '\n')
	}
	var last Kind
	for _, e := range l.Entries {
		if e.Kind != last {
			dst = append(dst, '\n')
			last = e.Kind
		}
		at := len(dst)
		dst = e.appendWords(dst)
		for len(dst)-at < 32 {
			dst = append(dst, ' ')
		}
		dst = append(dst, " # "...)
		dst = e.appendRemark(dst)
		dst = append(dst, '\n')
	}
	return dst
}

// appendWords appends what Parse reads back.
func (e *Entry) appendWords(dst []byte) []byte {
	dst = fmt.Appendf(dst, "%-7s ", e.Kind)
	switch e.Kind {
	case KindNode:
		return append(dst, word(literalNode(e.Text))...)
	case KindMmap:
		return append(append(append(dst, e.Device...), ' '), word(e.Text)...)
	case KindIoctl:
		dst = append(append(dst, e.Device...), ' ')
	}
	dst = fmt.Appendf(dst, "%#x", e.Nr)
	for i, n := range e.Sizes {
		sep := byte(',')
		if i == 0 {
			sep = ' '
		}
		dst = strconv.AppendUint(append(dst, sep), uint64(n), 10)
	}
	return dst
}

// word quotes a word if it could not be read back else.
func word(s string) string {
	if s == "" || strings.ContainsAny(s, " \t\"#") || strconv.QuoteToASCII(s) != `"`+s+`"` {
		return strconv.QuoteToASCII(s)
	}
	return s
}

func (e *Entry) appendRemark(dst []byte) []byte {
	var parts []string
	if e.Name != "" {
		parts = append(parts, e.Name)
	}
	parts = append(parts, e.results())
	if len(e.Drivers) > 0 {
		parts = append(parts, strings.Join(e.Drivers, " "))
	}
	return append(dst, strings.Join(parts, "; ")...)
}

// results says how the uses went: "12 ok, 1 failed (NV_ERR_INVALID_CLASS)".
func (e *Entry) results() string {
	var parts []string
	if e.OK > 0 {
		parts = append(parts, fmt.Sprintf("%d ok", e.OK))
	}
	if e.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed (%s)", e.Failed, e.Status))
	}
	if e.Unseen > 0 {
		parts = append(parts, fmt.Sprintf("%d with unknown result", e.Unseen))
	}
	return strings.Join(parts, ", ")
}

// Limits of what Parse accepts.
const (
	maxLine    = 64 << 10
	maxEntries = 1 << 20
	maxSizes   = 4096
)

// ParseError says where a list is malformed.
type ParseError struct {
	Name      string // the file
	Line, Col int    // 1-based; Col counts bytes
	Text      string // what is wrong, and what was expected
}

// Error gives file, line, column and text.
func (e *ParseError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.Name, e.Line, e.Col, e.Text)
}

// Parse reads the text form. name is the file's, for errors, which are
// *ParseError or come from r. Remarks, and with them names and results, are not
// read.
func Parse(name string, r io.Reader) (*List, error) {
	l := newList()
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	n := 0
	for sc.Scan() {
		n++
		p := lineParser{name: name, line: n, s: sc.Text()}
		if err := p.entry(l); err != nil {
			return nil, err
		}
		if len(l.Entries) > maxEntries {
			return nil, &ParseError{name, n, 1, fmt.Sprintf("more than %d entries", maxEntries)}
		}
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return nil, &ParseError{name, n + 1, 1, fmt.Sprintf("the line is longer than %d bytes", maxLine)}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	l.Sort()
	return l, nil
}

// lineParser reads the words of one line.
type lineParser struct {
	name string
	line int
	s    string
	pos  int
	col  int // of the last word
}

func (p *lineParser) fail(format string, args ...any) error {
	return &ParseError{p.name, p.line, p.col + 1, fmt.Sprintf(format, args...)}
}

// next returns the next word, "" at the end of the line or before a remark.
func (p *lineParser) next() (string, error) {
	for p.pos < len(p.s) && (p.s[p.pos] == ' ' || p.s[p.pos] == '\t' || p.s[p.pos] == '\r') {
		p.pos++
	}
	p.col = p.pos
	rest := p.s[p.pos:]
	if rest == "" || rest[0] == '#' {
		return "", nil
	}
	if rest[0] == '"' {
		q, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return "", p.fail("the quoted word does not end")
		}
		p.pos += len(q)
		w, err := strconv.Unquote(q)
		if err != nil {
			return "", p.fail("a malformed quoted word")
		}
		if w == "" {
			return "", p.fail("an empty word")
		}
		return w, nil
	}
	end := strings.IndexAny(rest, " \t\r#")
	if end < 0 {
		end = len(rest)
	}
	p.pos += end
	return rest[:end], nil
}

// want returns the next word, which must be there.
func (p *lineParser) want(what string) (string, error) {
	w, err := p.next()
	if err == nil && w == "" {
		err = p.fail("want %s", what)
	}
	return w, err
}

func (p *lineParser) entry(l *List) error {
	kind, err := p.next()
	if err != nil || kind == "" {
		return err
	}
	u := Use{Kind: Kind(kind)}
	sized := true
	switch u.Kind {
	case KindNode:
		sized = false
		if u.Text, err = p.want("a node below /dev"); err != nil {
			return err
		}
		u.Text = strings.TrimPrefix(u.Text, "/dev/")
		if checkPattern(u.Text) != nil {
			return p.fail("%q: malformed pattern", u.Text)
		}
	case KindMmap, KindIoctl:
		sized = false
		if u.Device, err = p.device(); err != nil {
			return err
		}
		if u.Kind == KindMmap {
			if u.Text, err = p.want("what is mapped: a class, managed or unknown"); err != nil {
				return err
			}
			break
		}
		fallthrough
	case KindEscape, KindControl, KindClass, KindUVM, KindModeset, KindNVSwitch, KindNVSwitchCtl, KindNVLink, KindDRM:
		w, err := p.want("a number")
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(w, 0, 32)
		if err != nil {
			return p.fail("%q: want a number of 32 bits", w)
		}
		u.Nr = uint32(n)
	default:
		return p.fail("%q: want node, ioctl, mmap, escape, control, class, uvm, modeset, nvswitch, nvswitchctl, nvlink or drm", kind)
	}
	known := l.byUse[u] != nil
	e := l.add(u)
	if sized {
		return p.sizes(e, known)
	}
	return p.end()
}

func (p *lineParser) device() (string, error) {
	w, err := p.want("a device: nvidiactl, nvidiaN, nvidia-uvm, ...")
	if err != nil {
		return "", err
	}
	for d := ioctl.DeviceOther; d.String() != "device(?)"; d++ {
		if d.String() == w {
			return w, nil
		}
	}
	return "", p.fail("%q: not a kind of device; want nvidiactl, nvidiaN, nvidia-uvm, ...", w)
}

// sizes reads an entry's sizes. known says that an earlier line has the same
// use: then both lines' sizes are allowed.
func (p *lineParser) sizes(e *Entry, known bool) error {
	w, err := p.next()
	if err != nil {
		return err
	}
	if w == "" {
		e.Sizes = nil
		return nil
	}
	if known && e.Sizes == nil {
		return p.fail("an earlier line allows any size of this")
	}
	for s := range strings.SplitSeq(w, ",") {
		n, err := strconv.ParseUint(s, 0, 32)
		if err != nil {
			return p.fail("%q: want sizes in bytes, as in 32,48", w)
		}
		if e.Sizes = insert(e.Sizes, uint32(n)); len(e.Sizes) > maxSizes {
			return p.fail("more than %d sizes", maxSizes)
		}
	}
	return p.end()
}

func (p *lineParser) end() error {
	w, err := p.next()
	if err != nil {
		return err
	}
	if w != "" {
		return p.fail("%q: want the end of the line, or a remark after #", w)
	}
	return nil
}
