package nvattach

import (
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// slot writes the address of what use k of a program counts.
func (g *weaving) slot(b *bpf.Gen, q *proof.Program, at *proof.Place, k int) ptx.Arg {
	s := &q.Report.Slots[k]
	x := g.maps.Of(q.Unit.Defs[s.Map])
	c := q.Unit.Code(b)
	if at.Given == nil {
		return proof.Register64(c.PerSM(x.KeyPlace(at.Slots[k], 0), x.KeyPlaceBytes))
	}
	return proof.Register64(keyPlace(c, x, at.Given.Reg(proof.BodyParam{What: proof.BodySlot, Offset: k})))
}

// keyPlace returns the address of the place of a map that is so many bytes behind the first.
func keyPlace(c *emit.Code, x *mapmem.Map, offset string) string {
	a := c.PerSM(x.KeyPlace(0, 0), x.KeyPlaceBytes)
	c.F("add.s64 %s, %s, %s;", a, a, offset)
	return a
}

// takeSlots finds the places of all keys at a place in PTX; false if there is no room for one.
func (g *weaving) takeSlots(q *proof.Program, at *proof.Place) bool {
	if !q.HasPlaces(g.maps) {
		return false
	}
	at.Slots = at.Slots[:0]
	for k := range q.Report.Slots {
		s := &q.Report.Slots[k]
		i, ok := g.p.keys.find(q.Unit.Defs[s.Map], q.Keys(s, at.NumberOf))
		if !ok {
			return false
		}
		at.Slots = append(at.Slots, i)
	}
	return true
}
