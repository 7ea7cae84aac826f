package script

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/traces/escape"
)

// Shown is a map, or what a program printed, as it is shown.
type Shown struct {
	Name string // of the map, "" for what was printed
	Text string
	JSON string // an object
}

// printOptions are what print(@x, top, div) says.
type printOptions struct {
	top int // entries that are shown, the highest; 0: all
	div int64
}

// Begin runs BEGIN. It returns what that printed, and what it put into maps, which every
// set of maps begins with.
func (p *Program) Begin() (printed []Shown, settings []object.Setting, err error) {
	in, out := p.begun()
	for _, t := range in.s.tables {
		if !t.m.side.compiled() {
			continue // of BEGIN and END alone
		}
		for _, e := range t.entries {
			key, val := []byte{0, 0, 0, 0}, binary.LittleEndian.AppendUint64(nil, uint64(e.n))
			if len(t.m.keys) > 0 {
				key = nil
				for _, k := range e.key {
					key = binary.LittleEndian.AppendUint64(key, uint64(k.N))
				}
			}
			s, serr := object.ParseMapSetting(fmt.Sprintf("%s[hex:%x]=hex:%x", t.m.name, key, val))
			if serr != nil {
				return nil, nil, serr
			}
			settings = append(settings, s)
		}
	}
	return out, settings, nil
}

// begun runs BEGIN with maps that are empty.
func (p *Program) begun() (*interp, []Shown) {
	in := &interp{s: newStore(p)}
	return in, in.all(p, "BEGIN")
}

// all runs the host's probes of a name, and returns what they print.
func (in *interp) all(p *Program, host string) []Shown {
	for _, b := range p.probes {
		if b.points[0].host != host {
			continue
		}
		if why := in.run(b); why != "" {
			fmt.Fprintf(&in.out, "nvtrace: %s\n", why)
		}
	}
	return printed(in.out.String())
}

// intervals runs those that have come to their ends when the shortest has once more.
func (in *interp) intervals(p *Program) []Shown {
	p.elapsed += p.Every()
	for _, b := range p.probes {
		if every := b.points[0].every; every > 0 && p.elapsed%every < p.Every() {
			if why := in.run(b); why != "" {
				fmt.Fprintf(&in.out, "nvtrace: %s\n", why)
			}
		}
	}
	return printed(in.out.String())
}

func printed(s string) []Shown {
	if s == "" {
		return nil
	}
	return []Shown{{Text: s, JSON: `{"printf": ` + quote(s) + `}`}}
}

func quote(s string) string {
	return string(escape.AppendJSON(nil, s))
}

// Show returns the maps as they are shown: those of all processes and GPUs together, which
// tables are of. At the end, END runs before.
func (p *Program) Show(tables []*mapmem.Table, end bool) []Shown {
	in, _ := p.begun()
	in.out.Reset()
	for _, m := range p.maps {
		if t := in.s.tables[m.name]; m.agg == aggNone && !m.assigned && !m.ored {
			in.s.first[m.name] = make(map[string]int64)
			for k, e := range t.entries {
				in.s.first[m.name][k] = e.n
			}
		}
	}
	in.s.load(tables)
	switch {
	case end:
		return append(in.all(p, "END"), in.s.shown(sideEvents)...)
	case p.Every() > 0: // what is shown meanwhile, intervals say
		return in.intervals(p)
	}
	return in.s.shown(sideEvents)
}

// shown returns the maps as they are shown, but for those of some sides.
func (s *store) shown(but ...side) (list []Shown) {
	for _, m := range s.p.maps {
		t := s.tables[m.name]
		if slices.Contains(but, m.side) || len(t.entries) == 0 && t.refused == 0 {
			continue
		}
		var b strings.Builder
		t.print(&b, printOptions{div: 1})
		b.WriteString(s.full(t, true))
		if b.Len() > 0 {
			list = append(list, Shown{m.name, b.String(), t.json()})
		}
	}
	return list
}

// full says that a map that was just printed had no room for keys, "" if it had, or if that was said.
// While the program runs it is said once, and at its end (end) again if there were more since.
func (s *store) full(t *table, end bool) string {
	m := t.m
	told := max(s.warned[m.name], s.p.warned[m.name])
	if t.refused == told || told > 0 && !end {
		return ""
	}
	if s.warned[m.name] = t.refused; !end {
		if s.p.warned == nil {
			s.p.warned = make(map[string]uint64)
		}
		s.p.warned[m.name] = t.refused
	}
	return fmt.Sprintf("%s: %d insertions found no room for their key; to have more than %d, begin with config = { max_map_keys = %d }\n",
		m.name, t.refused, s.p.keys(m), min(8*s.p.keys(m), maxMapKeys))
}

// Record returns the text of what a printf in a kernel sent.
func (p *Program) Record(data []byte) string {
	if len(data) < 8 || len(data)%8 != 0 {
		return fmt.Sprintf("(damaged record of %d bytes)\n", len(data))
	}
	id := binary.LittleEndian.Uint64(data)
	if id >= uint64(len(p.formats)) || p.formats[id].fmt.words() != len(data)/8-1 {
		return fmt.Sprintf("(record of unknown format %d)\n", id)
	}
	f, s := p.formats[id].fmt, newStore(p)
	var values []Value
	data = data[8:]
	for _, t := range f.types {
		if t == typeHeld {
			values = append(values, text(zeroEnded(data[:textBytes])))
			data = data[textBytes:]
			continue
		}
		values = append(values, s.value(int64(binary.LittleEndian.Uint64(data)), t))
		data = data[8:]
	}
	for i := range values {
		if f.types[i] != typeInt {
			values[i] = text(values[i].String())
		}
	}
	return f.sprintf(values)
}

