package hostmaps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/values"

	"golang.org/x/sys/unix"
)

// On the host, programs in traced processes change hashes at the same time as those that
// are run here. The lock of a home has its owner's thread in place of the version, so that
// one whose owner has been killed can be given back. A slot that is being filled has it,
// too.

// changeWait bounds how long a change waits for another one: its thread may be stopped, and
// wait for us.
const changeWait = 2 * time.Millisecond

// hostOwner is this process, as an owner.
func hostOwner() uint64 { return uint64(uint32(os.Getpid())) }

// locked calls change with the home of a key locked, unless refuse returns a result when
// it is told whether the key is there. change returns the home's new reach, and the result.
func (w *Writer) locked(x *mapmem.Map, key []byte, refuse func(found bool) uint64, change func(slot uint64, found bool, reach uint64) (uint64, uint64)) (uint64, error) {
	h := &x.Hash
	home := x.HomeAddr(uint64(mapmem.HashKey(key)) & (h.Slots - 1))
	b := w.mem.B.Data
	off := home - w.mem.B.Base
	var until time.Time
	for {
		seen := mapmem.Load64(b, off)
		slot, found, err := x.Find(w.mem, key)
		if err != nil {
			return 0, err
		}
		if result := refuse(found); result != 0 {
			return result, nil
		}
		if seen&mapmem.HomeLock != 0 {
			if wait, err := w.waits(home, &until); !wait {
				return Busy, err
			}
			continue
		}
		if !mapmem.Swap64(b, off, seen, hostOwner()<<32|mapmem.HomeLock|seen&mapmem.HomeReach) {
			continue
		}
		reach, result := change(slot, found, seen&mapmem.HomeReach)
		mapmem.Store64(b, off, (seen>>32+1)<<32|reach)
		return result, nil
	}
}

// ReplaceOrInsert sets a key's value, for the CPU that the thread is on.
func (w *Writer) ReplaceOrInsert(x *mapmem.Map, key, value []byte, flags uint64, cpu int) (uint64, error) {
	var failed error
	result, err := w.locked(x, key, func(found bool) uint64 {
		switch {
		case found && flags == helper.FlagNoExist:
			return Exists
		case !found && flags == helper.FlagExist:
			return NoEntry
		}
		return 0
	}, func(slot uint64, found bool, reach uint64) (uint64, uint64) {
		home := uint64(mapmem.HashKey(key)) & (x.Hash.Slots - 1)
		if !found {
			n, ok := w.takeSlot(x, key, home)
			if !ok {
				return reach, TooBig
			}
			first := uint64(mapmem.HashKey(key)) & (x.Hash.Slots - 1)
			slot, reach = (first+n)&(x.Hash.Slots-1), max(reach, n+1)
			for cpu := range x.Hash.Copies {
				failed = w.mem.WriteMem(x.ValueAddr(slot, cpu), make([]byte, len(value)))
			}
		}
		if failed == nil {
			failed = w.mem.WriteMem(x.ValueAddr(slot, cpu), value)
		}
		if !found {
			mapmem.Store32(w.mem.B.Data, x.SlotAddr(slot)-w.mem.B.Base, mapmem.HashKey(key)|mapmem.SlotValid)
		}
		return reach, 0
	})
	if err == nil {
		err = failed
	}
	return result, err
}

// takeSlot finds a free slot for a key, whose home is locked, writes the key, and returns
// how far it is from its home.
func (w *Writer) takeSlot(x *mapmem.Map, key []byte, home uint64) (uint64, bool) {
	h, b := &x.Hash, w.mem.B.Data
	if x.Def.Lru() && mapmem.Load32(b, x.Base-w.mem.B.Base) >= x.Def.MaxEntries {
		w.evict(x, home)
	}
	refuse := func() (uint64, bool) {
		_, _ = w.mem.Change(x.Base, 4, func(n uint64) uint64 { return n - 1 })
		_, _ = w.mem.Change(w.maps.CounterAddr(x.Counter), 8, func(n uint64) uint64 { return n + 1 })
		return 0, false
	}
	if n, err := w.mem.Change(x.Base, 4, func(n uint64) uint64 { return n + 1 }); err != nil || n >= uint64(x.Def.MaxEntries) {
		return refuse()
	}
	first := uint64(mapmem.HashKey(key)) & (h.Slots - 1)
	for n := range h.Slots {
		at := x.SlotAddr((first+n)&(h.Slots-1)) - w.mem.B.Base
		if mapmem.Load32(b, at) == mapmem.SlotEmpty && mapmem.Swap32(b, at, mapmem.SlotEmpty, busySlot(hostOwner())) {
			if x.Def.Lru() {
				mapmem.Store32(b, at+4, 0)
			}
			copy(b[at+h.KeyOff:at+h.SlotSize], key)
			return n, true
		}
	}
	return refuse()
}

