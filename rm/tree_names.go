package rm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Name is the object's short name, unique among those that its process made:
// "chan2".
func (o *Object) Name() string { return o.nick + strconv.Itoa(o.Ord) }

// Short is the name with the class number, "chan2{c86f}", or with a question
// mark if the object was not seen being made.
func (o *Object) Short() string { return string(o.AppendShort(nil)) }

// AppendShort appends what Short returns.
func (o *Object) AppendShort(dst []byte) []byte {
	dst = append(dst, o.nick...)
	dst = strconv.AppendInt(dst, int64(o.Ord), 10)
	if o.Guessed {
		return append(dst, "{?}"...)
	}
	dst = append(dst, '{')
	for limit := uint32(0x1000); limit > o.ClassID && limit > 1; limit >>= 4 {
		dst = append(dst, '0')
	}
	dst = strconv.AppendUint(dst, uint64(o.ClassID), 16)
	return append(dst, '}')
}

// Long describes the object in words: "GPFIFO channel 2 of pid 4120".
func (o *Object) Long() string {
	s := fmt.Sprintf("%s %d of pid %d", o.Kind, o.Ord, o.PID)
	if o.Guessed {
		s += " (made before it was traced)"
	}
	return s
}

// Path names the object and all above it: "client0/dev0/tsg0/chan2".
func (o *Object) Path() string {
	var l []string
	for p := o; p != nil; p = p.Parent {
		l = append(l, p.Name())
	}
	for i, j := 0, len(l)-1; i < j; i, j = i+1, j-1 {
		l[i], l[j] = l[j], l[i]
	}
	return strings.Join(l, "/")
}

// device returns the device that the object belongs to, nil if it is under none.
func (o *Object) device() *Object {
	for p := o; p != nil; p = p.Parent {
		if p.Kind == Device {
			return p
		}
	}
	return nil
}

// Name names a handle for printing: its object's short name, or the bare number
// if no such object lives.
func (t *Tree) Name(r Ref) string {
	if r.Handle == 0 {
		return "0"
	}
	if o := t.live[r]; o != nil {
		return o.Short()
	}
	return fmt.Sprintf("%#x", r.Handle)
}

// AppendText draws the objects that lived at a time as an indented tree, one a
// line, by client in order of appearance.
func (t *Tree) AppendText(dst []byte, time int64) []byte {
	under := map[*Object][]*Object{}
	var roots []*Object
	for o := range t.At(time) {
		if o.Parent == nil {
			roots = append(roots, o)
		} else {
			under[o.Parent] = append(under[o.Parent], o)
		}
	}
	type item struct {
		o     *Object
		depth int
	}
	var todo []item
	for _, o := range slices.Backward(roots) {
		todo = append(todo, item{o, 0})
	}
	for len(todo) > 0 {
		x := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		dst = x.o.appendLine(dst, x.depth)
		for _, o := range slices.Backward(under[x.o]) {
			todo = append(todo, item{o, x.depth + 1})
		}
	}
	return dst
}

func (o *Object) appendLine(dst []byte, depth int) []byte {
	for range min(depth, 32) {
		dst = append(dst, "  "...)
	}
	dst = o.AppendShort(dst)
	dst = fmt.Appendf(dst, " %#x", o.Handle)
	switch {
	case o.Guessed:
		dst = append(dst, " made before it was traced"...)
	case o.Class != nil:
		dst = append(dst, ' ')
		dst = append(dst, o.Class.Name...)
	}
	if o.IsClient() {
		dst = fmt.Appendf(dst, " pid %d", o.PID)
	}
	switch {
	case o.Attr.Size == 0:
	case o.Kind == Channel:
		dst = fmt.Appendf(dst, " %d entries", o.Attr.Size)
	default:
		dst = append(dst, ' ')
		dst = appendBytes(dst, o.Attr.Size)
	}
	if o.Attr.Aperture != ApertureUnknown {
		dst = append(dst, ' ')
		dst = append(dst, o.Attr.Aperture.String()...)
	}
	if o.Dup != nil {
		dst = append(dst, " = "...)
		dst = o.Dup.AppendShort(dst)
		if o.Dup.PID != o.PID {
			dst = fmt.Appendf(dst, " of pid %d", o.Dup.PID)
		}
	}
	return append(dst, '\n')
}

// appendBytes appends a number of bytes with a binary unit, exactly: 2M, 64K, 4097.
func appendBytes(dst []byte, n uint64) []byte {
	units := "KMGTPE"
	u := byte(0)
	for i := 0; i < len(units) && n != 0 && n%1024 == 0; i++ {
		n, u = n/1024, units[i]
	}
	dst = strconv.AppendUint(dst, n, 10)
	if u != 0 {
		dst = append(dst, u)
	}
	return dst
}
