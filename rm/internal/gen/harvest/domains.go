package harvest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"nvtrace/rm/internal/gen/facts"
)

// names is all constants and bit ranges, sorted, to find those with a prefix.
type names struct {
	f   *facts.Facts
	all []string
}

func (n *names) prefixed(p string) []string {
	i, _ := slices.BinarySearch(n.all, p)
	j := i
	for j < len(n.all) && strings.HasPrefix(n.all[j], p) {
		j++
	}
	return n.all[i:j]
}

// domain makes a domain of constants: those whose names extend a range's name
// are values of that range, the others plain values.
func (n *names) domain(prefix, via string, hits []string) facts.Domain {
	d := facts.Domain{Prefix: prefix, Via: via, Vals: map[string]uint64{}}
	var ranges []string
	for _, s := range hits {
		if _, ok := n.f.Ranges[s]; ok {
			ranges = append(ranges, s)
		}
	}
	// Longest first, so that A_B_C goes to the range A_B before A.
	slices.SortStableFunc(ranges, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	values := map[string]map[string]uint64{}
	for _, s := range hits {
		v, ok := n.f.Consts[s]
		if !ok {
			continue
		}
		i := slices.IndexFunc(ranges, func(r string) bool { return strings.HasPrefix(s, r+"_") })
		if i < 0 {
			d.Vals[strings.TrimPrefix(s, prefix)] = v
			continue
		}
		r := ranges[i]
		if values[r] == nil {
			values[r] = map[string]uint64{}
		}
		values[r][s[len(r)+1:]] = v
	}
	slices.Sort(ranges)
	for _, r := range ranges {
		x := n.f.Ranges[r]
		d.Ranges = append(d.Ranges, facts.Range{Name: strings.TrimPrefix(r, prefix), Hi: x[0], Lo: x[1], Vals: values[r]})
	}
	slices.SortStableFunc(d.Ranges, func(a, b facts.Range) int { return cmp.Compare(a.Lo, b.Lo) })
	besides(&d)
	if len(d.Vals) == 0 {
		d.Vals = nil
	}
	return d
}

// besides takes out the values that belong to the member beside this one, as
// the data beside an index: names that extend another and repeat a third's
// number.
func besides(d *facts.Domain) {
	byValue := map[uint64][]string{}
	for n, v := range d.Vals {
		byValue[v] = append(byValue[v], n)
	}
	for n, v := range d.Vals {
		for i := strings.LastIndexByte(n, '_'); i > 0; i = strings.LastIndexByte(n[:i], '_') {
			p := n[:i]
			if _, ok := d.Vals[p]; !ok {
				continue
			}
			clash := slices.ContainsFunc(byValue[v], func(o string) bool { return o != n && o != p && !strings.HasPrefix(o, p+"_") })
			if clash {
				if d.Sub == nil {
					d.Sub = map[string]map[string]uint64{}
				}
				if d.Sub[p] == nil {
					d.Sub[p] = map[string]uint64{}
				}
				d.Sub[p][n[i+1:]] = v
			}
			break
		}
	}
	for p, m := range d.Sub {
		for n := range m {
			delete(d.Vals, p+"_"+n)
		}
	}
}

func (h *harvest) domains() {
	f := h.f
	f.Domains = map[string]map[string]facts.Domain{}
	n := &names{f: f, all: slices.Concat(slices.Collect(maps.Keys(f.Consts)), slices.Collect(maps.Keys(f.Ranges)))}
	slices.Sort(n.all)
	records := maps.Clone(f.Types)
	for a := range f.Alias {
		if k, ok := f.Record(a); ok {
			records[a] = f.Types[k]
		}
	}
	for name, t := range records {
		h.domainsByName(n, name, &t)
	}
	for _, b := range bindings {
		h.bind(n, b.record, b.member, b.prefix)
	}
}

func (h *harvest) setDomain(record, member string, d facts.Domain) {
	if h.f.Domains[record] == nil {
		h.f.Domains[record] = map[string]facts.Domain{}
	}
	h.f.Domains[record][member] = d
}

// maxByName is more names than any real domain found by spelling has.
const maxByName = 400

// domainsByName finds the constants that are spelled like record and member.
func (h *harvest) domainsByName(n *names, record string, t *facts.Type) {
	base := record
	for _, s := range []string{"_PARAMETERS", "_PARAMS", "_PARAM"} {
		base = strings.TrimSuffix(base, s)
	}
	stems := []string{base, strings.TrimSuffix(strings.TrimSuffix(base, "_V2"), "_v2"), strings.Replace(base, "_CTRL_", "_CTRL_CMD_", 1)}
	for _, m := range t.Fields {
		sc, ok := h.f.Scalars[m.Type]
		if !ok || sc.Kind != "u" && sc.Kind != "s" || m.Name == "" || len(m.Dims) > 0 && m.Type == "NvU8" {
			continue
		}
		name := upper(m.Name)
		if name == "CMD" && strings.Contains(base, "_CTRL") && !strings.Contains(base, "_CTRL_CMD") && strings.Count(base, "_") < 2 {
			continue // would take all commands of the class
		}
		for _, b := range stems {
			prefix := b + "_" + name
			if hits := h.spelled(n, prefix); len(hits) > 0 && len(hits) < maxByName {
				h.setDomain(record, m.Name, n.domain(prefix+"_", "name", hits))
				break
			}
		}
	}
}

// spelled lists the constants that a prefix names, without sizes and the like.
func (h *harvest) spelled(n *names, prefix string) []string {
	var hits []string
	all := n.prefixed(prefix)
	for _, s := range all {
		switch _, isRange := h.f.Ranges[s]; {
		case s != prefix && !strings.HasPrefix(s, prefix+"_"),
			strings.HasSuffix(s, "_MESSAGE_ID"), strings.HasSuffix(s, "_SIZE"), strings.HasSuffix(s, "_LENGTH"),
			strings.HasSuffix(s, "_MAX") && len(all) == 1,
			s == prefix && !isRange:
			continue
		}
		hits = append(hits, s)
	}
	return hits
}

// bind assigns constants that are spelled otherwise, or an enum's.
func (h *harvest) bind(n *names, record, member, prefix string) {
	key, _, ok := h.f.Resolve(record)
	if !ok {
		return
	}
	if enum, ok := strings.CutPrefix(prefix, "enum:"); ok {
		if values := h.f.Enums[enum]; len(values) > 0 {
			d := facts.Domain{Prefix: enum, Via: "enum", Vals: map[string]uint64{}}
			for s, v := range values {
				d.Vals[s] = uint64(v)
			}
			h.setDomain(key, member, d)
		}
		return
	}
	if hits := n.prefixed(prefix); len(hits) > 0 {
		h.setDomain(key, member, n.domain(prefix, "bound", hits))
	}
}

// upper turns a member's name into the spelling of macros: gpuId, GPU_ID.
func upper(s string) string {
	capital := func(c byte) bool { return c >= 'A' && c <= 'Z' }
	lower := func(c byte) bool { return c >= 'a' && c <= 'z' }
	var b strings.Builder
	for i := range len(s) {
		if capital(s[i]) && i > 0 && (!capital(s[i-1]) || i+1 < len(s) && lower(s[i+1])) {
			b.WriteByte('_')
		}
		b.WriteByte(s[i])
	}
	return strings.ReplaceAll(strings.ToUpper(b.String()), "__", "_")
}
