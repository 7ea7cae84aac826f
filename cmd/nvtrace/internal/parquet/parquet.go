// Package parquet reads the Parquet files that nvtrace writes (package export): pages of version 1 compressed by zstd,
// numbers as they are, texts as they are or by dictionary, no nesting. Files that another program has written may be in
// forms that it does not know, which it says.
package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Numbers of parquet.thrift.
const (
	typeBool, typeInt32, typeInt64, typeBytes = 0, 1, 2, 6

	encodingPlain, encodingDictionary = 0, 8

	pageData, pageDictionary = 0, 2

	codecZstd = 6
)

// Bounds of what a file may have this package take.
const (
	maxFooter = 64 << 20
	maxPage   = 256 << 20
	maxRows   = 1 << 20 // of a group
)

// File is the description of a file.
type File struct {
	r      io.ReaderAt
	names  []string
	types  []int64
	maybe  []bool
	groups []group
}

type group struct {
	rows   int64
	chunks []chunk
}

type chunk struct {
	codec, at, size int64
}

// errForm says that a file is not in the form that nvtrace writes.
var errForm = errors.New("a Parquet file in a form that nvtrace does not write")

// Open reads the description of a file of that size.
func Open(r io.ReaderAt, size int64) (*File, error) {
	var tail [8]byte
	if size < 12 {
		return nil, errors.New("not a Parquet file: the file is too short")
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if string(tail[4:]) != "PAR1" || n > size-12 || n > maxFooter {
		return nil, errors.New("not a Parquet file: the footer is missing")
	}
	b := make([]byte, n)
	if _, err := r.ReadAt(b, size-8-n); err != nil {
		return nil, err
	}
	f := &File{r: r}
	t := thrift{b: b}
	t.fields(func(id int, kind byte) {
		switch id {
		case 2:
			t.list(func(i int) { f.schema(&t, i) })
		case 4:
			t.list(func(int) { f.group(&t) })
		default:
			t.skip(kind)
		}
	})
	if t.bad || slices.ContainsFunc(f.groups, func(g group) bool { return len(g.chunks) != len(f.names) || g.rows < 0 || g.rows > maxRows }) {
		return nil, errForm
	}
	return f, nil
}

// schema reads a SchemaElement.
func (f *File) schema(t *thrift, i int) {
	name, kind, maybe := "", int64(-1), false
	t.fields(func(id int, k byte) {
		switch id {
		case 1:
			kind = t.varint()
		case 3:
			maybe = t.varint() == 1
		case 4:
			name = string(t.bytes())
		default:
			t.skip(k)
		}
	})
	if i > 0 { // the first is the root
		f.names, f.types, f.maybe = append(f.names, name), append(f.types, kind), append(f.maybe, maybe)
	}
}

// group reads a RowGroup.
func (f *File) group(t *thrift) {
	var g group
	t.fields(func(id int, k byte) {
		switch id {
		case 1:
			t.list(func(int) {
				var c chunk
				t.fields(func(id int, k byte) {
					if id != 3 {
						t.skip(k)
						return
					}
					data, dictionary := int64(0), int64(0)
					t.fields(func(id int, k byte) {
						switch id {
						case 4:
							c.codec = t.varint()
						case 7:
							c.size = t.varint()
						case 9:
							data = t.varint()
						case 11:
							dictionary = t.varint()
						default:
							t.skip(k)
						}
					})
					if c.at = data; dictionary > 0 {
						c.at = min(data, dictionary)
					}
				})
				g.chunks = append(g.chunks, c)
			})
		case 3:
			g.rows = t.varint()
		default:
			t.skip(k)
		}
	})
	f.groups = append(f.groups, g)
}

// Rows is how many rows the file has.
func (f *File) Rows() (n int64) {
	for _, g := range f.groups {
		n += g.rows
	}
	return n
}

// A Column is what is wanted of a file: Numbers of a numeric or boolean one, with Null where there is none; of texts
// IDs, and what they stand for. They are good until the next group is read.
type Column struct {
	Name   string
	IsText bool
	Null   int64

	Numbers []int64
	IDs     []uint32
	Texts   []string
}

// Text is a row's text.
func (c *Column) Text(row int) string { return c.Texts[c.IDs[row]] }

// A Reader reads columns. Its memory is used again for the next file. It is for one goroutine.
type Reader struct {
	dec        *zstd.Decoder
	raw, plain []byte
	there      []bool
}

// NewReader returns a Reader.
func NewReader() (*Reader, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPage))
	return &Reader{dec: dec}, err
}

