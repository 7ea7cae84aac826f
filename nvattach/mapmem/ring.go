package mapmem

import (
	"encoding/binary"
	"fmt"

	"nvtrace/nvattach/object"
	"nvtrace/nvattach/values"
)

// A Record is one record of a ring buffer.
type Record struct {
	SM   int    // multiprocessor it was written on
	Data []byte // until the next call of Drain
}

// A Reader reads a ring buffer's records, each once, also while kernels write.
// One Reader reads a ring; it is not for several goroutines at once.
type Reader struct {
	// Lost counts units that were handed out and neither filled nor counted as
	// dropped when no kernel ran any more: by threads that died in between.
	Lost uint64

	m       *Maps
	x       *Map
	pos     []uint64 // units read, by multiprocessor
	skipped []uint64 // dropped units that were passed over
	first   []byte
	second  []byte
}

// NewReader returns a Reader of a ring buffer, or nil if x is none.
func (m *Maps) NewReader(x *Map) *Reader {
	if x == nil || x.Kind != object.LayoutRing {
		return nil
	}
	return &Reader{m: m, x: x, pos: make([]uint64, x.Ring.Parts), skipped: make([]uint64, x.Ring.Parts)}
}

// Drain gives fn every complete record that was not given before, in the order
// of each multiprocessor, and makes room for others. With idle set no kernel
// runs: what is not complete then never will be, and is passed over.
func (r *Reader) Drain(mem Memory, idle bool, fn func(Record)) error {
	r.m.prefetchHeads(mem, r.x)
	if err := r.prefetch(mem); err != nil {
		return fmt.Errorf("ring %s: %w", r.x.Name, err)
	}
	for sm := range r.pos {
		if err := r.drain(mem, sm, idle, fn); err != nil {
			return fmt.Errorf("ring %s: %w", r.x.Name, err)
		}
	}
	return nil
}

// prefetch says where in a ring's parts there is something new.
func (r *Reader) prefetch(mem Memory) error {
	p, ok := mem.(Prefetcher)
	if !ok {
		return nil
	}
	units, size := r.x.Ring.Units, r.x.CopyBytes-object.RingHead
	lo, hi := units, uint64(0)
	for sm, pos := range r.pos {
		var w [8]byte
		if err := mem.ReadMem(r.x.Base+uint64(sm)*r.x.CopyBytes+object.RingReserved, w[:]); err != nil {
			return err
		}
		end := min(binary.LittleEndian.Uint64(w[:]), pos+units)
		if end <= pos {
			continue
		}
		from, to := pos%units, (end-1)%units+1
		if from >= to { // over the ring's end
			from, to = 0, units
		}
		lo, hi = min(lo, from), max(hi, to)
	}
	if lo < hi {
		end := min(hi*object.UnitBytes+r.x.Ring.MaxRecord+object.RecordHead, size)
		p.Prefetch(r.x.Base+object.RingHead+lo*object.UnitBytes, r.x.CopyBytes, int(end-lo*object.UnitBytes), r.x.Ring.Parts)
	}
	return nil
}

// Dropped returns how many records found no room.
func (r *Reader) Dropped(mem Memory) (uint64, error) { return r.m.ringDropped(mem, r.x) }

