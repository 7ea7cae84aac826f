package hostmaps

import (
	"encoding/binary"
	"runtime"
	"time"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
)

// Maps that only the host has: queues and stacks, bloom filters, and tries of prefixes. How they lie in
// memory, and what is done with them, is also in ptrace/agent/internal/blob/src/helpers.c.

// haveLength notes that a trie has prefixes of a length.
func (w *Writer) haveLength(x *mapmem.Map, n uint32) error {
	_, err := w.mem.Change(x.Base+x.Lpm+uint64(n/64*8), 8, func(old uint64) uint64 { return old | 1<<(n%64) })
	return err
}

// BloomAdd puts a value into a bloom filter.
func (w *Writer) BloomAdd(x *mapmem.Map, value []byte) error {
	hash := mapmem.HashKey(value)
	for i := range x.Def.BloomHashes() {
		off, bit := x.BloomAt(hash, i)
		if _, err := w.mem.Change(x.Base+off, 8, func(old uint64) uint64 { return old | 1<<bit }); err != nil {
			return err
		}
	}
	return nil
}

// Push puts a value into a queue or stack. over: the oldest makes room.
func (w *Writer) Push(x *mapmem.Map, value []byte, over bool) (uint64, error) {
	return w.queued(x, func(first, end uint64) (uint64, uint64, uint64, error) {
		if end-first >= uint64(x.Def.MaxEntries) {
			if !over {
				return first, end, TooBig, nil
			}
			first++
		}
		return first, end + 1, 0, w.mem.WriteMem(x.QueueAt(end), value)
	})
}

// Take reads the next value of a queue or stack, which stays if it is only to be looked at.
func (w *Writer) Take(x *mapmem.Map, value []byte, peek bool) (uint64, error) {
	return w.queued(x, func(first, end uint64) (uint64, uint64, uint64, error) {
		at, to := first, end
		switch {
		case first == end:
			return first, end, NoEntry, nil
		case x.Def.Type == object.MapStack:
			at, to = end-1, end-1
		default:
			first++
		}
		err := w.mem.ReadMem(x.QueueAt(at), value)
		if peek && x.Def.Type == object.MapStack {
			to++
		} else if peek {
			first--
		}
		return first, to, 0, err
	})
}

// queued calls change with a queue locked, and where it begins and ends; change returns where it does
// then, and the result.
func (w *Writer) queued(x *mapmem.Map, change func(first, end uint64) (newFirst, newEnd, result uint64, err error)) (uint64, error) {
	b := w.mem.B.Data
	off := x.Base - w.mem.B.Base
	var until time.Time
	for {
		seen := mapmem.Load64(b, off)
		if seen&mapmem.HomeLock != 0 {
			if wait, err := w.waits(x.Base, &until); !wait {
				return Busy, err
			}
			continue
		}
		if !mapmem.Swap64(b, off, seen, hostOwner()<<32|mapmem.HomeLock) {
			continue
		}
		first, end, result, err := change(mapmem.Load64(b, off+mapmem.QueueFirst), mapmem.Load64(b, off+mapmem.QueueEnd))
		if err == nil {
			mapmem.Store64(b, off+mapmem.QueueFirst, first)
			mapmem.Store64(b, off+mapmem.QueueEnd, end)
		}
		mapmem.Store64(b, off, (seen>>32+1)<<32)
		return result, err
	}
}

// waits waits for a lock, for a while from the first time on, and reports whether that makes sense.
func (w *Writer) waits(lock uint64, until *time.Time) (bool, error) {
	switch now := time.Now(); {
	case until.IsZero():
		*until = now.Add(changeWait)
	case now.After(*until):
		if !w.Unlock(lock) {
			_, err := w.mem.Change(w.maps.CounterAddr(w.maps.Slots+mapmem.SlotBusyHomes), 8, func(n uint64) uint64 { return n + 1 })
			return false, err
		}
	}
	runtime.Gosched()
	return true, nil
}

// StackID is the number of a stack in a map, where it is put if it is not there.
func (w *Writer) StackID(x *mapmem.Map, list []uint64, replace bool) (uint64, error) {
	if len(list) == 0 {
		return 1<<64 + helper.EFAULT, nil
	}
	var key []byte
	for _, ip := range list {
		key = binary.LittleEndian.AppendUint64(key, ip)
	}
	id := uint64(mapmem.HashKey(key) % x.Def.MaxEntries)
	was := make([]byte, x.Def.ValueSize)
	if err := w.mem.ReadMem(x.Base+id*x.Stride, was); err != nil {
		return 0, err
	}
	value := make([]byte, len(was))
	copy(value, key)
	switch {
	case string(was) == string(value):
		return id, nil
	case binary.LittleEndian.Uint64(was) != 0 && !replace:
		return Exists, nil
	}
	return id, w.mem.WriteMem(x.Base+id*x.Stride, value)
}
