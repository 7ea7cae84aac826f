package nvattach

import (
	"slices"
	"sync"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// A key of a hash that is known where a program is put, @[kind] or @[kernel] say, needs no search there: what is
// counted under it has a place of its own beside the hash, on each multiprocessor, of which the program knows
// the address. Reading joins the places to their keys. That is for hashes whose values are only added to.

// mostKeyPlaces is how many such places a hash has; further keys are searched for.
const mostKeyPlaces = 8192

// leastPlacedKeys is how many keys a hash has room for at least that has places: they are beside this room, and a
// small one may be meant as a bound.
const leastPlacedKeys = 1024

// placeKeys are the keys of places.
type placeKeys struct {
	mu sync.Mutex
	of map[*object.MapDef]*keyList
}

// A keyList has a key for each place that was taken; nil while it is not known yet.
type keyList struct {
	keys  [][]byte
	index map[string]int
}

func (p *placeKeys) list(d *object.MapDef) *keyList {
	if p.of == nil {
		p.of = make(map[*object.MapDef]*keyList)
	}
	if p.of[d] == nil {
		p.of[d] = &keyList{index: make(map[string]int)}
	}
	return p.of[d]
}

// room is how many places a map has.
func keyRoom(d *object.MapDef) int { return min(mostKeyPlaces, int(d.MaxEntries/2)) }

// take returns the first of n places that were free; false if there are too few.
func (p *placeKeys) take(d *object.MapDef, n int) (first int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.list(d)
	if len(l.keys)+n > keyRoom(d) {
		return 0, false
	}
	first = len(l.keys)
	l.keys = append(l.keys, make([][]byte, n)...)
	return first, true
}

// set says what the key of a place is that was taken.
func (p *placeKeys) set(d *object.MapDef, i int, key []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.list(d)
	l.keys[i] = key
	if _, has := l.index[string(key)]; !has {
		l.index[string(key)] = i
	}
}

// find returns the place of a key, which it takes if there is none.
func (p *placeKeys) find(d *object.MapDef, key []byte) (i int, ok bool) {
	p.mu.Lock()
	i, ok = p.list(d).index[string(key)]
	p.mu.Unlock()
	if ok {
		return i, true
	}
	if i, ok = p.take(d, 1); ok {
		p.set(d, i, key)
	}
	return i, ok
}

// Keys returns the keys of a map's places.
func (p *placeKeys) Keys(d *object.MapDef) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list(d).keys)
}

// taken is how many places of a map were taken.
func (p *placeKeys) taken(d *object.MapDef) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.list(d).keys)
}

// canPlace reports whether values of a map can be in such places.
func (p *Plan) canPlace(d *object.MapDef, system bool) bool {
	return d.Layout() == object.LayoutHash && !d.Lru() && !d.PerSM() && d.Type != object.MapLPMTrie && !system &&
		d.MaxEntries >= leastPlacedKeys && len(p.addOnly(d)) > 0
}

// mostCallsTried bounds how often a program is proven to find out which of its calls can have places.
const mostCallsTried = 16

// place proves a program once more, with places for the keys that are known where it is put; it returns
// the program as it is if there are none.
func (u *unit) place(p *Plan, q *PlannedProgram, maps []bpf.Map, joined []bool, verify func(prog *object.Program, slots func(*bpf.CallInfo) bool) (*PlannedProgram, error)) *PlannedProgram {
	var calls []int
	for _, s := range q.Report.Slots {
		if p.canPlace(u.defs[s.Map], maps[s.Map].System || joined[s.Map]) {
			calls = append(calls, s.Insn)
		}
	}
	if len(calls) == 0 {
		return q
	}
	prove := func(calls ...int) *PlannedProgram {
		again, err := verify(q.Program, func(c *bpf.CallInfo) bool { return slices.Contains(calls, c.Insn) })
		if err != nil || len(again.Report.Slots) != len(calls) {
			return nil
		}
		return again
	}
	again := prove(calls...)
	if again == nil && len(calls) <= mostCallsTried { // some of them count nothing, or not in each case
		calls = slices.DeleteFunc(calls, func(c int) bool { return prove(c) == nil })
		again = prove(calls...)
	}
	if again == nil || len(calls) == 0 {
		return q
	}
	again.counter, again.plain = q.counter, q
	return again
}

// Placed returns the keys of the program that have places, see the top of this file.
func (q *PlannedProgram) Placed() []bpf.SlotUse {
	if q.plain == nil {
		return nil
	}
	return q.Report.Slots
}

