package api

import (
	"strings"

	"nvtrace/traces"
)

// launches reports whether a function launches a kernel, or a graph of them.
func launches(f *Function) bool {
	if f == nil || !strings.Contains(f.Name, "Launch") {
		return false
	}
	if strings.Contains(f.Name, "GraphLaunch") {
		return true
	}
	for i := range f.Params {
		if isKernel(&f.Params[i]) {
			return true
		}
	}
	return false
}

// Launch says which kernel a call launches, and on which stream; ok is false where it
// launches none. ev is the event of the call. The name is as the image has it, "" where it
// is not known, "(graph)" for a graph's launch. The stream is its handle, 0 that of the
// default stream, or of one that was not recorded.
func (f *Frame) Launch(ev *traces.Event, names *Names) (kernel string, stream uint64, ok bool) {
	if !f.launches {
		return "", 0, false
	}
	for i := range f.Function.Params {
		p := &f.Function.Params[i]
		v, known := f.word(p, 0)
		switch {
		case !known:
		case isKernel(p):
			kernel = names.kernel(f.PID, v)
		case isStream(p.Type):
			stream = v
		case p.Type.Kind == KindPointer && p.Type.Elem != nil && p.Type.Elem.Kind == KindStruct: // of a launch's configuration
			for j := range p.Type.Elem.Fields {
				if m := &p.Type.Elem.Fields[j]; isStream(m.Type) {
					stream, _ = load(segment(ev.Mem, v, false), m.Offset, 8)
				}
			}
		}
	}
	if kernel == "" && strings.Contains(f.Name, "GraphLaunch") {
		kernel = "(graph)"
	}
	return kernel, stream, true
}

func isStream(t *Type) bool { return t.Name == "CUstream" || t.Name == "cudaStream_t" }

// Launches reports whether a function of the driver launches kernels, or graphs.
func Launches(m Module, name string) bool {
	return m.Library == Driver && launches(m.Lookup(name))
}
