package nvattach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"time"

	"nvtrace/nvattach/helper"
	"nvtrace/ptx/bpf"
)

// Maps that only the host has: queues and stacks, bloom filters, and tries of prefixes. How they lie in
// memory, and what is done with them, is also in ptrace/agent/internal/blob/src/helpers.c.

// A queue or stack is a lock as that of a hash's home, how many values were taken from the one
// end, and put to the other; then the values.
const (
	queueHead  = 64
	queueFirst = 8
	queueEnd   = 16
)

// A bloom filter is room for a value, which stays 0, and bits.
const bloomHead = 64

// bloomHashes is how many bits a value has: map_extra, or as many as in Linux.
func (m *MapDef) bloomHashes() uint64 {
	if n := m.Extra & 15; n > 0 {
		return n
	}
	return 5
}

// keyBytes is the size of what is looked up: of a bloom filter, a value.
func (m *MapDef) keyBytes() uint32 {
	if m.Type == MapBloomFilter {
		return m.ValueSize
	}
	return m.KeySize
}

// bloomBits is how many bits there are: as many as in Linux.
func (m *MapDef) bloomBits() uint64 {
	n := mul(uint64(m.MaxEntries), m.bloomHashes()) / 5 * 7
	return max(uint64(1)<<bits.Len64(max(n, 1)-1), 512)
}

// bloomAt is a bit of a value: where it is in the map, and which of the 64 there.
func (x *Map) bloomAt(hash uint32, i uint64) (off, bit uint64) {
	n := (uint64(hash) + i*uint64((hash*0x9e3779b1)>>1|1)) & (x.Def.bloomBits() - 1)
	return bloomHead + x.stride + n/64*8, n % 64
}

// A trie is a hash whose keys are prefixes: their length, in bits, and as many bits, with those
// behind them 0. prefixLengths is how many lengths there can be; bits behind the hash say which
// there have been.
const (
	lpmHead        = 4
	maxPrefixBytes = 256
	prefixLengths  = 8*maxPrefixBytes + 64
)

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

// haveLength notes that a trie has prefixes of a length.
func (r *HostRunner) haveLength(x *Map, n uint32) error {
	_, err := r.mem.change(x.base+x.lpm+uint64(n/64*8), 8, func(old uint64) uint64 { return old | 1<<(n%64) })
	return err
}

// longest returns the longest prefix that a trie has of a key, nil if it has none.
func (x *Map) longest(mem Memory, key []byte) ([]byte, error) {
	have := make([]byte, prefixLengths/8)
	if err := mem.ReadMem(x.base+x.lpm, have); err != nil {
		return nil, err
	}
	if _, ok := prefix(key, le32(key)); !ok {
		return nil, nil
	}
	for n := int64(le32(key)); n >= 0; n-- {
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
	p, ok := prefix(key, le32(key))
	if !ok {
		return fmt.Errorf("a prefix of %d bits; it has keys of %d at most: %w", le32(key), 8*(len(key)-lpmHead), ErrNoKey)
	}
	var w [8]byte
	at := x.base + x.lpm + uint64(le32(p)/64*8)
	if err := mem.ReadMem(at, w[:]); err != nil {
		return err
	}
	if err := mem.WriteMem(at, binary.LittleEndian.AppendUint64(nil, le64(w[:])|1<<(le32(p)%64))); err != nil {
		return err
	}
	return m.hashUpdate(mem, x, p, value)
}

// pushed refuses maps of other types.
func (u *unit) pushed(types ...MapType) func(*bpf.CallInfo) error {
	return func(c *bpf.CallInfo) error {
		d, err := u.defOf(c)
		if err == nil && !slices.Contains(types, d.Type) {
			err = fmt.Errorf("map %s has type %s, to which nothing is pushed", d.Name, d.Type)
		}
		return err
	}
}

// queueOps gives the helpers of maps without keys their meaning.
func (r *HostRunner) queueOps(h map[int32]*bpf.Helper) {
	with := func(f func(in *bpf.Interpreter, x *Map, a [5]uint64) (uint64, error)) func(*bpf.Interpreter, [5]uint64) (uint64, error) {
		return func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			x, err := r.mapOf(in, a[0])
			if err != nil {
				return 0, err
			}
			return f(in, x, a)
		}
	}
	h[helper.MapPush].Interpret = with(func(in *bpf.Interpreter, x *Map, a [5]uint64) (uint64, error) {
		value := make([]byte, x.Def.ValueSize)
		if err := in.ReadMem(a[1], value); err != nil {
			return 0, err
		}
		switch {
		case x.kind == layoutBloom && a[2] == 0:
			return 0, r.bloomAdd(x, value)
		case x.kind == layoutBloom || a[2] != 0 && a[2] != flagExist:
			return hostInvalid, nil
		}
		return r.push(x, value, a[2] == flagExist)
	})
	for _, n := range []int32{helper.MapPop, helper.MapPeek} {
		h[n].Interpret = with(func(in *bpf.Interpreter, x *Map, a [5]uint64) (uint64, error) {
			value := make([]byte, x.Def.ValueSize)
			if x.kind == layoutBloom {
				if err := in.ReadMem(a[1], value); err != nil {
					return 0, err
				}
				if has, err := x.bloomHas(r.mem, value); err != nil || !has {
					return hostNoEntry, err
				}
				return 0, nil
			}
			result, err := r.take(x, value, n == helper.MapPeek)
			return result, errors.Join(err, in.WriteMem(a[1], value))
		})
	}
}

