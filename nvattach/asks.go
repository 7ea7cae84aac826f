package nvattach

import (
	"encoding/binary"
	"slices"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

// usesAny reports whether the program uses one of some maps.
func (q *PlannedProgram) usesAny(some []bool) bool {
	for i, is := range some {
		if is && q.Report.Maps[i].Used {
			return true
		}
	}
	return false
}

// use says how the program uses a map, nil if it does not.
func (q *PlannedProgram) use(d *object.MapDef) *bpf.MapUse {
	i := slices.Index(q.unit.defs, d)
	if i < 0 || i >= len(q.Report.Maps) || !q.Report.Maps[i].Used {
		return nil
	}
	return &q.Report.Maps[i]
}

// addsOrInserts reports whether a program does nothing with a hash but look values up,
// add to them and insert keys: one that is there keeps its value then.
func (q *PlannedProgram) addsOrInserts(use *bpf.MapUse) bool {
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

// usesBlocks returns a map of blocks that the program uses, or nil.
func (q *PlannedProgram) usesBlocks() *object.MapDef {
	for i, d := range q.unit.defs {
		if d.PerBlock() && i < len(q.Report.Maps) && q.Report.Maps[i].Used {
			return d
		}
	}
	return nil
}

// usesOwn reports whether a program uses variables of which each thread has its own.
func (q *PlannedProgram) usesOwn() bool {
	for i, d := range q.unit.defs {
		if d.Thread && q.Report.Maps[i].Used {
			return true
		}
	}
	return false
}

// sharesOwn reports whether anything but the thread's variables can depend on these.
func (q *PlannedProgram) sharesOwn() bool {
	for i, d := range q.unit.defs {
		if !d.Thread && q.Report.Maps[i].Used {
			return true
		}
	}
	return len(q.Report.Helpers) > 0
}

// ownWords are the initial values of the variables of each thread that a program uses.
func (q *PlannedProgram) ownWords() (list []uint32) {
	for i, d := range q.unit.defs {
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

// reconverge reports whether threads should be brought together again behind the
// program: the assembler does so by itself behind a short branch.
func (q *PlannedProgram) reconverge() bool {
	if q.Point.Kind == object.KindExit || q.Point.Kind == object.KindRun {
		return false
	}
	if q.Report.Branches > 1 || q.Report.FueledLoops+q.Report.ProvenLoops > 0 {
		return true
	}
	for i := range q.Report.Maps {
		if q.Report.Maps[i].Used && q.unit.defs[i].Layout() == object.LayoutHash {
			return true
		}
	}
	return false
}

// wantsReturn reports whether a program asks what functions return.
func (q *PlannedProgram) wantsReturn() bool { return slices.Contains(q.Report.Helpers, helper.FuncRet) }

// asksForArguments reports whether a program calls bpf_get_func_arg or its like.
func (q *PlannedProgram) asksForArguments() bool {
	return slices.Contains(q.Report.Helpers, helper.FuncArg) || slices.Contains(q.Report.Helpers, helper.FuncArgCount)
}

// readsValue reports whether a program reads what an access to memory carries.
func (q *PlannedProgram) readsValue() bool {
	return slices.ContainsFunc(q.Report.Fields, func(i int) bool { return q.fields[i] == fieldValue || q.fields[i] == fieldValue2 })
}

// asksForLines reports whether a program reads the place in the source, which only PTX has.
func (q *PlannedProgram) asksForLines() bool {
	return slices.ContainsFunc(q.Report.Fields, func(i int) bool { return q.fields[i] == fieldLine || q.fields[i] == fieldFile })
}

// onlyCounts reports whether it makes no difference when a program runs: it adds to
// values of arrays that no program does anything else with, and asks for no time.
func (q *PlannedProgram) onlyCounts() bool {
	for _, i := range q.Report.Fields {
		if id := q.fields[i]; id == fieldTime || id == fieldClock {
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
		u, d := &q.Report.Maps[i], q.unit.defs[i]
		if u.Used && !d.ReadOnly && (!u.AddOnly() || d.Layout() != object.LayoutArray || d.Thread || d.PerBlock()) {
			return false
		}
	}
	return true
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

// placed reports whether some maps have the places that a program wants.
func (q *PlannedProgram) placed(maps *mapmem.Maps) bool {
	return q.plain != nil && !slices.ContainsFunc(q.placedMaps(), func(d *object.MapDef) bool {
		x := maps.Of(d)
		return x == nil || x.KeyPlaces == 0
	})
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

// slotMap returns the map of parameter number i of BodySlot.
func (q *PlannedProgram) slotMap(i int) *object.MapDef {
	return q.unit.defs[q.Report.Slots[i%len(q.Report.Slots)].Map]
}
