package export

import (
	"cmp"
	"encoding/binary"
	"io"
	"math"
	"math/bits"
	"reflect"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Parquet files are written by hand: the libraries that do it are a third of nvtrace's size
// together with it, and add 2 ms to each of its starts. The format is that of
// github.com/apache/parquet-format: pages of version 1, compressed by zstd; texts by
// dictionary where they recur; numbers as they are.

// groupRows is how many rows of a table are sorted and written together, groupBytes how many bytes of memory they
// may take, with their texts. Twice as much is in use, since one group is written while the next is gathered.
const (
	groupRows  = 1 << 17
	groupBytes = 6 << 20
)

// maxDictionary is how many different texts a dictionary has at most.
const maxDictionary = 1 << 16

// Numbers of parquet.thrift.
const (
	parquetBool, parquetInt32, parquetInt64, parquetBytes = 0, 1, 2, 6 // Type

	parquetPlain, parquetRLE, parquetDictionary = 0, 3, 8 // Encoding

	parquetDataPage, parquetDictionaryPage = 0, 2 // PageType

	parquetZstd = 6 // CompressionCodec
)

// column is one of a table of rows of type T. One of number, truth and text is set.
type column[T any] struct {
	name   string
	number func(*T) int64
	narrow bool // numbers of 32 bits
	truth  func(*T) bool
	text   func(*T) string
	// null reports whether a row has no value here; nil: each has. Of a text the empty
	// one is none.
	null func(*T) bool
}

func (c *column[T]) optional() bool { return c.null != nil }

func (c *column[T]) kind() int64 {
	switch {
	case c.truth != nil:
		return parquetBool
	case c.text != nil:
		return parquetBytes
	case c.narrow:
		return parquetInt32
	}
	return parquetInt64
}

func int64s[T any](name string, f func(*T) int64) column[T] { return column[T]{name: name, number: f} }

func int32s[T any](name string, f func(*T) int32) column[T] {
	return column[T]{name: name, narrow: true, number: func(r *T) int64 { return int64(f(r)) }}
}

// times are durations that are not known where they are negative.
func times[T any](name string, f func(*T) int64) column[T] {
	return column[T]{name: name, number: f, null: func(r *T) bool { return f(r) < 0 }}
}

func bools[T any](name string, f func(*T) bool) column[T] { return column[T]{name: name, truth: f} }

func texts[T any](name string, f func(*T) string) column[T] { return column[T]{name: name, text: f} }

func maybeTexts[T any](name string, f func(*T) string) column[T] {
	return column[T]{name: name, text: f, null: func(r *T) bool { return f(r) == "" }}
}

// table writes rows to a Parquet file.
type table[T any] struct {
	name    string
	open    func(name string) (io.Writer, error)
	w       io.Writer // nil: there is no file yet
	off     bool      // it is not wanted
	columns []column[T]
	before  func(a, b *T) int // the order of rows; nil: as they come
	rows    []T               // that wait
	text    int               // bytes of their texts
	most    int               // rows of a group

	writing chan struct{} // closed when what follows can be touched again; nil: it can
	out     []T           // that are written
	order   []int32       // of them: to sort numbers is cheaper
	at      int64
	total   int64
	groups  []byte // RowGroup of each, in Thrift's compact protocol
	ngroups int
	page    []byte
	packed  []byte
	head    []byte
	ids     []uint32
	enc     *zstd.Encoder
	err     error
}

func newTable[T any](name string, open func(name string) (io.Writer, error), enc *zstd.Encoder, columns []column[T], before func(a, b *T) int) *table[T] {
	return &table[T]{name: name, open: open, columns: columns, before: before, enc: enc}
}

// begin makes the file, if there is none.
func (t *table[T]) begin() error {
	if t.w == nil && t.err == nil && !t.off {
		if t.w, t.err = t.open(t.name); t.err == nil {
			t.write([]byte("PAR1"))
		}
	}
	return t.err
}

func (t *table[T]) write(b []byte) {
	if t.err == nil {
		_, t.err = t.w.Write(b)
	}
	t.at += int64(len(b))
}

// add takes a row, whose texts have so many bytes.
func (t *table[T]) add(row *T, text int) {
	if t.off {
		return
	}
	if t.most == 0 {
		t.most = min(groupRows, groupBytes/int(reflect.TypeFor[T]().Size()))
	}
	t.rows = append(t.rows, *row)
	if t.text += text; len(t.rows) >= t.most || t.text+len(t.rows)*groupBytes/t.most >= groupBytes {
		t.flush()
	}
}

// flush has the rows that wait written as a group, on a goroutine of its own: that takes
// about as long as to gather them. They are written when settle returns.
func (t *table[T]) flush() {
	t.wait()
	t.text = 0
	if len(t.rows) == 0 || t.begin() != nil {
		t.rows = t.rows[:0]
		return
	}
	t.out, t.rows = t.rows, t.out[:0]
	done := make(chan struct{})
	t.writing = done
	go func() {
		defer close(done)
		t.group()
	}()
}

// wait waits until nothing is being written.
func (t *table[T]) wait() {
	if t.writing != nil {
		<-t.writing
		t.writing = nil
	}
}

// group writes the rows of out.
func (t *table[T]) group() {
	t.order = t.order[:0]
	for i := range t.out {
		t.order = append(t.order, int32(i))
	}
	if t.before != nil {
		slices.SortFunc(t.order, func(a, b int32) int {
			return cmp.Or(t.before(&t.out[a], &t.out[b]), cmp.Compare(a, b))
		})
	}
	start := t.at
	g := thrift{b: t.groups}
	g.open()
	g.list(1, thriftStruct, len(t.columns))
	for i := range t.columns {
		t.chunk(&g, &t.columns[i])
	}
	g.i64(2, t.at-start)
	g.i64(3, int64(len(t.out)))
	if t.before != nil {
		g.list(4, thriftStruct, 1)
		g.open()
		g.i32(1, 0) // the first column
		g.bool(2, false)
		g.bool(3, false)
		g.close()
	}
	g.close()
	t.groups = g.b
	t.ngroups++
	t.total += int64(len(t.out))
	clear(t.out)
}

// row returns the i-th of the rows that wait, in their order.
func (t *table[T]) row(i int) *T { return &t.out[t.order[i]] }

// chunk writes a column of the rows that wait, and appends its ColumnChunk.
func (t *table[T]) chunk(g *thrift, c *column[T]) {
	start := t.at
	plain, dictionary, values := int64(0), int64(-1), 0
	lo, hi := int64(math.MaxInt64), int64(math.MinInt64)
	encoding := int64(parquetPlain)
	b := t.page[:0]
	if c.optional() {
		b = append(b, 0, 0, 0, 0)
		b = appendLevels(b, len(t.out), func(i int) bool { return !c.null(t.row(i)) })
		binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	}
	each := func(f func(r *T)) {
		for i := range t.out {
			if r := t.row(i); c.null == nil || !c.null(r) {
				values++
				f(r)
			}
		}
	}
	switch {
	case c.truth != nil:
		n := 0
		each(func(r *T) {
			if n%8 == 0 {
				b = append(b, 0)
			}
			if c.truth(r) {
				b[len(b)-1] |= 1 << (n % 8)
			}
			n++
		})
	case c.number != nil:
		each(func(r *T) {
			v := c.number(r)
			lo, hi = min(lo, v), max(hi, v)
			if c.narrow {
				b = binary.LittleEndian.AppendUint32(b, uint32(v))
			} else {
				b = binary.LittleEndian.AppendUint64(b, uint64(v))
			}
		})
	default:
		var dict []byte
		var n int
		if dict, n = t.dictionary(c); n > 0 {
			dictionary = t.at
			plain += t.writePage(parquetDictionaryPage, n, dict, parquetPlain)
			encoding = parquetDictionary
			width := bits.Len(uint(n - 1))
			b = appendIDs(append(b, byte(width)), t.ids, width)
			values = len(t.ids)
			break
		}
		each(func(r *T) {
			s := c.text(r)
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
		})
	}
	data := t.at
	plain += t.writePage(parquetDataPage, len(t.out), b, encoding)
	t.page = b[:0]

	g.open()
	g.i64(2, start)
	g.field(3, thriftStruct)
	g.open()
	g.i32(1, c.kind())
	g.list(2, thriftI32, 3)
	g.varint(parquetPlain)
	g.varint(parquetRLE)
	g.varint(encoding)
	g.list(3, thriftBinary, 1)
	g.bytes(c.name)
	g.i32(4, parquetZstd)
	g.i64(5, int64(len(t.out)))
	g.i64(6, plain)
	g.i64(7, t.at-start)
	g.i64(9, data)
	if dictionary >= 0 {
		g.i64(11, dictionary)
	}
	g.field(12, thriftStruct)
	g.open()
	g.i64(3, int64(len(t.out)-values))
	if c.number != nil && values > 0 {
		g.text(5, bound(hi, c.narrow))
		g.text(6, bound(lo, c.narrow))
	}
	g.close()
	g.close()
	g.close()
}

// bound is a number as statistics have it.
func bound(v int64, narrow bool) string {
	b := binary.LittleEndian.AppendUint64(nil, uint64(v))
	if narrow {
		b = b[:4]
	}
	return string(b)
}

// dictionary puts the numbers of a column's texts into t.ids, and returns the texts; n is 0
// where they recur too little.
func (t *table[T]) dictionary(c *column[T]) (dict []byte, n int) {
	ids := make(map[string]uint32)
	t.ids = t.ids[:0]
	for i := range t.out {
		r := t.row(i)
		if c.null != nil && c.null(r) {
			continue
		}
		s := c.text(r)
		id, ok := ids[s]
		if !ok {
			if id = uint32(len(ids)); id >= maxDictionary || id > 1024 && int(id) > (i+1)/2 {
				return nil, 0
			}
			ids[s] = id
			dict = append(binary.LittleEndian.AppendUint32(dict, uint32(len(s))), s...)
		}
		t.ids = append(t.ids, id)
	}
	return dict, len(ids)
}

// writePage writes a page, and returns how large it would be without compression.
func (t *table[T]) writePage(kind int64, values int, b []byte, encoding int64) int64 {
	t.packed = t.enc.EncodeAll(b, t.packed[:0])
	h := thrift{b: t.head[:0]}
	h.open()
	h.i32(1, kind)
	h.i32(2, int64(len(b)))
	h.i32(3, int64(len(t.packed)))
	if kind == parquetDictionaryPage {
		h.field(7, thriftStruct)
	} else {
		h.field(5, thriftStruct)
	}
	h.open()
	h.i32(1, int64(values))
	h.i32(2, encoding)
	if kind == parquetDataPage {
		h.i32(3, parquetRLE)
		h.i32(4, parquetRLE)
	}
	h.close()
	h.close()
	t.head = h.b
	t.write(h.b)
	t.write(t.packed)
	return int64(len(h.b) + len(b))
}

// end writes the rest, and the footer, and is then as at the beginning. It does not close the writer. Where there are no
// rows it makes no file.
func (t *table[T]) end() error {
	t.flush()
	t.wait()
	if t.w == nil {
		return t.err
	}
	err := t.close()
	t.w, t.at, t.total, t.groups, t.ngroups = nil, 0, 0, t.groups[:0], 0
	return err
}

// close writes the rest, and the footer. It does not close the writer.
func (t *table[T]) close() error {
	t.flush()
	t.wait()
	if err := t.begin(); err != nil || t.off {
		return err
	}
	f := thrift{}
	f.open()
	f.i32(1, 1) // version
	f.list(2, thriftStruct, len(t.columns)+1)
	f.open()
	f.text(4, "schema")
	f.i32(5, int64(len(t.columns)))
	f.close()
	for i := range t.columns {
		c := &t.columns[i]
		f.open()
		f.i32(1, c.kind())
		repetition := int64(0) // required
		if c.optional() {
			repetition = 1
		}
		f.i32(3, repetition)
		f.text(4, c.name)
		if c.text != nil {
			f.i32(6, 0) // UTF8
			f.field(10, thriftStruct)
			f.open()
			f.field(1, thriftStruct) // STRING
			f.open()
			f.close()
			f.close()
		}
		f.close()
	}
	f.i64(3, t.total)
	f.list(4, thriftStruct, t.ngroups)
	f.b = append(f.b, t.groups...)
	f.text(6, "nvtrace version 1")
	f.list(7, thriftStruct, len(t.columns)) // the order of bounds: that of the type
	for range t.columns {
		f.open()
		f.field(1, thriftStruct)
		f.open()
		f.close()
		f.close()
	}
	f.close()
	b := binary.LittleEndian.AppendUint32(f.b, uint32(len(f.b)))
	t.write(append(b, "PAR1"...))
	return t.err
}

// appendLevels appends n bits as runs of equal ones (RLE of width 1).
func appendLevels(b []byte, n int, set func(int) bool) []byte {
	for i := 0; i < n; {
		v, from := set(i), i
		for i < n && set(i) == v {
			i++
		}
		b = appendVarint(b, uint64(i-from)<<1)
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

// appendIDs appends numbers of so many bits, packed, in groups of 8.
func appendIDs(b []byte, ids []uint32, width int) []byte {
	b = appendVarint(b, uint64((len(ids)+7)/8)<<1|1)
	acc, have := uint64(0), 0
	for i := range (len(ids) + 7) / 8 * 8 {
		if i < len(ids) {
			acc |= uint64(ids[i]) << have
		}
		for have += width; have >= 8; have -= 8 {
			b = append(b, byte(acc))
			acc >>= 8
		}
	}
	return b
}

// thrift is Thrift's compact protocol that is being written.
type thrift struct {
	b    []byte
	last []int // latest field of each struct that is open
}

// Types of the compact protocol.
const (
	thriftTrue, thriftFalse       = 1, 2
	thriftI32, thriftI64          = 5, 6
	thriftBinary, thriftList      = 8, 9
	thriftStruct                  = 12
	thriftLongList                = 15
	thriftStop               byte = 0
)

func (t *thrift) open() { t.last = append(t.last, 0) }

func (t *thrift) close() {
	t.last = t.last[:len(t.last)-1]
	t.b = append(t.b, thriftStop)
}

// field begins a field, whose number is at most 15 above the latest one's.
func (t *thrift) field(id, kind int) {
	n := len(t.last) - 1
	t.b = append(t.b, byte(id-t.last[n])<<4|byte(kind))
	t.last[n] = id
}

// varint writes a signed number.
func (t *thrift) varint(v int64) { t.b = appendVarint(t.b, uint64(v)<<1^uint64(v>>63)) }

func (t *thrift) i32(id int, v int64) { t.field(id, thriftI32); t.varint(v) }

func (t *thrift) i64(id int, v int64) { t.field(id, thriftI64); t.varint(v) }

func (t *thrift) bool(id int, v bool) {
	if v {
		t.field(id, thriftTrue)
	} else {
		t.field(id, thriftFalse)
	}
}

func (t *thrift) bytes(s string) { t.b = append(appendVarint(t.b, uint64(len(s))), s...) }

func (t *thrift) text(id int, s string) { t.field(id, thriftBinary); t.bytes(s) }

func (t *thrift) list(id, kind, n int) {
	t.field(id, thriftList)
	if n < thriftLongList {
		t.b = append(t.b, byte(n)<<4|byte(kind))
		return
	}
	t.b = appendVarint(append(t.b, thriftLongList<<4|byte(kind)), uint64(n))
}
