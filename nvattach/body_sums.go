package nvattach

import (
	"encoding/binary"
	"fmt"

	"nvtrace/fatbin"
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
)

// A sum is one such addition.
type sum struct {
	to    *mapmem.Map
	at    uint64 // of the value of the map's first copy
	bytes int
	what  proof.BodyValue // which is added, if field is set
	field bool
	n     int64 // else
	// slot is, where the value is that of a key which has a place, 1 + the use of the program's; at is in the value then.
	slot int
}

// sumsOf returns what a program adds to parts of maps of which each multiprocessor has its own, so
// that no program looks at them; nil if it does anything else.
func sumsOf(q *proof.Program, maps *mapmem.Maps) []sum {
	switch q.Point.Kind {
	case object.KindMem, object.KindInsn, object.KindBlock:
	default:
		return nil
	}
	adds, ok := q.Verified.Additions()
	if !ok || len(adds) > mostSums {
		return nil
	}
	var list []sum
	for _, a := range adds {
		x := maps.Of(q.Unit.Defs[a.Map])
		if a.Slot > 0 {
			if x == nil || x.KeyPlaces == 0 || q.Numbers(&q.Report.Slots[a.Slot-1]) {
				return nil
			}
			s := sum{to: x, at: uint64(a.Offset), bytes: a.Bytes, n: a.Number, slot: a.Slot}
			if !fillSum(q, &s, a.Field) {
				return nil
			}
			list = append(list, s)
			continue
		}
		if x == nil || x.Kind != object.LayoutArray || x.OfHost || !x.Striped() {
			return nil
		}
		s := sum{to: x, at: x.Base + uint64(a.Offset), bytes: a.Bytes, n: a.Number}
		switch c := a.Lookup; {
		case c == nil:
		case c.Helper != helper.MapLookup || len(c.Info.Bytes[1]) != 4 || binary.LittleEndian.Uint32(c.Info.Bytes[1]) >= x.Def.MaxEntries:
			return nil
		default:
			s.at += uint64(binary.LittleEndian.Uint32(c.Info.Bytes[1])) * x.Stride
		}
		if !fillSum(q, &s, a.Field) {
			return nil
		}
		list = append(list, s)
	}
	return list
}

// fillSum says what a sum adds, a field or its number; false if it can't.
func fillSum(q *proof.Program, s *sum, field int) bool {
	if field < 0 {
		return s.n == int64(int32(s.n))
	}
	s.what, s.field = proof.BodyValues[q.Fields[field]]
	return s.field && known(s.what)
}

// mostSums bounds the additions of a program: each takes a parameter of a Body.
const mostSums = 8

// String is what machine code depends on that does not stand in a Body.
func (s sum) String() string {
	if s.slot > 0 {
		return fmt.Sprint(s.what, s.field, s.n, "/", s.slot)
	}
	return fmt.Sprint(s.what, s.field, s.n)
}

// known reports whether a value is a number when programs are put at places.
func known(v proof.BodyValue) bool {
	switch v {
	case proof.BodySize, proof.BodySpace, proof.BodyAccess, proof.BodyInsn, proof.BodyBlock, proof.BodyCount:
		return true
	}
	return false
}

// sumText writes a Body that makes a program's sums.
func (p *Plan) sumText(q *proof.Program, list []sum, maps *mapmem.Maps, arch fatbin.Arch, f bodyForm) (*Body, error) {
	return p.function(q, maps, arch, nil, "", func(g *weaving, at *proof.Place) (string, string, error) {
		out := weaverSink{w: g.w}
		c := &emit.Code{S: &out, M: maps}
		active := ""
		if f.guarded {
			active = at.Given.Reg(proof.BodyParam{What: proof.BodyActive})
		}
		if f.sum == sumHere {
			sumsHere(c, list, at.Given, active)
		} else {
			sumsAtEnd(c, list, at.Given, max(f.keys, 1), q)
		}
		return out.String(), "", nil
	})
}

// sumsHere adds what is the same in all threads that are there and, unless active is "", are active.
func sumsHere(c *emit.Code, list []sum, v *proof.Given, active string) {
	all, count, on, is := c.Reg(ptx.B32), c.Reg(ptx.B32), "", c.Reg(ptx.Pred)
	if active != "" {
		on = "@" + is + " "
		c.F("setp.ne.u32 %s, %s, 0;", is, c.Low(active))
	}
	c.F("%sactivemask.b32 %s;", on, all)
	first := firstOf(c, all)
	if active != "" {
		c.F("and.pred %s, %s, %s;", first, first, is)
	}
	c.F("popc.b32 %s, %s;", count, all)
	for i, s := range list {
		total := c.Reg(ptx.B64)
		c.F("mul.wide.s32 %s, %s, %s;", total, count, c.Low(v.Reg(proof.BodyParam{What: proof.BodySum, Offset: i})))
		addSum(c, &s, v, s.slot-1, first, total)
	}
}

// sumsAtEnd adds what threads have added up, once for all of a warp that have the same: the list for each of some
// combinations of keys.
func sumsAtEnd(c *emit.Code, list []sum, v *proof.Given, keys int, q *proof.Program) {
	all := c.Reg(ptx.B32)
	c.F("activemask.b32 %s;", all)
	for i := range keys * len(list) {
		s := list[i%len(list)]
		same, count, own, total := c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B64), c.Reg(ptx.B64)
		c.S.Line(loadOwn(own, i, true))
		c.F("match.any.sync.b64 %s, %s, %s;", same, own, all)
		first := firstOf(c, same)
		c.F("setp.ne.and.u64 %s, %s, 0, %s;", first, own, first)
		c.F("popc.b32 %s, %s;", count, same)
		c.F("mul.lo.u64 %s, %s, %s;", total, own, c.Wide(count))
		addSum(c, &s, v, i/len(list)*len(q.Report.Slots)+s.slot-1, first, total)
	}
}

// firstOf returns a predicate that holds in the first of some threads, by their lanes, of which the
// thread is one.
func firstOf(c *emit.Code, threads string) string {
	before, p := c.Special("%lanemask_lt"), c.Reg(ptx.Pred)
	c.F("and.b32 %s, %s, %s;", before, before, threads)
	c.F("setp.eq.u32 %s, %s, 0;", p, before)
	return p
}

// addSum adds a number to the multiprocessor's part of a map, that of a key with a place to that which the
// parameter slot says.
func addSum(c *emit.Code, s *sum, v *proof.Given, slot int, where, total string) {
	a := ""
	if s.slot > 0 {
		a = keyPlace(c, s.to, v.Reg(proof.BodyParam{What: proof.BodySlot, Offset: slot}))
		if s.at > 0 {
			c.F("add.s64 %s, %s, %d;", a, a, s.at)
		}
	} else {
		a = c.PerSM(s.at, s.to.CopyBytes)
	}
	if s.bytes == 4 {
		total = c.Low(total)
	}
	c.F("@%s red.relaxed.gpu.global.add.u%d [%s], %s;", where, 8*s.bytes, a, total)
}