// evict drops a key that was not used of late from a hash: the next one whose home nobody
// changes, or that has the home mine, which is locked by this process.
func (w *Writer) evict(x *mapmem.Map, mine uint64) {
	h, b := &x.Hash, w.mem.B.Data
	for range 2 * h.Slots {
		hand, err := w.mem.Change(x.Base+8, 8, func(n uint64) uint64 { return n + 1 })
		if err != nil {
			return
		}
		at := x.SlotAddr(hand&(h.Slots-1)) - w.mem.B.Base
		state := mapmem.Load32(b, at)
		if state&mapmem.SlotValid == 0 {
			continue
		}
		if mapmem.Load32(b, at+4) != 0 {
			mapmem.Store32(b, at+4, 0)
			continue
		}
		first := uint64(state) & (h.Slots - 1)
		off := x.HomeAddr(first) - w.mem.B.Base
		seen := mapmem.Load64(b, off)
		if first != mine && (seen&mapmem.HomeLock != 0 || !mapmem.Swap64(b, off, seen, hostOwner()<<32|mapmem.HomeLock|seen&mapmem.HomeReach)) {
			continue
		}
		done := mapmem.Load32(b, at) == state
		if done {
			_, _ = w.mem.Change(x.Base, 4, func(n uint64) uint64 { return n - 1 })
			mapmem.Store32(b, at, mapmem.SlotEmpty)
		}
		if first != mine {
			mapmem.Store64(b, off, (seen>>32+1)<<32|seen&mapmem.HomeReach)
		}
		if done {
			return
		}
	}
}

// busySlot is the state of a slot that a thread is filling.
func busySlot(owner uint64) uint32 { return (uint32(owner)<<1 | mapmem.SlotBusy) &^ mapmem.SlotValid }

// Remove is bpf_map_delete_elem of a hash.
func (w *Writer) Remove(x *mapmem.Map, key []byte) (uint64, error) {
	return w.locked(x, key, func(found bool) uint64 {
		if !found {
			return NoEntry
		}
		return 0
	}, func(slot uint64, _ bool, reach uint64) (uint64, uint64) {
		_, _ = w.mem.Change(x.Base, 4, func(n uint64) uint64 { return n - 1 })
		mapmem.Store32(w.mem.B.Data, x.SlotAddr(slot)-w.mem.B.Base, mapmem.SlotEmpty)
		return reach, 0
	})
}

// Unlock gives the lock of a hash or a queue back that is at an address, if its owner is dead, and
// reports whether it is free.
func (w *Writer) Unlock(home uint64) bool {
	for _, x := range w.maps.All {
		switch {
		case x.Kind == object.LayoutHash && home >= x.HomeAddr(0) && home < x.HomeAddr(x.Hash.Slots) && home%8 == 0:
			return w.unlock(x, (home-x.HomeAddr(0))/8, dead)
		case x.Kind == object.LayoutQueue && home == x.Base:
			return w.unlockQueue(x, dead)
		}
	}
	return false
}

// Died gives back what a thread holds that has died, also amid a change.
func (w *Writer) Died(tid int) {
	is := func(owner uint64) bool { return owner == uint64(uint32(tid)) }
	for _, x := range w.maps.All {
		switch x.Kind {
		case object.LayoutHash:
			off := x.HomeAddr(0) - w.mem.B.Base
			for first := range x.Hash.Slots {
				if home := mapmem.Load64(w.mem.B.Data, off+8*first); home&mapmem.HomeLock != 0 && is(home>>32) {
					w.unlock(x, first, is)
				}
			}
		case object.LayoutQueue:
			w.unlockQueue(x, is)
		}
	}
}

