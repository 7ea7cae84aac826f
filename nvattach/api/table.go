package api

import (
	"bytes"
	"compress/flate"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
)

// packed holds the tables; [Decode] describes its form.
//
//go:generate go run nvtrace/nvattach/api/internal/gen pack facts ztables.bin
//go:embed ztables.bin
var packed []byte

// known decodes the embedded tables, once, when a function is first asked for.
var known = sync.OnceValue(func() *Table {
	t, err := Decode(packed)
	if err != nil {
		panic("BUG: embedded tables of functions: " + err.Error())
	}
	return t
})

// Table is a decoded set of prototypes. It does not change, and is safe for
// concurrent use.
type Table struct {
	functions [libraries]map[string][]variant
	names     [libraries][]string
}

// variant is what a function is from a major version of its library on.
type variant struct {
	major int
	f     *Function
}

// Lookup returns the prototype of a function of a library, nil where it is not
// known. Where releases differ, it is that of m.Major, or the newest if that is 0.
func (m Module) Lookup(symbol string) *Function { return known().Lookup(m, symbol) }

// moduleOf returns the library that a function of a file is of: the file, but for what is
// linked into it.
func moduleOf(file, symbol string) Module {
	m := Match(file)
	if m.Library == Unknown {
		m.Library = MatchSymbol(symbol)
	} else if m.Library != Runtime && MatchSymbol(symbol) == Runtime {
		return Module{Library: Runtime}
	}
	return m
}

// Functions yields the newest prototypes of a library's functions, by name.
func Functions(l Library) iter.Seq[*Function] {
	return func(yield func(*Function) bool) {
		if l >= libraries {
			return
		}
		t := known()
		for _, name := range t.names[l] {
			if !yield(t.Lookup(Module{Library: l}, name)) {
				return
			}
		}
	}
}

// Lookup is [Module.Lookup] in t.
func (t *Table) Lookup(m Module, symbol string) *Function {
	if m.Library >= libraries {
		return nil
	}
	all := t.functions[m.Library][symbol]
	if len(all) == 0 && m.Library == NVJitLink {
		all = t.functions[m.Library][unversioned(symbol)]
	}
	if len(all) == 0 {
		return nil
	}
	found := all[len(all)-1].f
	if m.Major != 0 {
		found = all[0].f
		for _, v := range all {
			if v.major <= m.Major {
				found = v.f
			}
		}
	}
	return found
}

// unversioned returns the function that a symbol of nvJitLink's is a version of:
// nvJitLinkCreate of __nvJitLinkCreate_12_4. Its header makes programs call the
// symbol of the release that they were compiled with.
func unversioned(symbol string) string {
	stem := strings.TrimRight(symbol, "0123456789_")
	return strings.TrimPrefix(stem, "__")
}

// Bounds of a table: what is beyond is damage.
const (
	maxTable   = 16 << 20 // bytes, unpacked
	maxStrings = 1 << 18
	maxTypes   = 1 << 16
	maxParams  = 64
)

var errTable = errors.New("damaged table")

// Decode reads packed tables: deflated, then little-endian base 128 numbers
// (encoding/binary's uvarint; signed ones zigzag).
//
//	strings    count, then of each its length and bytes; references are indices
//	types      count, then of each kind, name, size, align, flags (1 const, 2 status) and,
//	           by kind, element type plus 1 (pointer, array) and count (array),
//	           values (enum, flags: count, name and signed number of each),
//	           fields (struct, union: count, name, offset, type, bit, bits of each).
//	           A type refers to earlier ones only
//	libraries  count, then of each its number and functions: name, variants: major, result, parameters (name, type)
func Decode(packed []byte) (*Table, error) {
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxTable+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTable, err)
	}
	if len(raw) > maxTable {
		return nil, fmt.Errorf("%w: more than %d bytes", errTable, maxTable)
	}
	d := &tableReader{b: raw}
	t := d.table()
	if d.err != nil {
		return nil, d.err
	}
	return t, nil
}

// tableReader reads an unpacked table; the first error sticks.
type tableReader struct {
	b       []byte
	err     error
	strings []string
	types   []*Type
}

func (d *tableReader) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s, %d bytes before the end", errTable, what, len(d.b))
	}
	d.b = nil
}

func (d *tableReader) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("no number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *tableReader) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("no number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads a number of things that take at least a byte each.
func (d *tableReader) count(limit int) int {
	n := d.uint()
	if n > uint64(min(limit, len(d.b))) {
		d.fail("too many items")
		return 0
	}
	return int(n)
}

// small reads a number below limit.
func (d *tableReader) small(limit int) int {
	n := d.uint()
	if n >= uint64(limit) {
		d.fail("number out of range")
		return 0
	}
	return int(n)
}

func (d *tableReader) string() string {
	if n := d.small(max(len(d.strings), 1)); n < len(d.strings) {
		return d.strings[n]
	}
	return ""
}

func (d *tableReader) typ() *Type {
	if n := d.small(max(len(d.types), 1)); n < len(d.types) {
		return d.types[n]
	}
	d.fail("type without types")
	return &Type{}
}

func (d *tableReader) table() *Table {
	n := d.count(maxStrings)
	text := string(d.b) // the names are parts of it
	d.strings = make([]string, 0, n)
	for range n {
		length := d.count(1 << 12)
		at := len(text) - len(d.b)
		if d.err != nil {
			break
		}
		d.strings = append(d.strings, text[at:at+length])
		d.b = d.b[length:]
	}
	n = d.count(maxTypes)
	for range n {
		if d.err != nil {
			break
		}
		d.types = append(d.types, d.oneType())
	}
	t := &Table{}
	for range d.count(int(libraries)) {
		l := Library(d.small(int(libraries)))
		n := d.count(1 << 16)
		t.functions[l] = make(map[string][]variant, n)
		for range n {
			if d.err != nil {
				break
			}
			name := d.string()
			for range d.count(1 << 8) {
				v := variant{major: d.small(1 << 16), f: d.function(l, name)}
				t.functions[l][name] = append(t.functions[l][name], v)
			}
			t.names[l] = append(t.names[l], name)
		}
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail("more than a table")
	}
	return t
}

// Flags of a packed type.
const (
	typeConst  = 1
	typeStatus = 2
)

func (d *tableReader) oneType() *Type {
	t := &Type{Kind: Kind(d.small(int(kinds))), Name: d.string(), Size: d.small(1 << 20), Align: d.small(1 << 10)}
	flags := d.uint()
	t.Const, t.Status = flags&typeConst != 0, flags&typeStatus != 0
	switch t.Kind {
	case KindPointer, KindArray:
		if ref := d.small(len(d.types) + 1); ref > 0 {
			t.Elem = d.types[ref-1]
		}
		if t.Kind == KindArray {
			t.Count = d.small(1 << 20)
		}
	case KindEnum, KindFlags:
		t.Values = make([]Value, d.count(1<<14))
		for i := range t.Values {
			t.Values[i] = Value{Name: d.string(), Number: d.int()}
		}
	case KindStruct, KindUnion:
		t.Fields = make([]Field, d.count(1<<10))
		for i := range t.Fields {
			t.Fields[i] = Field{Name: d.string(), Offset: d.small(1 << 20), Type: d.typ(), Bit: d.small(64), Bits: d.small(65)}
		}
	}
	return t
}

func (d *tableReader) function(l Library, name string) *Function {
	f := &Function{Library: l, Name: name, Result: d.typ()}
	f.Params = make([]Param, d.count(maxParams))
	for i := range f.Params {
		f.Params[i] = Param{Name: d.string(), Type: d.typ()}
	}
	f.place()
	f.direct()
	return f
}
