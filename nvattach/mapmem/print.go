package mapmem

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"

	"nvtrace/nvattach/object"
	"nvtrace/nvattach/values"
	"nvtrace/traces/escape"
)

// PrintOptions say how maps are printed. Nil is the zero value.
type PrintOptions struct {
	// Rows bounds the rows of a map; 0 means 64. The rest is counted.
	Rows int
	// Zero also prints rows that are all zero.
	Zero bool
	// Place says where the code at an address was, for lists of callers; "" if it is not known, nil: of
	// none. returned says that a function returns to there, behind the call.
	Place func(addr uint64, returned bool) string
	// Histogram says of a map whether it is one: "log2" when entry n counts the
	// values from 2^n to 2^(n+1)-1, "linear" when it counts n, "none". "" leaves
	// it to the map's name and size; nil does so for all.
	Histogram func(x *Map) string
}

const (
	defaultRows = 64
	barChars    = 40
	maxRuns     = 16
)

// Print writes a map for a reader.
func (t *Table) Print(w io.Writer, o *PrintOptions) error {
	if o == nil {
		o = &PrintOptions{}
	}
	opt := *o
	SetDefault(&opt.Rows, defaultRows)
	var b bytes.Buffer
	t.heading(&b)
	switch kind := t.histogram(&opt); {
	case kind != "" && kind != "none":
		t.bars(&b, kind)
	case t.Map.Def.Data:
		t.variables(&b)
	default:
		t.rows(&b, &opt)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (t *Table) heading(b *bytes.Buffer) {
	d := t.Map.Def
	fmt.Fprintf(b, "%s (%s", escape.String(t.Map.Name), d.Type)
	if d.Layout() == object.LayoutHash || d.Layout() == object.LayoutQueue {
		fmt.Fprintf(b, ", %d of %d entries", len(t.Rows), d.MaxEntries)
	}
	if d.Layout() == object.LayoutBloom {
		fmt.Fprintf(b, ", %d of %d bits set", t.Bits, d.BloomBits())
	}
	b.WriteByte(')')
	if t.Refused > 0 {
		switch d.Layout() {
		case object.LayoutThread:
			fmt.Fprintf(b, ": %d lookups by threads beyond the first %d got no value", t.Refused, t.Map.Threads)
		case object.LayoutRing:
			fmt.Fprintf(b, ": %d records dropped", t.Refused)
		default:
			fmt.Fprintf(b, ": %d insertions found no room", t.Refused)
		}
	}
	b.WriteByte('\n')
}

// numeric reports whether values are integers of up to 8 bytes.
func numeric(d *object.MapDef) (signedValue, ok bool) {
	if d.Value == nil {
		return false, d.ValueSize == 1 || d.ValueSize == 2 || d.ValueSize == 4 || d.ValueSize == 8
	}
	if i, isInt := btf.UnderlyingType(d.Value).(*btf.Int); isInt && i.Size <= 8 {
		return i.Encoding == btf.Signed, true
	}
	return false, false
}

// histogram says which histogram the map is.
func (t *Table) histogram(o *PrintOptions) string {
	d := t.Map.Def
	if _, ok := numeric(d); !ok || d.Layout() != object.LayoutArray || d.Data {
		return "none"
	}
	if o.Histogram != nil {
		if k := o.Histogram(t.Map); k != "" {
			return k
		}
	}
	name := strings.ToLower(d.Name)
	switch {
	case strings.Contains(name, "log2") && d.MaxEntries <= 65:
		return "log2"
	case !strings.Contains(name, "hist") && !strings.Contains(name, "slots"):
		return "none"
	case d.MaxEntries >= 16 && d.MaxEntries <= 65:
		// Fewer entries are not enough for powers of two of anything, and
		// usually have limits of the program's own.
		return "log2"
	}
	return "linear"
}

// Total adds up what a row holds.
func (r *Row) Total() uint64 {
	sum := values.Unsigned(r.Value)
	for i := range r.Each {
		sum += values.Unsigned(r.Each[i].Value)
	}
	return sum
}

func (t *Table) bars(b *bytes.Buffer, kind string) {
	first, last, most := -1, -1, uint64(0)
	counts := make([]uint64, len(t.Rows))
	for i := range t.Rows {
		c := t.Rows[i].Total()
		counts[i] = c
		if c > 0 {
			if first < 0 {
				first = i
			}
			last, most = i, max(most, c)
		}
	}
	if first < 0 {
		b.WriteString("  (empty)\n")
		return
	}
	type line struct{ label, count string }
	lines := make([]line, 0, last-first+1)
	wide, wideCount := 0, 0
	for i := first; i <= last; i++ {
		l := line{strconv.Itoa(i), strconv.FormatUint(counts[i], 10)}
		if kind == "log2" {
			l.label = log2Label(i)
		}
		lines = append(lines, l)
		wide, wideCount = max(wide, len(l.label)), max(wideCount, len(l.count))
	}
	for i, l := range lines {
		n := int(mulDiv(counts[first+i], barChars, most))
		fmt.Fprintf(b, "  %*s : %*s |%-*s|\n", wide, l.label, wideCount, l.count, barChars, strings.Repeat("@", n))
	}
}

// mulDiv returns a*b/c without overflow, for a at most c.
func mulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	q, _ := bits.Div64(hi, lo, c)
	return q
}

// log2Label names the values that entry i of a log2 histogram counts.
func log2Label(i int) string {
	switch {
	case i == 0:
		return "0 to 1"
	case i >= 63:
		return fmt.Sprintf("%s and more", scaled(i))
	}
	if i < 10 {
		return fmt.Sprintf("%d to %d", 1<<i, 1<<(i+1)-1)
	}
	return fmt.Sprintf("%s to %s", scaled(i), scaled(i+1))
}

// scaled writes 2^i with a binary prefix.
func scaled(i int) string {
	return strconv.Itoa(1<<(i%10)) + [...]string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}[i/10]
}

