package nvattach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// hashLayout is the layout of a hash map: open addressing with linear probing in
// a power of two of slots, at least half more than entries.
//
//	0        u32 number of entries
//	128      locks [locks]u32
//	slots    [slots]{u32 state; key at keyOff; value at valOff}
//	values   per multiprocessor, [slots] values (per-CPU maps only)
//
// A slot's state is slotEmpty, slotDeleted, or a tag from the key's hash with
// slotValid or slotBusy in its two low bits. A slot that was used never becomes
// empty again, so who searches may stop at an empty one.
//
// Readers take no lock. Who inserts or deletes holds the lock of the key's hash,
// so a key is never inserted twice; who inserts takes a free slot by an atomic
// compare and swap, since others with other locks may want it too. A value of at
// most 8 bytes is replaced by one store without a lock; a longer one under it.
type hashLayout struct {
	slots    uint64
	locks    uint64
	lockOff  uint64
	slotOff  uint64
	keyOff   uint64 // in a slot
	valOff   uint64 // in a slot
	slotSize uint64
	valueOff uint64 // of the values of a per-CPU map; 0 otherwise
	smBytes  uint64 // of them, from multiprocessor to multiprocessor
	size     uint64
}

// The states of a slot, in the two low bits of its first word.
const (
	slotEmpty   = 0
	slotBusy    = 1
	slotValid   = 2
	slotDeleted = 3
)

func newHashLayout(d *MapDef, sms int) hashLayout {
	entries := uint64(d.MaxEntries)
	h := hashLayout{slots: 1 << bits.Len64(max(entries+entries/2, 8)-1), lockOff: lineBytes}
	h.locks = min(h.slots, hashLocks)
	h.slotOff = roundUp(h.lockOff+4*h.locks, lineBytes)
	h.keyOff = 4
	if d.KeySize > 4 {
		h.keyOff = 8
	}
	h.valOff = roundUp(h.keyOff+roundUp(uint64(d.KeySize), 4), 8)
	stride := roundUp(uint64(d.ValueSize), 8)
	h.slotSize = h.valOff + stride
	if d.PerSM() {
		h.slotSize = h.valOff
	}
	h.size = h.slotOff + mul(h.slots, h.slotSize)
	if d.PerSM() {
		h.valueOff = roundUp(h.size, lineBytes)
		h.smBytes = roundUp(mul(h.slots, stride), lineBytes)
		h.size = h.valueOff + mul(h.smBytes, uint64(sms))
	}
	return h
}

// The constants of hashKey, which the code on the GPU has as well.
const (
	hashSeed  = 0x9747b28c
	hashMul1  = 0x85ebca6b
	hashMul2  = 0xc2b2ae35
	hashShift = 13
)

// hashKey hashes a key, taken as 32-bit words, the last filled with zeros.
func hashKey(key []byte) uint32 {
	h := uint32(hashSeed)
	for i := 0; i < len(key); i += 4 {
		var w [4]byte
		copy(w[:], key[i:])
		h = (h ^ le32(w[:])) * hashMul1
		h ^= h >> hashShift
	}
	h *= hashMul2
	return h ^ h>>16
}

// Errors of changing a map.
var (
	// ErrNoKey: the map has no such key, or such an index.
	ErrNoKey = errors.New("no such key")
	// ErrFull: the map has as many entries as it can hold.
	ErrFull = errors.New("the map is full")
)

// find returns the slot of a key and its contents, or the first free slot.
func (x *Map) find(mem Memory, key []byte) (slot uint64, found bool, err error) {
	h := &x.hash
	hash := hashKey(key)
	buf := make([]byte, h.valOff)
	free, haveFree := uint64(0), false
	for n := range h.slots {
		i := (uint64(hash) + n) & (h.slots - 1)
		if err := mem.ReadMem(x.base+h.slotOff+i*h.slotSize, buf); err != nil {
			return 0, false, err
		}
		switch state := le32(buf); {
		case state == slotEmpty:
			if haveFree {
				return free, false, nil
			}
			return i, false, nil
		case state == slotDeleted:
			if !haveFree {
				free, haveFree = i, true
			}
		case state == hash&^3|slotValid && bytes.Equal(buf[h.keyOff:h.keyOff+uint64(len(key))], key):
			return i, true, nil
		}
	}
	if haveFree {
		return free, false, nil
	}
	return 0, false, ErrFull
}

// valueAddr returns where the value of a slot is, for a multiprocessor.
func (x *Map) valueAddr(slot uint64, sm int) uint64 {
	h := &x.hash
	if x.Def.PerSM() {
		return x.base + h.valueOff + uint64(sm)*h.smBytes + slot*x.stride
	}
	return x.base + h.slotOff + slot*h.slotSize + h.valOff
}

// hashUpdate sets a key's value; no kernel that inserts may run meanwhile.
func (m *Maps) hashUpdate(mem Memory, x *Map, key, value []byte) error {
	h := &x.hash
	slot, found, err := x.find(mem, key)
	if err != nil {
		return err
	}
	var w [4]byte
	if !found {
		if err := mem.ReadMem(x.base, w[:]); err != nil {
			return err
		}
		if n := le32(w[:]); n >= x.Def.MaxEntries {
			return fmt.Errorf("%w: it has %d entries", ErrFull, n)
		}
	}
	copies := 1
	if x.Def.PerSM() {
		copies = m.SMs
	}
	for sm := range copies {
		if err := mem.WriteMem(x.valueAddr(slot, sm), value); err != nil {
			return err
		}
	}
	if found {
		return nil
	}
	head := make([]byte, h.keyOff+uint64(len(key)))
	binary.LittleEndian.PutUint32(head, hashKey(key)&^3|slotValid)
	copy(head[h.keyOff:], key)
	if err := mem.WriteMem(x.base+h.slotOff+slot*h.slotSize, head); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(w[:], le32(w[:])+1)
	return mem.WriteMem(x.base, w[:])
}
