package diff

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"nvtrace/ioctl"
	"nvtrace/rm"
)

// Result is what differs between two recordings, as plain data in a fixed order.
type Result struct {
	A       Run         `json:"a"`
	B       Run         `json:"b"`
	Same    bool        `json:"same"`
	Calls   []Change    `json:"calls,omitempty"`
	Sizes   []SizeDiff  `json:"sizes,omitempty"`
	Layouts []Layout    `json:"layouts,omitempty"` // of structs that either run used
	Threads []Threads   `json:"threads,omitempty"`
	Order   []OrderDiff `json:"order,omitempty"`
	// Notes say what the comparison could not see.
	Notes []string `json:"notes,omitempty"`
}

// Run describes one side.
type Run struct {
	Name    string   `json:"name"`
	Driver  string   `json:"driver,omitempty"` // as recorded
	Tables  string   `json:"tables,omitempty"` // driver version whose names and layouts were used
	Command []string `json:"command,omitempty"`
	Calls   uint64   `json:"calls"` // of the driver
	Library uint64   `json:"library_calls,omitempty"`
}

// Change is a call that is new, gone, or made another number of times or with
// other results.
type Change struct {
	Section Section `json:"section"`
	Name    string  `json:"name"`
	Nr      string  `json:"nr,omitempty"` // its number, of B where both have one
	NrA     string  `json:"nr_a,omitempty"`
	A       uint64  `json:"a"` // calls
	B       uint64  `json:"b"`
	Results []Tally `json:"results,omitempty"` // only those whose number differs
}

// Tally is how often something happened in both runs.
type Tally struct {
	What string `json:"what"`
	A    uint64 `json:"a"`
	B    uint64 `json:"b"`
}

// SizeDiff is a name under which other sizes were asked for.
type SizeDiff struct {
	Section Section     `json:"section"`
	Name    string      `json:"name"`
	CountA  uint64      `json:"count_a"`
	CountB  uint64      `json:"count_b"`
	TotalA  uint64      `json:"total_a"` // bytes; for a channel, entries of its ring
	TotalB  uint64      `json:"total_b"`
	Sizes   []SizeTally `json:"sizes"` // only those whose number differs, ascending
	Rounded bool        `json:"rounded,omitempty"`
}

// SizeTally is how often one size was asked for.
type SizeTally struct {
	Size uint64 `json:"size"`
	A    uint64 `json:"a"`
	B    uint64 `json:"b"`
}

// Threads is a process that has another number of threads making device calls.
type Threads struct {
	Process string `json:"process"`
	A       int    `json:"a"`
	B       int    `json:"b"`
}

// OrderDiff is a call, or several in a row, that a thread makes at another
// place.
type OrderDiff struct {
	Thread   string   `json:"thread"`
	Calls    []string `json:"calls"`
	WasAfter string   `json:"was_after"` // "" at the beginning
	IsAfter  string   `json:"is_after"`
	Times    uint64   `json:"times"`
}

// Compare says what differs between the runs that a and b hold.
func Compare(a, b *Profile) *Result {
	r := &Result{A: a.run(), B: b.run()}
	n := unify(a, b)
	r.calls(a, b, n)
	r.sizes(a, b, n)
	if a.abi != nil && b.abi != nil && a.abi.Version() != b.abi.Version() {
		r.Layouts = usedLayouts(a, b)
	}
	if a.window > 0 && b.window > 0 {
		r.order(a, b, n)
	}
	for _, p := range []*Profile{a, b} {
		if p.lost > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: %d events were not recorded", p.Name, p.lost))
		}
		if !p.complete {
			r.Notes = append(r.Notes, p.Name+": the recording was cut off")
		}
		if p.cut > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: the order of its last %d calls was not compared", p.Name, p.cut))
		}
	}
	for _, p := range [2][2]*Profile{{a, b}, {b, a}} {
		if p[0].library > 0 && p[1].library == 0 {
			switch p[1].header.API {
			case "":
				r.drop(SectionLibrary)
				r.Notes = append(r.Notes, p[1].Name+": no calls of CUDA's libraries; it may have been recorded without --api, so they are not compared")
			case "none":
				r.drop(SectionLibrary)
				r.Notes = append(r.Notes, p[1].Name+": calls of CUDA's libraries were not recorded (--api), so they are not compared")
			}
		}
		if p[0].kernels > 0 && p[1].kernels == 0 {
			r.Notes = append(r.Notes, p[1].Name+": no launched kernels; it may have been recorded without --modules")
		}
	}
	r.Same = len(r.Calls)+len(r.Sizes)+len(r.Layouts)+len(r.Threads)+len(r.Order) == 0
	return r
}

