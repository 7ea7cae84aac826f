package objects

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/rm"
)

// facts is what a drawing says of objects at one moment, found once for all.
type facts struct {
	l       *ObjectLog
	m       Moment
	all     bool
	roles   map[*rm.Object][]string // "USERD of chan0"
	maps    map[*rm.Object][]*mapRecord
	Gpu     map[*rm.Object][]rm.Span
	exports map[*rm.Object][]uint32
}

// Facts are what is known of objects at a moment, for drawings and reports.
func (l *ObjectLog) Facts(m Moment, all bool) *facts {
	f := &facts{
		l: l, m: m, all: all, roles: make(map[*rm.Object][]string), maps: make(map[*rm.Object][]*mapRecord),
		Gpu: make(map[*rm.Object][]rm.Span), exports: make(map[*rm.Object][]uint32),
	}
	for _, r := range l.maps {
		if r.Of != nil && f.then(r.PID, r.Born, r.until()) {
			f.maps[r.Of.Object] = append(f.maps[r.Of.Object], r)
		}
	}
	for _, g := range l.gpuMaps {
		if f.then(g.PID, g.Born, g.until()) {
			f.Gpu[g.Object] = append(f.Gpu[g.Object], g.Span)
		}
	}
	for _, d := range l.dmas {
		if f.then(d.Object.PID, d.Born, d.Died) {
			f.Gpu[d.Object] = append(f.Gpu[d.Object], rm.Span{Base: d.Addr, Length: d.Length})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.files)) {
		if file := l.Tree.File(id); file != nil {
			for _, o := range file.Exports {
				f.exports[o] = append(f.exports[o], id)
			}
		}
	}
	f.channels()
	return f
}

// then reports whether something was there at the moment of the drawing.
func (f *facts) then(pid int32, born, died int64) bool {
	return f.all || f.l.lived(f.m, pid, born, died)
}

// channels finds what memory is to the channels: their USERD by handle, their
// GPFIFO by its GPU address.
func (f *facts) channels() {
	byRef := make(map[rm.Ref][]*rm.Object)
	var chans []*rm.Object
	for o := range f.l.Tree.Objects() {
		if !f.all && !f.l.objectLived(f.m, o) {
			continue
		}
		switch o.Kind {
		case rm.Channel:
			chans = append(chans, o)
		case rm.Memory:
			byRef[o.Ref] = append(byRef[o.Ref], o)
		}
	}
	var spans []gpuSpan
	for _, o := range slices.SortedFunc(maps.Keys(f.Gpu), func(a, b *rm.Object) int { return cmp.Compare(a.ID, b.ID) }) {
		for _, s := range f.Gpu[o] {
			spans = append(spans, gpuSpan{s, o})
		}
	}
	slices.SortFunc(spans, func(a, b gpuSpan) int {
		return cmp.Or(cmp.Compare(a.o.PID, b.o.PID), cmp.Compare(a.Base, b.Base), cmp.Compare(a.o.ID, b.o.ID))
	})
	users := make(map[*rm.Object]map[string][]*rm.Object)
	use := func(mem *rm.Object, as string, ch *rm.Object) {
		if users[mem] == nil {
			users[mem] = make(map[string][]*rm.Object)
		}
		users[mem][as] = append(users[mem][as], ch)
	}
	for _, ch := range chans {
		refer := func(as string, h uint32) {
			for _, mem := range byRef[rm.Ref{Client: ch.Ref.Client, Handle: h}] {
				if mem.Born <= ch.Born && ch.Born < mem.Died {
					use(mem, as, ch)
				}
			}
		}
		for _, h := range ch.Attr.Deps { // of these, only hUserdMemory is memory
			refer("USERD", h)
		}
		refer("error notifier", f.l.Details[ch.ID].errors)
		if at := f.l.Details[ch.ID].Gpfifo; at != 0 {
			if o := findSpan(spans, ch.PID, at); o != nil {
				use(o, "GPFIFO", ch)
			}
		}
	}
	for mem, as := range users {
		for _, what := range slices.Sorted(maps.Keys(as)) {
			f.roles[mem] = append(f.roles[mem], what+" of "+nameList(as[what]))
		}
	}
}

type gpuSpan struct {
	rm.Span
	o *rm.Object
}

// findSpan finds the memory of a process at a GPU address.
func findSpan(spans []gpuSpan, pid int32, at uint64) *rm.Object {
	i, found := slices.BinarySearchFunc(spans, 0, func(s gpuSpan, _ int) int {
		return cmp.Or(cmp.Compare(s.o.PID, pid), cmp.Compare(s.Base, at))
	})
	if !found {
		i--
	}
	if i >= 0 && i < len(spans) && spans[i].o.PID == pid && at-spans[i].Base < spans[i].Length {
		return spans[i].o
	}
	return nil
}