// print writes a map in bpftrace's form: its entries by value, histograms with bars.
func (t *table) print(out *strings.Builder, o printOptions) {
	list := t.sorted()
	if o.top > 0 && len(list) > o.top {
		list = list[len(list)-o.top:]
	}
	for i, e := range list {
		out.WriteString(t.m.name)
		if len(e.key) > 0 {
			out.WriteByte('[')
			for k, v := range e.key {
				if k > 0 {
					out.WriteString(", ")
				}
				out.WriteString(v.String())
			}
			out.WriteByte(']')
		}
		out.WriteString(": ")
		switch t.m.agg {
		case aggHist, aggLhist:
			out.WriteByte('\n')
			t.bars(out, e, o.div)
			if i+1 < len(list) {
				out.WriteByte('\n')
			}
		case aggStats:
			fmt.Fprintf(out, "count %d, average %d, total %d\n", e.count, t.shown(e)/o.div, e.n/o.div)
		case aggNone:
			if e.text.IsText {
				out.WriteString(e.text.Text + "\n")
				continue
			}
			fallthrough
		default:
			fmt.Fprintf(out, "%d\n", t.shown(e)/o.div)
		}
	}
}

// barChars is how wide the longest bar is.
const barChars = 52

// bars draws a histogram, from its first bucket with anything in it to its last.
func (t *table) bars(out *strings.Builder, e *entry, div int64) {
	first, last, most := -1, -1, uint64(0)
	for i, n := range e.buckets {
		if n != 0 {
			if first < 0 {
				first = i
			}
			last, most = i, max(most, n)
		}
	}
	for i := first; i >= 0 && i <= last; i++ {
		n := e.buckets[i]
		hi, lo := bits.Mul64(n, barChars)
		bar, _ := bits.Div64(hi, lo, most)
		fmt.Fprintf(out, "%-16s %8d |%-*s|\n", t.label(i), n/uint64(div), barChars, strings.Repeat("@", int(bar)))
	}
}

// label names the numbers of a bucket.
func (t *table) label(i int) string {
	low, high, open := t.bounds(i)
	switch {
	case open < 0:
		return "(..., " + t.scaled(high) + ")"
	case open > 0:
		return "[" + t.scaled(low) + ", ...)"
	case t.m.agg == aggHist && high-low == 1:
		return "[" + t.scaled(low) + "]"
	}
	return "[" + t.scaled(low) + ", " + t.scaled(high) + ")"
}

// bounds returns the numbers of a bucket, from low to below high; open is -1 if it has no
// lowest, 1 if it has no highest.
func (t *table) bounds(i int) (low, high int64, open int) {
	if t.m.agg == aggLhist {
		l := t.m.lhist
		switch i {
		case 0:
			return 0, l[0], -1
		case t.m.buckets() - 1:
			return l[1], 0, 1
		}
		return l[0] + int64(i-1)*l[2], l[0] + int64(i)*l[2], 0
	}
	switch {
	case i == 0:
		return 0, 0, -1
	case i == 1:
		return 0, 1, 0
	case i == 64:
		return 1 << 62, 0, 1
	}
	return 1 << (i - 2), 1 << (i - 1), 0
}

// scaled writes a bound; those of powers of two with a binary prefix.
func (t *table) scaled(n int64) string {
	if t.m.agg != aggHist || n < 1024 {
		return strconv.FormatInt(n, 10)
	}
	k := (bits.Len64(uint64(n)) - 1) / 10
	return strconv.FormatInt(n>>(10*k), 10) + " KMGTPE"[k:k+1]
}

// json returns the map as an object:
//
//	{"map": "@x", "type": "count", "entries": [{"key": [K, …], "value": N}]}
//
// The value of a histogram is a list of {"min": N, "max": N, "count": N}, of stats
// {"count": N, "average": N, "total": N}.
func (t *table) json() string {
	b := fmt.Appendf(nil, `{"map": %s, "type": %s, "refused": %d, "entries": [`, quote(t.m.name), quote(strings.TrimSuffix(t.m.agg.String(), "()")), t.refused)
	for i, e := range t.sorted() {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, `{"key": [`...)
		for k, v := range e.key {
			if k > 0 {
				b = append(b, ", "...)
			}
			b = append(b, v.json()...)
		}
		b = append(b, `], "value": `...)
		b = append(t.jsonValue(b, e), '}')
	}
	return string(append(b, "]}"...))
}

func (v Value) json() string {
	if v.IsText {
		return quote(v.Text)
	}
	return v.String()
}

func (t *table) jsonValue(b []byte, e *entry) []byte {
	switch t.m.agg {
	case aggStats:
		return fmt.Appendf(b, `{"count": %d, "average": %d, "total": %d}`, e.count, t.shown(e), e.n)
	case aggHist, aggLhist:
		b = append(b, '[')
		between := ""
		for i, n := range e.buckets {
			if n == 0 {
				continue
			}
			b = append(append(b, between...), '{')
			low, high, open := t.bounds(i)
			if open >= 0 {
				b = fmt.Appendf(b, `"min": %d, `, low)
			}
			if open <= 0 {
				b = fmt.Appendf(b, `"max": %d, `, high-1)
			}
			b, between = fmt.Appendf(b, `"count": %d}`, n), ", "
		}
		return append(b, ']')
	case aggNone:
		return append(b, e.text.json()...)
	}
	return strconv.AppendInt(b, t.shown(e), 10)
}