func (t *Table) variables(b *bytes.Buffer) {
	d := t.Map.Def
	ds, ok := d.Value.(*btf.Datasec)
	if !ok || len(t.Rows) == 0 {
		for i := range t.Rows {
			fmt.Fprintf(b, "  %s\n", values.Append(nil, nil, t.Rows[i].Value))
		}
		return
	}
	v := t.Rows[0].Value
	for _, s := range ds.Vars {
		if uint64(s.Offset)+uint64(s.Size) > uint64(len(v)) {
			continue
		}
		fmt.Fprintf(b, "  %s = %s\n", escape.String(s.Type.TypeName()), values.Append(nil, s.Type, v[s.Offset:s.Offset+s.Size]))
	}
}

// zero reports whether there is nothing but zeros in a row.
func (r *Row) zero() bool {
	return len(r.Each) == 0 && len(bytes.Trim(r.Value, "\x00")) == 0
}

func (t *Table) rows(b *bytes.Buffer, o *PrintOptions) {
	d := t.Map.Def
	rows := t.Rows
	hash := d.Layout() == object.LayoutHash || d.Layout() == object.LayoutQueue
	shown, hidden, zero := 0, 0, 0
	for i := range rows {
		r := &rows[i]
		if !hash && !o.Zero && r.zero() {
			zero++
			continue
		}
		if shown++; shown > o.Rows {
			hidden++
			continue
		}
		b.WriteString("  [")
		b.Write(values.Append(nil, keyType(d), r.Key))
		b.WriteString("]")
		if d.Type == object.MapStackTrace {
			callers(b, r, o)
			continue
		}
		t.row(b, r)
	}
	switch {
	case hidden > 0:
		fmt.Fprintf(b, "  … and %d more\n", hidden)
	case shown == 0 && zero > 0:
		fmt.Fprintf(b, "  (all %d zero)\n", zero)
	case shown == 0 && !d.Ring() && d.Layout() != object.LayoutBloom:
		b.WriteString("  (empty)\n")
	}
}

// callers writes a list of callers, a line each.
func callers(b *bytes.Buffer, r *Row, o *PrintOptions) {
	b.WriteByte('\n')
	for i, pc := range pcs(r.Value) {
		place := ""
		if o.Place != nil {
			place = o.Place(pc, i > 0)
		}
		b.WriteString(escape.Line("%s", strings.TrimRight(fmt.Sprintf("    %#x %s", pc, place), " ")))
	}
}

// pcs are the addresses in a value of a map of stacks.
func pcs(value []byte) (list []uint64) {
	for ; len(value) >= 8; value = value[8:] {
		pc := binary.LittleEndian.Uint64(value)
		if pc == 0 {
			break
		}
		list = append(list, pc)
	}
	return list
}

// keyType returns the type to print keys with.
func keyType(d *object.MapDef) btf.Type { return d.Key }

func (t *Table) row(b *bytes.Buffer, r *Row) {
	d := t.Map.Def
	if r.Value != nil {
		fmt.Fprintf(b, " = %s\n", values.Append(nil, d.Value, r.Value))
		return
	}
	what := "thread"
	if d.PerSM() {
		what = "SM"
		if t.Host {
			what = "CPU"
		}
	}
	if _, ok := numeric(d); ok {
		t.summary(b, r, what)
	}
	runs := r.runs()
	if len(r.Each) == 0 {
		b.WriteString(" = 0\n")
		return
	}
	b.WriteByte('\n')
	for i, run := range runs {
		if i == maxRuns {
			fmt.Fprintf(b, "    … and %d more runs of equal values\n", len(runs)-i)
			break
		}
		if run.first == run.last {
			fmt.Fprintf(b, "    %s %d: %s\n", what, run.first, values.Append(nil, d.Value, run.value))
			continue
		}
		fmt.Fprintf(b, "    %ss %d to %d: %s each\n", what, run.first, run.last, values.Append(nil, d.Value, run.value))
	}
}