// placedMaps are the maps that have places for the program.
func (q *PlannedProgram) placedMaps() (list []*object.MapDef) {
	if q.plain == nil {
		return nil
	}
	for _, s := range q.Report.Slots {
		if d := q.unit.defs[s.Map]; !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// endsThreads reports whether a program may end threads, which do not come to those behind it then.
func (p *Plan) endsThreads() bool {
	return slices.ContainsFunc(p.Programs, func(q *PlannedProgram) bool { return slices.Contains(q.Report.Helpers, helper.Exit) })
}

// placedMaps are those of all programs.
func (p *Plan) placedMaps() (list []*object.MapDef) {
	for _, q := range p.Programs {
		for _, d := range q.placedMaps() {
			if !slices.Contains(list, d) {
				list = append(list, d)
			}
		}
	}
	return list
}

// placed reports whether some maps have the places that a program wants.
func (q *PlannedProgram) placed(maps *mapmem.Maps) bool {
	return q.plain != nil && !slices.ContainsFunc(q.placedMaps(), func(d *object.MapDef) bool {
		x := maps.Of(d)
		return x == nil || x.KeyPlaces == 0
	})
}

// keyPlaces is how many places a map has for keys.
func (p *Plan) keyPlaces(d *object.MapDef) int {
	if !slices.Contains(p.placedMaps(), d) {
		return 0
	}
	return keyRoom(d)
}

// numbers reports whether a key has the place's number in it.
func (q *PlannedProgram) numbers(s *bpf.SlotUse) bool {
	return slices.ContainsFunc(s.Key, func(k bpf.KeyPart) bool {
		if k.Field < 0 {
			return false
		}
		id := q.fields[k.Field]
		return id == fieldSite || id >= fieldPair && ((id-fieldPair)/fieldPair == fieldSite || (id-fieldPair)%fieldPair == fieldSite)
	})
}

// key returns the key of a use at a place, of whose fields value knows those that are numbers there.
func (q *PlannedProgram) key(s *bpf.SlotUse, value func(id int) uint64) []byte {
	return s.Of(func(field int) uint64 {
		id := q.fields[field]
		if id >= fieldPair {
			return value((id-fieldPair)/fieldPair) | value((id-fieldPair)%fieldPair)<<32
		}
		return value(id)
	})
}

// number returns a field that is a number at a place in PTX.
func (p *place) numberOf(id int) uint64 {
	switch id {
	case fieldISA:
		return isaPTX
	case fieldGuarded:
		if p.guarded {
			return 1
		}
		return 0
	}
	return uint64(p.numbers()[id])
}

// slot writes the address of what use k of a program counts.
func (g *weaving) slot(b *bpf.Gen, q *PlannedProgram, at *place, k int) ptx.Arg {
	s := &q.Report.Slots[k]
	x := g.maps.Of(q.unit.defs[s.Map])
	c := q.unit.code(b)
	if at.given == nil {
		return register64(c.PerSM(x.KeyPlace(at.slots[k], 0), x.KeyPlaceBytes))
	}
	return register64(keyPlace(c, x, at.given.reg(BodyParam{What: BodySlot, Offset: k})))
}

// keyPlace returns the address of the place of a map that is so many bytes behind the first.
func keyPlace(c *emit.Code, x *mapmem.Map, offset string) string {
	a := c.PerSM(x.KeyPlace(0, 0), x.KeyPlaceBytes)
	c.F("add.s64 %s, %s, %s;", a, a, offset)
	return a
}

// takeSlots finds the places of all keys at a place in PTX; false if there is no room for one.
func (g *weaving) takeSlots(q *PlannedProgram, at *place) bool {
	if !q.placed(g.maps) {
		return false
	}
	at.slots = at.slots[:0]
	for k := range q.Report.Slots {
		s := &q.Report.Slots[k]
		i, ok := g.p.keys.find(q.unit.defs[s.Map], q.key(s, at.numberOf))
		if !ok {
			return false
		}
		at.slots = append(at.slots, i)
	}
	return true
}

// mapValue is nvtrace_map_value: the address of the value of a key, which becomes 0 if it is not there.
func (u *unit) mapValue(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	key := argBytes{k, &c.Args[1]}
	if x.Kind != object.LayoutHash {
		return register64(k.Lookup(x, key, u.found(&c.CallInfo))), nil
	}
	a, p, have := k.Held(k.Lookup(x, key, false)), k.Reg(ptx.Pred), k.Label()
	k.F("setp.ne.u64 %s, %s, 0;", p, a)
	k.F("@%s bra %s;", p, have)
	k.Update(x, key, zeros{}, "1", false, false, false) // BPF_NOEXIST
	k.F("mov.u64 %s, %s;", a, k.Lookup(x, key, false))
	k.At(have)
	return register64(a), nil
}

// zeros is memory that is zero.
type zeros struct{}

// Load implements [emit.BytesArg].
func (zeros) Load(uint64, int) string { return "0" }

// valued reports whether a call always has a value.
func (u *unit) valued(c *bpf.CallInfo) bool { return u.slots != nil && u.slots(c) || u.found(c) }

// alikeHelpers are helpers that say the same in all threads of a block or a grid.
var alikeHelpers = map[int32]bpf.Extent{
	helper.Log2: bpf.OfGrid, helper.Popc: bpf.OfGrid, helper.ProcessThread: bpf.OfGrid, helper.Device: bpf.OfGrid, helper.Rank: bpf.OfGrid,
	helper.Launch: bpf.OfGrid, helper.GridDim: bpf.OfGrid, helper.BlockDim: bpf.OfGrid, helper.BlockIdx: bpf.OfBlock,
	helper.FuncArg: bpf.OfGrid, helper.FuncArgCount: bpf.OfGrid,
	helper.MapValue: bpf.OfGrid,
}

// repeated are helpers that do nothing new when they are called again.
var repeated = []int32{
	helper.FuncArg, helper.FuncArgCount, helper.GridDim, helper.BlockDim, helper.BlockIdx, helper.MapValue,
	helper.Max, helper.Min, helper.SMax, helper.SMin, helper.Max32, helper.Min32, helper.SMax32, helper.SMin32,
}

// alike returns which threads of a launch see the same in a field.
func alike(id int) bpf.Extent {
	switch {
	case id <= fieldBlockDimZ || knownAt(id):
		return bpf.OfGrid
	case id <= fieldBlockZ:
		return bpf.OfBlock
	}
	return bpf.OfThread
}

// knownAt reports whether a field is a number that is known where a program is put.
func knownAt(id int) bool {
	switch id {
	case fieldSite, fieldSize, fieldSpace, fieldAccess, fieldInsn, fieldBlock, fieldLine, fieldFile, fieldCount, fieldISA, fieldGuarded:
		return true
	}
	return false
}
