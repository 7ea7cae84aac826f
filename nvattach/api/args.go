package api

import (
	"bytes"

	"nvtrace/traces"
)

// Param returns a function's parameter by its name, nil if there is none.
func (f *Function) Param(name string) *Param {
	if f == nil {
		return nil
	}
	for i := range f.Params {
		if f.Params[i].Name == name {
			return &f.Params[i]
		}
	}
	return nil
}

// Arg returns the value of a parameter, as a number with the sign that its type has. ev is
// the event of the call; or that of its return, where a number that the function writes is
// what it wrote. ok is false where there is no such parameter, or it was not recorded.
func (f *Frame) Arg(name string, ev *traces.Event) (n uint64, ok bool) {
	p := f.Function.Param(name)
	if p == nil {
		return 0, false
	}
	v, ok := f.word(p, 0)
	if !ok {
		return 0, false
	}
	if t := p.Type.Elem; ev.Kind == traces.KindReturn && (p.Dir == DirOut || p.Dir == DirInOut) && t != nil && t.isScalar() {
		if x, written := load(segment(ev.Mem, v, true), 0, t.Size); written {
			return t.number(x), true
		}
	}
	return p.Type.number(v), true
}

// isScalar reports whether a value of t is one number.
func (t *Type) isScalar() bool {
	return t.isInteger() || t.Kind == KindPointer || t.Kind == KindHandle
}

// number returns what a register with a value of t says.
func (t *Type) number(v uint64) uint64 {
	switch {
	case t.Kind == KindInt || t.Kind == KindEnum:
		return uint64(signed(v, t.Size))
	case t.isInteger():
		return unsigned(v, t.Size)
	}
	return v
}

// IsText reports whether a parameter points to a text.
func (p *Param) IsText() bool { return p.Type.Elem != nil && p.Type.Elem.Kind == KindChar }

// Text returns the text that a parameter points to, as far as it was recorded.
func (f *Frame) Text(name string, ev *traces.Event) (text string, ok bool) {
	p := f.Function.Param(name)
	if p == nil || !p.IsText() {
		return "", false
	}
	v, ok := f.word(p, 0)
	b := segment(ev.Mem, v, ev.Kind == traces.KindReturn)
	if !ok || b == nil {
		return "", false
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b), true
}

// Shape returns the blocks and threads of a launch; ev is the event of the call. They are 0
// where that was not recorded.
func (f *Frame) Shape(ev *traces.Event) (grid, block [3]uint32) {
	if !f.launches {
		return grid, block
	}
	set := func(name string, v uint64) {
		for _, d := range []struct {
			dim  *[3]uint32
			stem string
		}{{&grid, "gridDim"}, {&block, "blockDim"}} {
			if len(name) == len(d.stem)+1 && name[:len(d.stem)] == d.stem {
				if axis := int(name[len(d.stem)]) - 'X'; axis >= 0 && axis < len(d.dim) {
					d.dim[axis] = uint32(unsigned(v, 4))
				}
			}
		}
	}
	for i := range f.Function.Params {
		p := &f.Function.Params[i]
		v, known := f.word(p, 0)
		switch e := p.Type.Elem; {
		case !known:
		case p.Type.Kind == KindPointer && e != nil && e.Kind == KindStruct: // of a launch's configuration
			b := segment(ev.Mem, v, false)
			for j := range e.Fields {
				if x, ok := load(b, e.Fields[j].Offset, 4); ok {
					set(e.Fields[j].Name, x)
				}
			}
		case p.Type.Name == "dim3": // of the runtime, in two registers
			z, _ := f.word(p, 1)
			set(p.Name+"X", v)
			set(p.Name+"Y", v>>32)
			set(p.Name+"Z", z)
		default:
			set(p.Name, v)
		}
	}
	return grid, block
}
