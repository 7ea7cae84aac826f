package mapmem

import (
	"bytes"
	"slices"

	"nvtrace/nvattach/object"
)

// layKeyPlaces gives a hash its places for keys that are known where programs are put.
func (x *Map) layKeyPlaces(m *Maps, o *MapOptions) {
	if o.KeyPlaces == nil || len(x.add) == 0 || x.OfHost || len(x.Joins) > 0 {
		return
	}
	n := o.KeyPlaces(x.Def)
	if n == 0 {
		return
	}
	each := object.RoundUp(object.Mul(uint64(n), x.Stride), object.LineBytes)
	off := object.RoundUp(x.size, object.LineBytes)
	size := off + object.Mul(each, uint64(m.SMs))
	if size > o.MaxBytes/4 {
		return // they are only for speed
	}
	x.KeyPlaces, x.KeyPlaceBytes, x.keyPlaceOff, x.placedKeys = n, each, off, o.PlacedKeys
	x.size = size
}

// KeyPlace returns the address of the i-th place on a multiprocessor.
func (x *Map) KeyPlace(i, sm int) uint64 {
	return x.Base + x.keyPlaceOff + uint64(sm)*x.KeyPlaceBytes + uint64(i)*x.Stride
}

// readKeyPlaces adds what was counted in places to the rows of a hash.
func (m *Maps) readKeyPlaces(mem Memory, t *Table) error {
	x := t.Map
	if x.KeyPlaces == 0 {
		return nil
	}
	keys := x.placedKeys(x.Def)
	if len(keys) == 0 {
		return nil
	}
	size := uint64(x.Def.ValueSize)
	sums := make([][]byte, len(keys))
	buf := make([]byte, uint64(len(keys))*x.Stride)
	for sm := range m.SMs {
		if err := mem.ReadMem(x.KeyPlace(0, sm), buf); err != nil {
			return err
		}
		for i := range keys {
			v := buf[uint64(i)*x.Stride:][:size]
			if sums[i] == nil {
				if !slices.ContainsFunc(v, func(b byte) bool { return b != 0 }) {
					continue
				}
				sums[i] = make([]byte, size)
			}
			addFields(sums[i], v, x.add)
		}
	}
	rows := make(map[string]int, len(t.Rows))
	for i := range t.Rows {
		rows[string(t.Rows[i].Key)] = i
	}
	for i, key := range keys {
		if sums[i] == nil || key == nil {
			continue // nobody has counted there
		}
		if at, has := rows[string(key)]; has {
			addFields(t.Rows[at].Value, sums[i], x.add)
			continue
		}
		rows[string(key)] = len(t.Rows)
		t.Rows = append(t.Rows, Row{Key: bytes.Clone(key), Value: sums[i]})
	}
	slices.SortFunc(t.Rows, func(a, b Row) int { return compareKeys(x.Def, a.Key, b.Key) })
	return nil
}

// keyPlacesOf returns the numbers of a key's places.
func (x *Map) keyPlacesOf(key []byte) (list []int) {
	if x.KeyPlaces == 0 {
		return nil
	}
	for i, k := range x.placedKeys(x.Def) {
		if k != nil && bytes.Equal(k, key) {
			list = append(list, i)
		}
	}
	return list
}

// placedValue returns what a key's places hold together; nil if they hold nothing.
func (m *Maps) placedValue(mem Memory, x *Map, key []byte) (sum []byte, err error) {
	v := make([]byte, x.Def.ValueSize)
	for _, i := range x.keyPlacesOf(key) {
		for sm := range m.SMs {
			if err := mem.ReadMem(x.KeyPlace(i, sm), v); err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(v, func(b byte) bool { return b != 0 }) {
				continue
			}
			if sum == nil {
				sum = make([]byte, len(v))
			}
			addFields(sum, v, x.add)
		}
	}
	return sum, nil
}

// clearKeyPlaces sets a key's places to 0.
func (m *Maps) clearKeyPlaces(mem Memory, x *Map, key []byte) error {
	for _, i := range x.keyPlacesOf(key) {
		for sm := range m.SMs {
			if err := mem.WriteMem(x.KeyPlace(i, sm), make([]byte, x.Stride)); err != nil {
				return err
			}
		}
	}
	return nil
}
