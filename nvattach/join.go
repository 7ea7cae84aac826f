package nvattach

import (
	"slices"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

// joins reports whether each side has a part of its own of a map, see joined.
func (p *Plan) joins(d *object.MapDef) bool { return len(p.joined(d)) > 0 }

// joined returns the parts of an array's values that programs on the host and in kernels change,
// if all of them do nothing with these but add to them, "or" bits in, or make them higher by nvtrace_max,
// without a look at the result. Each side then has a part of the map of its own, which begins with
// zeros on the GPU, in the GPU's memory, where changes are fast, and exact on every machine. What is shown is both together,
// which the host's part becomes whenever the GPU's is read; see [nvtrace/nvattach/hostrun.Join].
//
// Values of a hash can't be apart like that: a program that looks a key up learns whether the
// other side has inserted it.
func (p *Plan) joined(d *object.MapDef) []mapmem.AddField {
	if d.Layout() != object.LayoutArray || !d.Sharable() || !p.both(d) || p.inMap(d) {
		return nil
	}
	set := newFieldSet(d)
	take := func(u *bpf.MapUse) bool { return u.MergeOnly() && set.add(u) && set.merge(u) }
	for _, q := range p.Programs {
		if u := q.Use(d); u != nil && !take(u) {
			return nil
		}
	}
	for _, q := range p.Host {
		if i := slices.Index(q.Unit.Defs, d); i >= 0 && q.Uses[i] && !take(&q.Machine.Maps[i]) {
			return nil
		}
	}
	return set.list
}

// inMap reports whether a map is a value of an array of maps, by which programs reach it, too.
func (p *Plan) inMap(d *object.MapDef) bool {
	return slices.ContainsFunc(p.Objects, func(o *object.Object) bool {
		return slices.ContainsFunc(o.Maps, func(outer *object.MapDef) bool {
			for _, name := range outer.Maps {
				if o.Map(name) == d {
					return true
				}
			}
			return false
		})
	})
}

// A fieldSet is the parts of a map's values that programs add to.
type fieldSet struct {
	list  []mapmem.AddField
	owner []int32 // by byte of the value: 1 + index in list
}

func newFieldSet(d *object.MapDef) *fieldSet { return &fieldSet{owner: make([]int32, d.ValueSize)} }

// add takes in what a program adds to; it reports false where that is no field of 4 or 8
// bytes, or overlaps another one.
func (s *fieldSet) add(use *bpf.MapUse) bool {
	return !slices.ContainsFunc(use.Adds, func(r bpf.AddRange) bool { return !s.take(r, mapmem.JoinAdd) })
}

// merge is add of what else a program does whose results can be joined.
func (s *fieldSet) merge(use *bpf.MapUse) bool {
	for i := range use.Merges {
		by := mapmem.JoinOr
		switch use.Merges[i].Helper {
		case 0:
		case helper.Max, helper.Max32:
			by = mapmem.JoinMax
		default: // lowest numbers, and signed ones: the zeros that a part begins with change them
			return false
		}
		if !s.take(use.Merges[i].AddRange, by) {
			return false
		}
	}
	return true
}

func (s *fieldSet) take(r bpf.AddRange, by mapmem.JoinOp) bool {
	if r.Size != 4 && r.Size != 8 || r.Offset < 0 || r.End > len(s.owner) || (r.End-r.Offset)%r.Size != 0 {
		return false
	}
	for at := r.Offset; at < r.End; at += r.Size {
		f := mapmem.AddField{Offset: uint32(at), Size: uint32(r.Size), By: by}
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
	return true
}
