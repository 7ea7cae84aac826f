package diff

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// titles head the sections of a report.
var titles = map[Section]string{
	SectionNode: "device nodes opened", SectionMmap: "mappings", SectionEscape: "ioctls", SectionControl: "control commands",
	SectionClass: "objects allocated, by class", SectionUVM: "unified memory calls", SectionOther: "other devices' ioctls",
	SectionLibrary: "calls of CUDA's libraries", SectionKernel: "kernels launched",
}

// AppendText appends the report for people: a line each, beginning with "-" for
// what only A has, "+" for what only B has, "~" for what both have otherwise.
// Equal runs give one line.
func (r *Result) AppendText(dst []byte) []byte {
	w := writer{dst}
	w.run("---", &r.A)
	w.run("+++", &r.B)
	for i := range r.Calls {
		c := &r.Calls[i]
		if i == 0 || c.Section != r.Calls[i-1].Section {
			w.f("\n%s\n", titles[c.Section])
		}
		w.change(c)
	}
	for i := range r.Sizes {
		if i == 0 {
			w.f("\nsizes\n")
		}
		w.size(&r.Sizes[i])
	}
	w.layouts(r.Layouts, "\nlayouts of the structs they use")
	for i, t := range r.Threads {
		if i == 0 {
			w.f("\nthreads that call the driver\n")
		}
		w.f("~ %s: %d -> %d\n", safe(t.Process), t.A, t.B)
	}
	for i := range r.Order {
		d := &r.Order[i]
		if i == 0 {
			w.f("\norder\n")
		}
		w.order(d)
	}
	if r.Same {
		w.f("no differences\n")
	}
	for i, n := range r.Notes {
		if i == 0 {
			w.f("\n")
		}
		w.f("note: %s\n", safe(n))
	}
	return w.b
}

type writer struct{ b []byte }

func (w *writer) f(format string, args ...any) { w.b = fmt.Appendf(w.b, format, args...) }

// safe returns a string that may come from the traced program without what
// could steer a terminal or pass for another line.
func safe(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		q := strconv.Quote(s)
		return q[1 : len(q)-1]
	}
	return s
}

func (w *writer) run(sign string, r *Run) {
	w.f("%s %s: %s", sign, safe(r.Name), count(r.Calls, "call"))
	if r.Library > 0 {
		w.f(", %s", count(r.Library, "library call"))
	}
	switch {
	case r.Driver == "" && r.Tables != "":
		w.f(", driver unknown (tables of %s)", r.Tables)
	case r.Driver != "":
		w.f(", driver %s", r.Driver)
		if r.Tables != "" && r.Tables != r.Driver {
			w.f(" (tables of %s)", r.Tables)
		}
	}
	if len(r.Command) > 0 {
		w.f(", %s", safe(strings.Join(r.Command, " ")))
	}
	w.f("\n")
}

func count(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatUint(n, 10) + " " + what + "s"
}

// sign tells which side has something.
func sign(a, b bool) string {
	switch {
	case !b:
		return "-"
	case !a:
		return "+"
	}
	return "~"
}

func (w *writer) change(c *Change) {
	w.f("%s %s", sign(c.A > 0, c.B > 0), safe(c.Name))
	switch {
	case c.NrA != "":
		w.f(" (%s, now %s)", c.NrA, c.Nr)
	case c.Nr != "" && !strings.Contains(c.Name, c.Nr):
		w.f(" (%s)", c.Nr)
	}
	switch {
	case c.A == 0:
		w.f(": %s", count(c.B, "call"))
	case c.B == 0:
		w.f(": %s", count(c.A, "call"))
	case c.A == c.B:
		w.f(": %s", count(c.A, "call"))
	default:
		w.f(": %d -> %s", c.A, count(c.B, "call"))
	}
	if plain(c) {
		w.f("\n")
		return
	}
	for i, t := range c.Results {
		sep := ", "
		if i == 0 {
			sep = "; "
		}
		switch {
		case c.A == 0:
			w.f("%s%s %d", sep, t.What, t.B)
		case c.B == 0:
			w.f("%s%s %d", sep, t.What, t.A)
		default:
			w.f("%s%s %d -> %d", sep, t.What, t.A, t.B)
		}
	}
	w.f("\n")
}

// plain reports whether the results say no more than the numbers of calls.
func plain(c *Change) bool {
	return len(c.Results) == 1 && (c.Results[0].What == "OK" || c.Results[0].What == "returned")
}

func (w *writer) size(d *SizeDiff) {
	w.f("%s %s: total %s -> %s\n", sign(d.CountA > 0, d.CountB > 0), safe(d.Name), amount(d, d.TotalA), amount(d, d.TotalB))
	for _, s := range d.Sizes {
		w.f("  %s %s: %d -> %d\n", sign(s.A > 0, s.B > 0), amount(d, s.Size), s.A, s.B)
	}
	if d.Rounded {
		w.f("  (so many sizes that some are counted at the power of two below them)\n")
	}
}

// amount prints a size in the unit that its name has.
func amount(d *SizeDiff, n uint64) string {
	if d.Section == SectionClass && strings.Contains(d.Name, "_CHANNEL_GPFIFO_") {
		return strconv.FormatUint(n, 10) + " entries"
	}
	return Bytes(n)
}

