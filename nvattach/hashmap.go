package nvattach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// hashLayout is the layout of a hash map: open addressing with linear probing in
// a power of two of slots, at least half more than entries.
//
//	0        u32 number of entries
//	8        u64 of an LRU hash: how far the search for a key to drop has come
//	128      homes [slots]u64: reach, lock and version of the keys whose search begins
//	         at a slot
//	slots    [slots]{u32 state; u32 of an LRU hash: not 0 if the key was used of late; key at keyOff}
//	values   [slots] values, of which there are copies for each multiprocessor in per-CPU
//	         maps and where programs only add to values
//
// A slot's state is slotEmpty, slotBusy, or its key's hash with slotValid. A home's
// reach is how many slots from there on can have its keys: whoever searches looks at
// no more, so slots that were left by deleted keys can be given to any key at once.
//
// Readers take no lock. Who inserts or deletes has searched before, and locks the home
// by a compare and swap with what it was then: it succeeds only if no key of the home
// came or went meanwhile, so a key is never inserted twice, and whoever waited for a
// key that another thread inserts finds it without ever having the lock. Who inserts
// takes a free slot by a compare and swap, since keys of other homes may want it too.
//
// A value is replaced in place, 8 bytes at a time where it is longer: of several threads
// that write one longer than 8 bytes, each part is from one of them. No lock is needed
// for that unless programs delete keys of the map, after which the slot may be another
// key's.
type hashLayout struct {
	slots    uint64
	homeOff  uint64
	slotOff  uint64
	keyOff   uint64 // in a slot
	slotSize uint64
	valueOff uint64 // of the values: apart from keys, so that those stay in caches
	copies   int    // of the values: 1, or one for each multiprocessor
	smBytes  uint64 // from copy to copy
	size     uint64
}

// The states of a slot.
const (
	slotEmpty = 0
	slotBusy  = 1
	slotValid = 1 << 31 // with the other bits of the key's hash
)

// A home is reach | homeLock | version<<32.
const (
	homeLock  = 1 << 31
	homeReach = homeLock - 1
)

// newHashLayout lays a hash out; apart says that each multiprocessor has values of its
// own.
func newHashLayout(d *MapDef, sms int, apart bool) hashLayout {
	entries := uint64(d.MaxEntries)
	h := hashLayout{slots: 1 << bits.Len64(max(entries+entries/2, 8)-1), homeOff: lineBytes}
	h.slotOff = roundUp(h.homeOff+8*h.slots, lineBytes)
	h.keyOff = 4
	if d.KeySize > 4 || d.lru() { // of those that may be dropped, 4 bytes say whether they are in use
		h.keyOff = 8
	}
	h.slotSize = roundUp(h.keyOff+roundUp(uint64(d.KeySize), 4), 8)
	h.valueOff = roundUp(h.slotOff+mul(h.slots, h.slotSize), lineBytes)
	h.smBytes = roundUp(mul(h.slots, roundUp(uint64(d.ValueSize), 8)), lineBytes)
	h.copies = 1
	if apart {
		h.copies = sms
	}
	h.size = h.valueOff + mul(h.smBytes, uint64(h.copies))
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
		h = (h ^ binary.LittleEndian.Uint32(w[:])) * hashMul1
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

// slotAddr returns the address of a slot.
func (x *Map) slotAddr(slot uint64) uint64 { return x.base + x.hash.slotOff + slot*x.hash.slotSize }

// homeAddr returns the address of the home that a slot is.
func (x *Map) homeAddr(slot uint64) uint64 { return x.base + x.hash.homeOff + 8*slot }

// find returns the slot of a key.
func (x *Map) find(mem Memory, key []byte) (slot uint64, found bool, err error) {
	h := &x.hash
	hash := hashKey(key)
	var home [8]byte
	first := uint64(hash) & (h.slots - 1)
	if err := mem.ReadMem(x.homeAddr(first), home[:]); err != nil {
		return 0, false, err
	}
	buf := make([]byte, h.slotSize)
	for n := range min(binary.LittleEndian.Uint64(home[:])&homeReach, h.slots) {
		i := (first + n) & (h.slots - 1)
		if err := mem.ReadMem(x.slotAddr(i), buf); err != nil {
			return 0, false, err
		}
		if binary.LittleEndian.Uint32(buf) == hash|slotValid && bytes.Equal(buf[h.keyOff:h.keyOff+uint64(len(key))], key) {
			return i, true, nil
		}
	}
	return 0, false, nil
}

// take finds a free slot for a key and makes the reach of its home cover it.
func (x *Map) take(mem Memory, key []byte) (uint64, error) {
	h := &x.hash
	first := uint64(hashKey(key)) & (h.slots - 1)
	var state [4]byte
	for n := range h.slots {
		i := (first + n) & (h.slots - 1)
		if err := mem.ReadMem(x.slotAddr(i), state[:]); err != nil {
			return 0, err
		}
		if binary.LittleEndian.Uint32(state[:]) != slotEmpty {
			continue
		}
		var home [8]byte
		if err := mem.ReadMem(x.homeAddr(first), home[:]); err != nil {
			return 0, err
		}
		was := binary.LittleEndian.Uint64(home[:])
		binary.LittleEndian.PutUint64(home[:], was&^homeReach+1<<32|max(was&homeReach, n+1))
		return i, mem.WriteMem(x.homeAddr(first), home[:])
	}
	return 0, ErrFull
}

// valueAddr returns where the value of a slot is, for a multiprocessor.
func (x *Map) valueAddr(slot uint64, sm int) uint64 {
	h := &x.hash
	if h.copies == 1 {
		sm = 0
	}
	return x.base + h.valueOff + uint64(sm)*h.smBytes + slot*x.stride
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
		if n := binary.LittleEndian.Uint32(w[:]); n >= x.Def.MaxEntries {
			return fmt.Errorf("%w: it has %d entries", ErrFull, n)
		}
		if slot, err = x.take(mem, key); err != nil {
			return err
		}
	}
	for sm := range h.copies {
		if err := mem.WriteMem(x.valueAddr(slot, sm), value); err != nil {
			return err
		}
		if x.Striped() {
			// The copies are added up, so the others hold nothing.
			value = make([]byte, len(value))
		}
	}
	if found {
		return nil
	}
	head := make([]byte, h.keyOff+uint64(len(key)))
	binary.LittleEndian.PutUint32(head, hashKey(key)|slotValid)
	copy(head[h.keyOff:], key)
	if err := mem.WriteMem(x.slotAddr(slot), head); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(w[:], binary.LittleEndian.Uint32(w[:])+1)
	return mem.WriteMem(x.base, w[:])
}
