// Package pack turns merged facts into the binary tables that package rm embeds.
package pack

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"nvtrace/rm/internal/wire"
)

// record is a record under construction.
type record []byte

func (r *record) num(v uint64) { *r = binary.AppendUvarint(*r, v) }

func (r *record) int(v int64) {
	if v < 0 {
		panic(fmt.Sprintf("BUG: negative number %d in a record", v))
	}
	r.num(uint64(v))
}

// interner numbers equal things once, in the order in which they come.
type interner struct {
	ids  map[string]uint32
	list []string
}

func newInterner() *interner { return &interner{ids: map[string]uint32{}} }

func (n *interner) id(s string) uint32 {
	if id, ok := n.ids[s]; ok {
		return id
	}
	id := uint32(len(n.list))
	n.ids[s] = id
	n.list = append(n.list, s)
	return id
}

// step says which record holds from a version on; 0 is none, else number plus one.
type step struct {
	version int
	rec     uint32
}

// history collects a table's steps, version by version.
type history struct {
	steps map[uint32][]step
	now   map[uint32]uint32 // this version's records, plus one
}

func newHistory() *history {
	return &history{steps: map[uint32][]step{}, now: map[uint32]uint32{}}
}

// set notes this version's record of a key. It reports false if the key has
// another record already.
func (h *history) set(key, rec uint32) bool {
	old, dup := h.now[key]
	h.now[key] = rec + 1
	return !dup || old == rec+1
}

// end closes a version.
func (h *history) end(version int) {
	for key, l := range h.steps {
		if _, ok := h.now[key]; !ok && l[len(l)-1].rec != 0 {
			h.steps[key] = append(l, step{version, 0})
		}
	}
	for key, rec := range h.now {
		l := h.steps[key]
		if len(l) == 0 || l[len(l)-1].rec != rec {
			h.steps[key] = append(l, step{version, rec})
		}
	}
	clear(h.now)
}

// encoder appends fixed-width numbers; the first one that does not fit is its error.
type encoder struct {
	b   []byte
	err error
}

func (e *encoder) fits(v, limit int) int {
	if (v < 0 || v > limit) && e.err == nil {
		e.err = fmt.Errorf("%d does not fit below %d", v, limit)
	}
	return v
}

func (e *encoder) u32(v int) {
	e.b = binary.LittleEndian.AppendUint32(e.b, uint32(e.fits(v, math.MaxUint32)))
}

func (e *encoder) u16(v int) {
	e.b = binary.LittleEndian.AppendUint16(e.b, uint16(e.fits(v, math.MaxUint16)))
}

// parts writes the offsets of parts, the first of which is off, and of their end,
// then the parts.
func parts[T ~string | ~[]byte](e *encoder, off int, list []T) {
	for _, s := range list {
		e.u32(off)
		off += len(s)
	}
	e.u32(off)
	for _, s := range list {
		e.b = append(e.b, s...)
	}
}

// blobs encodes a section of records or strings.
func blobs(list []string) ([]byte, error) {
	var e encoder
	e.u32(len(list))
	parts(&e, 0, list)
	return e.b, e.err
}

// table encodes a history, its keys in the given order.
func (h *history) table(order func(a, b uint32) int) ([]byte, error) {
	var e encoder
	keys := slices.SortedFunc(maps.Keys(h.steps), order)
	e.u32(len(keys))
	for _, k := range keys {
		e.u32(int(k))
	}
	n := 0
	for _, k := range keys {
		e.u32(n)
		n += len(h.steps[k])
	}
	e.u32(n)
	for _, k := range keys {
		for _, s := range h.steps[k] {
			e.u16(s.version)
			e.u16(int(s.rec))
		}
	}
	return e.b, e.err
}

// file puts the sections together.
func file(sections [wire.Sections][]byte) ([]byte, error) {
	e := encoder{b: []byte(wire.Magic)}
	parts(&e, len(e.b)+4*(wire.Sections+1), sections[:])
	return e.b, e.err
}
