package api

import (
	"strconv"
	"strings"

	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// Style says how calls are printed. The zero value, and nil, are good defaults.
type Style struct {
	Color    bool                     // mark names and errors with ANSI sequences
	Demangle func(name string) string // names kernels for people; nil leaves them as they are
}

func (s *Style) mark(dst []byte, color string) []byte {
	if s == nil || !s.Color {
		return dst
	}
	return append(dst, color...)
}

// word returns the i-th word of a parameter's value; it is false where that was
// not recorded.
func (f *Frame) word(p *Param, i int) (uint64, bool) {
	if i >= int(p.Loc.Count) {
		return 0, false
	}
	at := int(p.Loc.Index) + i
	switch p.Loc.Place {
	case PlaceInt:
		if at < len(f.Args) {
			return f.Args[at], true
		}
	case PlaceStack:
		if at < len(f.Stack) {
			return f.Stack[at], true
		}
	}
	return 0, false
}

// AppendCall appends a call with its arguments:
//
//	cuMemAlloc_v2(dptr=0x7ffd0010, bytesize=1048576)
//
// ev is the event, f its frame, names what handles of kernels stand for (nil:
// nothing). What a pointer to const points to is shown in its place, as far as
// it was recorded.
func AppendCall(dst []byte, f *Frame, ev *traces.Event, names *Names, s *Style) []byte {
	dst = s.mark(dst, escape.ColorName)
	dst = escape.AppendQuotable(dst, f.Name)
	dst = append(s.mark(dst, escape.ColorOff), '(')
	if f.Function == nil {
		for i, v := range f.Args {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendHex(dst, v)
		}
		return append(dst, ')')
	}
	params := f.Function.Params
	launch := false
	for i := 0; i < len(params); i++ {
		p := &params[i]
		if i > 0 {
			dst = append(dst, ", "...)
		}
		name, n := group(i, len(params), func(k int) (string, bool) { return params[k].Name, params[k].Type.isInteger() })
		if n > 0 {
			x, okX := f.word(p, 0)
			y, okY := f.word(&params[i+1], 0)
			z, okZ := f.word(&params[i+2], 0)
			if okX && okY && okZ {
				dst = append(append(dst, name...), '=')
				dst = appendTriple(dst, unsigned(x, 4), unsigned(y, 4), unsigned(z, 4))
				launch = true
				i += n - 1
				continue
			}
		}
		dst = append(dst, paramName(p.Name, launch)...)
		dst = append(dst, '=')
		dst = f.appendArg(dst, p, ev)
		dst = f.appendKernel(dst, p, names, s)
	}
	return append(dst, ')')
}

// paramName is what a parameter is called in a line: launches, of which there
// are many, have short names.
func paramName(name string, launch bool) string {
	if launch {
		switch name {
		case "sharedMemBytes":
			return "smem"
		case "hStream":
			return "stream"
		}
	}
	return name
}

// appendArg appends an argument.
func (f *Frame) appendArg(dst []byte, p *Param, ev *traces.Event) []byte {
	v, ok := f.word(p, 0)
	if !ok {
		return append(dst, '?')
	}
	if p.Type.Kind == KindStruct || p.Type.Kind == KindUnion {
		var b []byte
		for i := range int(p.Loc.Count) {
			w, ok := f.word(p, i)
			if !ok {
				break
			}
			for shift := 0; shift < 64; shift += 8 {
				b = append(b, byte(w>>shift))
			}
		}
		return appendMemory(dst, p.Type, b, 0)
	}
	if p.Type.Kind == KindFloat { // on the stack
		return appendScalar(dst, p.Type, v)
	}
	if (p.Dir == DirIn || p.Dir == DirInOut) && v != 0 {
		if b := segment(ev.Mem, v, false); b != nil {
			return appendPointed(dst, p.Type.Elem, b)
		}
	}
	return appendScalar(dst, p.Type, v)
}

// appendPointed appends what a pointer points to: a text, the members of a
// structure in braces, another value in brackets.
func appendPointed(dst []byte, t *Type, b []byte) []byte {
	switch t.Kind {
	case KindChar:
		return appendText(dst, b, true)
	case KindStruct, KindUnion:
		return appendMemory(dst, t, b, 0)
	}
	dst = append(dst, '[')
	dst = appendMemory(dst, t, b, 0)
	return append(dst, ']')
}

// appendKernel appends the name of the kernel that an argument stands for.
func (f *Frame) appendKernel(dst []byte, p *Param, names *Names, s *Style) []byte {
	if names == nil || !isKernel(p) {
		return dst
	}
	v, ok := f.word(p, 0)
	if !ok {
		return dst
	}
	name := names.kernel(f.PID, v)
	if name == "" {
		return dst
	}
	if s != nil && s.Demangle != nil {
		name = s.Demangle(name)
	}
	const most = 120
	dst = append(dst, ' ')
	if len(name) > most {
		return append(escape.AppendQuotable(dst, name[:most]), "…"...)
	}
	return escape.AppendQuotable(dst, name)
}

// isKernel reports whether a parameter is a kernel's handle, or the address of
// a kernel's host stub.
func isKernel(p *Param) bool {
	switch p.Type.Name {
	case "CUfunction", "CUkernel", "cudaFunction_t", "cudaKernel_t":
		return true
	}
	return p.Type.Kind == KindPointer && p.Type.Elem != nil && p.Type.Elem.Kind == KindVoid &&
		(p.Name == "func" || p.Name == "hostFun" || p.Name == "entryFuncAddr" || p.Name == "symbolPtr")
}

// AppendReturn appends what came of a call: its result, what it wrote and how
// long it took.
//
//	" = CUDA_SUCCESS (dptr -> 0x7f2a00000000) <12.3µs>"
//
// f is the frame that [Tracker.Add] returned for ev.
func AppendReturn(dst []byte, f *Frame, ev *traces.Event, s *Style) []byte {
	if ev.Flags&traces.FlagUnfinished != 0 {
		return AppendUnfinished(dst, s)
	}
	return appendDuration(AppendResult(dst, f, ev, s), ev.Dur, s)
}

// AppendResult appends what AppendReturn does for a call that is not unfinished, without
// how long it took.
func AppendResult(dst []byte, f *Frame, ev *traces.Event, s *Style) []byte {
	fn := f.Function
	switch {
	case fn == nil:
		dst = append(dst, " = "...)
		dst = appendHex(dst, uint64(ev.Ret))
	case fn.Result.Kind == KindVoid:
	case fn.Result.Kind == KindFloat, fn.Result.Kind == KindStruct, fn.Result.Kind == KindUnion:
		dst = append(dst, " = ?"...) // not in the register that is recorded
	case fn.Failed(ev.Ret):
		dst = append(dst, " = "...)
		dst = s.mark(dst, escape.ColorError)
		dst = appendScalar(dst, fn.Result, uint64(ev.Ret))
		dst = s.mark(dst, escape.ColorOff)
	default:
		dst = append(dst, " = "...)
		dst = appendScalar(dst, fn.Result, uint64(ev.Ret))
		dst = f.appendOut(dst, ev)
	}
	return dst
}

// AppendUnfinished appends what stands in the place of a result that was not
// seen.
func AppendUnfinished(dst []byte, s *Style) []byte {
	dst = s.mark(append(dst, " = "...), escape.ColorNote)
	dst = append(dst, "? <unfinished ...>"...)
	return s.mark(dst, escape.ColorOff)
}

// appendOut appends the values that a call wrote.
func (f *Frame) appendOut(dst []byte, ev *traces.Event) []byte {
	some := false
	for i := range f.Function.Params {
		p := &f.Function.Params[i]
		if p.Dir != DirOut && p.Dir != DirInOut {
			continue
		}
		v, ok := f.word(p, 0)
		b := segment(ev.Mem, v, true)
		if !ok || b == nil {
			continue
		}
		if !some {
			dst = append(dst, " ("...)
		} else {
			dst = append(dst, ", "...)
		}
		some = true
		dst = append(append(dst, p.Name...), " -> "...)
		switch e := p.Type.Elem; e.Kind {
		case KindChar, KindStruct, KindUnion:
			dst = appendPointed(dst, e, b)
		default:
			dst = appendMemory(dst, e, b, 0)
		}
	}
	if some {
		dst = append(dst, ')')
	}
	return dst
}

// ResultName names what a function returned: "CUDA_ERROR_INVALID_VALUE", a
// number where it has no name.
func (f *Function) ResultName(ret int64) string {
	if f == nil || f.Result.Kind != KindEnum {
		return strconv.FormatInt(ret, 10)
	}
	return string(appendEnum(nil, f.Result, uint64(ret)))
}

// appendDuration appends <12.3µs>, three digits of it.
func appendDuration(dst []byte, ns int64, s *Style) []byte {
	dst = append(s.mark(append(dst, ' '), escape.ColorDim), '<')
	ns = max(ns, 0)
	switch {
	case ns < 1000:
		dst = append(strconv.AppendInt(dst, ns, 10), "ns"...)
	case ns < 1_000_000:
		dst = append(appendThree(dst, float64(ns)/1e3), "µs"...)
	case ns < 1_000_000_000:
		dst = append(appendThree(dst, float64(ns)/1e6), "ms"...)
	default:
		dst = append(appendThree(dst, float64(ns)/1e9), 's')
	}
	return s.mark(append(dst, '>'), escape.ColorOff)
}

func appendThree(dst []byte, v float64) []byte {
	switch {
	case v < 9.995:
		return strconv.AppendFloat(dst, v, 'f', 2, 64)
	case v < 99.95:
		return strconv.AppendFloat(dst, v, 'f', 1, 64)
	}
	return strconv.AppendFloat(dst, v, 'f', 0, 64)
}

// String returns the prototype as C writes it, for people.
func (f *Function) String() string {
	var b strings.Builder
	b.WriteString(f.Result.String() + " " + f.Name + "(")
	for i, p := range f.Params {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.Type.String() + " " + p.Name)
	}
	b.WriteString(")")
	return b.String()
}

// String returns the type as C writes it.
func (t *Type) String() string {
	switch {
	case t.Name != "":
		return t.Name
	case t.Kind == KindPointer && t.Elem == nil:
		return "void*"
	case t.Kind == KindPointer && t.Const:
		return t.Elem.String() + " const*"
	case t.Kind == KindPointer:
		return t.Elem.String() + "*"
	case t.Kind == KindArray && t.Elem != nil:
		return t.Elem.String() + "[" + strconv.Itoa(t.Count) + "]"
	case t.Kind == KindUnion:
		return "union"
	case t.Kind == KindEnum:
		return "enum"
	}
	return "struct"
}
