package pack

import (
	"fmt"
	"strconv"
	"strings"

	"nvtrace/rm/internal/gen/facts"
	"nvtrace/rm/internal/wire"
)

func (v *view) control(key string, c *facts.Control) {
	cmd, err := strconv.ParseUint(key, 16, 32)
	if err != nil {
		v.fail("control %s: %w", key, err)
		return
	}
	v.p.tabs[wire.ControlTab].set(uint32(cmd), v.controlRec(uint32(cmd), c))
}

// controlRec encodes a command and returns its record.
func (v *view) controlRec(cmd uint32, c *facts.Control) uint32 {
	var bits uint64
	if c.Impl {
		bits |= wire.ControlExported
	}
	params := v.want(c.Name, c.Params)
	if params != 0 {
		bits |= wire.ControlParams
	}
	embedded := v.controlPointers(c)
	if len(embedded) > 0 {
		bits |= wire.ControlEmbedded
	}
	other := uint64(0)
	if c.Other != nil {
		bits |= wire.ControlOther
		other = uint64(v.controlRec(cmd, c.Other))
	}
	var r record
	r.num(bits)
	r.num(uint64(cmd))
	r.num(v.str(c.Name))
	r.num(v.str(c.Iface))
	if params != 0 {
		r.num(params)
	}
	if c.Impl {
		r.num(v.str(c.Fn))
		r.num(v.str(c.Owner))
		r.num(c.Access)
		r.num(c.Flags)
		names := v.flagNames(c.Flags)
		r.int(int64(len(names)))
		for _, n := range names {
			r.num(v.str(n))
		}
	}
	if len(embedded) > 0 {
		r.int(int64(len(embedded)))
		for _, e := range embedded {
			r = append(r, e...)
		}
	}
	if c.Other != nil {
		r.num(other)
	}
	return v.p.recs[wire.ControlRecs].id(string(r))
}

// flagNames names the bits of a command's flags as this version does. A name
// that stands for no or several bits of its own is no flag.
func (v *view) flagNames(flags uint64) []string {
	var out []string
	for _, f := range v.flags {
		if f.bit&(f.bit-1) == 0 && flags&f.bit != 0 {
			out = append(out, f.name)
		}
	}
	return out
}

// unlisted adds commands that the headers lack, where the version has none of
// that number.
func (v *view) unlisted() {
	for _, x := range unlistedControls {
		if fact[facts.Control](v, facts.Controls, fmt.Sprintf("%08x", x.cmd)) == nil {
			v.p.tabs[wire.ControlTab].set(x.cmd, v.controlRec(x.cmd, &facts.Control{Name: x.name}))
		}
	}
}

// pointer is an embedded pointer before it is encoded.
type pointer struct {
	in     string // record
	field  string // path of the pointer
	target int
	dir    string
	elem   string // type of an element: a record, a scalar, or "" for bytes
	size   int64  // of an element, if elem is ""
	count  string // path of the counting member
	fixed  int64  // number of elements where count is ""
	plus   int64  // elements beyond the count
	square bool   // the count is to be squared
	text   bool
	when   string // path of a member that must equal is
	is     uint64
}

// controlPointers are the pointers in a command's parameters: those that the
// driver's copy code names, and conditional ones from the supplement.
func (v *view) controlPointers(c *facts.Control) []record {
	var out []record
	seen := map[string]bool{}
	if l := fact[[]facts.Embedded](v, facts.Embeddeds, c.Name); l != nil {
		for _, e := range *l {
			if seen[e.Field] || notFollowed[c.Name+"."+e.Field] {
				continue
			}
			seen[e.Field] = true
			if p, ok := v.listed(c, &e); ok {
				out = append(out, v.pointer(&p))
			}
		}
	}
	for _, u := range unionPointers {
		if u.control != c.Name {
			continue
		}
		l := fact[[]facts.Embedded](v, facts.Embeddeds, u.value)
		is, ok := v.enumValue(u.enum, u.value)
		if l == nil || !ok {
			continue
		}
		for _, e := range *l {
			if p, ok := v.listed(c, &e); ok {
				p.when, p.is = u.member, is
				out = append(out, v.pointer(&p))
			}
		}
	}
	return out
}

