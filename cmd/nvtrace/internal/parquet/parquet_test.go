package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestDeep: lists in lists are damage, and no overflow of the stack.
func TestDeep(t *testing.T) {
	footer := append([]byte{0x19}, bytes.Repeat([]byte{0x19}, 8<<20)...) // field 1: a list of a list of a list …
	file := append([]byte("PAR1"), footer...)
	file = binary.LittleEndian.AppendUint32(file, uint32(len(footer)))
	file = append(file, "PAR1"...)
	if _, err := Open(bytes.NewReader(file), int64(len(file))); !errors.Is(err, errForm) {
		t.Errorf("%v, want %v", err, errForm)
	}
}

// TestDictionaries: a column of a group has one dictionary, so that pages of many can't take all memory.
func TestDictionaries(t *testing.T) {
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	page := func(kind, values byte, b []byte) []byte { // whose header is below 64 in each number
		packed := enc.EncodeAll(b, nil)
		field := byte(0x2c)
		if kind == pageDictionary {
			field = 0x4c
		}
		h := []byte{0x15, kind << 1, 0x25, byte(len(packed)) << 1, field, 0x15, values << 1, 0x15, 0, 0, 0}
		if kind == pageData {
			h[8] = encodingDictionary << 1
		}
		return append(h, packed...)
	}
	dictionary := page(pageDictionary, 1, []byte("\x01\x00\x00\x00a"))
	data := page(pageData, 3, []byte{0, 1<<1 | 1})
	for n, ok := range []bool{false, true, false} {
		b := append(bytes.Repeat(dictionary, n), data...)
		f := &File{r: bytes.NewReader(b), names: []string{"x"}, types: []int64{typeBytes}, maybe: []bool{false}}
		f.groups = []group{{3, []chunk{{codecZstd, 0, int64(len(b))}}}}
		r, err := NewReader()
		if err != nil {
			t.Fatal(err)
		}
		c := &Column{Name: "x", IsText: true}
		err = r.Each(f, []*Column{c}, func(rows int) error {
			if rows != 3 || c.Text(2) != "a" {
				t.Errorf("%d rows of %q", rows, c.Texts)
			}
			return nil
		})
		if (err == nil) != ok {
			t.Errorf("%d dictionaries: %v", n, err)
		}
	}
}
