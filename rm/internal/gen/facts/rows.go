package facts

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// rows spreads a version's facts over the tables: table -> key -> fact.
func (f *Facts) rows() (map[string]map[string]json.RawMessage, error) {
	r := rowSet{m: map[string]map[string]json.RawMessage{}}
	for _, n := range Names() {
		r.m[n] = map[string]json.RawMessage{}
	}
	records, names := f.reach()
	for k := range records {
		r.put(Types, k, f.Types[k])
	}
	for n := range names {
		if s, ok := f.Scalars[n]; ok {
			r.put(Scalars, n, s)
			if e, ok := f.Enums[s.Enum]; ok {
				r.put(Enums, s.Enum, e)
			}
		}
	}
	for n, to := range f.Alias {
		if k, ok := f.Record(n); names[n] || ok && records[k] {
			r.put(Aliases, n, to)
		}
	}
	for _, e := range f.Escapes {
		r.put(Escapes, strconv.FormatUint(e.Nr, 10), e)
	}
	for name, l := range f.ioctls() {
		for _, x := range l {
			r.put(name, x.Name, x)
		}
	}
	for _, c := range f.Controls {
		r.put(Controls, fmt.Sprintf("%08x", c.Cmd), c)
	}
	for _, c := range f.Classes {
		r.put(Classes, fmt.Sprintf("%04x", c.ID), c)
	}
	putAll(&r, Statuses, f.Status)
	putAll(&r, Flags, f.Flags)
	putAll(&r, Category, f.Category)
	putAll(&r, Embeddeds, f.Embedded)
	for table, m := range map[string]map[string]map[string]string{Roles: f.Roles, Counts: f.Counts, Dirs: f.Dir} {
		for k, d := range m {
			if records[k] {
				r.put(table, k, d)
			}
		}
	}
	for rec, m := range f.Domains {
		if k, _, _ := f.Resolve(rec); !records[k] {
			continue
		}
		for member, d := range m {
			r.put(Domains, rec+"."+member, d)
		}
	}
	return r.m, r.err
}

type rowSet struct {
	m   map[string]map[string]json.RawMessage
	err error
}

func (r *rowSet) put(table, key string, v any) {
	b, err := json.Marshal(v)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%s %s: %w", table, key, err)
	}
	if old, dup := r.m[table][key]; dup && string(old) != string(b) && r.err == nil {
		r.err = fmt.Errorf("%s %s: two different facts: %s and %s", table, key, old, b)
	}
	r.m[table][key] = b
}

func putAll[V any](r *rowSet, table string, m map[string]V) {
	for k, v := range m {
		r.put(table, k, v)
	}
}

func (f *Facts) ioctls() map[string][]Ioctl {
	return map[string][]Ioctl{UVM: f.UVM, UVMTest: f.UVMTest, KMS: f.KMS, NVSwitch: f.NVSwitch, NVSwCtl: f.NVSwCtl, NVLink: f.NVLink, DRM: f.DRM}
}

// roots returns the records that programs and driver exchange.
func (f *Facts) roots() map[string]bool {
	r := map[string]bool{}
	add := func(n string) {
		if k, ok := f.Record(n); ok {
			r[k] = true
		}
	}
	for _, e := range f.Escapes {
		for _, p := range e.Params {
			add(p)
		}
	}
	for _, l := range f.ioctls() {
		for _, x := range l {
			add(x.Params)
		}
	}
	for _, c := range f.Controls {
		for x := &c; x != nil; x = x.Other {
			add(x.Params)
		}
	}
	for _, c := range f.Classes {
		add(c.Alloc)
	}
	add("FINN_RM_API")        // head of serialised parameters
	add("NV00DE_SHARED_DATA") // the mapped statistics page
	for _, n := range f.elements() {
		add(n)
	}
	return r
}

// reach returns the roots with every record that they hold, and the names of
// all types of their members.
func (f *Facts) reach() (records, names map[string]bool) {
	records, names = map[string]bool{}, map[string]bool{}
	var walk func(string)
	walk = func(k string) {
		if records[k] {
			return
		}
		records[k] = true
		for _, m := range f.Types[k].Fields {
			n := m.Type
			for range 8 {
				names[n] = true
				if _, ok := f.Types[n]; ok {
					walk(n)
					break
				}
				a, ok := f.Alias[n]
				if !ok {
					break
				}
				n = a
			}
		}
	}
	for k := range f.roots() {
		walk(k)
	}
	for _, n := range f.elements() {
		names[n] = true
	}
	return records, names
}

// elements names what embedded pointers point to.
func (f *Facts) elements() []string {
	var out []string
	for _, l := range f.Embedded {
		for _, e := range l {
			if s, ok := strings.CutPrefix(e.Elem, "sizeof("); ok {
				out = append(out, strings.TrimSuffix(s, ")"))
			}
		}
	}
	return append(out, "NvUnixEvent") // NVOS41_PARAMETERS.pEvent
}
