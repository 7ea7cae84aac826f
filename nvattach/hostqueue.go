package nvattach

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

// Maps that only the host has: queues and stacks, bloom filters, and tries of prefixes. How they lie in
// memory, and what is done with them, is also in ptrace/agent/internal/blob/src/helpers.c.

// haveLength notes that a trie has prefixes of a length.
func (r *HostRunner) haveLength(x *mapmem.Map, n uint32) error {
	_, err := r.mem.Change(x.Base+x.Lpm+uint64(n/64*8), 8, func(old uint64) uint64 { return old | 1<<(n%64) })
	return err
}

// pushed refuses maps of other types.
func (u *unit) pushed(types ...object.MapType) func(*bpf.CallInfo) error {
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
	with := func(f func(in *bpf.Interpreter, x *mapmem.Map, a [5]uint64) (uint64, error)) func(*bpf.Interpreter, [5]uint64) (uint64, error) {
		return func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			x, err := r.mapOf(in, a[0])
			if err != nil {
				return 0, err
			}
			return f(in, x, a)
		}
	}
	h[helper.MapPush].Interpret = with(func(in *bpf.Interpreter, x *mapmem.Map, a [5]uint64) (uint64, error) {
		value := make([]byte, x.Def.ValueSize)
		if err := in.ReadMem(a[1], value); err != nil {
			return 0, err
		}
		switch {
		case x.Kind == object.LayoutBloom && a[2] == 0:
			return 0, r.bloomAdd(x, value)
		case x.Kind == object.LayoutBloom || a[2] != 0 && a[2] != helper.FlagExist:
			return hostInvalid, nil
		}
		return r.push(x, value, a[2] == helper.FlagExist)
	})
	for _, n := range []int32{helper.MapPop, helper.MapPeek} {
		h[n].Interpret = with(func(in *bpf.Interpreter, x *mapmem.Map, a [5]uint64) (uint64, error) {
			value := make([]byte, x.Def.ValueSize)
			if x.Kind == object.LayoutBloom {
				if err := in.ReadMem(a[1], value); err != nil {
					return 0, err
				}
				if has, err := x.BloomHas(r.mem, value); err != nil || !has {
					return hostNoEntry, err
				}
				return 0, nil
			}
			result, err := r.take(x, value, n == helper.MapPeek)
			return result, errors.Join(err, in.WriteMem(a[1], value))
		})
	}
}

func (r *HostRunner) bloomAdd(x *mapmem.Map, value []byte) error {
	hash := mapmem.HashKey(value)
	for i := range x.Def.BloomHashes() {
		off, bit := x.BloomAt(hash, i)
		if _, err := r.mem.Change(x.Base+off, 8, func(old uint64) uint64 { return old | 1<<bit }); err != nil {
			return err
		}
	}
	return nil
}

// push puts a value into a queue or stack. over: the oldest makes room.
func (r *HostRunner) push(x *mapmem.Map, value []byte, over bool) (uint64, error) {
	return r.queued(x, func(first, end uint64) (uint64, uint64, uint64, error) {
		if end-first >= uint64(x.Def.MaxEntries) {
			if !over {
				return first, end, hostTooBig, nil
			}
			first++
		}
		return first, end + 1, 0, r.mem.WriteMem(x.QueueAt(end), value)
	})
}

// take reads the next value of a queue or stack, which stays if it is only to be looked at.
func (r *HostRunner) take(x *mapmem.Map, value []byte, peek bool) (uint64, error) {
	return r.queued(x, func(first, end uint64) (uint64, uint64, uint64, error) {
		at, to := first, end
		switch {
		case first == end:
			return first, end, hostNoEntry, nil
		case x.Def.Type == object.MapStack:
			at, to = end-1, end-1
		default:
			first++
		}
		err := r.mem.ReadMem(x.QueueAt(at), value)
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
func (r *HostRunner) queued(x *mapmem.Map, change func(first, end uint64) (newFirst, newEnd, result uint64, err error)) (uint64, error) {
	b := r.mem.B.Data
	off := x.Base - r.mem.B.Base
	var until time.Time
	for {
		seen := mapmem.Load64(b, off)
		if seen&mapmem.HomeLock != 0 {
			if wait, err := r.waits(x.Base, &until); !wait {
				return hostBusy, err
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
func (r *HostRunner) waits(lock uint64, until *time.Time) (bool, error) {
	switch now := time.Now(); {
	case until.IsZero():
		*until = now.Add(changeWait)
	case now.After(*until):
		if !r.Unlock(lock) {
			_, err := r.mem.Change(r.maps.CounterAddr(r.maps.Slots+mapmem.SlotBusyHomes), 8, func(n uint64) uint64 { return n + 1 })
			return false, err
		}
	}
	runtime.Gosched()
	return true, nil
}