func (r *Reader) drain(mem Memory, sm int, idle bool, fn func(Record)) error {
	base := r.x.Base + uint64(sm)*r.x.CopyBytes
	// The dropped are read before the handed out, so that all that are counted
	// there are among these.
	var w [8]byte
	if err := mem.ReadMem(base+object.RingDroppedUnits, w[:]); err != nil {
		return err
	}
	dropped := binary.LittleEndian.Uint64(w[:])
	if err := mem.ReadMem(base+object.RingReserved, w[:]); err != nil {
		return err
	}
	reserved, pos := binary.LittleEndian.Uint64(w[:]), r.pos[sm]
	if reserved == pos {
		return nil
	}
	if reserved < pos {
		return fmt.Errorf("the counter went back from %d to %d: something else wrote to the map", pos, reserved)
	}
	units := r.x.Ring.Units
	// Nobody who got a unit from end on found room: only what was read before
	// pos was free.
	end := min(reserved, pos+units)
	if err := r.copy(mem, base, pos, end, idle); err != nil {
		return err
	}
	missing, firstGap := uint64(0), end
	for k := pos; k < end; {
		if n := r.record(k, nil, sm); n > 0 {
			k += n
			continue
		}
		if missing == 0 {
			firstGap = k
		}
		missing++
		k++
	}
	gone := missing + reserved - end
	known := dropped - r.skipped[sm]
	to, stop := reserved, end
	if gone > known && !idle {
		to, stop, gone = firstGap, firstGap, 0
	}
	for k := pos; k < stop; {
		k += max(r.record(k, fn, sm), 1)
	}
	if gone > known {
		r.Lost += gone - known
		gone = known
	}
	r.pos[sm], r.skipped[sm] = to, r.skipped[sm]+gone
	binary.LittleEndian.PutUint64(w[:], to)
	if p, ok := mem.(Prefetcher); ok {
		return p.WriteLate(base+object.RingRead, w[:])
	}
	return mem.WriteMem(base+object.RingRead, w[:])
}

// copy reads the units [pos, end). A header says that data was written before it,
// but only to who reads it first; so while kernels run, headers are taken from
// one copy and data from a later one.
func (r *Reader) copy(mem Memory, base, pos, end uint64, idle bool) error {
	size := r.x.CopyBytes - object.RingHead
	if uint64(len(r.first)) != size {
		r.first, r.second = make([]byte, size), make([]byte, size)
	}
	from, to := pos%r.x.Ring.Units, (end-1)%r.x.Ring.Units+1
	parts := [][2]uint64{{from * object.UnitBytes, size}}
	if from < to && end-pos < r.x.Ring.Units {
		parts[0][1] = min(to*object.UnitBytes+r.x.Ring.MaxRecord+object.RecordHead, size)
	} else if to > 0 {
		parts = append(parts, [2]uint64{0, min(to*object.UnitBytes+r.x.Ring.MaxRecord+object.RecordHead, from*object.UnitBytes)})
	}
	read := func(dst []byte) error {
		for _, p := range parts {
			if err := mem.ReadMem(base+object.RingHead+p[0], dst[p[0]:p[1]]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := read(r.first); err != nil {
		return err
	}
	if idle {
		copy(r.second, r.first)
		return nil
	}
	return read(r.second)
}

// record returns the units of the record at unit k, 0 if there is none yet, and
// gives it to fn.
func (r *Reader) record(k uint64, fn func(Record), sm int) uint64 {
	at := k % r.x.Ring.Units * object.UnitBytes
	if binary.LittleEndian.Uint64(r.first[at:]) != r.m.Cookie+k {
		return 0
	}
	size := binary.LittleEndian.Uint32(r.first[at+8:])
	n := uint64(size &^ object.RecordDiscarded)
	if n > r.x.Ring.MaxRecord {
		return 0 // not what any program of ours wrote
	}
	if r.m.Host {
		sm = int(binary.LittleEndian.Uint32(r.first[at+12:]))
	}
	if fn != nil && size&object.RecordDiscarded == 0 {
		fn(Record{SM: sm, Data: r.second[at+object.RecordHead : at+object.RecordHead+n]})
	}
	return object.UnitsFor(n)
}

// AppendRecord appends a record of a ring buffer as text: by the type of the map's
// values, where it has one and the record is as long, otherwise as 64-bit numbers.
func (x *Map) AppendRecord(dst, data []byte) []byte {
	return values.AppendRecord(dst, x.Def.Value, data)
}

// AppendRecordJSON appends a record as JSON, by the rule of AppendRecord.
func (x *Map) AppendRecordJSON(dst, data []byte) []byte {
	return values.AppendRecordJSON(dst, x.Def.Value, data)
}
