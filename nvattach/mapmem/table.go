package mapmem

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf/btf"

	"nvtrace/nvattach/object"
	"nvtrace/nvattach/values"
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
	switch x.Kind {
	case object.LayoutArray:
		if err = m.readArray(mem, t); x.Def.Type == object.MapStackTrace { // those that were not taken
			t.Rows = slices.DeleteFunc(t.Rows, func(r Row) bool { return len(r.Value) < 8 || binary.LittleEndian.Uint64(r.Value) == 0 })
		}
	case object.LayoutThread:
		err = m.readThreads(mem, t)
	case object.LayoutHash:
		if err = m.readHash(mem, t); err == nil {
			err = m.readKeyPlaces(mem, t)
		}
	case object.LayoutQueue:
		err = m.readQueue(mem, t)
	case object.LayoutBloom:
		err = m.readBloom(mem, t)
	case object.LayoutMaps:
		for _, i := range slices.Sorted(maps.Keys(x.Def.Maps)) {
			name := make([]byte, object.MaxName)
			copy(name, x.Def.Maps[i])
			t.Rows = append(t.Rows, Row{Key: IndexKey(uint64(i)), Value: name})
		}
	case object.LayoutRing:
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

// IndexKey returns the key of an array's element.
func IndexKey(i uint64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(i)) }

