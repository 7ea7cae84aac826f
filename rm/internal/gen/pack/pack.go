package pack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"nvtrace/rm/internal/gen/facts"
	"nvtrace/rm/internal/wire"
)

// packer holds the sections while the versions are read in ascending order.
type packer struct {
	set     *facts.Set
	strings *interner
	recs    [wire.Sections]*interner
	tabs    [wire.Sections]*history
	parsed  map[*facts.Variant]any // decoded facts
	keys    map[string][]string    // sorted keys of the fact tables
}

// Encode packs the facts of all versions. The result depends on the facts only.
func Encode(set *facts.Set) ([]byte, error) {
	p := &packer{set: set, strings: newInterner(), parsed: map[*facts.Variant]any{}, keys: map[string][]string{}}
	for i := wire.DomainRecs; i <= wire.StatusRecs; i++ {
		p.recs[i] = newInterner()
	}
	for i := wire.StructTab; i < wire.Sections; i++ {
		p.tabs[i] = newHistory()
	}
	for name, t := range set.Tables {
		p.keys[name] = slices.Sorted(maps.Keys(t))
	}
	p.strings.id("")
	changes := changesOf(set)
	for i, name := range set.Versions {
		if !changes[i] { // the histories go on as they are
			continue
		}
		if err := p.version(i); err != nil {
			return nil, fmt.Errorf("tables of %s: %w", name, err)
		}
	}
	return p.file()
}

// changesOf says which versions differ from the one before.
func changesOf(set *facts.Set) map[int]bool {
	out := map[int]bool{0: true}
	for _, t := range set.Tables {
		for _, l := range t {
			for _, v := range l {
				for _, s := range v.Spans {
					out[s[0]], out[s[1]+1] = true, true
				}
			}
		}
	}
	return out
}

func (p *packer) file() ([]byte, error) {
	var s [wire.Sections][]byte
	for i := range s {
		var err error
		switch {
		case i == wire.Strings:
			s[i], err = blobs(p.strings.list)
		case i == wire.Versions:
			s[i], err = versions(p.set.Versions)
		case p.recs[i] != nil:
			s[i], err = blobs(p.recs[i].list)
		case i == wire.StructTab:
			s[i], err = p.tabs[i].table(func(a, b uint32) int { return cmp.Compare(p.strings.list[a], p.strings.list[b]) })
		default:
			s[i], err = p.tabs[i].table(cmp.Compare[uint32])
		}
		if err != nil {
			return nil, fmt.Errorf("tables: section %d: %w", i, err)
		}
	}
	return file(s)
}

func versions(list []string) ([]byte, error) {
	var e encoder
	e.u32(len(list))
	for _, v := range list {
		parts := strings.Split(v, ".")
		if len(parts) < 2 || len(parts) > 3 {
			return nil, fmt.Errorf("version %q: want two or three numbers", v)
		}
		short := 3 - len(parts)
		for _, x := range append(parts, "0")[:3] {
			n, err := strconv.Atoi(x)
			if err != nil {
				return nil, fmt.Errorf("version %q: %w", v, err)
			}
			e.u16(n)
		}
		e.u16(short)
	}
	return e.b, e.err
}

// view is one version's facts, decoded.
type view struct {
	p       *packer
	i       int
	structs map[string]uint32 // record names -> numbers of their records
	flags   []flag
	err     error
}

type flag struct {
	bit  uint64
	name string
}

// fact decodes one version's form of a fact, nil if there is none.
func fact[T any](v *view, table, key string) *T {
	for _, f := range v.p.set.Tables[table][key] {
		for _, s := range f.Spans {
			if s[0] > v.i || v.i > s[1] {
				continue
			}
			if x, ok := v.p.parsed[f]; ok {
				return x.(*T)
			}
			x := new(T)
			if err := json.Unmarshal(f.Data, x); err != nil {
				v.fail("%s %s: %w", table, key, err)
			}
			v.p.parsed[f] = x
			return x
		}
	}
	return nil
}

func (v *view) fail(format string, a ...any) {
	if v.err == nil {
		v.err = fmt.Errorf(format, a...)
	}
}

func (v *view) str(s string) uint64 { return uint64(v.p.strings.id(s)) }

// each calls f for every key of a table that this version has, in order.
func each[T any](v *view, table string, f func(key string, x *T)) {
	for _, key := range v.p.keys[table] {
		if x := fact[T](v, table, key); x != nil {
			f(key, x)
		}
	}
}

// put interns a record and sets it in a table.
func (v *view) put(recs, tab int, key uint32, r record) {
	if !v.p.tabs[tab].set(key, v.p.recs[recs].id(string(r))) {
		v.fail("section %d: two facts for %#x", tab, key)
	}
}

