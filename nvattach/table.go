package nvattach

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// A Table is what a map held when it was read, in the order of its keys. Ring buffers have none, see
// [Reader].
type Table struct {
	Map  *Map
	Rows []Row
	Host bool // its values are apart by CPU, not by multiprocessor
	// Bits is how many bits of a bloom filter are 1. It has no rows.
	Bits uint64
	// Refused is how often the map had no room; see [Maps.Refused].
	Refused uint64
}

// A Row is an entry of a map.
type Row struct {
	Key []byte
	// Value is the entry's value. For per-thread maps and maps per multiprocessor
	// it is nil, and Each has those that are not zero.
	Value []byte
	Each  []Part
}

// A Part is the value of one thread or one multiprocessor.
type Part struct {
	Index uint64 // of the thread in its grid, or of the multiprocessor
	Value []byte
}

// readChunk bounds the memory for reading a large map.
const readChunk = 4 << 20

// Read reads a map as it is now; kernels may run. Values of at most 8 bytes that
// are aligned are never torn.
func (m *Maps) Read(mem Memory, x *Map) (*Table, error) {
	t := &Table{Map: x, Host: m.Host}
	var err error
	switch x.kind {
	case layoutArray:
		if err = m.readArray(mem, t); x.Def.Type == MapStackTrace { // those that were not taken
			t.Rows = slices.DeleteFunc(t.Rows, func(r Row) bool { return len(r.Value) < 8 || binary.LittleEndian.Uint64(r.Value) == 0 })
		}
	case layoutThread:
		err = m.readThreads(mem, t)
	case layoutHash:
		err = m.readHash(mem, t)
	case layoutQueue:
		err = m.readQueue(mem, t)
	case layoutBloom:
		err = m.readBloom(mem, t)
	case layoutMaps:
		for _, i := range slices.Sorted(maps.Keys(x.Def.Maps)) {
			name := make([]byte, maxName)
			copy(name, x.Def.Maps[i])
			t.Rows = append(t.Rows, Row{Key: indexKey(uint64(i)), Value: name})
		}
	case layoutRing:
		t.Refused, err = m.ringDropped(mem, x)
		if err != nil {
			return nil, err
		}
		return t, nil
	}
	if err == nil {
		t.Refused, err = m.Refused(mem, x)
	}
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", x.Name, err)
	}
	return t, nil
}

func indexKey(i uint64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(i)) }

func (m *Maps) readArray(mem Memory, t *Table) error {
	x := t.Map
	n, size := uint64(x.Def.MaxEntries), uint64(x.Def.ValueSize)
	buf := make([]byte, n*x.stride)
	t.Rows = make([]Row, n)
	for c := range x.copies {
		if err := mem.ReadMem(x.base+uint64(c)*x.copyBytes, buf); err != nil {
			return err
		}
		for i := range n {
			v := buf[i*x.stride:][:size]
			row := &t.Rows[i]
			switch {
			case c == 0:
				row.Key = indexKey(i)
				if x.Def.PerSM() {
					row.addPart(0, v)
					continue
				}
				row.Value = append([]byte(nil), v...)
			case x.Def.PerSM():
				row.addPart(uint64(c), v)
			default:
				addFields(row.Value, v, x.add)
			}
		}
	}
	return nil
}

// addPart notes a value unless it is all zero.
func (r *Row) addPart(i uint64, v []byte) {
	for _, b := range v {
		if b != 0 {
			r.Each = append(r.Each, Part{Index: i, Value: append([]byte(nil), v...)})
			return
		}
	}
}

// addFields adds a copy's fields to a value.
func addFields(dst, src []byte, fields []AddField) {
	for _, f := range fields {
		if uint64(f.Offset)+uint64(f.Size) > uint64(len(dst)) {
			continue
		}
		d, s := dst[f.Offset:], src[f.Offset:]
		if f.Size == 4 {
			binary.LittleEndian.PutUint32(d, binary.LittleEndian.Uint32(d)+binary.LittleEndian.Uint32(s))
		} else {
			binary.LittleEndian.PutUint64(d, binary.LittleEndian.Uint64(d)+binary.LittleEndian.Uint64(s))
		}
	}
}

