package rm

import (
	"errors"
	"fmt"

	"nvtrace/rm/internal/wire"
)

// This file reads the sections of the packed tables. It trusts nothing: offsets
// are checked when the file is opened, records while they are read. That costs
// little, and it lets the format be fuzzed.

var errTruncated = errors.New("truncated")

func le16(s string, off int) uint16 { return uint16(s[off]) | uint16(s[off+1])<<8 }

func le32(s string, off int) uint32 {
	return uint32(s[off]) | uint32(s[off+1])<<8 | uint32(s[off+2])<<16 | uint32(s[off+3])<<24
}

// blobs is a section of n byte strings.
type blobs struct {
	offs string // n+1 u32
	body string
	n    uint32
}

func openBlobs(s string) (blobs, error) {
	if len(s) < 8 {
		return blobs{}, errTruncated
	}
	n := le32(s, 0)
	head := 4 + 4*(uint64(n)+1)
	if uint64(len(s)) < head {
		return blobs{}, errTruncated
	}
	b := blobs{offs: s[4:head], body: s[head:], n: n}
	last := uint32(0)
	for i := range n + 1 {
		off := le32(b.offs, int(4*i))
		if off < last || uint64(off) > uint64(len(b.body)) {
			return blobs{}, fmt.Errorf("item %d: offset %d out of order", i, off)
		}
		last = off
	}
	return b, nil
}

func (b *blobs) at(i uint32) string {
	if i >= b.n {
		return ""
	}
	return b.body[le32(b.offs, int(4*i)):le32(b.offs, int(4*i+4))]
}

// table is a section that says which record holds for a key from a version on.
type table struct {
	keys  string // n u32
	first string // n+1 u32: the key's first step
	steps string // u16 version, u16 record plus one
	n     int
}

func openTable(s string) (table, error) {
	if len(s) < 8 {
		return table{}, errTruncated
	}
	n := uint64(le32(s, 0))
	head := 4 + 4*n + 4*(n+1)
	if uint64(len(s)) < head {
		return table{}, errTruncated
	}
	t := table{keys: s[4 : 4+4*n], first: s[4+4*n : head], steps: s[head:], n: int(n)}
	last := uint32(0)
	for i := range n + 1 {
		off := le32(t.first, int(4*i))
		if off < last || uint64(off) > uint64(len(t.steps)/4) {
			return table{}, fmt.Errorf("key %d: step %d out of order", i, off)
		}
		last = off
	}
	return t, nil
}

func (t *table) key(i int) uint32 { return le32(t.keys, 4*i) }

// find returns the index of a key, -1 if the table has it not.
func (t *table) find(key uint32) int {
	lo, hi := 0, t.n
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.key(mid) < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < t.n && t.key(lo) == key {
		return lo
	}
	return -1
}

// at returns the record that holds for the i-th key in a version.
func (t *table) at(i, version int) (rec uint32, ok bool) {
	if i < 0 {
		return 0, false
	}
	for s := int(le32(t.first, 4*i+4)) - 1; s >= int(le32(t.first, 4*i)); s-- {
		if int(le16(t.steps, 4*s)) <= version {
			rec = uint32(le16(t.steps, 4*s+2))
			return rec - 1, rec != 0
		}
	}
	return 0, false
}

func (t *table) get(key uint32, version int) (rec uint32, ok bool) { return t.at(t.find(key), version) }

// reader takes numbers from a record. After the end, or after a number that is
// malformed or larger than its limit, it gives zeros and bad is set.
type reader struct {
	s    string
	self uint32 // number of the record
	bad  bool
}

func (r *reader) num() uint64 {
	var v uint64
	for i := 0; i < len(r.s) && i < 10; i++ {
		c := r.s[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			r.s = r.s[i+1:]
			return v
		}
	}
	r.s, r.bad = "", true
	return 0
}

// int reads a number that must not exceed limit.
func (r *reader) int(limit uint64) int {
	v := r.num()
	if v > limit {
		r.s, r.bad = "", true
		return 0
	}
	return int(v)
}

// count reads the number of items that follow, of at least one byte each.
func (r *reader) count() int { return r.int(uint64(len(r.s))) }

const maxSize = 1 << 30 // no record is nearly as large; it keeps offsets from overflowing

func (r *reader) size() int { return r.int(maxSize) }

// open checks and opens packed tables.
func open(data string) (*tables, error) {
	dir := len(wire.Magic)
	if len(data) < dir+4*(wire.Sections+1) || data[:dir] != wire.Magic {
		return nil, errors.New("not driver tables of this form")
	}
	t := &tables{data: data}
	var section [wire.Sections]string
	for i := range section {
		from, to := le32(data, dir+4*i), le32(data, dir+4*i+4)
		if from > to || uint64(to) > uint64(len(data)) {
			return nil, fmt.Errorf("section %d: %w", i, errTruncated)
		}
		section[i] = data[from:to]
	}
	var recs [wire.Sections]blobs
	for i, s := range section {
		var err error
		switch {
		case i == wire.Versions:
			t.versions, err = openVersions(s)
		case i < wire.StructTab:
			recs[i], err = openBlobs(s)
		default:
			t.tab[i], err = openTable(s)
		}
		if err != nil {
			return nil, fmt.Errorf("section %d: %w", i, err)
		}
	}
	t.strings = recs[wire.Strings]
	t.names = recs[wire.StatusRecs]
	t.domains = newPool[Domain](recs[wire.DomainRecs])
	t.structs = newPool[Struct](recs[wire.StructRecs])
	t.controls = newPool[Control](recs[wire.ControlRecs])
	t.classes = newPool[Class](recs[wire.ClassRecs])
	t.escapes = newPool[Escape](recs[wire.EscapeRecs])
	t.requests = newPool[Request](recs[wire.RequestRecs])
	return t, nil
}

func openVersions(s string) ([]Version, error) {
	if len(s) < 4 {
		return nil, errTruncated
	}
	n := uint64(le32(s, 0))
	if n == 0 || uint64(len(s)) < 4+8*n {
		return nil, errTruncated
	}
	out := make([]Version, n)
	for i := range out {
		o := 4 + 8*i
		out[i] = Version{le16(s, o), le16(s, o+2), le16(s, o+4), le16(s, o+6) != 0}
		if i > 0 && out[i-1].Compare(out[i]) >= 0 {
			return nil, fmt.Errorf("version %d is not in order", i)
		}
	}
	return out, nil
}
