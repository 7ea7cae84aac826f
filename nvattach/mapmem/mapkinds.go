package mapmem

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"nvtrace/nvattach/object"
)

// A queue or stack is a lock as that of a hash's home, how many values were taken from the one
// end, and put to the other; then the values.
const (
	queueHead  = 64
	QueueFirst = 8
	QueueEnd   = 16
)

// BloomHead is the size of what a bloom filter begins with, room for a value, which stays 0; bits follow.
const BloomHead = 64

// BloomAt is a bit of a value: where it is in the map, and which of the 64 there.
func (x *Map) BloomAt(hash uint32, i uint64) (off, bit uint64) {
	n := (uint64(hash) + i*uint64((hash*0x9e3779b1)>>1|1)) & (x.Def.BloomBits() - 1)
	return BloomHead + x.Stride + n/64*8, n % 64
}

// Prefix returns a key with nothing behind its prefix; false: it is none.
func Prefix(key []byte, length uint32) ([]byte, bool) {
	if uint64(length) > 8*uint64(len(key)-object.LpmHead) {
		return nil, false
	}
	p := make([]byte, len(key))
	binary.LittleEndian.PutUint32(p, length)
	copy(p[object.LpmHead:], key[object.LpmHead:object.LpmHead+(length+7)/8])
	if length%8 > 0 {
		p[object.LpmHead+length/8] &= ^byte(0xff >> (length % 8))
	}
	return p, true
}

// Longest returns the longest prefix that a trie has of a key, nil if it has none.
func (x *Map) Longest(mem Memory, key []byte) ([]byte, error) {
	have := make([]byte, object.PrefixLengths/8)
	if err := mem.ReadMem(x.Base+x.Lpm, have); err != nil {
		return nil, err
	}
	if _, ok := Prefix(key, binary.LittleEndian.Uint32(key)); !ok {
		return nil, nil
	}
	for n := int64(binary.LittleEndian.Uint32(key)); n >= 0; n-- {
		if have[n/8]>>(n%8)&1 == 0 {
			continue
		}
		p, _ := Prefix(key, uint32(n))
		if _, found, err := x.Find(mem, p); found || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// trieUpdate is hashUpdate of a prefix.
func (m *Maps) trieUpdate(mem Memory, x *Map, key, value []byte) error {
	p, ok := Prefix(key, binary.LittleEndian.Uint32(key))
	if !ok {
		return fmt.Errorf("a prefix of %d bits; it has keys of %d at most: %w", binary.LittleEndian.Uint32(key), 8*(len(key)-object.LpmHead), ErrNoKey)
	}
	var w [8]byte
	at := x.Base + x.Lpm + uint64(binary.LittleEndian.Uint32(p)/64*8)
	if err := mem.ReadMem(at, w[:]); err != nil {
		return err
	}
	if err := mem.WriteMem(at, binary.LittleEndian.AppendUint64(nil, binary.LittleEndian.Uint64(w[:])|1<<(binary.LittleEndian.Uint32(p)%64))); err != nil {
		return err
	}
	return m.HashUpdate(mem, x, p, value)
}

// BloomHas reports whether a value may be in a bloom filter.
func (x *Map) BloomHas(mem Memory, value []byte) (bool, error) {
	hash := HashKey(value)
	for i := range x.Def.BloomHashes() {
		var w [8]byte
		off, bit := x.BloomAt(hash, i)
		if err := mem.ReadMem(x.Base+off, w[:]); err != nil || binary.LittleEndian.Uint64(w[:])>>bit&1 == 0 {
			return false, err
		}
	}
	return true, nil
}

// QueueAt returns the address of the value of that number, counted from the first that was ever put.
func (x *Map) QueueAt(i uint64) uint64 {
	return x.Base + queueHead + i%uint64(x.Def.MaxEntries)*x.Stride
}

// readBloom counts the bits of a bloom filter that are 1.
func (m *Maps) readBloom(mem Memory, t *Table) error {
	x := t.Map
	b := make([]byte, x.Def.BloomBits()/8)
	if err := mem.ReadMem(x.Base+BloomHead+x.Stride, b); err != nil {
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
	if err := mem.ReadMem(x.Base, head[:]); err != nil {
		return err
	}
	first, end := binary.LittleEndian.Uint64(head[QueueFirst:]), binary.LittleEndian.Uint64(head[QueueEnd:])
	for i := range min(end-first, uint64(x.Def.MaxEntries)) {
		at := first + i
		if x.Def.Type == object.MapStack {
			at = end - 1 - i
		}
		row := Row{Key: IndexKey(i), Value: make([]byte, x.Def.ValueSize)}
		if err := mem.ReadMem(x.QueueAt(at), row.Value); err != nil {
			return err
		}
		t.Rows = append(t.Rows, row)
	}
	return nil
}
