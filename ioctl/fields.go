package ioctl

import (
	"encoding/binary"
	"strconv"

	"nvtrace/rm"
)

// maxStructDepth bounds nested structs; the deepest known one has 6 levels.
const maxStructDepth = 12

// printer appends one call's members as text. It lives in the Decoder, so that
// printing allocates nothing.
type printer struct {
	dst      []byte
	abi      *rm.ABI
	call     *Call // own, while something is printed
	own      Call  // a copy: keeping the caller's would move every Call to the heap
	used     bool  // own is
	pid      int32
	infos    *Decoder
	links    *linker
	fds      func(pid, fd int32) string // nil: links
	name     Namer
	demangle func(string) string // nil: names are left as they are
	elems    int                 // elements of an array to show
	zeros    bool                // show zero members
	color    bool
	part     int // the part that is being printed
	depth    int
}

// view is the bytes of a struct or member at entry and at exit, cut to the same
// range. after is nil where the call did not, or may not, change them.
type view struct {
	before, after []byte
}

// at returns the view of n bytes at an offset. Bytes that were not recorded are
// missing.
func (v view) at(off, n int) view {
	return view{window(v.before, off, n), window(v.after, off, n)}
}

func window(b []byte, off, n int) []byte {
	if b == nil || off >= len(b) || off < 0 {
		return nil
	}
	return b[off:min(off+n, len(b))]
}

// latest returns the bytes after the call where it may have changed them.
func (v view) latest() []byte {
	if v.after != nil {
		return v.after
	}
	return v.before
}

func isZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// partView returns the bytes of a part as they are to be shown.
func partView(p *Part) view {
	v := view{before: p.In}
	if p.Written && p.Out != nil && !sameBytes(p.In, p.Out) {
		v.after = p.Out
		if p.In == nil {
			v.before = nil
		}
	}
	return v
}

// sameBytes reports whether a and b are equal, at once where they share memory.
func sameBytes(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || string(a) == string(b)
}

// members appends the members of a struct that begins at offset base of the
// current part, without the braces; skip is a bit set of members to leave out.
// It reports whether it appended any.
func (p *printer) members(s *rm.Struct, v view, base int, skip uint64, some bool) bool {
	if p.depth >= maxStructDepth {
		return p.sep(some, "…")
	}
	p.depth++
	defer func() { p.depth-- }()
	if s.Union {
		if i := p.unionMember(s, v); i >= 0 {
			return p.member(s, i, v, base, some)
		}
		return some
	}
	for i := range s.Fields {
		if i < 64 && skip&(1<<i) != 0 {
			continue
		}
		some = p.member(s, i, v, base, some)
	}
	return some
}

func (p *printer) sep(some bool, text string) bool {
	if some {
		p.dst = append(p.dst, ", "...)
	}
	p.dst = append(p.dst, text...)
	return true
}

// member appends one member, or nothing if it is zero before and after.
func (p *printer) member(s *rm.Struct, i int, v view, base int, some bool) bool {
	f := &s.Fields[i]
	m := v.at(f.Offset, f.Size)
	if m.before == nil && m.after == nil {
		return some
	}
	if f.Bits != 0 {
		return p.bitField(f, m, some)
	}
	zero := isZero(m.before) && isZero(m.after)
	if zero && !p.zeros {
		return some
	}
	if f.Name == "" && f.Kind == rm.KindStruct && f.Dims == nil {
		return p.members(f.Struct, m, base+f.Offset, 0, some)
	}
	if f.Kind == rm.KindStruct && f.Dims == nil && f.Struct != nil && f.Struct.Union {
		return p.union(s, f, m, v, base, some)
	}
	p.sep(some, "")
	p.label(f.Name)
	p.value(s, f, m, v, base+f.Offset)
	return true
}

// label appends a member's name.
func (p *printer) label(name string) {
	p.dst = append(p.dst, name...)
}

// Arrow stands between a value before and after the call.
const arrow = " → "