func (m *Maps) readThreads(mem Memory, t *Table) error {
	x := t.Map
	size := uint64(x.Def.ValueSize)
	per := max(readChunk/x.stride, 1)
	buf := make([]byte, min(per, x.threads)*x.stride)
	for i := range uint64(x.Def.MaxEntries) {
		row := Row{Key: indexKey(i)}
		for at := uint64(0); at < x.threads; at += per {
			n := min(per, x.threads-at)
			if err := mem.ReadMem(x.base+(i*x.threads+at)*x.stride, buf[:n*x.stride]); err != nil {
				return err
			}
			for j := range n {
				row.addPart(at+j, buf[j*x.stride:][:size])
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return nil
}

func (m *Maps) readHash(mem Memory, t *Table) error {
	x, h := t.Map, &t.Map.hash
	per := max(readChunk/max(h.slotSize, x.stride), 1)
	buf := make([]byte, min(per, h.slots)*h.slotSize)
	key := uint64(x.Def.KeySize)
	var slots []uint64
	for at := uint64(0); at < h.slots; at += per {
		n := min(per, h.slots-at)
		if err := mem.ReadMem(x.base+h.slotOff+at*h.slotSize, buf[:n*h.slotSize]); err != nil {
			return err
		}
		for j := range n {
			s := buf[j*h.slotSize:][:h.slotSize]
			if binary.LittleEndian.Uint32(s)&slotValid == 0 {
				continue
			}
			row := Row{Key: append([]byte(nil), s[h.keyOff:h.keyOff+key]...)}
			t.Rows = append(t.Rows, row)
			slots = append(slots, j)
		}
		if len(slots) > 0 {
			if err := m.readValues(mem, x, at, slots, t.Rows[len(t.Rows)-len(slots):]); err != nil {
				return err
			}
		}
		slots = slots[:0]
	}
	slices.SortFunc(t.Rows, func(a, b Row) int { return compareKeys(x.Def, a.Key, b.Key) })
	return nil
}

// readValues reads the values of rows whose slots are counted from first on.
func (m *Maps) readValues(mem Memory, x *Map, first uint64, slots []uint64, rows []Row) error {
	from, to := slots[0], slots[len(slots)-1]+1
	buf := make([]byte, (to-from)*x.stride)
	size := uint64(x.Def.ValueSize)
	for sm := range x.hash.copies {
		if err := mem.ReadMem(x.valueAddr(first+from, sm), buf); err != nil {
			return err
		}
		for i, j := range slots {
			v, row := buf[(j-from)*x.stride:][:size], &rows[i]
			switch {
			case x.Def.PerSM():
				row.addPart(uint64(sm), v)
			case sm == 0:
				row.Value = append([]byte(nil), v...)
			default:
				addCopy(row.Value, v, x.add)
			}
		}
	}
	return nil
}

// addCopy adds a multiprocessor's copy of a hash's value to a value: those parts that
// programs add to, and others, which one of the copies has.
func addCopy(dst, src []byte, fields []AddField) {
	before := append([]byte(nil), dst...)
	for i := range dst {
		dst[i] |= src[i]
	}
	for _, f := range fields {
		copy(dst[f.Offset:f.Offset+f.Size], before[f.Offset:])
	}
	addFields(dst, src, fields)
}

// Lookup returns the value of a key: its bytes; of a per-thread map and one per
// multiprocessor, those of all one after the other, without padding. ErrNoKey is
// in the chain if there is none.
func (m *Maps) Lookup(mem Memory, x *Map, key []byte) ([]byte, error) {
	if uint64(len(key)) != uint64(x.Def.KeySize) {
		return nil, fmt.Errorf("map %s: a key of %d bytes; it has keys of %d: %w", x.Name, len(key), x.Def.KeySize, ErrNoKey)
	}
	size := uint64(x.Def.ValueSize)
	gather := func(n uint64, at func(i uint64) uint64) ([]byte, error) {
		out := make([]byte, n*size)
		for i := range n {
			if err := mem.ReadMem(at(i), out[i*size:(i+1)*size]); err != nil {
				return nil, fmt.Errorf("map %s: %w", x.Name, err)
			}
		}
		return out, nil
	}
	switch x.kind {
	case layoutArray, layoutThread:
		i := uint64(binary.LittleEndian.Uint32(key))
		if i >= uint64(x.Def.MaxEntries) {
			return nil, fmt.Errorf("map %s: index %d of %d: %w", x.Name, i, x.Def.MaxEntries, ErrNoKey)
		}
		if x.kind == layoutThread {
			return gather(x.threads, func(t uint64) uint64 { return x.base + (i*x.threads+t)*x.stride })
		}
		v, err := gather(uint64(x.copies), func(c uint64) uint64 { return x.base + c*x.copyBytes + i*x.stride })
		if err != nil || x.Def.PerSM() {
			return v, err
		}
		for c := 1; c < x.copies; c++ {
			addFields(v[:size], v[uint64(c)*size:], x.add)
		}
		return v[:size], nil
	case layoutHash:
		slot, found, err := x.find(mem, key)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", x.Name, err)
		}
		if !found {
			return nil, fmt.Errorf("map %s: %w", x.Name, ErrNoKey)
		}
		n := uint64(x.hash.copies)
		v, err := gather(n, func(i uint64) uint64 { return x.valueAddr(slot, int(i)) })
		if err != nil || !x.Striped() {
			return v, err
		}
		for sm := uint64(1); sm < n; sm++ {
			addCopy(v[:size], v[sm*size:][:size], x.add)
		}
		return v[:size], nil
	}
	return nil, fmt.Errorf("map %s: a %s has no keys: %w", x.Name, x.Def.Type, ErrNoKey)
}

// Update sets the value of a key, in a per-thread map and one per multiprocessor
// that of all. No kernel that inserts into a hash may run meanwhile. ErrNoKey or
// ErrFull is in the chain if it can't be had.
func (m *Maps) Update(mem Memory, x *Map, key, value []byte) error {
	err := m.update(mem, x, key, value)
	if err != nil {
		return fmt.Errorf("map %s: %w", x.Name, err)
	}
	return nil
}

func (m *Maps) update(mem Memory, x *Map, key, value []byte) error {
	if uint64(len(key)) != uint64(x.Def.KeySize) || uint64(len(value)) != uint64(x.Def.ValueSize) {
		return fmt.Errorf("a key of %d and a value of %d bytes; it has %d and %d: %w", len(key), len(value), x.Def.KeySize, x.Def.ValueSize, ErrNoKey)
	}
	switch x.kind {
	case layoutHash:
		if x.lpm > 0 {
			return m.trieUpdate(mem, x, key, value)
		}
		return m.hashUpdate(mem, x, key, value)
	case layoutRing, layoutQueue, layoutBloom:
		return fmt.Errorf("a %s has no keys: %w", x.Def.Type, ErrNoKey)
	}
	i := uint64(binary.LittleEndian.Uint32(key))
	if i >= uint64(x.Def.MaxEntries) {
		return fmt.Errorf("index %d of %d: %w", i, x.Def.MaxEntries, ErrNoKey)
	}
	if x.kind == layoutThread {
		row := make([]byte, x.threads*x.stride)
		for t := range x.threads {
			copy(row[t*x.stride:], value)
		}
		return mem.WriteMem(x.base+i*x.threads*x.stride, row)
	}
	for c := range x.copies {
		if err := mem.WriteMem(x.base+uint64(c)*x.copyBytes+i*x.stride, value); err != nil {
			return err
		}
		if x.Striped() {
			// The copies are added up, so the others hold nothing.
			value = make([]byte, len(value))
		}
	}
	return nil
}
