package nvattach

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// A queue or stack is a lock as that of a hash's home, how many values were taken from the one
// end, and put to the other; then the values.
const (
	queueHead  = 64
	queueFirst = 8
	queueEnd   = 16
)

// A bloom filter is room for a value, which stays 0, and bits.
const bloomHead = 64

// bloomAt is a bit of a value: where it is in the map, and which of the 64 there.
func (x *Map) bloomAt(hash uint32, i uint64) (off, bit uint64) {
	n := (uint64(hash) + i*uint64((hash*0x9e3779b1)>>1|1)) & (x.Def.bloomBits() - 1)
	return bloomHead + x.stride + n/64*8, n % 64
}

// prefix returns a key with nothing behind its prefix; false: it is none.
func prefix(key []byte, length uint32) ([]byte, bool) {
	if uint64(length) > 8*uint64(len(key)-lpmHead) {
		return nil, false
	}
	p := make([]byte, len(key))
	binary.LittleEndian.PutUint32(p, length)
	copy(p[lpmHead:], key[lpmHead:lpmHead+(length+7)/8])
	if length%8 > 0 {
		p[lpmHead+length/8] &= ^byte(0xff >> (length % 8))
	}
	return p, true
}

// longest returns the longest prefix that a trie has of a key, nil if it has none.
func (x *Map) longest(mem Memory, key []byte) ([]byte, error) {
	have := make([]byte, prefixLengths/8)
	if err := mem.ReadMem(x.base+x.lpm, have); err != nil {
		return nil, err
	}
	if _, ok := prefix(key, binary.LittleEndian.Uint32(key)); !ok {
		return nil, nil
	}
	for n := int64(binary.LittleEndian.Uint32(key)); n >= 0; n-- {
		if have[n/8]>>(n%8)&1 == 0 {
			continue
		}
		p, _ := prefix(key, uint32(n))
		if _, found, err := x.find(mem, p); found || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// trieUpdate is hashUpdate of a prefix.
func (m *Maps) trieUpdate(mem Memory, x *Map, key, value []byte) error {
	p, ok := prefix(key, binary.LittleEndian.Uint32(key))
	if !ok {
		return fmt.Errorf("a prefix of %d bits; it has keys of %d at most: %w", binary.LittleEndian.Uint32(key), 8*(len(key)-lpmHead), ErrNoKey)
	}
	var w [8]byte
	at := x.base + x.lpm + uint64(binary.LittleEndian.Uint32(p)/64*8)
	if err := mem.ReadMem(at, w[:]); err != nil {
		return err
	}
	if err := mem.WriteMem(at, binary.LittleEndian.AppendUint64(nil, binary.LittleEndian.Uint64(w[:])|1<<(binary.LittleEndian.Uint32(p)%64))); err != nil {
		return err
	}
	return m.hashUpdate(mem, x, p, value)
}

// bloomHas reports whether a value may be in a bloom filter.
func (x *Map) bloomHas(mem Memory, value []byte) (bool, error) {
	hash := hashKey(value)
	for i := range x.Def.bloomHashes() {
		var w [8]byte
		off, bit := x.bloomAt(hash, i)
		if err := mem.ReadMem(x.base+off, w[:]); err != nil || binary.LittleEndian.Uint64(w[:])>>bit&1 == 0 {
			return false, err
		}
	}
	return true, nil
}

func (x *Map) queueAt(i uint64) uint64 {
	return x.base + queueHead + i%uint64(x.Def.MaxEntries)*x.stride
}

// readBloom counts the bits of a bloom filter that are 1.
func (m *Maps) readBloom(mem Memory, t *Table) error {
	x := t.Map
	b := make([]byte, x.Def.bloomBits()/8)
	if err := mem.ReadMem(x.base+bloomHead+x.stride, b); err != nil {
		return err
	}
	for _, c := range b {
		t.Bits += uint64(bits.OnesCount8(c))
	}
	return nil
}

// readQueue reads a queue or stack, the value that is taken next first.
func (m *Maps) readQueue(mem Memory, t *Table) error {
	x := t.Map
	var head [queueHead]byte
	if err := mem.ReadMem(x.base, head[:]); err != nil {
		return err
	}
	first, end := binary.LittleEndian.Uint64(head[queueFirst:]), binary.LittleEndian.Uint64(head[queueEnd:])
	for i := range min(end-first, uint64(x.Def.MaxEntries)) {
		at := first + i
		if x.Def.Type == MapStack {
			at = end - 1 - i
		}
		row := Row{Key: indexKey(i), Value: make([]byte, x.Def.ValueSize)}
		if err := mem.ReadMem(x.queueAt(at), row.Value); err != nil {
			return err
		}
		t.Rows = append(t.Rows, row)
	}
	return nil
}