// value appends "=before", "=before → after", or " → after" where there was
// nothing before.
func (p *printer) value(s *rm.Struct, f *rm.Field, m, outer view, base int) {
	if f.Kind == rm.KindStruct && f.Dims == nil && f.Role != rm.RoleUUID {
		// Arrows go to the members, unless all of it is new.
		m = p.begin(f, m)
		p.dst = append(p.dst, '{')
		p.members(f.Struct, m, base, 0, false)
		p.dst = append(p.dst, '}')
		return
	}
	if f.Kind == rm.KindStruct && f.Dims != nil && f.Role != rm.RoleUUID {
		n := p.count(s, f, outer, m)
		m = p.begin(f, m)
		p.structs(f, m, base, n)
		return
	}
	if m.after == nil || sameBytes(m.before, m.after) {
		p.dst = append(p.dst, '=')
		p.single(s, f, view{before: m.before}, outer, base)
		return
	}
	if f.Dir != rm.DirOut && !isZero(m.before) {
		p.dst = append(p.dst, '=')
		p.single(s, f, view{before: m.before}, view{before: outer.before}, base)
	}
	p.dst = append(p.dst, arrow...)
	p.single(s, f, view{before: m.after}, view{before: outer.latest()}, base)
}

// begin appends what stands before a struct or an array of structs: "=", or an
// arrow where all of it is new, and then returns just the new bytes.
func (p *printer) begin(f *rm.Field, m view) view {
	if m.after != nil && (isZero(m.before) || f.Dir == rm.DirOut) && !sameBytes(m.before, m.after) {
		p.dst = append(p.dst, arrow...)
		return view{before: m.after}
	}
	p.dst = append(p.dst, '=')
	return m
}

// single appends a member's value at one time, which is m.before.
func (p *printer) single(s *rm.Struct, f *rm.Field, m, outer view, base int) {
	b := m.before
	switch {
	case f.Role == rm.RoleUUID && f.Elem == 16:
		p.uuids(f, b)
	case f.Role == rm.RoleString && f.Elem == 1:
		p.str(b)
	case f.Dims != nil:
		p.array(f, b, p.count(s, f, outer, m))
	case f.Kind == rm.KindPointer && p.pointee(base):
	case f.Name == "data" && p.infoData(s, f, b, outer.before):
	case s != nil:
		p.scalar(s.As(f, outer.before), b, outer.before)
	default:
		p.scalar(f, b, outer.before)
	}
}

// infoData appends the data of an {index, data} pair, as the GET_INFO commands
// have them, by the name that it has beside its index; false if it has none.
func (p *printer) infoData(s *rm.Struct, f *rm.Field, b, outer []byte) bool {
	if s == nil || s.Fields[0].Name != "index" || s.Fields[0].Domain == nil || s.Fields[0].Elem != 4 {
		return false
	}
	d := s.Fields[0].Domain
	if len(d.Beside) == 0 || len(b) < f.Elem {
		return false
	}
	index, ok := d.Name(uint64(load32(outer, s.Fields[0].Offset)) & infoIndexMask)
	if !ok {
		return false
	}
	name, ok := d.DataName(index, load(b, f.Elem))
	if ok {
		p.text(name)
	}
	return ok
}

// infoIndexMask is the INDEX of an info list's index member; above it lies
// GROUP_ID (ctrl2080gpu.h: NV2080_CTRL_GPU_INFO_INDEX_INDEX 23:0).
const infoIndexMask = 1<<24 - 1

// pointee appends what a pointer at an offset of the current part leads to;
// false if that was not recorded.
func (p *printer) pointee(at int) bool {
	for i := range p.call.Parts {
		q := &p.call.Parts[i]
		if i > p.part && q.Parent == p.part && q.Field != "" && q.Offset == at {
			self := p.part
			p.part = i
			p.body(q)
			p.part = self
			return true
		}
	}
	return false
}

