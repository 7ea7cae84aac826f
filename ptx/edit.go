package ptx

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Edits collects splices of a source text by byte offset and applies them all
// at once, so that several passes can work from one parse. The zero value is
// not usable; see [NewEdits].
//
// At one offset the order is fixed: first what was put after the text that ends
// there, the latest first; then what was put before the text that begins there,
// the earliest first. So a pass that wraps a statement by InsertBefore and
// InsertAfter nests properly with other such passes.
type Edits struct {
	src  string
	list []edit
	size int // bytes of all the new texts
}

type edit struct {
	at, end Pos
	side    int8 // -1 after what ends at at, 0 before what begins there, 1 replaces
	seq     int32
	text    string
}

// NewEdits returns an empty set of edits of src.
func NewEdits(src string) *Edits { return &Edits{src: src} }

// InsertBefore puts text in front of the byte at pos.
func (e *Edits) InsertBefore(pos Pos, text string) { e.add(edit{at: pos, end: pos, text: text}) }

// InsertAfter puts text behind what ends at pos.
func (e *Edits) InsertAfter(pos Pos, text string) {
	e.add(edit{at: pos, end: pos, side: -1, text: text})
}

// Replace puts text in the place of the bytes of sp.
func (e *Edits) Replace(sp Span, text string) {
	e.add(edit{at: sp.Pos, end: sp.End, side: 1, text: text})
}

// Len returns how many edits there are.
func (e *Edits) Len() int { return len(e.list) }

func (e *Edits) add(x edit) {
	x.seq = int32(len(e.list))
	if x.side < 0 {
		x.seq = -x.seq
	}
	e.list = append(e.list, x)
	e.size += len(x.text)
}

// Apply returns the edited text; without edits, the source itself. It fails if
// an edit lies outside the source or inside a replaced span.
func (e *Edits) Apply() (string, error) {
	if len(e.list) == 0 {
		return e.src, nil
	}
	order := func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.side, b.side), cmp.Compare(a.seq, b.seq))
	}
	list := e.list
	if !slices.IsSortedFunc(list, order) {
		list = slices.Clone(list)
		slices.SortFunc(list, order)
	}
	var out strings.Builder
	out.Grow(len(e.src) + e.size)
	done := Pos(0)
	for i := range list {
		x := &list[i]
		if x.at < done || x.end < x.at || uint64(x.end) > uint64(len(e.src)) {
			return "", fmt.Errorf("edit of bytes %d to %d: outside the source of %d bytes or inside a span replaced up to byte %d", x.at, x.end, len(e.src), done)
		}
		out.WriteString(e.src[done:x.at])
		out.WriteString(x.text)
		done = x.end
	}
	out.WriteString(e.src[done:])
	return out.String(), nil
}
