package nvattach

import (
	"slices"

	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// kernelKeys are the places that a program's keys have in the machine code of a kernel: a run of them for each use,
// since those of other kernels are taken at the same time.
type kernelKeys struct {
	first []int // by use: the first place
	taken []int // by use: how many have a key
	room  []int // by use
	index []map[string]int
	named []namedKey // keys with the number of a place, which is known late
	sets  [][]int    // combinations of places, by use
}

// A namedKey is the key of a place, with the number of the program's place counted within the kernel.
type namedKey struct {
	q    *proof.Program
	use  int
	slot int
	at   *proof.Place
}

// takenKeys is how many places are taken of each map that has some.
func (p *Plan) takenKeys() (list []int) {
	for _, d := range p.placedMaps() {
		list = append(list, p.keys.taken(d))
	}
	return list
}

// keysSince returns the keys of places that were taken since.
func (p *Plan) keysSince(first []int) (list [][][]byte) {
	for i, d := range p.placedMaps() {
		list = append(list, p.keys.Keys(d)[first[i]:])
	}
	return list
}

// form is that of a program's body at a place, but for what depends on the instruction.
func (m *machine) form(q *proof.Program) bodyForm {
	return bodyForm{plain: q.Plain != nil && m.keys[q] == nil}
}

// prepareKeys takes places for the keys of programs. One for which there is no room has none in this kernel.
func (m *machine) prepareKeys(programs []*proof.Program) {
	m.keys = make(map[*proof.Program]*kernelKeys)
	for _, q := range programs {
		if !q.HasPlaces(m.r.maps) {
			continue
		}
		if keys, ok := m.reserveKeys(q); ok {
			m.keys[q] = keys
		}
	}
}

func (m *machine) reserveKeys(q *proof.Program) (*kernelKeys, bool) {
	n := len(q.Report.Slots)
	keys := &kernelKeys{first: make([]int, n), taken: make([]int, n), room: make([]int, n), index: make([]map[string]int, n)}
	spots := []spot{{}}
	if q.Point.Kind != object.KindEntry && q.Point.Kind != object.KindExit {
		spots = m.spots(q)
	}
	for k := range q.Report.Slots {
		s := &q.Report.Slots[k]
		keys.index[k] = make(map[string]int)
		if keys.room[k] = len(spots); !q.Numbers(s) {
			different := make(map[string]bool)
			for _, at := range spots {
				different[nameOf(m.keysOf(q, k, at.place()))] = true
			}
			keys.room[k] = len(different)
		}
		keys.room[k] *= s.Slots()
		first, ok := m.r.p.keys.take(q.Unit.Defs[s.Map], keys.room[k])
		if !ok {
			return nil, false
		}
		keys.first[k] = first
	}
	return keys, true
}

// place is the place of a spot, with 0 for its number.
func (s *spot) place() *proof.Place {
	return &proof.Place{Insn: uint32(s.insn), Block: uint32(s.block), Insns: uint32(s.insns)}
}

// nameOf is a name for keys that go together.
func nameOf(keys [][]byte) string { return string(slices.Concat(keys...)) }

// keysOf returns the keys of a use at a place, one for each of its slots.
func (m *machine) keysOf(q *proof.Program, k int, at *proof.Place) [][]byte {
	var access sass.Access
	guarded := false
	if kind := q.Point.Kind; kind != object.KindEntry && kind != object.KindExit {
		in := &m.weaver.Analysis().Insts[at.Insn]
		access, _ = in.Access()
		_, _, guarded = in.Guard()
		guarded = guarded && kind != object.KindBlock
	}
	return q.Keys(&q.Report.Slots[k], func(id int) uint64 { return uint64(fieldIn(at, id, access, guarded)) })
}

// fieldIn returns a field that is a number at a place in machine code, as bodies get it.
func fieldIn(at *proof.Place, id int, access sass.Access, guarded bool) uint32 {
	switch id {
	case proof.FieldSite:
		return at.Number
	case proof.FieldISA:
		return proof.ISASASS
	case proof.FieldGuarded:
		return uint32(btoi(guarded))
	}
	if v, ok := proof.BodyValues[id]; ok && known(v) {
		return numberAt(at, v, access)
	}
	return 0 // a line or file, which machine code is not asked for
}

// slotAt returns the place of keys that go together.
func (m *machine) slotAt(q *proof.Program, keys *kernelKeys, k int, of [][]byte) int {
	i, has := keys.index[k][nameOf(of)]
	if !has {
		i = keys.first[k] + keys.taken[k]
		keys.taken[k] += len(of)
		keys.index[k][nameOf(of)] = i
		m.r.p.keys.set(q.Unit.Defs[q.Report.Slots[k].Map], i, of)
	}
	return i
}

// keysAt returns the places of a program's keys at a spot; nil if keys have none.
func (m *machine) keysAt(q *proof.Program, keys *kernelKeys, s spot) []int {
	if keys == nil {
		return nil
	}
	list := make([]int, len(q.Report.Slots))
	for k := range list {
		list[k] = m.slotAt(q, keys, k, m.keysOf(q, k, s.place()))
	}
	return list
}

// takeKeys returns the places of a program's keys at a place.
func (m *machine) takeKeys(q *proof.Program, keys *kernelKeys, at *proof.Place, i int) []int {
	list := make([]int, len(q.Report.Slots))
	for k := range list {
		if !q.Numbers(&q.Report.Slots[k]) {
			list[k] = m.slotAt(q, keys, k, m.keysOf(q, k, at))
			continue
		}
		list[k] = keys.first[k] + keys.taken[k]
		keys.taken[k] += q.Report.Slots[k].Slots()
		keys.named = append(keys.named, namedKey{q: q, use: k, slot: list[k], at: at})
	}
	return list
}

// giveBack takes back what takeKeys has given to a place that could not be had.
func (k *kernelKeys) giveBack() {
	if k == nil || len(k.named) == 0 {
		return
	}
	last := k.named[len(k.named)-1].at
	for len(k.named) > 0 && k.named[len(k.named)-1].at == last {
		n := k.named[len(k.named)-1]
		k.taken[n.use] -= n.q.Report.Slots[n.use].Slots()
		k.named = k.named[:len(k.named)-1]
	}
}

// nameKeys says what the keys are that have numbers of places in them, now that these are known.
func (m *machine) nameKeys() {
	for _, q := range m.r.p.Programs {
		keys := m.keys[q]
		if keys == nil {
			continue
		}
		for _, n := range keys.named {
			at := *n.at
			at.Number += m.weaver.Base
			m.r.p.keys.set(q.Unit.Defs[q.Report.Slots[n.use].Map], n.slot, m.keysOf(q, n.use, &at))
		}
	}
}

// combination returns the number of a combination of places.
func (k *kernelKeys) combination(slots []int) int {
	if k == nil {
		return 0
	}
	for i, s := range k.sets {
		if slices.Equal(s, slots) {
			return i
		}
	}
	k.sets = append(k.sets, slots)
	return len(k.sets) - 1
}

// combinations is how many there are.
func (k *kernelKeys) combinations() int {
	if k == nil {
		return 1
	}
	return len(k.sets)
}

// of returns a combination.
func (k *kernelKeys) of(i int) []int {
	if k == nil {
		return nil
	}
	return k.sets[i]
}

// slots are the places of all combinations, one behind the other.
func (k *kernelKeys) slots() []int {
	if k == nil {
		return nil
	}
	return slices.Concat(k.sets...)
}