// body appends a part's content in brackets or quotes.
func (p *printer) body(q *Part) {
	v := partView(q)
	switch {
	case q.Text:
		p.changes(v, func(b []byte) { p.str(b) })
	case q.Struct != nil && q.Array:
		f := rm.Field{Kind: rm.KindStruct, Struct: q.Struct, Elem: q.Struct.Size, Dims: oneDim, Size: q.Len}
		if v.after != nil && isZero(v.before) {
			v = view{before: v.after}
		}
		n := q.Len / max(1, q.Struct.Size)
		if q.Field == "" { // the argument: as long as the request says, filled as far as there is anything
			n = (max(trimmed(v.before), trimmed(v.after)) + q.Struct.Size - 1) / max(1, q.Struct.Size)
		}
		p.structs(&f, v, 0, n)
	case q.Struct != nil:
		p.dst = append(p.dst, '{')
		p.members(q.Struct, v, 0, 0, false)
		p.dst = append(p.dst, '}')
	case q.Array && q.Elem > 1 && q.Elem <= 8:
		f := rm.Field{Kind: rm.KindUint, Elem: q.Elem, Dims: oneDim, Size: q.Len, Role: listRole(q.Field)}
		p.changes(v, func(b []byte) { p.array(&f, b, len(b)/q.Elem) })
	default:
		p.changes(v, func(b []byte) { p.hex(b) })
	}
}

// oneDim marks a member as an array; how long it is says the number of its bytes.
var oneDim = []int{0}

// listRole guesses what the numbers of a list are by the name of its pointer.
func listRole(field string) rm.Role {
	switch field {
	case "classList":
		return rm.RoleClass
	case "pChannelHandleList", "phClients", "phDevices", "phChannels":
		return rm.RoleHandle
	}
	return rm.RoleNone
}

// changes appends the bytes before the call, after it, or both with an arrow.
func (p *printer) changes(v view, one func([]byte)) {
	if v.after == nil {
		one(v.before)
		return
	}
	if !isZero(v.before) {
		one(v.before)
		p.dst = append(p.dst, arrow...)
	}
	one(v.after)
}

// structs appends n elements of an array of structs.
func (p *printer) structs(f *rm.Field, m view, base, n int) {
	p.dst = append(p.dst, '[')
	size := max(1, f.Elem)
	have := (max(len(m.before), len(m.after)) + size - 1) / size
	shown := min(n, have)
	if p.elems >= 0 {
		shown = min(shown, p.elems)
	}
	for i := range shown {
		if i > 0 {
			p.dst = append(p.dst, ", "...)
		}
		p.dst = append(p.dst, '{')
		p.members(f.Struct, m.at(i*size, size), base+i*size, 0, false)
		p.dst = append(p.dst, '}')
	}
	p.more(n-shown, shown > 0)
	p.dst = append(p.dst, ']')
}

// more appends how many elements are left out.
func (p *printer) more(n int, some bool) {
	if n <= 0 {
		return
	}
	if some {
		p.dst = append(p.dst, ", "...)
	}
	p.dst = append(p.dst, "…+"...)
	p.dst = strconv.AppendInt(p.dst, int64(n), 10)
}

// count returns how many elements of an array are to be shown: as many as its
// counting sibling says, or up to the last one that is not zero.
func (p *printer) count(s *rm.Struct, f *rm.Field, outer, m view) int {
	size := max(1, f.Elem)
	total := f.Size / size
	if f.Count != "" {
		if c := fieldOf(s, f.Count); c != nil && c.Dims == nil && c.Kind != rm.KindStruct {
			n := load(window(outer.latest(), c.Offset, c.Size), c.Elem)
			if n > 0 && n <= uint64(total) {
				return int(n)
			}
		}
	}
	last := max(trimmed(m.before), trimmed(m.after))
	return min(total, (last+size-1)/size)
}

// trimmed returns the length of b without trailing zeros.
func trimmed(b []byte) int {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return n
}

