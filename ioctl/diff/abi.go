package diff

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces/glob"
)

// ABI is what two driver versions understand differently, from the tables
// alone.
type ABI struct {
	A       string   `json:"a"` // versions of the tables
	B       string   `json:"b"`
	Same    bool     `json:"same"`
	Entries []Entry  `json:"entries,omitempty"`
	Layouts []Layout `json:"layouts,omitempty"`
}

// Entry is a request, command or class that is new, gone or other.
type Entry struct {
	Kind string `json:"kind"` // escape, control, class, uvm, modeset, nvswitch, nvswitchctl, nvlink, drm
	Name string `json:"name"`
	A    *Form  `json:"a,omitempty"` // nil: new in B
	B    *Form  `json:"b,omitempty"` // nil: gone
}

// Form is how a version has an [Entry].
type Form struct {
	Nr     string   `json:"nr"`
	Params []string `json:"params,omitempty"` // names of the parameter structs
	Sizes  []int    `json:"sizes,omitempty"`  // their sizes, bytes
	Flags  []string `json:"flags,omitempty"`  // of a control command, sorted, without RMCTRL_FLAGS_
	Note   string   `json:"note,omitempty"`   // "not dispatched", "allocation parameters required"
}

// equal reports whether two forms are the same.
func (f *Form) equal(g *Form) bool {
	return f.Nr == g.Nr && f.Note == g.Note && slices.Equal(f.Params, g.Params) &&
		slices.Equal(f.Sizes, g.Sizes) && slices.Equal(f.Flags, g.Flags)
}

// CompareABI compares the tables of two driver versions: requests, control
// commands and classes by name, and layouts. If pattern is not empty, only
// names that it matches (as glob.MatchFold does; the name of an entry or of its
// parameters) are compared. An error means a pattern that matches nothing in
// either version.
func CompareABI(a, b *rm.ABI, pattern string) (*ABI, error) {
	match := func(names ...string) bool {
		return pattern == "" || slices.ContainsFunc(names, func(n string) bool { return glob.MatchFold(pattern, n) })
	}
	r := &ABI{A: a.Version().String(), B: b.Version().String()}
	fa, fb := forms(a), forms(b)
	matched := pattern == ""
	var all []string // names that there are
	for _, k := range entryKeys(fa, fb) {
		x, y := fa[k], fb[k]
		names := []string{k.name}
		if x != nil {
			names = append(names, x.Params...)
		}
		if y != nil {
			names = append(names, y.Params...)
		}
		all = append(all, names...)
		if !match(names...) {
			continue
		}
		matched = true
		if x == nil || y == nil || !x.equal(y) {
			r.Entries = append(r.Entries, Entry{k.kind, k.name, x, y})
		}
	}
	sa, sb := layouts(a), layouts(b)
	for _, name := range union(sa, sb, cmp.Compare[string]) {
		all = append(all, name)
		if !match(name) {
			continue
		}
		matched = true
		if l, differs := compareLayouts(name, sa[name], sb[name]); differs {
			r.Layouts = append(r.Layouts, l)
		}
	}
	if !matched {
		return nil, fmt.Errorf("%q matches nothing in %s or %s%s", pattern, r.A, r.B, ioctl.Suggest(strings.ToUpper(pattern), slices.Values(all)))
	}
	r.Same = len(r.Entries)+len(r.Layouts) == 0
	return r, nil
}

type entryKey struct{ kind, name string }

// entryKinds is the order of a report.
var entryKinds = [...]string{"escape", "control", "class", "uvm", "modeset", "nvswitch", "nvswitchctl", "nvlink", "drm"}

func entryKeys(a, b map[entryKey]*Form) []entryKey {
	return union(a, b, func(x, y entryKey) int {
		return cmp.Or(cmp.Compare(slices.Index(entryKinds[:], x.kind), slices.Index(entryKinds[:], y.kind)), cmp.Compare(x.name, y.name))
	})
}

// union returns the keys of both maps, sorted.
func union[K comparable, V any](a, b map[K]V, order func(x, y K) int) []K {
	keys := slices.Collect(maps.Keys(a))
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, order)
	return keys
}

// forms gathers what a version has. Two entries of one name (a number with an
// alias) are told apart by number.
func forms(a *rm.ABI) map[entryKey]*Form {
	m := make(map[entryKey]*Form)
	put := func(kind, name string, nr uint32, f *Form) {
		f.Nr = hex(nr)
		k := entryKey{kind, name}
		if m[k] != nil {
			k.name += " " + f.Nr
		}
		m[k] = f
	}
	for e := range a.Escapes() {
		put("escape", e.Name, e.Nr, formOf(e.Params...))
	}
	for c := range a.Controls() {
		f := formOf(c.Params)
		f.Flags = slices.Sorted(slices.Values(c.FlagNames))
		put("control", c.Name, c.Cmd, f)
	}
	for c := range a.Classes() {
		f := formOf(c.Alloc)
		if c.Need == rm.NeedRequired {
			f.Note = "allocation parameters required"
		}
		put("class", c.Name, c.ID, f)
	}
	request := func(kind string) func(*rm.Request) bool {
		return func(q *rm.Request) bool {
			f := formOf(q.Params)
			if !q.Live {
				f.Note = "not dispatched"
			}
			put(kind, q.Name, q.Nr, f)
			return true
		}
	}
	a.UVMs()(request("uvm"))
	a.Modesets()(request("modeset"))
	a.NVSwitches()(request("nvswitch"))
	a.NVSwitchCtls()(request("nvswitchctl"))
	a.NVLinks()(request("nvlink"))
	a.DRMs()(request("drm"))
	return m
}

func formOf(params ...*rm.Struct) *Form {
	f := &Form{}
	for _, s := range params {
		if s != nil {
			f.Params, f.Sizes = append(f.Params, s.Name), append(f.Sizes, s.Size)
		}
	}
	return f
}

// layouts gathers a version's structs; typedefs of one are one.
func layouts(a *rm.ABI) map[string]*rm.Struct {
	m := make(map[string]*rm.Struct)
	for s := range a.Structs() {
		m[s.Name] = s
	}
	return m
}
