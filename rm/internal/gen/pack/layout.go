package pack

import (
	"cmp"
	"maps"
	"slices"

	"nvtrace/rm/internal/gen/facts"
	"nvtrace/rm/internal/wire"
)

// structRec encodes a record with all that other tables know of its members.
func (v *view) structRec(name string, t *facts.Type) record {
	to := v.target(name)
	roles := fact[map[string]string](v, facts.Roles, to)
	counts := fact[map[string]string](v, facts.Counts, to)
	dirs := fact[map[string]string](v, facts.Dirs, to)
	get := func(m *map[string]string, member string) string {
		if m == nil {
			return ""
		}
		return (*m)[member]
	}
	var r record
	r.num(v.str(name))
	r.int(t.Size)
	r.int(t.Align)
	if t.Union {
		r.num(1)
	} else {
		r.num(0)
	}
	r.int(int64(len(t.Fields)))
	for i := range t.Fields {
		m := &t.Fields[i]
		x := extra{role: get(roles, m.Name), count: get(counts, m.Name), dir: get(dirs, m.Name), domain: v.domainOf(name, m)}
		if s := stringMember(name, m); s {
			x.role = "string"
		}
		v.field(&r, name, m, &x)
	}
	return r
}

type extra struct {
	role, count, dir string
	domain           uint64
}

func (v *view) field(r *record, owner string, m *facts.Field, x *extra) {
	kind, ref := v.kind(owner, m)
	bits := uint64(kind)
	flag := func(on bool, bit uint64) {
		if on {
			bits |= bit
		}
	}
	elements := int64(1)
	for _, d := range m.Dims {
		elements *= max(d, 0)
	}
	flag(len(m.Dims) > 0, wire.FieldDims)
	flag(m.Bits > 0, wire.FieldBits)
	flag(x.role != "", wire.FieldRole)
	flag(x.count != "", wire.FieldCount)
	flag(x.domain != 0, wire.FieldDomain)
	flag(x.dir != "", wire.FieldDir)
	flag(elements == 0, wire.FieldElem)
	r.num(bits)
	r.num(v.str(m.Name))
	r.int(m.Off)
	r.int(m.Size)
	r.num(v.str(m.Type))
	if kind == wire.Record {
		r.num(ref)
	}
	if len(m.Dims) > 0 {
		r.int(int64(len(m.Dims)))
		for _, d := range m.Dims {
			r.int(max(d, 0))
		}
	}
	if elements == 0 {
		r.int(v.sizeOf(m.Type))
	}
	if m.Bits > 0 {
		r.int(m.Bit)
		r.int(m.Bits)
	}
	if x.role != "" {
		r.num(v.str(x.role))
	}
	if x.count != "" {
		r.num(v.str(x.count))
	}
	if x.domain != 0 {
		r.num(x.domain)
	}
	if x.dir != "" {
		r.num(v.str(x.dir))
	}
}

// kind says how a member's bytes are read, with a reference if it is a record.
func (v *view) kind(owner string, m *facts.Field) (int, uint64) {
	if ref := v.ref(m.Type); ref != 0 {
		return wire.Record, ref
	}
	s := fact[facts.Scalar](v, facts.Scalars, v.target(m.Type))
	if s == nil {
		v.fail("%s.%s: no such type as %s", owner, m.Name, m.Type)
		return wire.Uint, 0
	}
	switch s.Kind {
	case "s":
		return wire.Int, 0
	case "f":
		return wire.Float, 0
	case "p":
		return wire.Pointer, 0
	case "e":
		return wire.Enum, 0
	}
	return wire.Uint, 0
}

// target follows typedefs.
func (v *view) target(name string) string {
	for range 8 {
		to := fact[string](v, facts.Aliases, name)
		if to == nil {
			break
		}
		name = *to
	}
	return name
}

func (v *view) sizeOf(name string) int64 {
	name = v.target(name)
	if t := fact[facts.Type](v, facts.Types, name); t != nil {
		return t.Size
	}
	if s := fact[facts.Scalar](v, facts.Scalars, name); s != nil {
		return s.Size
	}
	return 0
}

// scalarStruct makes a record of a number that crosses by itself, as the array
// of GPU ids that ATTACH_GPUS_TO_FD takes does.
func (v *view) scalarStruct(name string) uint64 {
	s := fact[facts.Scalar](v, facts.Scalars, name)
	if s == nil {
		return 0
	}
	var r record
	r.num(v.str(name))
	r.int(s.Size)
	r.int(s.Size)
	r.num(0)
	r.num(1)
	v.field(&r, name, &facts.Field{Name: "value", Size: s.Size, Type: name}, &extra{})
	return uint64(v.p.recs[wire.StructRecs].id(string(r))) + 1
}

// domainOf is a reference to the names of a member's values: those found for
// the member, else those of its enum type.
func (v *view) domainOf(owner string, m *facts.Field) uint64 {
	for _, rec := range []string{owner, v.target(owner)} {
		key := rec + "." + m.Name
		if d := fact[facts.Domain](v, facts.Domains, key); d != nil {
			return v.domain(d)
		}
		if as := sameValues[key]; as != "" {
			if d := fact[facts.Domain](v, facts.Domains, as); d != nil {
				return v.domain(d)
			}
		}
	}
	s := fact[facts.Scalar](v, facts.Scalars, v.target(m.Type))
	if s == nil || s.Enum == "" {
		return 0
	}
	e := fact[map[string]int64](v, facts.Enums, s.Enum)
	if e == nil || len(*e) == 0 {
		return 0
	}
	d := facts.Domain{Via: "enum", Vals: map[string]uint64{}}
	for n, x := range *e {
		d.Vals[n] = uint64(x) & (1<<(8*s.Size) - 1)
	}
	return v.domain(trimPrefix(d))
}

// trimPrefix takes off what all names of an enum start with, up to an underscore.
func trimPrefix(d facts.Domain) *facts.Domain {
	names := slices.Sorted(maps.Keys(d.Vals))
	if len(names) < 2 {
		return &d
	}
	a, b := names[0], names[len(names)-1]
	cut := 0
	for i := 0; i < min(len(a), len(b)) && a[i] == b[i]; i++ {
		if a[i] == '_' {
			cut = i + 1
		}
	}
	out := facts.Domain{Prefix: a[:cut], Via: d.Via, Vals: map[string]uint64{}}
	for n, x := range d.Vals {
		out.Vals[n[cut:]] = x
	}
	return &out
}

func (v *view) domain(d *facts.Domain) uint64 {
	var r record
	r.num(v.str(d.Prefix))
	if d.Via == "name" {
		r.num(0)
	} else {
		r.num(1)
	}
	v.values(&r, corrected(d))
	r.int(int64(len(d.Ranges)))
	for _, x := range d.Ranges {
		r.num(v.str(x.Name))
		r.int(x.Hi)
		r.int(x.Lo)
		v.values(&r, x.Vals)
	}
	r.int(int64(len(d.Sub)))
	for _, n := range slices.Sorted(maps.Keys(d.Sub)) {
		r.num(v.str(n))
		v.values(&r, d.Sub[n])
	}
	return uint64(v.p.recs[wire.DomainRecs].id(string(r))) + 1
}

// values are written in ascending order, as differences.
func (v *view) values(r *record, m map[string]uint64) {
	names := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[a], m[b]), cmp.Compare(a, b)) })
	r.int(int64(len(names)))
	last := uint64(0)
	for _, n := range names {
		r.num(v.str(n))
		r.num(m[n] - last)
		last = m[n]
	}
}