// Each reads the columns of each group of rows, and calls do with the number of rows. A column that the file does not
// have, or has with another type, is an error.
func (r *Reader) Each(f *File, columns []*Column, do func(rows int) error) error {
	at := make([]int, len(columns))
	for i, c := range columns {
		if at[i] = slices.Index(f.names, c.Name); at[i] < 0 {
			return fmt.Errorf("%w: it has no column %s", errForm, c.Name)
		}
		if is := f.types[at[i]] == typeBytes; is != c.IsText {
			return fmt.Errorf("%w: its column %s has another type", errForm, c.Name)
		}
	}
	for _, g := range f.groups {
		for i, c := range columns {
			if err := r.column(f, at[i], &g, c); err != nil {
				return fmt.Errorf("column %s: %w", c.Name, err)
			}
		}
		if err := do(int(g.rows)); err != nil {
			return err
		}
	}
	return nil
}

// column reads a column of a group.
func (r *Reader) column(f *File, at int, g *group, c *Column) error {
	ch := g.chunks[at]
	if ch.codec != codecZstd || ch.size < 0 || ch.size > maxPage {
		return errForm
	}
	r.raw = slices.Grow(r.raw[:0], int(ch.size))[:ch.size]
	if _, err := f.r.ReadAt(r.raw, ch.at); err != nil {
		return err
	}
	rest := r.raw
	c.Numbers, c.IDs, c.Texts = c.Numbers[:0], c.IDs[:0], c.Texts[:0]
	for rows := int64(0); rows < g.rows; {
		h, n := header(rest)
		if n == 0 || h.packed < 0 || h.packed > int64(len(rest)-n) || h.values < 0 || h.values > g.rows {
			return errForm
		}
		page := rest[n : n+int(h.packed)]
		rest = rest[n+int(h.packed):]
		var err error
		if r.plain, err = r.dec.DecodeAll(page, r.plain[:0]); err != nil {
			return err
		}
		if h.kind == pageDictionary {
			if len(c.Texts) > 0 {
				return errForm
			}
			if c.Texts, err = texts(r.plain, int(h.values), c.Texts); err != nil {
				return err
			}
			continue
		}
		if h.kind != pageData || h.values == 0 {
			return errForm
		}
		if err := r.page(f, at, &h, c); err != nil {
			return err
		}
		rows += h.values
	}
	return nil
}

// page takes the values of a page.
func (r *Reader) page(f *File, at int, h *pageHeader, c *Column) error {
	b, rows, values := r.plain, int(h.values), int(h.values)
	r.there = r.there[:0]
	if f.maybe[at] {
		if len(b) < 4 || int(binary.LittleEndian.Uint32(b)) > len(b)-4 {
			return errForm
		}
		n := 4 + int(binary.LittleEndian.Uint32(b))
		if r.there, values = levels(b[4:n], rows, r.there); len(r.there) != rows {
			return errForm
		}
		b = b[n:]
	}
	is := func(i int) bool { return len(r.there) == 0 || r.there[i] }
	width := map[int64]int{typeInt32: 4, typeInt64: 8}[f.types[at]]
	switch {
	case width > 0:
		if h.encoding != encodingPlain || len(b) != width*values {
			return errForm
		}
		for i := range rows {
			v := c.Null
			if is(i) {
				if width == 8 {
					v = int64(binary.LittleEndian.Uint64(b))
				} else {
					v = int64(int32(binary.LittleEndian.Uint32(b)))
				}
				b = b[width:]
			}
			c.Numbers = append(c.Numbers, v)
		}
	case f.types[at] == typeBool:
		if h.encoding != encodingPlain || len(b) != (values+7)/8 || values != rows {
			return errForm
		}
		for i := range rows {
			c.Numbers = append(c.Numbers, int64(b[i/8]>>(i%8)&1))
		}
	case f.types[at] != typeBytes:
		return errForm
	case h.encoding == encodingDictionary:
		if len(b) == 0 {
			return errForm
		}
		return c.ids(b, rows, values, is)
	default:
		return c.plain(b, rows, values, is)
	}
	return nil
}

// empty is the number of the empty text, which stands for none.
func (c *Column) empty() uint32 {
	if i := slices.Index(c.Texts, ""); i >= 0 {
		return uint32(i)
	}
	c.Texts = append(c.Texts, "")
	return uint32(len(c.Texts) - 1)
}

// ids takes texts by their numbers in the dictionary.
func (c *Column) ids(b []byte, rows, values int, is func(int) bool) error {
	known := uint32(len(c.Texts))
	width := int(b[0])
	b = b[1:]
	n, size := binary.Uvarint(b)
	if size <= 0 || n&1 == 0 || int(n>>1)*8 < values || len(b)-size < (values*width+7)/8 || width > 32 {
		return errForm
	}
	b = b[size:]
	none := c.empty()
	acc, have := uint64(0), 0
	for i := range rows {
		if !is(i) {
			c.IDs = append(c.IDs, none)
			continue
		}
		for have < width {
			acc |= uint64(b[0]) << have
			b, have = b[1:], have+8
		}
		id := uint32(acc & (1<<width - 1))
		if acc, have = acc>>width, have-width; id >= known {
			return errForm
		}
		c.IDs = append(c.IDs, id)
	}
	return nil
}