// summary writes the sum and the range of a row of numbers.
func (t *Table) summary(b *bytes.Buffer, r *Row, what string) {
	if len(r.Each) == 0 {
		return
	}
	isSigned, _ := numeric(t.Map.Def)
	if isSigned {
		sum, lo, hi := int64(0), values.Signed(r.Each[0].Value), values.Signed(r.Each[0].Value)
		for i := range r.Each {
			v := values.Signed(r.Each[i].Value)
			sum, lo, hi = sum+v, min(lo, v), max(hi, v)
		}
		fmt.Fprintf(b, " = %d in %d %ss, %d to %d each", sum, len(r.Each), what, lo, hi)
		return
	}
	sum, lo, hi := uint64(0), ^uint64(0), uint64(0)
	for i := range r.Each {
		v := values.Unsigned(r.Each[i].Value)
		sum, lo, hi = sum+v, min(lo, v), max(hi, v)
	}
	fmt.Fprintf(b, " = %d in %d %ss, %d to %d each", sum, len(r.Each), what, lo, hi)
}

// A run is a stretch of neighbours with equal values.
type run struct {
	first, last uint64
	value       []byte
}

func (r *Row) runs() []run {
	var runs []run
	for i := range r.Each {
		p := &r.Each[i]
		if n := len(runs); n > 0 && runs[n-1].last+1 == p.Index && bytes.Equal(runs[n-1].value, p.Value) {
			runs[n-1].last++
			continue
		}
		runs = append(runs, run{p.Index, p.Index, p.Value})
	}
	return runs
}

// AppendJSON appends the table as one JSON object:
//
//	{"map": "name", "type": "array", "refused": 0, "entries": [
//	 {"key": K, "value": V},
//	 {"key": K, "sum": N, "threads": [{"first": 0, "last": 9, "value": V}]},
//	 {"key": K, "sum": N, "sms": […]}]}
//
// sum is there where values are integers. A data section has
// {"map": …, "type": …, "variables": {"name": V}} instead of entries. Neighbours with
// equal values are one element; those with all zeros are left out. An entry of a map of
// stacks has "places" beside its addresses, in the same order, if o has a Place.
func (t *Table) AppendJSON(dst []byte, o *PrintOptions) []byte {
	d := t.Map.Def
	dst = append(dst, `{"map": `...)
	dst = escape.AppendJSON(dst, t.Map.Name)
	dst = append(dst, `, "type": `...)
	dst = escape.AppendJSON(dst, d.Type.String())
	dst = fmt.Appendf(dst, `, "refused": %d`, t.Refused)
	if d.Data && len(t.Rows) == 1 {
		dst = append(dst, `, "variables": `...)
		dst = values.AppendJSON(dst, d.Value, t.Rows[0].Value)
		return append(dst, '}')
	}
	dst = append(dst, `, "entries": [`...)
	for i := range t.Rows {
		r := &t.Rows[i]
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(dst, `{"key": `...)
		dst = values.AppendJSON(dst, keyType(d), r.Key)
		if d.Type == object.MapStackTrace {
			dst = append(dst, `, "value": [`...)
			for i, pc := range pcs(r.Value) {
				if i > 0 {
					dst = append(dst, ", "...)
				}
				dst = fmt.Appendf(dst, `"%#x"`, pc)
			}
			if o != nil && o.Place != nil {
				dst = append(dst, `], "places": [`...)
				for i, pc := range pcs(r.Value) {
					if i > 0 {
						dst = append(dst, ", "...)
					}
					dst = escape.AppendJSON(dst, o.Place(pc, i > 0))
				}
			}
			dst = append(dst, "]}"...)
			continue
		}
		if r.Value != nil {
			dst = append(dst, `, "value": `...)
			dst = append(values.AppendJSON(dst, d.Value, r.Value), '}')
			continue
		}
		dst = t.appendParts(dst, r)
	}
	return append(dst, "]}"...)
}

func (t *Table) appendParts(dst []byte, r *Row) []byte {
	d := t.Map.Def
	if isSigned, ok := numeric(d); ok {
		sum := int64(0)
		for i := range r.Each {
			if isSigned {
				sum += values.Signed(r.Each[i].Value)
			} else {
				sum += int64(values.Unsigned(r.Each[i].Value))
			}
		}
		dst = append(dst, `, "sum": `...)
		if isSigned {
			dst = strconv.AppendInt(dst, sum, 10)
		} else {
			dst = strconv.AppendUint(dst, uint64(sum), 10)
		}
	}
	name := "threads"
	if d.PerSM() {
		name = "sms"
	}
	dst = fmt.Appendf(dst, `, "%s": [`, name)
	for i, run := range r.runs() {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = fmt.Appendf(dst, `{"first": %d, "last": %d, "value": `, run.first, run.last)
		dst = append(values.AppendJSON(dst, d.Value, run.value), '}')
	}
	return append(dst, "]}"...)
}