// dead reports whether an owner of a lock is a thread that is no more.
func dead(owner uint64) bool {
	return owner != mapmem.GPUOwner && (owner == 0 || !threadLives(int(int32(uint32(owner)))))
}

// unlockQueue is Unlock of a queue.
func (w *Writer) unlockQueue(x *mapmem.Map, dead func(owner uint64) bool) bool {
	off := x.Base - w.mem.B.Base
	was := mapmem.Load64(w.mem.B.Data, off)
	if was&mapmem.HomeLock == 0 {
		return true
	}
	return dead(was>>32) && mapmem.Swap64(w.mem.B.Data, off, was, nextVersion())
}

// nextVersion is that of a home that nobody had before.
func nextVersion() uint64 { return uint64(uint32(time.Now().UnixNano())) << 32 }

// unlock is Unlock of the first-th home of a hash.
func (w *Writer) unlock(x *mapmem.Map, first uint64, dead func(owner uint64) bool) bool {
	h, b := &x.Hash, w.mem.B.Data
	off := x.HomeAddr(first) - w.mem.B.Base
	was := mapmem.Load64(b, off)
	if was&mapmem.HomeLock == 0 {
		return true
	}
	owner := was >> 32
	if !dead(owner) {
		return false
	}
	// What it was about to insert is there, perhaps, and out of reach, or its slot is
	// still being filled.
	reach := min(was&mapmem.HomeReach, h.Slots)
	for n := range h.Slots {
		at := x.SlotAddr((first+n)&(h.Slots-1)) - w.mem.B.Base
		switch state := mapmem.Load32(b, at); {
		case state == busySlot(owner):
			if mapmem.Swap32(b, at, state, mapmem.SlotEmpty) {
				_, _ = w.mem.Change(x.Base, 4, func(n uint64) uint64 { return n - 1 })
			}
		case state&mapmem.SlotValid != 0 && uint64(mapmem.HashKey(b[at+h.KeyOff:at+h.KeyOff+uint64(x.Def.KeySize)]))&(h.Slots-1) == first:
			reach = max(reach, n+1)
		}
	}
	freed := mapmem.Swap64(b, off, was, nextVersion()|reach)
	if freed {
		w.recount(x)
	}
	return freed
}

// recountWait bounds how long a recount waits for changes that others make.
const recountWait = 20 * time.Millisecond

// recount counts the keys of a hash again: who died amid a change had counted one that is not there,
// or no longer one that is. Counts change under the lock of a home, so that all of them are taken for
// it, in their order; where one is not to be had, nothing is changed.
func (w *Writer) recount(x *mapmem.Map) {
	h, b := &x.Hash, w.mem.B.Data
	base, until := x.HomeAddr(0)-w.mem.B.Base, time.Now().Add(recountWait)
	seen := make([]uint64, 0, h.Slots)
	for first := range h.Slots {
		for {
			was := mapmem.Load64(b, base+8*first)
			if was&mapmem.HomeLock == 0 && mapmem.Swap64(b, base+8*first, was, hostOwner()<<32|mapmem.HomeLock|was&mapmem.HomeReach) {
				seen = append(seen, was)
				break
			}
			if time.Now().After(until) {
				break
			}
			runtime.Gosched()
		}
		if len(seen) <= int(first) {
			break
		}
	}
	if uint64(len(seen)) == h.Slots {
		n := uint32(0)
		for i := range h.Slots {
			if mapmem.Load32(b, x.SlotAddr(i)-w.mem.B.Base)&mapmem.SlotValid != 0 {
				n++
			}
		}
		mapmem.Store32(b, x.Base-w.mem.B.Base, n)
	}
	for first, was := range seen {
		mapmem.Store64(b, base+8*uint64(first), (was>>32+1)<<32|was&mapmem.HomeReach)
	}
}

