package nvattach

import (
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

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
