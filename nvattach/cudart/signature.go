package cudart

import (
	"bytes"
	"compress/flate"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A Signature is what a function looks like in all files that it is in.
type Signature struct {
	Name string
	Size uint32 // of its code
	// Mask are the parts of the code that linkers change, in their order.
	Mask     []Range
	Sum      uint64   // of the other parts; see [Signature.Of]
	Releases []uint16 // that have it: places in Table.Releases, ascending
}

// A Range is a part of a function's code.
type Range struct{ Off, Len uint32 }

// Of returns the sum of a function's code that has the signature's size.
func (s *Signature) Of(code []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a; hash/fnv takes longer to make one than a short function's code
	h, at := uint64(offset), uint32(0)
	add := func(part []byte) {
		for _, c := range part {
			h = (h ^ uint64(c)) * prime
		}
	}
	for _, r := range s.Mask {
		add(code[at:r.Off])
		at = r.Off + r.Len
	}
	add(code[at:])
	return h
}

// A Table has what is known of all releases.
type Table struct {
	Releases   []string // "13.1.80", the oldest first
	Signatures []Signature
}

//go:generate go run nvtrace/nvattach/cudart/internal/gen pack facts ztable.bin
//go:embed ztable.bin
var packed []byte

// known decodes the embedded table, when it is first asked for.
var known = sync.OnceValue(func() *index {
	t, err := Decode(packed)
	if err != nil {
		panic("BUG: embedded signatures of the CUDA runtime: " + err.Error())
	}
	return newIndex(t)
})

// Bounds of a table: what is beyond is damage.
const (
	maxTable      = 16 << 20
	maxReleases   = 1 << 10
	maxSignatures = 1 << 17
	maxRanges     = 1 << 14
	maxFunction   = 1 << 20 // bytes of code
)

var errTable = errors.New("damaged table")

// Encode packs a table, deflated: of the releases and of the signatures their number, then
// each one. A number is a uvarint, a text its length and bytes; of a signature's ranges each offset
// counts from the end of the one before; its sum has 8 bytes.
func (t *Table) Encode() ([]byte, error) {
	var b []byte
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	b = binary.AppendUvarint(b, uint64(len(t.Releases)))
	for _, r := range t.Releases {
		text(r)
	}
	b = binary.AppendUvarint(b, uint64(len(t.Signatures)))
	for i := range t.Signatures {
		s := &t.Signatures[i]
		text(s.Name)
		b = binary.AppendUvarint(b, uint64(s.Size))
		b = binary.AppendUvarint(b, uint64(len(s.Mask)))
		end := uint32(0)
		for _, r := range s.Mask {
			b = binary.AppendUvarint(b, uint64(r.Off-end))
			b = binary.AppendUvarint(b, uint64(r.Len))
			end = r.Off + r.Len
		}
		b = binary.LittleEndian.AppendUint64(b, s.Sum)
		b = binary.AppendUvarint(b, uint64(len(s.Releases)))
		for _, r := range s.Releases {
			b = binary.AppendUvarint(b, uint64(r))
		}
	}
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// Decode reads what Encode has made.
func Decode(packed []byte) (*Table, error) {
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxTable+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTable, err)
	}
	d := &decoder{b: raw}
	t := &Table{Releases: make([]string, d.number(maxReleases))}
	for i := range t.Releases {
		t.Releases[i] = d.text()
	}
	t.Signatures = make([]Signature, d.number(maxSignatures))
	for i := range t.Signatures {
		s := &t.Signatures[i]
		s.Name, s.Size = d.text(), uint32(d.number(maxFunction))
		s.Mask = make([]Range, d.number(maxRanges))
		end := uint32(0)
		for k := range s.Mask {
			r := Range{Off: end + uint32(d.number(maxFunction)), Len: uint32(d.number(maxFunction))}
			if end = r.Off + r.Len; end > s.Size {
				d.failed = true
			}
			s.Mask[k] = r
		}
		if len(d.b) < 8 {
			d.failed = true
		}
		if d.failed {
			break
		}
		s.Sum, d.b = binary.LittleEndian.Uint64(d.b), d.b[8:]
		s.Releases = make([]uint16, d.number(len(t.Releases)))
		for k := range s.Releases {
			s.Releases[k] = uint16(d.number(len(t.Releases) - 1))
		}
	}
	if d.failed || len(d.b) > 0 {
		return nil, errTable
	}
	return t, nil
}

// decoder reads a table; what is beyond its bounds makes it fail.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) number(most int) int {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || most < 0 || v > uint64(most) || d.failed {
		d.failed = true
		return 0
	}
	d.b = d.b[n:]
	return int(v)
}

func (d *decoder) text() string {
	n := d.number(len(d.b))
	if n > len(d.b) {
		d.failed = true
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}