// array appends n elements of an array of numbers.
func (p *printer) array(f *rm.Field, b []byte, n int) {
	if f.Elem == 1 && f.Role == rm.RoleNone && f.Domain == nil {
		p.hex(b[:min(len(b), max(n, 0))])
		return
	}
	p.dst = append(p.dst, '[')
	size := max(1, f.Elem)
	shown := min(n, len(b)/size)
	if p.elems >= 0 {
		shown = min(shown, p.elems)
	}
	for i := 0; i < shown; {
		if i > 0 {
			p.dst = append(p.dst, ", "...)
		}
		elem := b[i*size : (i+1)*size]
		p.scalar(f, elem, nil)
		run := 1
		for i+run < shown && string(b[(i+run)*size:(i+run+1)*size]) == string(elem) {
			run++
		}
		if run < minRun {
			run = 1
		} else {
			p.text("×")
			p.dst = strconv.AppendInt(p.dst, int64(run), 10)
		}
		i += run
	}
	p.more(n-shown, shown > 0)
	p.dst = append(p.dst, ']')
}

// minRun is how many equal elements in a row are shown as one with a count.
const minRun = 3

// union appends the member of a union that its discriminant, if one can be
// found, or else the first one that shows anything, stands for.
func (p *printer) union(s *rm.Struct, f *rm.Field, m, outer view, base int, some bool) bool {
	i := discriminated(s, f, outer)
	if i < 0 {
		i = p.unionMember(f.Struct, m)
	}
	if i < 0 {
		return some
	}
	at := len(p.dst)
	p.sep(some, "")
	p.label(f.Name)
	p.dst = append(p.dst, '.')
	before := len(p.dst)
	if !p.member(f.Struct, i, m, base+f.Offset, false) || len(p.dst) == before {
		p.dst = p.dst[:at]
		return some
	}
	return true
}

// unionMember returns the index of the first member, and -1 for an empty union.
func (p *printer) unionMember(s *rm.Struct, v view) int {
	if len(s.Fields) == 0 {
		return -1
	}
	// A short first member may be zero where a longer one is not.
	for i := range s.Fields {
		f := &s.Fields[i]
		m := v.at(f.Offset, f.Size)
		if !isZero(m.before) || !isZero(m.after) {
			return i
		}
	}
	return 0
}

// discriminated returns the member of union f that a sibling's value names:
// NVOS32's function ALLOC_SIZE means data.AllocSize. -1 if none does.
func discriminated(s *rm.Struct, f *rm.Field, outer view) int {
	for i := range s.Fields {
		d := &s.Fields[i]
		if d.Domain == nil || d.Dims != nil || len(d.Domain.Values) == 0 || d.Kind == rm.KindStruct {
			continue
		}
		name := domainValue(d.Domain.Values, load(window(outer.before, d.Offset, d.Size), d.Elem))
		if name == "" {
			continue
		}
		best, length := -1, 3
		for j := range f.Struct.Fields {
			if n := commonSquashed(name, f.Struct.Fields[j].Name); n > length {
				best, length = j, n
			}
		}
		if best >= 0 {
			return best
		}
	}
	return -1
}

// commonSquashed returns how many letters two names have in common from their
// start, without regard to case and underscores: ALLOC_SIZE and AllocSize have 9.
// A name that ends there counts one more, so that AllocSize beats AllocSizeRange.
func commonSquashed(a, b string) int {
	i, j, n := 0, 0, 0
	for {
		for i < len(a) && a[i] == '_' {
			i++
		}
		for j < len(b) && b[j] == '_' {
			j++
		}
		if i == len(a) && j == len(b) {
			return n + 1
		}
		if i == len(a) || j == len(b) || a[i]|0x20 != b[j]|0x20 {
			return n
		}
		i, j, n = i+1, j+1, n+1
	}
}

// bitField appends a bit-field.
func (p *printer) bitField(f *rm.Field, m view, some bool) bool {
	extract := func(b []byte) uint64 {
		v := load(b, min(f.Size, 8))
		return v >> f.BitOff & (1<<f.Bits - 1)
	}
	before := extract(m.before)
	after := before
	if m.after != nil {
		after = extract(m.after)
	}
	if before == 0 && after == 0 && !p.zeros {
		return some
	}
	p.sep(some, "")
	p.label(f.Name)
	if before != 0 || after == before {
		p.dst = append(p.dst, '=')
		p.number(f, before)
	}
	if after != before {
		p.dst = append(p.dst, arrow...)
		p.number(f, after)
	}
	return true
}