// Bytes prints a number of bytes exactly: in the largest unit that divides it.
func Bytes(n uint64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	u := 0
	for n != 0 && n%1024 == 0 && u < len(units)-1 {
		n, u = n/1024, u+1
	}
	return strconv.FormatUint(n, 10) + " " + units[u]
}

func (w *writer) layouts(l []Layout, title string) {
	for i := range l {
		if i == 0 {
			w.f("%s\n", title)
		}
		w.layout(&l[i])
	}
}

func (w *writer) layout(l *Layout) {
	switch {
	case l.SizeA == 0 && len(l.Fields) == 0:
		w.f("+ %s: %d bytes\n", l.Name, l.SizeB)
		return
	case l.SizeB == 0 && len(l.Fields) == 0:
		w.f("- %s: %d bytes\n", l.Name, l.SizeA)
		return
	case l.SizeA == l.SizeB:
		w.f("~ %s: %d bytes\n", l.Name, l.SizeA)
	default:
		w.f("~ %s: %d -> %d bytes\n", l.Name, l.SizeA, l.SizeB)
	}
	for i := range l.Fields {
		m := &l.Fields[i]
		switch {
		case m.A == nil:
			w.f("  + %s %s at %d\n", m.B.Type, m.Name, m.B.Offset)
		case m.B == nil:
			w.f("  - %s %s at %d\n", m.A.Type, m.Name, m.A.Offset)
		default:
			w.f("  ~ %s:", m.Name)
			sep := ""
			if m.A.Type != m.B.Type {
				w.f(" %s -> %s", m.A.Type, m.B.Type)
				sep = ","
			}
			if m.A.Offset != m.B.Offset || m.A.Bit != m.B.Bit {
				w.f("%s at %s -> %s", sep, bitPlace(m.A), bitPlace(m.B))
				sep = ","
			}
			if m.A.Size != m.B.Size {
				w.f("%s %d -> %d bytes", sep, m.A.Size, m.B.Size)
			}
			w.f("\n")
		}
	}
}

// bitPlace prints an offset, for a bit-field with its first bit: "16.3".
func bitPlace(p *Place) string {
	s := strconv.Itoa(p.Offset)
	if strings.Contains(p.Type, ":") {
		s += "." + strconv.Itoa(p.Bit)
	}
	return s
}

func (w *writer) order(d *OrderDiff) {
	place := func(s string) string {
		if s == "" {
			return "the beginning"
		}
		return safe(s)
	}
	w.f("~ %s: %s\n    was after %s, is after %s", safe(d.Thread), safe(strings.Join(d.Calls, ", ")), place(d.WasAfter), place(d.IsAfter))
	if d.Times > 1 {
		w.f(" (%d times)", d.Times)
	}
	w.f("\n")
}

// AppendText appends the report for people, in the manner of
// [Result.AppendText].
func (r *ABI) AppendText(dst []byte) []byte {
	w := writer{dst}
	w.f("--- driver %s\n+++ driver %s\n", r.A, r.B)
	for i := range r.Entries {
		e := &r.Entries[i]
		if i == 0 || e.Kind != r.Entries[i-1].Kind {
			w.f("\n%s\n", entryTitles[e.Kind])
		}
		w.entry(e)
	}
	w.layouts(r.Layouts, "\nlayouts")
	if r.Same {
		w.f("no differences\n")
	}
	return w.b
}

var entryTitles = map[string]string{
	"escape": "escapes", "control": "control commands", "class": "classes", "uvm": "nvidia-uvm", "modeset": "nvidia-modeset",
	"nvswitch": "nvidia-nvswitchN", "nvswitchctl": "nvidia-nvswitchctl", "nvlink": "nvidia-nvlink", "drm": "nvidia-drm",
}

func (w *writer) entry(e *Entry) {
	switch {
	case e.A == nil:
		w.f("+ %s %s%s\n", e.B.Nr, e.Name, e.B.describe())
	case e.B == nil:
		w.f("- %s %s%s\n", e.A.Nr, e.Name, e.A.describe())
	default:
		a, b := e.A, e.B
		w.f("~ %s %s:", b.Nr, e.Name)
		sep := ""
		part := func(format string, args ...any) {
			w.f(sep+" "+format, args...)
			sep = ","
		}
		if a.Nr != b.Nr {
			part("was %s", a.Nr)
		}
		if !slices.Equal(a.Params, b.Params) || !slices.Equal(a.Sizes, b.Sizes) {
			part("parameters %s -> %s", a.params(), b.params())
		}
		for _, f := range a.Flags {
			if !slices.Contains(b.Flags, f) {
				part("-%s", f)
			}
		}
		for _, f := range b.Flags {
			if !slices.Contains(a.Flags, f) {
				part("+%s", f)
			}
		}
		if a.Note != b.Note {
			part("%q -> %q", a.Note, b.Note)
		}
		w.f("\n")
	}
}

// describe prints what a form has beside its number.
func (f *Form) describe() string {
	s := ""
	if len(f.Params) > 0 {
		s = " " + f.params()
	}
	if f.Note != "" {
		s += " (" + f.Note + ")"
	}
	return s
}

func (f *Form) params() string {
	if len(f.Params) == 0 {
		return "none"
	}
	parts := make([]string, len(f.Params))
	for i := range f.Params {
		parts[i] = f.Params[i] + "[" + strconv.Itoa(f.Sizes[i]) + "]"
	}
	return strings.Join(parts, "|")
}