// plain takes texts that are there as they are.
func (c *Column) plain(b []byte, rows, values int, is func(int) bool) error {
	first := len(c.Texts)
	var err error
	if c.Texts, err = texts(b, values, c.Texts); err != nil {
		return err
	}
	none := c.empty()
	for i := range rows {
		if !is(i) {
			c.IDs = append(c.IDs, none)
			continue
		}
		c.IDs = append(c.IDs, uint32(first))
		first++
	}
	return nil
}

// texts appends n texts with their lengths before them.
func texts(b []byte, n int, to []string) ([]string, error) {
	for range n {
		if len(b) < 4 || int64(binary.LittleEndian.Uint32(b)) > int64(len(b)-4) {
			return to, errForm
		}
		size := int(binary.LittleEndian.Uint32(b))
		to = append(to, string(b[4:4+size]))
		b = b[4+size:]
	}
	return to, nil
}

// levels reads runs of levels that are 0 or 1, and counts those that are 1.
func levels(b []byte, rows int, to []bool) (_ []bool, ones int) {
	for len(b) > 0 && len(to) < rows {
		n, size := binary.Uvarint(b)
		if size <= 0 || n&1 != 0 || len(b) == size || n>>1 > uint64(rows-len(to)) {
			return nil, 0
		}
		one := b[size] == 1
		for range n >> 1 {
			to = append(to, one)
		}
		if one {
			ones += int(n >> 1)
		}
		b = b[size+1:]
	}
	return to, ones
}

// pageHeader is what counts of a PageHeader.
type pageHeader struct {
	kind, packed, values, encoding int64
}

// header reads a PageHeader, of n bytes; 0: it is damaged.
func header(b []byte) (h pageHeader, n int) {
	t := thrift{b: b}
	t.fields(func(id int, k byte) {
		switch id {
		case 1:
			h.kind = t.varint()
		case 3:
			h.packed = t.varint()
		case 5, 7:
			t.fields(func(id int, k byte) {
				switch id {
				case 1:
					h.values = t.varint()
				case 2:
					h.encoding = t.varint()
				default:
					t.skip(k)
				}
			})
		default:
			t.skip(k)
		}
	})
	if t.bad {
		return h, 0
	}
	return h, len(b) - len(t.b)
}

// thrift is Thrift's compact protocol that is being read.
type thrift struct {
	b     []byte
	bad   bool
	depth int
}

// maxDepth bounds structs and lists in one another.
const maxDepth = 16

func (t *thrift) byte() byte {
	if len(t.b) == 0 {
		t.bad = true
		return 0
	}
	c := t.b[0]
	t.b = t.b[1:]
	return c
}

func (t *thrift) uvarint() uint64 {
	v, n := binary.Uvarint(t.b)
	if n <= 0 {
		t.bad, t.b = true, nil
		return 0
	}
	t.b = t.b[n:]
	return v
}

func (t *thrift) varint() int64 {
	v := t.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (t *thrift) bytes() []byte {
	n := t.uvarint()
	if n > uint64(len(t.b)) {
		t.bad, t.b = true, nil
		return nil
	}
	b := t.b[:n]
	t.b = t.b[n:]
	return b
}

// fields reads a struct: each calls do, which reads or skips the value.
func (t *thrift) fields(do func(id int, kind byte)) {
	if t.depth++; t.depth > maxDepth {
		t.bad = true
	}
	id := 0
	for !t.bad {
		c := t.byte()
		if c == 0 {
			break
		}
		if step := int(c >> 4); step > 0 {
			id += step
		} else {
			id = int(t.varint())
		}
		do(id, c&15)
	}
	t.depth--
}

// list reads a list: for each element do reads it.
func (t *thrift) list(do func(i int)) {
	if t.depth++; t.depth > maxDepth {
		t.bad = true
	}
	defer func() { t.depth-- }()
	head := t.byte()
	n := uint64(head >> 4)
	if n == 15 {
		n = t.uvarint()
	}
	for i := uint64(0); i < n && !t.bad; i++ {
		do(int(i))
	}
}

// skip reads over a value.
func (t *thrift) skip(kind byte) {
	switch kind {
	case 1, 2: // true, false
	case 3:
		t.byte()
	case 4, 5, 6:
		t.uvarint()
	case 7:
		for range 8 {
			t.byte()
		}
	case 8:
		t.bytes()
	case 9, 10:
		element := byte(0)
		if len(t.b) > 0 {
			element = t.b[0] & 15
		}
		t.list(func(int) {
			if element == 1 || element == 2 {
				t.byte()
			} else {
				t.skip(element)
			}
		})
	case 12:
		t.fields(func(_ int, k byte) { t.skip(k) })
	default:
		t.bad = true
	}
}