func (p *packer) version(i int) error {
	v := &view{p: p, i: i, structs: map[string]uint32{}}
	v.readFlags()
	each(v, facts.Types, func(key string, _ *facts.Type) { v.name(key) })
	each(v, facts.Aliases, func(key string, _ *string) { v.name(key) })
	v.categories()
	each(v, facts.Controls, v.control)
	v.unlisted()
	each(v, facts.Classes, v.class)
	each(v, facts.Escapes, v.escape)
	v.requests(wire.UVMTab, facts.UVM)
	v.requests(wire.UVMTab, facts.UVMTest)
	v.requests(wire.KMSTab, facts.KMS)
	v.requests(wire.NVSwitchTab, facts.NVSwitch)
	v.requests(wire.NVSwitchCtlTab, facts.NVSwCtl)
	v.requests(wire.NVLinkTab, facts.NVLink)
	v.requests(wire.DRMTab, facts.DRM)
	v.statuses()
	for _, t := range p.tabs {
		if t != nil {
			t.end(i)
		}
	}
	return v.err
}

// name puts a record or a typedef of one into the table of structs.
func (v *view) name(key string) {
	if ref := v.ref(key); ref != 0 {
		v.p.tabs[wire.StructTab].set(v.p.strings.id(key), uint32(ref)-1)
	}
}

func (v *view) readFlags() {
	each(v, facts.Flags, func(name string, bit *uint64) {
		if *bit != 0 {
			v.flags = append(v.flags, flag{*bit, strings.TrimPrefix(name, "RMCTRL_FLAGS_")})
		}
	})
	slices.SortFunc(v.flags, func(a, b flag) int {
		return cmp.Or(cmp.Compare(a.bit, b.bit), cmp.Compare(a.name, b.name))
	})
}

// statuses are keyed by number; of two names of a number the first in the
// alphabet wins.
func (v *view) statuses() {
	seen := map[uint64]bool{}
	each(v, facts.Statuses, func(name string, n *uint64) {
		if seen[*n] {
			return
		}
		seen[*n] = true
		var r record
		r.num(v.str(name))
		v.put(wire.StatusRecs, wire.StatusTab, uint32(*n), r)
	})
}

// categories names bits 15:8 of the commands of a class.
func (v *view) categories() {
	each(v, facts.Category, func(class string, m *map[string]string) {
		for _, cat := range slices.Sorted(maps.Keys(*m)) {
			id, err := strconv.ParseUint(class+cat, 16, 32)
			if err != nil {
				v.fail("category %s %s: %w", class, cat, err)
				return
			}
			var r record
			r.num(v.str((*m)[cat]))
			v.put(wire.StatusRecs, wire.CategoryTab, uint32(id), r)
		}
	})
}

func (v *view) requests(tab int, table string) {
	each(v, table, func(name string, x *facts.Ioctl) {
		bits := 0
		if x.Impl {
			bits |= wire.RequestLive
		}
		if table == facts.UVMTest {
			bits |= wire.RequestTest
		}
		var r record
		r.int(int64(bits))
		r.num(v.str(name))
		r.num(x.Nr)
		r.num(v.want(name, x.Params))
		v.put(wire.RequestRecs, tab, uint32(x.Nr), r)
	})
}

// ref is a reference to a record by name, 0 for none.
func (v *view) ref(name string) uint64 {
	if name == "" {
		return 0
	}
	if rec, ok := v.structs[name]; ok {
		return uint64(rec) + 1
	}
	if t := fact[facts.Type](v, facts.Types, name); t != nil {
		v.structs[name] = v.p.recs[wire.StructRecs].id(string(v.structRec(name, t)))
		return uint64(v.structs[name]) + 1
	}
	// A typedef gets a record of its own: its values may have names of their own.
	if to := v.target(name); to != name {
		if t := fact[facts.Type](v, facts.Types, to); t != nil {
			v.structs[name] = v.p.recs[wire.StructRecs].id(string(v.structRec(name, t)))
			return uint64(v.structs[name]) + 1
		}
	}
	return 0
}

// want is a reference that must be there if it has a name.
func (v *view) want(user, name string) uint64 {
	ref := v.ref(name)
	if ref == 0 && name != "" {
		ref = v.scalarStruct(name)
	}
	if ref == 0 && name != "" {
		v.fail("%s: no layout of %s", user, name)
	}
	return ref
}

func (v *view) class(key string, c *facts.Class) {
	id, err := strconv.ParseUint(key, 16, 32)
	if err != nil {
		v.fail("class %s: %w", key, err)
		return
	}
	bits := 0
	if c.Multi {
		bits |= wire.ClassMulti
	}
	if c.Open {
		bits |= wire.ClassListed
	}
	var r record
	r.int(int64(bits))
	r.num(v.str(c.Name))
	r.num(id)
	r.num(v.str(c.Internal))
	r.num(v.want(c.Name, c.Alloc))
	r.num(v.str(c.Need))
	for _, l := range [][]string{c.Parents, c.Aliases} {
		r.int(int64(len(l)))
		for _, s := range l {
			r.num(v.str(s))
		}
	}
	v.put(wire.ClassRecs, wire.ClassTab, uint32(id), r)
}
