package mapmem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"nvtrace/nvattach/object"
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
	Slots    uint64
	HomeOff  uint64
	SlotOff  uint64
	KeyOff   uint64 // in a slot
	SlotSize uint64
	ValueOff uint64 // of the values: apart from keys, so that those stay in caches
	Copies   int    // of the values: 1, or one for each multiprocessor
	SmBytes  uint64 // from copy to copy
	size     uint64
}

// The states of a slot.
const (
	SlotEmpty = 0
	SlotBusy  = 1
	SlotValid = 1 << 31 // with the other bits of the key's hash
)

// A home is reach | homeLock | version<<32.
const (
	HomeLock  = 1 << 31
	HomeReach = HomeLock - 1
)

// newHashLayout lays a hash out; apart says that each multiprocessor has values of its
// own.
func newHashLayout(d *object.MapDef, sms int, apart bool) hashLayout {
	entries := uint64(d.MaxEntries)
	h := hashLayout{Slots: 1 << bits.Len64(max(entries+entries/2, 8)-1), HomeOff: object.LineBytes}
	h.SlotOff = object.RoundUp(h.HomeOff+8*h.Slots, object.LineBytes)
	h.KeyOff = 4
	if d.KeySize > 4 || d.Lru() { // of those that may be dropped, 4 bytes say whether they are in use
		h.KeyOff = 8
	}
	h.SlotSize = object.RoundUp(h.KeyOff+object.RoundUp(uint64(d.KeySize), 4), 8)
	h.ValueOff = object.RoundUp(h.SlotOff+object.Mul(h.Slots, h.SlotSize), object.LineBytes)
	h.SmBytes = object.RoundUp(object.Mul(h.Slots, object.RoundUp(uint64(d.ValueSize), 8)), object.LineBytes)
	h.Copies = 1
	if apart {
		h.Copies = sms
	}
	h.size = h.ValueOff + object.Mul(h.SmBytes, uint64(h.Copies))
	return h
}

// The constants of hashKey, which the code on the GPU has as well.
const (
	HashSeed  = 0x9747b28c
	HashMul1  = 0x85ebca6b
	HashMul2  = 0xc2b2ae35
	HashShift = 13
)

// HashKey hashes a key, taken as 32-bit words, the last filled with zeros.
func HashKey(key []byte) uint32 {
	h := uint32(HashSeed)
	for i := 0; i < len(key); i += 4 {
		var w [4]byte
		copy(w[:], key[i:])
		h = (h ^ binary.LittleEndian.Uint32(w[:])) * HashMul1
		h ^= h >> HashShift
	}
	h *= HashMul2
	return h ^ h>>16
}

// Errors of changing a map.
var (
	// ErrNoKey: the map has no such key, or such an index.
	ErrNoKey = errors.New("the map has no such key")
	// ErrFull: the map has as many entries as it can hold.
	ErrFull = errors.New("the map is full")
)

// SlotAddr returns the address of a slot.
func (x *Map) SlotAddr(slot uint64) uint64 { return x.Base + x.Hash.SlotOff + slot*x.Hash.SlotSize }

// HomeAddr returns the address of the home that a slot is.
func (x *Map) HomeAddr(slot uint64) uint64 { return x.Base + x.Hash.HomeOff + 8*slot }

// Find returns the slot of a key.
func (x *Map) Find(mem Memory, key []byte) (slot uint64, found bool, err error) {
	h := &x.Hash
	hash := HashKey(key)
	var home [8]byte
	first := uint64(hash) & (h.Slots - 1)
	if err := mem.ReadMem(x.HomeAddr(first), home[:]); err != nil {
		return 0, false, err
	}
	buf := make([]byte, h.SlotSize)
	for n := range min(binary.LittleEndian.Uint64(home[:])&HomeReach, h.Slots) {
		i := (first + n) & (h.Slots - 1)
		if err := mem.ReadMem(x.SlotAddr(i), buf); err != nil {
			return 0, false, err
		}
		if binary.LittleEndian.Uint32(buf) == hash|SlotValid && bytes.Equal(buf[h.KeyOff:h.KeyOff+uint64(len(key))], key) {
			return i, true, nil
		}
	}
	return 0, false, nil
}

// take finds a free slot for a key and makes the reach of its home cover it.
func (x *Map) take(mem Memory, key []byte) (uint64, error) {
	h := &x.Hash
	first := uint64(HashKey(key)) & (h.Slots - 1)
	var state [4]byte
	for n := range h.Slots {
		i := (first + n) & (h.Slots - 1)
		if err := mem.ReadMem(x.SlotAddr(i), state[:]); err != nil {
			return 0, err
		}
		if binary.LittleEndian.Uint32(state[:]) != SlotEmpty {
			continue
		}
		var home [8]byte
		if err := mem.ReadMem(x.HomeAddr(first), home[:]); err != nil {
			return 0, err
		}
		was := binary.LittleEndian.Uint64(home[:])
		binary.LittleEndian.PutUint64(home[:], was&^HomeReach+1<<32|max(was&HomeReach, n+1))
		return i, mem.WriteMem(x.HomeAddr(first), home[:])
	}
	return 0, ErrFull
}

// ValueAddr returns where the value of a slot is, for a multiprocessor.
func (x *Map) ValueAddr(slot uint64, sm int) uint64 {
	h := &x.Hash
	if h.Copies == 1 {
		sm = 0
	}
	return x.Base + h.ValueOff + uint64(sm)*h.SmBytes + slot*x.Stride
}

// HashUpdate sets a key's value; no kernel that inserts may run meanwhile.
func (m *Maps) HashUpdate(mem Memory, x *Map, key, value []byte) error {
	h := &x.Hash
	slot, found, err := x.Find(mem, key)
	if err != nil {
		return err
	}
	if err := m.clearKeyPlaces(mem, x, key); err != nil {
		return err
	}
	var w [4]byte
	if !found {
		if err := mem.ReadMem(x.Base, w[:]); err != nil {
			return err
		}
		if n := binary.LittleEndian.Uint32(w[:]); n >= x.Def.MaxEntries {
			return fmt.Errorf("%w: it has %d entries", ErrFull, n)
		}
		if slot, err = x.take(mem, key); err != nil {
			return err
		}
	}
	for sm := range h.Copies {
		if err := mem.WriteMem(x.ValueAddr(slot, sm), value); err != nil {
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
	head := make([]byte, h.KeyOff+uint64(len(key)))
	binary.LittleEndian.PutUint32(head, HashKey(key)|SlotValid)
	copy(head[h.KeyOff:], key)
	if err := mem.WriteMem(x.SlotAddr(slot), head); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(w[:], binary.LittleEndian.Uint32(w[:])+1)
	return mem.WriteMem(x.Base, w[:])
}

// GPUOwner is the owner of a lock that a kernel has, on the host: no thread's number.
const GPUOwner = 1<<32 - 1