// nameList names objects, the middle of many left out: "chan0, chan1 … chan19".
func nameList(l []*rm.Object) string {
	names := make([]string, 0, 4)
	for i, o := range l {
		if len(l) > 4 && i >= 2 && i < len(l)-1 {
			continue
		}
		names = append(names, o.Name())
	}
	if len(l) > 4 {
		return strings.Join(names[:2], ", ") + " … " + names[2]
	}
	return strings.Join(names, ", ")
}

// line describes an object beyond its name: class, size, place, flags, what it
// is to others, where it is mapped, how it ended.
func (f *facts) line(o *rm.Object) string {
	var b []byte
	b = fmt.Appendf(b, "%s %#x", o.Name(), o.Ref.Handle)
	switch {
	case o.Guessed:
		b = append(b, " (made before it was traced)"...)
	case o.Class != nil:
		b = append(append(b, ' '), o.Class.Name...)
	default:
		b = fmt.Appendf(b, " class %#x", o.ClassID)
	}
	if o.IsClient() {
		if file := f.l.Tree.File(o.File); file != nil && file.Node != "" {
			b = fmt.Appendf(b, " on %s", cli.Printable(file.Node))
		}
	}
	switch {
	case o.Attr.Size == 0:
	case o.Kind == rm.Channel:
		b = fmt.Appendf(b, ", %d entries", o.Attr.Size)
	default:
		b = append(append(b, ", "...), cli.SizeText(o.Attr.Size)...)
	}
	if o.Attr.Aperture != rm.ApertureUnknown {
		b = append(append(b, ' '), o.Attr.Aperture.String()...)
	}
	for _, t := range f.l.Details[o.ID].text {
		b = append(append(b, ", "...), t...)
	}
	for _, r := range f.roles[o] {
		b = append(append(b, ", "...), r...)
	}
	return string(f.links(b, o))
}

// links appends what ties an object to others, to addresses and to its end.
func (f *facts) links(b []byte, o *rm.Object) []byte {
	if o.Dup != nil {
		b = fmt.Appendf(b, ", the same as %s", o.Dup.Name())
		if o.Dup.PID != o.PID {
			b = fmt.Appendf(b, " of pid %d", o.Dup.PID)
		}
	}
	if o.Import != 0 {
		b = fmt.Appendf(b, ", imported from open file %d", o.Import)
	}
	for _, id := range f.exports[o] {
		b = fmt.Appendf(b, ", exported to open file %d", id)
	}
	for _, fd := range o.DMABufs {
		b = fmt.Appendf(b, ", exported as dma-buf fd %d", fd)
	}
	for _, r := range f.maps[o] {
		b = fmt.Appendf(b, ", mapped at %#x", r.Addr)
		if r.Size != o.Attr.Size {
			b = fmt.Appendf(b, " (%s)", cli.SizeText(r.Size))
		}
	}
	for i, s := range f.Gpu[o] {
		if i == 4 {
			b = fmt.Appendf(b, ", and %d more places on the GPU", len(f.Gpu[o])-i)
			break
		}
		b = fmt.Appendf(b, ", GPU %#x", s.Base)
	}
	if f.m.since > 0 {
		b = fmt.Appendf(b, ", made at %.6f s", float64(o.Born)/1e9)
		if o.Parent != nil && o.Parent.Born <= f.m.since {
			b = fmt.Appendf(b, " in %s", o.Parent.Path())
		}
	}
	if f.all {
		b = fmt.Appendf(b, ", %.6f", float64(o.Born)/1e9)
		if o.Died != rm.Alive {
			b = fmt.Appendf(b, " to %.6f, %s", float64(o.Died)/1e9, o.End)
		}
		if o.By != nil {
			b = fmt.Appendf(b, " (%s)", o.By.Name())
		}
	}
	return b
}

// appendTree draws the tree, by process.
func (f *facts) appendTree(dst []byte) []byte {
	pid, first := int32(0), true
	for _, n := range f.l.visible(f.m, f.all) {
		if n.depth == 0 && (first || n.o.PID != pid) {
			pid, first = n.o.PID, false
			dst = append(dst, f.l.processText(pid)...)
			dst = append(dst, '\n')
		}
		for range min(n.depth+1, 24) {
			dst = append(dst, "  "...)
		}
		dst = append(dst, f.line(n.o)...)
		dst = append(dst, '\n')
	}
	return dst
}

// processText names a process: "pid 4711 (app)".
func (l *ObjectLog) processText(pid int32) string {
	s := fmt.Sprintf("pid %d", pid)
	if t := l.Tree.Task(pid); t != nil && t.Name != "" && t.Name != "." {
		s += " (" + cli.Printable(t.Name) + ")"
	}
	return s
}
