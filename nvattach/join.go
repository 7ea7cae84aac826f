package nvattach

import (
	"encoding/binary"
	"fmt"
	"slices"

	"nvtrace/ptx/bpf"
)

// joins reports whether programs on the host and in kernels use an array and do nothing with
// its values but add to them. Each side then has a part of its own, the GPU's in the GPU's
// memory, where its additions are fast, and exact on every machine. What is shown is the sum, which the
// host's part becomes whenever the GPU's is read; see [Join].
//
// Values of a hash can't be apart like that: a program that looks a key up learns whether the
// other side has inserted it.
func (p *Plan) joins(d *MapDef) bool {
	if d.layout() != layoutArray || !d.sharable() || !p.both(d) || p.inMap(d) {
		return false
	}
	set := newFieldSet(d)
	add := func(u *bpf.MapUse) bool { return u.AddOnly() && set.add(u) }
	for _, q := range p.Programs {
		if u := q.use(d); u != nil && !add(u) {
			return false
		}
	}
	for _, q := range p.Host {
		if i := slices.Index(q.unit.defs, d); i >= 0 && q.uses[i] && !add(&q.Machine.Maps[i]) {
			return false
		}
	}
	return true
}

// inMap reports whether a map is a value of an array of maps, by which programs reach it, too.
func (p *Plan) inMap(d *MapDef) bool {
	return slices.ContainsFunc(p.Objects, func(o *Object) bool {
		return slices.ContainsFunc(o.Maps, func(outer *MapDef) bool {
			for _, name := range outer.Maps {
				if o.Map(name) == d {
					return true
				}
			}
			return false
		})
	})
}

// use says how the program uses a map, nil if it does not.
func (q *PlannedProgram) use(d *MapDef) *bpf.MapUse {
	i := slices.Index(q.unit.defs, d)
	if i < 0 || i >= len(q.Report.Maps) || !q.Report.Maps[i].Used {
		return nil
	}
	return &q.Report.Maps[i]
}

// A fieldSet is the parts of a map's values that programs add to.
type fieldSet struct {
	list  []AddField
	owner []int32 // by byte of the value: 1 + index in list
}

func newFieldSet(d *MapDef) *fieldSet { return &fieldSet{owner: make([]int32, d.ValueSize)} }

// add takes in what a program adds to; it reports false where that is no field of 4 or 8
// bytes, or overlaps another one.
func (s *fieldSet) add(use *bpf.MapUse) bool {
	for _, r := range use.Adds {
		if r.Size != 4 && r.Size != 8 || r.Offset < 0 || r.End > len(s.owner) || (r.End-r.Offset)%r.Size != 0 {
			return false
		}
		for at := r.Offset; at < r.End; at += r.Size {
			f := AddField{Offset: uint32(at), Size: uint32(r.Size)}
			if own := s.owner[at]; own != 0 {
				if s.list[own-1] != f {
					return false
				}
				continue
			}
			s.list = append(s.list, f)
			for b := at; b < at+r.Size; b++ {
				if s.owner[b] != 0 {
					return false
				}
				s.owner[b] = int32(len(s.list))
			}
		}
	}
	return true
}

// A Join adds to the host's maps what kernels of one GPU context have added to its parts of
// them.
type Join struct {
	maps *Maps
	to   *HostRunner
	last map[*Map][]Row // what was read of the parts, and is in the host's maps
}

// NewJoin returns what joins maps of a GPU to those of the host; nil if there is none to be joined.
func (r *HostRunner) NewJoin(m *Maps) *Join {
	if !slices.ContainsFunc(m.All, (*Map).Joined) {
		return nil
	}
	return &Join{maps: m, to: r, last: make(map[*Map][]Row)}
}

// Add reads the GPU's parts, and adds to the host's what came there since the last time. Programs
// and kernels may run.
func (j *Join) Add(mem Memory) error {
	for _, x := range j.maps.All {
		to := j.to.maps.Of(x.Def)
		if !x.joined || to == nil {
			continue
		}
		t, err := j.maps.Read(mem, x)
		if err != nil {
			return err
		}
		was := j.last[x]
		j.last[x] = t.Rows
		for i := range t.Rows {
			var before []byte
			if was != nil {
				before = was[i].Value
			}
			if err := j.addRow(to, uint64(i), before, t.Rows[i].Value, x.joins); err != nil {
				return fmt.Errorf("map %s: %w", x.Name, err)
			}
		}
	}
	return nil
}

// addRow adds to entry i of the host's map what a value has become more than it was; before is
// nil where that was 0.
func (j *Join) addRow(to *Map, i uint64, before, now []byte, fields []AddField) error {
	for _, f := range fields {
		n := f.of(now)
		if before != nil {
			n -= f.of(before)
		}
		if n == 0 {
			continue
		}
		at := to.base + i*to.stride + uint64(f.Offset)
		if _, err := j.to.mem.change(at, int(f.Size), func(old uint64) uint64 { return old + n }); err != nil {
			return err
		}
	}
	return nil
}

// of returns the field's number in a value.
func (f AddField) of(v []byte) uint64 {
	if f.Size == 4 {
		return uint64(binary.LittleEndian.Uint32(v[f.Offset:]))
	}
	return binary.LittleEndian.Uint64(v[f.Offset:])
}