// bloomHas reports whether a value may be in a bloom filter.
func (x *Map) bloomHas(mem Memory, value []byte) (bool, error) {
	hash := hashKey(value)
	for i := range x.Def.bloomHashes() {
		var w [8]byte
		off, bit := x.bloomAt(hash, i)
		if err := mem.ReadMem(x.base+off, w[:]); err != nil || le64(w[:])>>bit&1 == 0 {
			return false, err
		}
	}
	return true, nil
}

func (r *HostRunner) bloomAdd(x *Map, value []byte) error {
	hash := hashKey(value)
	for i := range x.Def.bloomHashes() {
		off, bit := x.bloomAt(hash, i)
		if _, err := r.mem.change(x.base+off, 8, func(old uint64) uint64 { return old | 1<<bit }); err != nil {
			return err
		}
	}
	return nil
}

// push puts a value into a queue or stack. over: the oldest makes room.
func (r *HostRunner) push(x *Map, value []byte, over bool) (uint64, error) {
	return r.queued(x, func(first, end uint64) (uint64, uint64, uint64, error) {
		if end-first >= uint64(x.Def.MaxEntries) {
			if !over {
				return first, end, hostTooBig, nil
			}
			first++
		}
		return first, end + 1, 0, r.mem.WriteMem(x.queueAt(end), value)
	})
}

// take reads the next value of a queue or stack, which stays if it is only to be looked at.
func (r *HostRunner) take(x *Map, value []byte, peek bool) (uint64, error) {
	return r.queued(x, func(first, end uint64) (uint64, uint64, uint64, error) {
		at, to := first, end
		switch {
		case first == end:
			return first, end, hostNoEntry, nil
		case x.Def.Type == MapStack:
			at, to = end-1, end-1
		default:
			first++
		}
		err := r.mem.ReadMem(x.queueAt(at), value)
		if peek && x.Def.Type == MapStack {
			to++
		} else if peek {
			first--
		}
		return first, to, 0, err
	})
}

func (x *Map) queueAt(i uint64) uint64 {
	return x.base + queueHead + i%uint64(x.Def.MaxEntries)*x.stride
}

// queued calls change with a queue locked, and where it begins and ends; change returns where it does
// then, and the result.
func (r *HostRunner) queued(x *Map, change func(first, end uint64) (newFirst, newEnd, result uint64, err error)) (uint64, error) {
	b := r.mem.b.Data
	off := x.base - r.mem.b.Base
	var until time.Time
	for {
		seen := load64(b, off)
		if seen&homeLock != 0 {
			if wait, err := r.waits(x.base, &until); !wait {
				return hostBusy, err
			}
			continue
		}
		if !swap64(b, off, seen, hostOwner()<<32|homeLock) {
			continue
		}
		first, end, result, err := change(load64(b, off+queueFirst), load64(b, off+queueEnd))
		if err == nil {
			store64(b, off+queueFirst, first)
			store64(b, off+queueEnd, end)
		}
		store64(b, off, (seen>>32+1)<<32)
		return result, err
	}
}

// waits waits for a lock, for a while from the first time on, and reports whether that makes sense.
func (r *HostRunner) waits(lock uint64, until *time.Time) (bool, error) {
	switch now := time.Now(); {
	case until.IsZero():
		*until = now.Add(changeWait)
	case now.After(*until):
		if !r.Unlock(lock) {
			_, err := r.mem.change(r.maps.counterAddr(r.maps.slots+slotBusyHomes), 8, func(n uint64) uint64 { return n + 1 })
			return false, err
		}
	}
	runtime.Gosched()
	return true, nil
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
	first, end := le64(head[queueFirst:]), le64(head[queueEnd:])
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