// threadLives reports whether there is a thread of that number. One that nobody has waited for yet is dead.
func threadLives(tid int) bool {
	if tid <= 0 || unix.Kill(tid, 0) == unix.ESRCH {
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/stat")
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) // of other users it may not be shown
	}
	_, rest, ok := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
	return !ok || len(rest) == 0 || rest[0] != 'Z' && rest[0] != 'X'
}

// Change does what a --map asks for with maps that programs may be using.
func Change(m *mapmem.Maps, mem *mapmem.HostMemory, s object.Setting) error {
	x := m.Find(s.Name)
	if x == nil || x.Kind != object.LayoutHash || x.Lpm > 0 || x.Def.PerSM() || s.Key == "" {
		return m.Apply(mem, s, nil)
	}
	key, err := values.Parse(s.Key, x.Def.Key, int(x.Def.KeySize))
	var value []byte
	if err == nil {
		value, err = values.Parse(s.Value, x.Def.Value, int(x.Def.ValueSize))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Text, object.Markf(object.ErrSetting, "%w", err))
	}
	w := NewWriter(m, mem)
	result, err := w.ReplaceOrInsert(x, key, value, 0, 0)
	switch {
	case err == nil && result == TooBig:
		err = mapmem.ErrFull
	case err == nil && result != 0:
		err = errors.New("the key's lock is not given back")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Text, err)
	}
	return nil
}

// Lookup returns the address of a value, that of a CPU where each has one; 0 if there is none.
func (w *Writer) Lookup(x *mapmem.Map, key []byte, cpu int) (uint64, error) {
	if x.Kind == object.LayoutBloom { // to where nothing is written
		if has, err := x.BloomHas(w.mem, key); err != nil || !has {
			return 0, err
		}
		return x.Base + mapmem.BloomHead, nil
	}
	if x.Kind == object.LayoutHash {
		if x.Lpm > 0 {
			p, err := x.Longest(w.mem, key)
			if err != nil || p == nil {
				return 0, err
			}
			key = p
		}
		slot, found, err := x.Find(w.mem, key)
		if err != nil || !found {
			return 0, err
		}
		if x.Def.Lru() {
			mapmem.Store32(w.mem.B.Data, x.SlotAddr(slot)+4-w.mem.B.Base, 1)
		}
		return x.ValueAddr(slot, cpu), nil
	}
	i := uint64(binary.LittleEndian.Uint32(key))
	switch {
	case i >= uint64(x.Def.MaxEntries):
		return 0, nil
	case x.Def.PerSM():
		return x.Base + uint64(cpu)*x.CopyBytes + i*x.Stride, nil
	}
	return x.Base + i*x.Stride, nil
}

// The errors of helpers that change maps.
const (
	NoEntry = 1<<64 - 2  // -ENOENT
	TooBig  = 1<<64 - 7  // -E2BIG
	Busy    = 1<<64 - 16 // -EBUSY
	Exists  = 1<<64 - 17 // -EEXIST
	Invalid = 1<<64 - 22 // -EINVAL
)

// Update is bpf_map_update_elem; cpu is the caller's.
func (w *Writer) Update(x *mapmem.Map, key, value []byte, flags uint64, cpu int) (uint64, error) {
	if flags > helper.FlagExist {
		return Invalid, nil
	}
	switch {
	case x.Kind == object.LayoutBloom && flags != 0:
		return Invalid, nil
	case x.Kind == object.LayoutBloom:
		return 0, w.BloomAdd(x, value)
	case x.Lpm > 0:
		p, ok := mapmem.Prefix(key, binary.LittleEndian.Uint32(key))
		if !ok {
			return Invalid, nil
		}
		if key = p; w.haveLength(x, binary.LittleEndian.Uint32(p)) != nil {
			return Invalid, nil
		}
	}
	if x.Kind == object.LayoutHash {
		return w.ReplaceOrInsert(x, key, value, flags, cpu)
	}
	at, err := w.Lookup(x, key, cpu)
	switch {
	case err != nil:
		return 0, err
	case at == 0:
		return TooBig, nil
	case flags == helper.FlagNoExist:
		return Exists, nil
	}
	return 0, w.mem.WriteMem(at, value)
}

// OutOfRange is -ERANGE.
const OutOfRange = 1<<64 - 34