func (v *view) enumValue(enum, name string) (uint64, bool) {
	e := fact[map[string]int64](v, facts.Enums, enum)
	if e == nil {
		return 0, false
	}
	x, ok := (*e)[name]
	return uint64(x), ok
}

// listed turns a row of the driver's copy code into a pointer.
func (v *view) listed(c *facts.Control, e *facts.Embedded) (pointer, bool) {
	p := pointer{in: c.Params, field: e.Field, dir: e.Dir, count: e.Count, size: 1, text: textPointers[c.Name]}
	if e.Dir == "by-flag" {
		p.dir = "inout"
	}
	if s, ok := squared[c.Name]; ok {
		p.count, p.square = s, true
	}
	if n, err := strconv.ParseInt(e.Count, 0, 64); err == nil {
		p.count, p.fixed = "", n
	}
	switch t, isType := strings.CutPrefix(e.Elem, "sizeof("); {
	case isType:
		p.elem = strings.TrimSuffix(t, ")")
	default:
		n, err := strconv.ParseInt(e.Elem, 0, 64)
		if err != nil {
			v.fail("%s.%s: element size %q", c.Name, e.Field, e.Elem)
			return p, false
		}
		p.size = n
	}
	if c.Params == "" {
		v.fail("%s.%s: pointer in a command without parameters", c.Name, e.Field)
		return p, false
	}
	return p, true
}

// pointer encodes an embedded pointer.
func (v *view) pointer(p *pointer) record {
	var r record
	place := func(path string) {
		off, size, ok := v.path(p.in, path)
		if !ok {
			v.fail("%s: no member %s", p.in, path)
		}
		r.num(v.str(path))
		r.int(off)
		r.int(size)
	}
	elem := uint64(0)
	if p.elem != "" {
		elem = v.ref(p.elem)
		if p.size = v.sizeOf(p.elem); p.size == 0 {
			v.fail("%s.%s: no type %s", p.in, p.field, p.elem)
		}
	}
	r.num(v.ref(p.in))
	place(p.field)
	r.int(int64(p.target))
	r.num(v.str(p.dir))
	r.num(elem)
	r.int(p.size)
	r.num(bit(p.text) | bit(p.square)<<1 | bit(p.count != "")<<2 | bit(p.when != "")<<3)
	if p.count != "" {
		place(p.count)
		r.int(p.plus)
	} else {
		r.int(p.fixed)
	}
	if p.when != "" {
		place(p.when)
		r.num(p.is)
	}
	return r
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// path finds a member by its dotted path.
func (v *view) path(rec, path string) (off, size int64, ok bool) {
	for name := range strings.SplitSeq(path, ".") {
		t := fact[facts.Type](v, facts.Types, v.target(rec))
		if t == nil {
			return 0, 0, false
		}
		ok = false
		for _, m := range t.Fields {
			if m.Name == name {
				off, size, rec, ok = off+m.Off, m.Size, m.Type, true
				break
			}
		}
		if !ok {
			return 0, 0, false
		}
	}
	return off, size, ok
}

func (v *view) escape(key string, e *facts.Escape) {
	nr, err := strconv.ParseUint(key, 10, 32)
	if err != nil {
		v.fail("escape %s: %w", key, err)
		return
	}
	var r, params, pointers record
	array, n := uint64(0), int64(0)
	for _, name := range e.Params {
		name, isArray := strings.CutSuffix(name, "[]")
		array |= bit(isArray)
		params.num(v.want(e.Name, name))
		for _, p := range escapePointers {
			if p.in != name {
				continue
			}
			if _, _, ok := v.path(p.in, p.field); ok {
				pointers = append(pointers, v.pointer(&p)...)
				n++
			}
		}
	}
	r.num(v.str(e.Name))
	r.num(nr)
	r.num(array)
	r.num(v.str(e.Dev))
	r.num(v.str(e.Where))
	r.int(int64(len(e.Params)))
	r = append(r, params...)
	r.int(n)
	r = append(r, pointers...)
	v.put(wire.EscapeRecs, wire.EscapeTab, uint32(nr), r)
}