// drop takes the differences of a section out.
func (r *Result) drop(section Section) {
	r.Calls = slices.DeleteFunc(r.Calls, func(c Change) bool { return c.Section == section })
}

func (p *Profile) run() Run {
	r := Run{Name: p.Name, Driver: p.header.Driver, Command: p.header.Argv, Calls: p.calls, Library: p.library}
	if p.abi != nil {
		r.Tables = p.abi.Version().String()
	}
	return r
}

// names maps keys that one version's tables have no name for to the other's,
// where both have the number: to name a command is no change of a program.
type names map[Key]Key

func (n names) of(k Key) Key {
	if other, ok := n[k]; ok {
		return other
	}
	return k
}

func unify(a, b *Profile) names {
	type number struct {
		section Section
		nr      uint32
	}
	n := make(names)
	for _, p := range [2][2]*Profile{{a, b}, {b, a}} {
		named := make(map[number]Key)
		for _, s := range p[1].stats {
			if s.hasNr && !s.unnamed {
				named[number{s.key.Section, s.nr}] = s.key
			}
		}
		for _, s := range p[0].stats {
			if k, ok := named[number{s.key.Section, s.nr}]; ok && s.unnamed && p[0].byKey[k] == nil {
				n[s.key] = k
			}
		}
	}
	return n
}

// renamed is m under the common names.
func renamed[V any](m map[Key]V, n names) map[Key]V {
	if len(n) == 0 {
		return m
	}
	out := make(map[Key]V, len(m))
	for k, v := range m {
		out[n.of(k)] = v
	}
	return out
}

// keysOf returns the keys of both maps in report order.
func keysOf[V any](a, b map[Key]V) []Key {
	return union(a, b, func(x, y Key) int {
		return cmp.Or(cmp.Compare(slices.Index(sections[:], x.Section), slices.Index(sections[:], y.Section)), cmp.Compare(x.Name, y.Name))
	})
}

func (r *Result) calls(a, b *Profile, n names) {
	none := &stat{}
	ka, kb := renamed(a.byKey, n), renamed(b.byKey, n)
	for _, k := range keysOf(ka, kb) {
		sa, sb := cmp.Or(ka[k], none), cmp.Or(kb[k], none)
		c := Change{Section: k.Section, Name: k.Name, A: sa.count, B: sb.count, Results: tallies(sa.results, sb.results)}
		if sa.count == sb.count && len(c.Results) == 0 {
			continue
		}
		switch {
		case sb.hasNr:
			c.Nr = hex(sb.nr)
			if sa.hasNr && sa.nr != sb.nr {
				c.NrA = hex(sa.nr)
			}
		case sa.hasNr:
			c.Nr = hex(sa.nr)
		}
		r.Calls = append(r.Calls, c)
	}
}

func hex(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }

// tallies returns the results whose numbers differ: successes first, then by name.
func tallies(a, b map[result]uint64) []Tally {
	var keys []result
	for k, n := range a {
		if b[k] != n {
			keys = append(keys, k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y result) int {
		return cmp.Or(cmp.Compare(x.kind, y.kind), cmp.Compare(x.value, y.value), cmp.Compare(x.name, y.name))
	})
	var out []Tally
	for _, k := range keys {
		out = append(out, Tally{k.String(), a[k], b[k]})
	}
	return out
}

// String names a result: "OK", "NV_ERR_…", "EINVAL".
func (r result) String() string {
	switch r.kind {
	case resultStatus:
		if s := rm.Status(r.value); s != rm.OK {
			return s.String()
		}
		return "OK"
	case resultErrno:
		return ioctl.ErrnoName(int32(r.value))
	case resultReturned:
		return "returned"
	case resultLibrary:
		return r.name
	}
	return "not seen"
}

func (r *Result) sizes(a, b *Profile, n names) {
	none := &Sizes{}
	za, zb := renamed(a.sizes, n), renamed(b.sizes, n)
	for _, k := range keysOf(za, zb) {
		sa, sb := cmp.Or(za[k], none), cmp.Or(zb[k], none)
		d := SizeDiff{
			Section: k.Section, Name: k.Name, CountA: sa.Count, CountB: sb.Count, TotalA: sa.Total, TotalB: sb.Total,
			Rounded: sa.Rounded || sb.Rounded,
		}
		for n, count := range sa.bySize {
			if sb.bySize[n] != count {
				d.Sizes = append(d.Sizes, SizeTally{n, count, sb.bySize[n]})
			}
		}
		for n, count := range sb.bySize {
			if sa.bySize[n] == 0 {
				d.Sizes = append(d.Sizes, SizeTally{n, 0, count})
			}
		}
		if len(d.Sizes) == 0 && sa.Total == sb.Total {
			continue
		}
		slices.SortFunc(d.Sizes, func(x, y SizeTally) int { return cmp.Compare(x.Size, y.Size) })
		r.Sizes = append(r.Sizes, d)
	}
}

// order compares the sequences of threads that play the same role: the n-th
// thread to make a device call in the n-th process to make one.
func (r *Result) order(a, b *Profile, n names) {
	same := make([]uint32, len(b.stats)+1) // b's ids in a's numbering
	ka := renamed(a.byKey, n)
	for i, s := range b.stats {
		if sa := ka[n.of(s.key)]; sa != nil {
			same[i+1] = sa.id
		} else {
			same[i+1] = uint32(len(a.stats) + i + 1)
		}
	}
	name := func(id uint32) string {
		switch {
		case id == 0:
			return ""
		case int(id) <= len(a.stats):
			return n.of(a.stats[id-1].key).Name
		}
		return b.stats[int(id)-len(a.stats)-1].key.Name
	}
	for i := range max(len(a.procs), len(b.procs)) {
		pa, pb := &process{}, &process{}
		if i < len(a.procs) {
			pa = a.procs[i]
		}
		if i < len(b.procs) {
			pb = b.procs[i]
		}
		role := cmp.Or(pa.name, pb.name)
		if len(pa.threads) != len(pb.threads) {
			r.Threads = append(r.Threads, Threads{(&process{name: role}).role(i, 0), len(pa.threads), len(pb.threads)})
		}
		for j := range min(len(pa.threads), len(pb.threads)) {
			r.threadOrder(pa.threads[j], pb.threads[j], same, min(a.window, b.window), name, (&process{name: role}).role(i, j))
		}
	}
}

// threadOrder compares the sequences of two threads. same gives b's ids in a's
// numbering.
func (r *Result) threadOrder(a, b *thread, same []uint32, window int, name func(uint32) string, role string) {
	seq := make([]uint32, len(b.seq))
	for i, id := range b.seq {
		seq[i] = same[id]
	}
	m := moves{window: window}
	align(a.seq, seq, window, m.step)
	type what struct {
		calls       string
		after, then uint32
	}
	at := make(map[what]int)
	for i := range m.found {
		f := &m.found[i]
		var key []byte
		d := OrderDiff{Thread: role, WasAfter: name(f.wasAfter), IsAfter: name(f.isAfter), Times: 1}
		for _, id := range f.ids {
			key = strconv.AppendUint(append(key, ' '), uint64(id), 10)
			d.Calls = append(d.Calls, name(id))
		}
		w := what{string(key), f.wasAfter, f.isAfter}
		if k, ok := at[w]; ok {
			r.Order[k].Times++
			continue
		}
		at[w] = len(r.Order)
		r.Order = append(r.Order, d)
	}
	if m.more > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %d more calls moved", role, m.more))
	}
}
