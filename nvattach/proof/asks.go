package proof

import (
	"encoding/binary"
	"slices"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

// UsesAny reports whether the program uses one of some maps.
func (q *Program) UsesAny(some []bool) bool {
	for i, is := range some {
		if is && q.Report.Maps[i].Used {
			return true
		}
	}
	return false
}

// Use says how the program uses a map, nil if it does not.
func (q *Program) Use(d *object.MapDef) *bpf.MapUse {
	i := slices.Index(q.Unit.Defs, d)
	if i < 0 || i >= len(q.Report.Maps) || !q.Report.Maps[i].Used {
		return nil
	}
	return &q.Report.Maps[i]
}

// AddsOrInserts reports whether a program does nothing with a hash but look values up,
// add to them and insert keys: one that is there keeps its value then.
func (q *Program) AddsOrInserts(use *bpf.MapUse) bool {
	for _, c := range use.Calls {
		switch flags := &c.Info.Consts[3]; c.Helper {
		case helper.MapLookup, helper.MapValue:
		case helper.MapUpdate:
			if !q.inserts[c.Info.Insn] && (!flags.Known || flags.Value != helper.FlagNoExist) {
				return false
			}
		default:
			return false
		}
	}
	return !use.Loads && !use.Stores && !use.Atomics
}

// UsesBlocks returns a map of blocks that the program uses, or nil.
func (q *Program) UsesBlocks() *object.MapDef {
	for i, d := range q.Unit.Defs {
		if d.PerBlock() && i < len(q.Report.Maps) && q.Report.Maps[i].Used {
			return d
		}
	}
	return nil
}

// UsesOwn reports whether a program uses variables of which each thread has its own.
func (q *Program) UsesOwn() bool {
	for i, d := range q.Unit.Defs {
		if d.Thread && q.Report.Maps[i].Used {
			return true
		}
	}
	return false
}

// SharesOwn reports whether anything but the thread's variables can depend on these.
func (q *Program) SharesOwn() bool {
	for i, d := range q.Unit.Defs {
		if !d.Thread && q.Report.Maps[i].Used {
			return true
		}
	}
	return len(q.Report.Helpers) > 0
}

// OwnWords are the initial values of the variables of each thread that a program uses.
func (q *Program) OwnWords() (list []uint32) {
	for i, d := range q.Unit.Defs {
		if !d.Thread || !q.Report.Maps[i].Used {
			continue
		}
		for b := d.Initial; len(b) > 0; b = b[min(8, len(b)):] {
			var v [8]byte
			copy(v[:], b)
			list = append(list, uint32(binary.LittleEndian.Uint64(v[:])), uint32(binary.LittleEndian.Uint64(v[:])>>32))
		}
	}
	return list
}

// Reconverge reports whether threads should be brought together again behind the
// program: the assembler does so by itself behind a short branch.
func (q *Program) Reconverge() bool {
	if q.Point.Kind == object.KindExit || q.Point.Kind == object.KindRun {
		return false
	}
	if q.Report.Branches > 1 || q.Report.FueledLoops+q.Report.ProvenLoops > 0 {
		return true
	}
	for i := range q.Report.Maps {
		if q.Report.Maps[i].Used && q.Unit.Defs[i].Layout() == object.LayoutHash {
			return true
		}
	}
	return false
}

// WantsReturn reports whether a program asks what functions return.
func (q *Program) WantsReturn() bool { return slices.Contains(q.Report.Helpers, helper.FuncRet) }

// AsksForArguments reports whether a program calls bpf_get_func_arg or its like.
func (q *Program) AsksForArguments() bool {
	return slices.Contains(q.Report.Helpers, helper.FuncArg) || slices.Contains(q.Report.Helpers, helper.FuncArgCount)
}

// ReadsValue reports whether a program reads what an access to memory carries.
func (q *Program) ReadsValue() bool {
	return slices.ContainsFunc(q.Report.Fields, func(i int) bool { return q.Fields[i] == FieldValue || q.Fields[i] == FieldValue2 })
}

// AsksForPlace reports whether a program reads what is another number at each place of its kind, or counts by that.
func (q *Program) AsksForPlace() bool {
	place := func(i int) bool {
		a, b := q.Fields[i], q.Fields[i]
		if a >= FieldPair {
			a, b = (a-FieldPair)/FieldPair, (a-FieldPair)%FieldPair
		}
		return knownAt(a) && a != FieldISA || knownAt(b) && b != FieldISA
	}
	return slices.ContainsFunc(q.Report.Fields, place) || slices.ContainsFunc(q.Report.Slots, func(s bpf.SlotUse) bool {
		return slices.ContainsFunc(s.Key, func(k bpf.KeyPart) bool { return k.Field >= 0 && place(k.Field) })
	})
}

// AsksForLines reports whether a program reads the place in the source, which only PTX has.
func (q *Program) AsksForLines() bool {
	return slices.ContainsFunc(q.Report.Fields, func(i int) bool { return q.Fields[i] == FieldLine || q.Fields[i] == FieldFile })
}

// OnlyCounts reports whether it makes no difference when a program runs: it adds to
// values of arrays that no program does anything else with, and asks for no time.
func (q *Program) OnlyCounts() bool {
	for _, i := range q.Report.Fields {
		if id := q.Fields[i]; id == FieldTime || id == FieldClock {
			return false
		}
	}
	for _, h := range q.Report.Helpers {
		switch h {
		case helper.MapLookup, helper.Log2, 8, 14, helper.FuncArg, helper.FuncArgCount, 503, 504, 505, 508, 509, 510, 511, 512:
		default:
			return false
		}
	}
	for i := range q.Report.Maps {
		u, d := &q.Report.Maps[i], q.Unit.Defs[i]
		if u.Used && !d.ReadOnly && (!u.AddOnly() || d.Layout() != object.LayoutArray || d.Thread || d.PerBlock()) {
			return false
		}
	}
	return true
}

// Placed returns the keys of the program that have places, see the top of this file.
func (q *Program) Placed() []bpf.SlotUse {
	if q.Plain == nil {
		return nil
	}
	return q.Report.Slots
}

// PlacedMaps are the maps that have places for the program.
func (q *Program) PlacedMaps() (list []*object.MapDef) {
	if q.Plain == nil {
		return nil
	}
	for _, s := range q.Report.Slots {
		if d := q.Unit.Defs[s.Map]; !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// mostSMs is how many multiprocessors a GPU has at most whose numbers, which may have gaps, are less than bpf.MostSlots.
const mostSMs = 192

// HasPlaces reports whether some maps have the places that a program wants.
func (q *Program) HasPlaces(maps *mapmem.Maps) bool {
	small := func(s bpf.SlotUse) bool { return s.Slots() > 1 }
	return q.Plain != nil && (maps.SMs <= mostSMs || !slices.ContainsFunc(q.Report.Slots, small)) && !slices.ContainsFunc(q.PlacedMaps(), func(d *object.MapDef) bool {
		x := maps.Of(d)
		return x == nil || x.KeyPlaces == 0
	})
}

// Numbers reports whether a key has the place's number in it.
func (q *Program) Numbers(s *bpf.SlotUse) bool {
	return slices.ContainsFunc(s.Key, func(k bpf.KeyPart) bool {
		if k.Field < 0 || k.Below > 0 {
			return false
		}
		id := q.Fields[k.Field]
		return id == FieldSite || id >= FieldPair && ((id-FieldPair)/FieldPair == FieldSite || (id-FieldPair)%FieldPair == FieldSite)
	})
}

// Keys returns the keys of a use at a place, one for each slot, of whose fields value knows those that are numbers there.
func (q *Program) Keys(s *bpf.SlotUse, value func(id int) uint64) [][]byte {
	keys := make([][]byte, s.Slots())
	for i := range keys {
		keys[i] = s.Of(i, func(field int) uint64 {
			id := q.Fields[field]
			if id >= FieldPair {
				return value((id-FieldPair)/FieldPair) | value((id-FieldPair)%FieldPair)<<32
			}
			return value(id)
		})
	}
	return keys
}

// SlotMap returns the map of parameter number i of BodySlot.
func (q *Program) SlotMap(i int) *object.MapDef {
	return q.Unit.Defs[q.Report.Slots[i%len(q.Report.Slots)].Map]
}
