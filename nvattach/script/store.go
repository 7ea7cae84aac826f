package script

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
)

func number(n int64) Value { return Value{N: n} }

func text(s string) Value { return Value{Text: s, IsText: true} }

// String returns the value as it is shown.
func (v Value) String() string {
	if v.IsText {
		return v.Text
	}
	return strconv.FormatInt(v.N, 10)
}

func (v Value) compare(w Value) int {
	return cmp.Or(cmp.Compare(v.N, w.N), strings.Compare(v.Text, w.Text))
}

// An entry is a value of a map, of all processes and GPUs together.
type entry struct {
	key     []Value
	n       int64    // of an average its sum; of a minimum and a maximum as it is in memory
	count   int64    // of an average
	text    Value    // of what was assigned and is no number
	buckets []uint64 // of a histogram
}

// A table is a map.
type table struct {
	m       *mapInfo
	entries map[string]*entry
	refused uint64
}

// A store is all maps of a program.
type store struct {
	p      *Program
	sites  []nvattach.Site
	tables map[string]*table
	stacks map[int64][]uint64          // by number, from 1 on
	texts  map[int64]string            // likewise
	first  map[string]map[string]int64 // what BEGIN put into maps that kernels add to
	warned map[string]uint64           // as that of the program, here
}

func newStore(p *Program) *store {
	s := &store{p: p, tables: make(map[string]*table), first: make(map[string]map[string]int64), warned: make(map[string]uint64)}
	for _, m := range p.maps {
		s.tables[m.name] = &table{m: m, entries: make(map[string]*entry)}
	}
	if p.Sites != nil {
		s.sites = p.Sites()
	}
	return s
}

// value returns what a number of a type stands for.
func (s *store) value(n int64, t *Type) Value {
	switch {
	case t == typeText:
		return text("")
	case t == typeHeld:
		if held, ok := s.texts[n]; ok {
			return text(held)
		}
		return text(noText)
	case t == typeStack:
		return text(s.stack(n))
	case t == typeStr:
		if n < 1 || n > int64(len(s.p.strings)) {
			return text("")
		}
		return text(s.p.strings[n-1])
	case t.site != nil:
		if n < 1 || n > int64(len(s.sites)) {
			return text("")
		}
		return text(t.site(&s.sites[n-1]))
	case t.names != nil:
		if name := t.names[n]; name != "" {
			return text(name)
		}
	}
	return number(n)
}

func keyText(key []Value) string {
	var b strings.Builder
	for _, k := range key {
		b.WriteString(k.String())
		b.WriteByte(0)
	}
	return b.String()
}

// entry returns the entry of a key, a new one if it is not there.
func (t *table) entry(key []Value) *entry {
	k := keyText(key)
	e := t.entries[k]
	if e == nil {
		e = &entry{key: key}
		if n := t.m.buckets(); n > 1 {
			e.buckets = make([]uint64, n)
		}
		t.entries[k] = e
	}
	return e
}

// load adds what a process's maps on a GPU held. Maps of others are left out.
func (s *store) load(tables []*mapmem.Table) {
	for _, raw := range tables {
		if raw.Map.Def.Name == stacksName && s.p.Owns(raw.Map) {
			s.loadStacks(raw)
		}
		if raw.Map.Def.Name == textsName && s.p.Owns(raw.Map) {
			s.texts = make(map[int64]string)
			for _, r := range raw.Rows {
				s.texts[int64(binary.LittleEndian.Uint64(r.Value))] = zeroEnded(r.Key)
			}
		}
	}
	for _, raw := range tables {
		t := s.tables[raw.Map.Def.Name]
		if t == nil || !s.p.Owns(raw.Map) {
			continue
		}
		t.refused += raw.Refused
		for i := range raw.Rows {
			s.row(t, &raw.Rows[i])
		}
	}
}

// loadStacks takes in the stacks that maps name by numbers.
func (s *store) loadStacks(raw *mapmem.Table) {
	s.stacks = make(map[int64][]uint64)
	for _, r := range raw.Rows {
		var list []uint64
		for at := r.Value; len(at) >= 8; at = at[8:] {
			if addr := binary.LittleEndian.Uint64(at); addr != 0 {
				list = append(list, addr)
			}
		}
		s.stacks[int64(binary.LittleEndian.Uint32(r.Key))+1] = list
	}
}

// noText is shown where there was no room for a text.
const noText = "(text not kept)"

