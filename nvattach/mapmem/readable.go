package mapmem

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"nvtrace/nvattach/object"
)

// A Range is memory from Base on, up to End.
type Range struct{ Base, End uint64 }

// ErrReaders says that threads still read memory by what [Maps.SetReadable] said before.
var ErrReaders = errors.New("memory is being read")

// MostReadable is how many ranges there can be. Others are not read.
const MostReadable = 8192

// Offsets in that memory.
const (
	ReadableCopies = object.LineBytes
	ReadableCopy   = object.LineBytes + 16*MostReadable
	ReadersOff     = ReadableCopies + 2*ReadableCopy
	ReadableHead   = object.LineBytes // of a copy, in front of its entries
)

// layReadable gives the table its place.
func (m *Maps) layReadable() {
	m.Readable = m.size
	m.size = object.RoundUp(m.size+ReadersOff+uint64(m.SMs)*object.LineBytes, arenaAlign)
}

// SetReadable says what memory there is, in any order; no range may reach into another. Kernels
// may run. What is no longer in it may go when [Maps.Readers] is 0 afterwards; until then another
// call returns an error with ErrReaders in its chain.
func (m *Maps) SetReadable(mem Memory, list []Range) error {
	if m.Readable == 0 {
		return nil
	}
	list = slices.SortedFunc(slices.Values(list), func(a, b Range) int { return cmp.Compare(a.Base, b.Base) })
	list = list[:min(len(list), MostReadable)]
	at := m.Base + m.Readable
	now, n, err := m.ReadersOf(mem)
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("table of memory: %d threads read by the copy that is to be written: %w", n, ErrReaders)
	}
	next := now ^ 1
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(list)))
	b = append(b, make([]byte, ReadableHead-len(b))...)
	for _, r := range list {
		b = binary.LittleEndian.AppendUint64(b, r.Base)
		b = binary.LittleEndian.AppendUint64(b, r.End)
	}
	if err := mem.WriteMem(at+ReadableCopies+next*ReadableCopy, b); err != nil {
		return fmt.Errorf("table of memory: %w", err)
	}
	if err := mem.WriteMem(at, binary.LittleEndian.AppendUint64(nil, next)); err != nil {
		return fmt.Errorf("table of memory: %w", err)
	}
	return nil
}

// Readers returns how many threads may still read what was there before the last
// [Maps.SetReadable].
func (m *Maps) Readers(mem Memory) (uint64, error) {
	if m.Readable == 0 {
		return 0, nil
	}
	_, n, err := m.ReadersOf(mem)
	return n, err
}

// ReadersOf returns which copy counts, and how many threads read by the other one.
func (m *Maps) ReadersOf(mem Memory) (now, n uint64, err error) {
	var word [8]byte
	if err := mem.ReadMem(m.Base+m.Readable, word[:]); err != nil {
		return 0, 0, fmt.Errorf("table of memory: %w", err)
	}
	now = binary.LittleEndian.Uint64(word[:]) & 1
	b := make([]byte, uint64(m.SMs)*object.LineBytes)
	if err := mem.ReadMem(m.Base+m.Readable+ReadersOff, b); err != nil {
		return 0, 0, fmt.Errorf("table of memory: %w", err)
	}
	for sm := range m.SMs {
		n += binary.LittleEndian.Uint64(b[sm*object.LineBytes+8*int(now^1):])
	}
	return now, n, nil
}