func (m *Maps) readArray(mem Memory, t *Table) error {
	x := t.Map
	n, size := uint64(x.Def.MaxEntries), uint64(x.Def.ValueSize)
	buf := make([]byte, n*x.Stride)
	t.Rows = make([]Row, n)
	for c := range x.Copies {
		if err := mem.ReadMem(x.Base+uint64(c)*x.CopyBytes, buf); err != nil {
			return err
		}
		for i := range n {
			v := buf[i*x.Stride:][:size]
			row := &t.Rows[i]
			switch {
			case c == 0:
				row.Key = IndexKey(i)
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

// prefetchHeads says that the counters of a ring's parts will be read.
func (m *Maps) prefetchHeads(mem Memory, x *Map) {
	if p, ok := mem.(Prefetcher); ok {
		p.Prefetch(x.Base, x.CopyBytes, object.RingHead/4, x.Ring.Parts)
	}
}

func (m *Maps) ringDropped(mem Memory, x *Map) (uint64, error) {
	m.prefetchHeads(mem, x)
	var b [8]byte
	sum := uint64(0)
	for sm := range x.Ring.Parts {
		if err := mem.ReadMem(x.Base+uint64(sm)*x.CopyBytes+object.RingDropped, b[:]); err != nil {
			return 0, fmt.Errorf("ring %s: %w", x.Name, err)
		}
		sum += binary.LittleEndian.Uint64(b[:])
	}
	return sum, nil
}

func (m *Maps) readThreads(mem Memory, t *Table) error {
	x := t.Map
	size := uint64(x.Def.ValueSize)
	per := max(readChunk/x.Stride, 1)
	buf := make([]byte, min(per, x.Threads)*x.Stride)
	for i := range uint64(x.Def.MaxEntries) {
		row := Row{Key: IndexKey(i)}
		for at := uint64(0); at < x.Threads; at += per {
			n := min(per, x.Threads-at)
			if err := mem.ReadMem(x.Base+(i*x.Threads+at)*x.Stride, buf[:n*x.Stride]); err != nil {
				return err
			}
			for j := range n {
				row.addPart(at+j, buf[j*x.Stride:][:size])
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return nil
}

func (m *Maps) readHash(mem Memory, t *Table) error {
	x, h := t.Map, &t.Map.Hash
	per := max(readChunk/max(h.SlotSize, x.Stride), 1)
	buf := make([]byte, min(per, h.Slots)*h.SlotSize)
	key := uint64(x.Def.KeySize)
	var slots []uint64
	for at := uint64(0); at < h.Slots; at += per {
		n := min(per, h.Slots-at)
		if err := mem.ReadMem(x.Base+h.SlotOff+at*h.SlotSize, buf[:n*h.SlotSize]); err != nil {
			return err
		}
		for j := range n {
			s := buf[j*h.SlotSize:][:h.SlotSize]
			if binary.LittleEndian.Uint32(s)&SlotValid == 0 {
				continue
			}
			row := Row{Key: append([]byte(nil), s[h.KeyOff:h.KeyOff+key]...)}
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

// compareKeys orders keys: numbers by value, structures by their members.
func compareKeys(d *object.MapDef, a, b []byte) int {
	return cmp.Or(compareTyped(d.Key, a, b), bytes.Compare(a, b))
}

// compareTyped compares two values of a type, which may be nil.
func compareTyped(t btf.Type, a, b []byte) int {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		for _, m := range t.Members {
			from := m.Offset.Bytes()
			size, err := btf.Sizeof(m.Type)
			if err != nil || m.BitfieldSize > 0 || size < 0 || uint64(from)+uint64(size) > uint64(min(len(a), len(b))) {
				break
			}
			if c := compareTyped(m.Type, a[from:][:size], b[from:][:size]); c != 0 {
				return c
			}
		}
		return 0
	case *btf.Int:
		if t.Encoding == btf.Signed && len(a) <= 8 {
			return cmp.Compare(values.Signed(a), values.Signed(b))
		}
	}
	if len(a) > 8 {
		return bytes.Compare(a, b)
	}
	return cmp.Compare(values.Unsigned(a), values.Unsigned(b))
}

// readValues reads the values of rows whose slots are counted from first on.
func (m *Maps) readValues(mem Memory, x *Map, first uint64, slots []uint64, rows []Row) error {
	from, to := slots[0], slots[len(slots)-1]+1
	buf := make([]byte, (to-from)*x.Stride)
	size := uint64(x.Def.ValueSize)
	for sm := range x.Hash.Copies {
		if err := mem.ReadMem(x.ValueAddr(first+from, sm), buf); err != nil {
			return err
		}
		for i, j := range slots {
			v, row := buf[(j-from)*x.Stride:][:size], &rows[i]
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
	switch x.Kind {
	case object.LayoutArray, object.LayoutThread:
		i := uint64(binary.LittleEndian.Uint32(key))
		if i >= uint64(x.Def.MaxEntries) {
			return nil, fmt.Errorf("map %s: index %d of %d: %w", x.Name, i, x.Def.MaxEntries, ErrNoKey)
		}
		if x.Kind == object.LayoutThread {
			return gather(x.Threads, func(t uint64) uint64 { return x.Base + (i*x.Threads+t)*x.Stride })
		}
		v, err := gather(uint64(x.Copies), func(c uint64) uint64 { return x.Base + c*x.CopyBytes + i*x.Stride })
		if err != nil || x.Def.PerSM() {
			return v, err
		}
		for c := 1; c < x.Copies; c++ {
			addFields(v[:size], v[uint64(c)*size:], x.add)
		}
		return v[:size], nil
	case object.LayoutHash:
		slot, found, err := x.Find(mem, key)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", x.Name, err)
		}
		placed, err := m.placedValue(mem, x, key)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", x.Name, err)
		}
		if !found && placed != nil {
			return placed, nil
		}
		if !found {
			return nil, fmt.Errorf("map %s: %w", x.Name, ErrNoKey)
		}
		n := uint64(x.Hash.Copies)
		v, err := gather(n, func(i uint64) uint64 { return x.ValueAddr(slot, int(i)) })
		if err != nil || !x.Striped() {
			return v, err
		}
		for sm := uint64(1); sm < n; sm++ {
			addCopy(v[:size], v[sm*size:][:size], x.add)
		}
		if placed != nil {
			addFields(v[:size], placed, x.add)
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
	switch x.Kind {
	case object.LayoutHash:
		if x.Lpm > 0 {
			return m.trieUpdate(mem, x, key, value)
		}
		return m.HashUpdate(mem, x, key, value)
	case object.LayoutRing, object.LayoutQueue, object.LayoutBloom:
		return fmt.Errorf("a %s has no keys: %w", x.Def.Type, ErrNoKey)
	}
	i := uint64(binary.LittleEndian.Uint32(key))
	if i >= uint64(x.Def.MaxEntries) {
		return fmt.Errorf("index %d of %d: %w", i, x.Def.MaxEntries, ErrNoKey)
	}
	if x.Kind == object.LayoutThread {
		row := make([]byte, x.Threads*x.Stride)
		for t := range x.Threads {
			copy(row[t*x.Stride:], value)
		}
		return mem.WriteMem(x.Base+i*x.Threads*x.Stride, row)
	}
	for c := range x.Copies {
		if err := mem.WriteMem(x.Base+uint64(c)*x.CopyBytes+i*x.Stride, value); err != nil {
			return err
		}
		if x.Striped() {
			// The copies are added up, so the others hold nothing.
			value = make([]byte, len(value))
		}
	}
	return nil
}
