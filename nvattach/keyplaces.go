package nvattach

import (
	"slices"
	"sync"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// A key of a hash that is known where a program is put, @[kind] or @[kernel] say, needs no search there: what is
// counted under it has a place of its own beside the hash, on each multiprocessor, of which the program knows
// the address. Reading joins the places to their keys. That is for hashes whose values are only added to.
//
// Where a part of the key is small, the lane say, there are places for all that it can be, one behind the other.

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
	index map[string]int // by a key, or several that go together
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

// set says what the keys are of a place that was taken, and of those behind it.
func (p *placeKeys) set(d *object.MapDef, i int, keys [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.list(d)
	copy(l.keys[i:], keys)
	name := string(slices.Concat(keys...))
	if _, has := l.index[name]; !has {
		l.index[name] = i
	}
}

// find returns the place of the first of some keys, of which the others are behind it, and takes places if there are none.
func (p *placeKeys) find(d *object.MapDef, keys [][]byte) (i int, ok bool) {
	name := slices.Concat(keys...)
	p.mu.Lock()
	i, ok = p.list(d).index[string(name)]
	p.mu.Unlock()
	if ok {
		return i, true
	}
	if i, ok = p.take(d, len(keys)); ok {
		p.set(d, i, keys)
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
func place(u *proof.Unit, p *Plan, q *proof.Program, maps []bpf.Map, joined []bool, verify func(prog *object.Program, slots func(*bpf.CallInfo) bool) (*proof.Program, error)) *proof.Program {
	var calls []int
	for _, s := range q.Report.Slots {
		if d := u.Defs[s.Map]; s.Slots() <= keyRoom(d) && p.canPlace(d, maps[s.Map].System || joined[s.Map]) {
			calls = append(calls, s.Insn)
		}
	}
	if len(calls) == 0 {
		return q
	}
	prove := func(calls ...int) *proof.Program {
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
	again.Counter, again.Plain = q.Counter, q
	return again
}

// endsThreads reports whether a program may end threads, which do not come to those behind it then.
func (p *Plan) endsThreads() bool {
	return slices.ContainsFunc(p.Programs, func(q *proof.Program) bool { return slices.Contains(q.Report.Helpers, helper.Exit) })
}

// placedMaps are those of all programs.
func (p *Plan) placedMaps() (list []*object.MapDef) {
	for _, q := range p.Programs {
		for _, d := range q.PlacedMaps() {
			if !slices.Contains(list, d) {
				list = append(list, d)
			}
		}
	}
	return list
}

// keyPlaces is how many places a map has for keys.
func (p *Plan) keyPlaces(d *object.MapDef) int {
	if !slices.Contains(p.placedMaps(), d) {
		return 0
	}
	return keyRoom(d)
}
