package nvattach

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

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
func (r *HostRunner) locked(x *Map, key []byte, refuse func(found bool) uint64, change func(slot uint64, found bool, reach uint64) (uint64, uint64)) (uint64, error) {
	h := &x.hash
	home := x.homeAddr(uint64(hashKey(key)) & (h.slots - 1))
	b := r.mem.b.Data
	off := home - r.mem.b.Base
	var until time.Time
	for {
		seen := load64(b, off)
		slot, found, err := x.find(r.mem, key)
		if err != nil {
			return 0, err
		}
		if result := refuse(found); result != 0 {
			return result, nil
		}
		if seen&homeLock != 0 {
			if wait, err := r.waits(home, &until); !wait {
				return hostBusy, err
			}
			continue
		}
		if !swap64(b, off, seen, hostOwner()<<32|homeLock|seen&homeReach) {
			continue
		}
		reach, result := change(slot, found, seen&homeReach)
		store64(b, off, (seen>>32+1)<<32|reach)
		return result, nil
	}
}

// replaceOrInsert sets a key's value, for the CPU that the thread is on.
func (r *HostRunner) replaceOrInsert(x *Map, key, value []byte, flags uint64) (uint64, error) {
	var failed error
	result, err := r.locked(x, key, func(found bool) uint64 {
		switch {
		case found && flags == flagNoExist:
			return hostExists
		case !found && flags == flagExist:
			return hostNoEntry
		}
		return 0
	}, func(slot uint64, found bool, reach uint64) (uint64, uint64) {
		home := uint64(hashKey(key)) & (x.hash.slots - 1)
		if !found {
			n, ok := r.takeSlot(x, key, home)
			if !ok {
				return reach, hostTooBig
			}
			first := uint64(hashKey(key)) & (x.hash.slots - 1)
			slot, reach = (first+n)&(x.hash.slots-1), max(reach, n+1)
			for cpu := range x.hash.copies {
				failed = r.mem.WriteMem(x.valueAddr(slot, cpu), make([]byte, len(value)))
			}
		}
		if failed == nil {
			failed = r.mem.WriteMem(x.valueAddr(slot, r.cpu()), value)
		}
		if !found {
			store32(r.mem.b.Data, x.slotAddr(slot)-r.mem.b.Base, hashKey(key)|slotValid)
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
func (r *HostRunner) takeSlot(x *Map, key []byte, home uint64) (uint64, bool) {
	h, b := &x.hash, r.mem.b.Data
	if x.Def.lru() && load32(b, x.base-r.mem.b.Base) >= x.Def.MaxEntries {
		r.evict(x, home)
	}
	refuse := func() (uint64, bool) {
		_, _ = r.mem.change(x.base, 4, func(n uint64) uint64 { return n - 1 })
		_, _ = r.mem.change(r.maps.counterAddr(x.counter), 8, func(n uint64) uint64 { return n + 1 })
		return 0, false
	}
	if n, err := r.mem.change(x.base, 4, func(n uint64) uint64 { return n + 1 }); err != nil || n >= uint64(x.Def.MaxEntries) {
		return refuse()
	}
	first := uint64(hashKey(key)) & (h.slots - 1)
	for n := range h.slots {
		at := x.slotAddr((first+n)&(h.slots-1)) - r.mem.b.Base
		if load32(b, at) == slotEmpty && swap32(b, at, slotEmpty, busySlot(hostOwner())) {
			if x.Def.lru() {
				store32(b, at+4, 0)
			}
			copy(b[at+h.keyOff:at+h.slotSize], key)
			return n, true
		}
	}
	return refuse()
}

// evict drops a key that was not used of late from a hash: the next one whose home nobody
// changes, or that has the home mine, which is locked by this process.
func (r *HostRunner) evict(x *Map, mine uint64) {
	h, b := &x.hash, r.mem.b.Data
	for range 2 * h.slots {
		hand, err := r.mem.change(x.base+8, 8, func(n uint64) uint64 { return n + 1 })
		if err != nil {
			return
		}
		at := x.slotAddr(hand&(h.slots-1)) - r.mem.b.Base
		state := load32(b, at)
		if state&slotValid == 0 {
			continue
		}
		if load32(b, at+4) != 0 {
			store32(b, at+4, 0)
			continue
		}
		first := uint64(state) & (h.slots - 1)
		off := x.homeAddr(first) - r.mem.b.Base
		seen := load64(b, off)
		if first != mine && (seen&homeLock != 0 || !swap64(b, off, seen, hostOwner()<<32|homeLock|seen&homeReach)) {
			continue
		}
		done := load32(b, at) == state
		if done {
			_, _ = r.mem.change(x.base, 4, func(n uint64) uint64 { return n - 1 })
			store32(b, at, slotEmpty)
		}
		if first != mine {
			store64(b, off, (seen>>32+1)<<32|seen&homeReach)
		}
		if done {
			return
		}
	}
}

// busySlot is the state of a slot that a thread is filling.
func busySlot(owner uint64) uint32 { return (uint32(owner)<<1 | slotBusy) &^ slotValid }

// remove is bpf_map_delete_elem of a hash.
func (r *HostRunner) remove(x *Map, key []byte) (uint64, error) {
	return r.locked(x, key, func(found bool) uint64 {
		if !found {
			return hostNoEntry
		}
		return 0
	}, func(slot uint64, _ bool, reach uint64) (uint64, uint64) {
		_, _ = r.mem.change(x.base, 4, func(n uint64) uint64 { return n - 1 })
		store32(r.mem.b.Data, x.slotAddr(slot)-r.mem.b.Base, slotEmpty)
		return reach, 0
	})
}

// Unlock gives the lock of a hash or a queue back that is at an address, if its owner is dead, and
// reports whether it is free.
func (r *HostRunner) Unlock(home uint64) bool {
	for _, x := range r.maps.All {
		switch {
		case x.kind == layoutHash && home >= x.homeAddr(0) && home < x.homeAddr(x.hash.slots) && home%8 == 0:
			return r.unlock(x, (home-x.homeAddr(0))/8, dead)
		case x.kind == layoutQueue && home == x.base:
			return r.unlockQueue(x, dead)
		}
	}
	return false
}

// Died gives back what a thread holds that has died, also amid a change.
func (r *HostRunner) Died(tid int) {
	is := func(owner uint64) bool { return owner == uint64(uint32(tid)) }
	for _, x := range r.maps.All {
		switch x.kind {
		case layoutHash:
			off := x.homeAddr(0) - r.mem.b.Base
			for first := range x.hash.slots {
				if home := load64(r.mem.b.Data, off+8*first); home&homeLock != 0 && is(home>>32) {
					r.unlock(x, first, is)
				}
			}
		case layoutQueue:
			r.unlockQueue(x, is)
		}
	}
}

// dead reports whether an owner of a lock is a thread that is no more.
func dead(owner uint64) bool {
	return owner != gpuOwner && (owner == 0 || !threadLives(int(int32(uint32(owner)))))
}

// unlockQueue is Unlock of a queue.
func (r *HostRunner) unlockQueue(x *Map, dead func(owner uint64) bool) bool {
	off := x.base - r.mem.b.Base
	was := load64(r.mem.b.Data, off)
	if was&homeLock == 0 {
		return true
	}
	return dead(was>>32) && swap64(r.mem.b.Data, off, was, nextVersion())
}

// nextVersion is that of a home that nobody had before.
func nextVersion() uint64 { return uint64(uint32(time.Now().UnixNano())) << 32 }

// unlock is Unlock of the first-th home of a hash.
func (r *HostRunner) unlock(x *Map, first uint64, dead func(owner uint64) bool) bool {
	h, b := &x.hash, r.mem.b.Data
	off := x.homeAddr(first) - r.mem.b.Base
	was := load64(b, off)
	if was&homeLock == 0 {
		return true
	}
	owner := was >> 32
	if !dead(owner) {
		return false
	}
	// What it was about to insert is there, perhaps, and out of reach, or its slot is
	// still being filled.
	reach := min(was&homeReach, h.slots)
	for n := range h.slots {
		at := x.slotAddr((first+n)&(h.slots-1)) - r.mem.b.Base
		switch state := load32(b, at); {
		case state == busySlot(owner):
			if swap32(b, at, state, slotEmpty) {
				_, _ = r.mem.change(x.base, 4, func(n uint64) uint64 { return n - 1 })
			}
		case state&slotValid != 0 && uint64(hashKey(b[at+h.keyOff:at+h.keyOff+uint64(x.Def.KeySize)]))&(h.slots-1) == first:
			reach = max(reach, n+1)
		}
	}
	freed := swap64(b, off, was, nextVersion()|reach)
	if freed {
		r.recount(x)
	}
	return freed
}

// recountWait bounds how long a recount waits for changes that others make.
const recountWait = 20 * time.Millisecond

// recount counts the keys of a hash again: who died amid a change had counted one that is not there,
// or no longer one that is. Counts change under the lock of a home, so that all of them are taken for
// it, in their order; where one is not to be had, nothing is changed.
func (r *HostRunner) recount(x *Map) {
	h, b := &x.hash, r.mem.b.Data
	base, until := x.homeAddr(0)-r.mem.b.Base, time.Now().Add(recountWait)
	seen := make([]uint64, 0, h.slots)
	for first := range h.slots {
		for {
			was := load64(b, base+8*first)
			if was&homeLock == 0 && swap64(b, base+8*first, was, hostOwner()<<32|homeLock|was&homeReach) {
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
	if uint64(len(seen)) == h.slots {
		n := uint32(0)
		for i := range h.slots {
			if load32(b, x.slotAddr(i)-r.mem.b.Base)&slotValid != 0 {
				n++
			}
		}
		store32(b, x.base-r.mem.b.Base, n)
	}
	for first, was := range seen {
		store64(b, base+8*uint64(first), (was>>32+1)<<32|was&homeReach)
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
func (m *Maps) Change(mem *HostMemory, s Setting) error {
	x := m.Find(s.Name)
	if x == nil || x.kind != layoutHash || x.lpm > 0 || x.Def.PerSM() || s.Key == "" {
		return m.Apply(mem, s, nil)
	}
	key, err := values.Parse(s.Key, x.Def.Key, int(x.Def.KeySize))
	var value []byte
	if err == nil {
		value, err = values.Parse(s.Value, x.Def.Value, int(x.Def.ValueSize))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.text, markf(ErrSetting, "%w", err))
	}
	r := &HostRunner{maps: m, mem: mem}
	result, err := r.replaceOrInsert(x, key, value, 0)
	switch {
	case err == nil && result == hostTooBig:
		err = ErrFull
	case err == nil && result != 0:
		err = errors.New("the key's lock is not given back")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.text, err)
	}
	return nil
}