// zeroEnded is a text up to its zero.
func zeroEnded(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// noStack is shown where the room in the map of stacks was taken by another.
const noStack = "(stack not kept)"

// stack is the text of a stack, the innermost function first.
func (s *store) stack(n int64) string {
	if n == 0 {
		return noStack
	}
	pid := int(uint64(n) >> 32)
	var list []string
	for i, addr := range s.stacks[n&math.MaxUint32] {
		if s.p.Name == nil {
			list = append(list, "0x"+strconv.FormatUint(addr, 16))
		} else {
			list = append(list, s.p.Name(pid, addr, i > 0))
		}
	}
	return strings.Join(list, " < ")
}

// row adds a row of a map.
func (s *store) row(t *table, r *mapmem.Row) {
	m := t.m
	var key []Value
	bucket := uint64(0) // what a program may have written over, as all here
	if m.array() {
		bucket = uint64(binary.LittleEndian.Uint32(r.Key))
	} else {
		for i, k := range m.keys {
			key = append(key, s.value(int64(binary.LittleEndian.Uint64(r.Key[8*i:])), k))
		}
		if m.buckets() > 1 {
			bucket = binary.LittleEndian.Uint64(r.Key[8*len(m.keys):])
		}
	}
	n, count := int64(binary.LittleEndian.Uint64(r.Value)), int64(0)
	if m.words() > 1 {
		count = int64(binary.LittleEndian.Uint64(r.Value[8:]))
	}
	never := false // an array has its values from the start
	switch m.agg {
	case aggHist, aggLhist:
		never = n == 0
	case aggAvg, aggStats, aggMin, aggMax:
		never = count == 0
	case aggNone:
		never = m.value != typeInt && n == 0
	}
	if never && m.array() || bucket >= uint64(m.buckets()) {
		return
	}
	e := t.entry(key)
	switch m.agg {
	case aggCount, aggSum, aggAvg, aggStats:
		e.n += n
		e.count += count
	case aggMin, aggMax:
		if uint64(n) > uint64(e.n) {
			e.n = n
		}
	case aggHist, aggLhist:
		e.buckets[bucket] += uint64(n)
	default:
		switch {
		case m.assigned:
			e.n, e.text = n, s.value(n, m.value)
		case m.ored:
			e.n |= n
		default:
			e.n += n - s.first[m.name][keyText(key)]
		}
		if m.value == typeInt {
			e.text = number(e.n)
		}
	}
}

// shown is the number that an entry is sorted by and shown as.
func (t *table) shown(e *entry) int64 {
	switch t.m.agg {
	case aggMin:
		return ^int64(uint64(e.n) ^ 1<<63)
	case aggMax:
		return int64(uint64(e.n) ^ 1<<63)
	case aggAvg, aggStats:
		if e.count == 0 {
			return 0
		}
		return e.n / e.count
	case aggHist, aggLhist:
		sum := uint64(0)
		for _, n := range e.buckets {
			sum += n
		}
		return int64(sum)
	}
	return e.n
}

// sorted returns the entries as they are shown: by value, then by key.
func (t *table) sorted() []*entry {
	list := make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(t.shown(a), t.shown(b)), a.text.compare(b.text), slices.CompareFunc(a.key, b.key, Value.compare))
	})
	return list
}

// add does to an entry what count() and the like do to a map in a kernel.
func (t *table) add(e *entry, n int64) {
	switch t.m.agg {
	case aggCount:
		e.n++
	case aggSum:
		e.n += n
	case aggAvg, aggStats:
		e.n += n
		e.count++
	case aggMin:
		e.n = highest(e.n, int64(uint64(^n)^1<<63))
	case aggMax:
		e.n = highest(e.n, int64(uint64(n)^1<<63))
	case aggHist:
		e.buckets[histBucket(n)]++
	case aggLhist:
		e.buckets[lhistBucket(n, t.m.lhist)]++
	}
}

func highest(a, b int64) int64 {
	if uint64(b) > uint64(a) {
		return b
	}
	return a
}

// histBucket is the bucket of a number: below 0, 0, then powers of two.
func histBucket(n int64) int {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return 1
	}
	return 1 + bits.Len64(uint64(n))
}

// lhistBucket is that of equal steps: below, the steps, above.
func lhistBucket(n int64, l [3]int64) int {
	switch {
	case n < l[0]:
		return 0
	case n >= l[1]:
		return int((l[1]-l[0])/l[2]) + 1
	}
	return int((n-l[0])/l[2]) + 1
}

func truthOf(b bool) Value {
	if b {
		return number(1)
	}
	return number(0)
}
