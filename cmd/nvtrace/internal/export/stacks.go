package export

import (
	"github.com/google/pprof/profile"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// apiNode is a stack of library calls in a profile.
type apiNode struct {
	parent int32 // the calls around it, 0 none
	frame  *profile.Location
}

// apiKey identifies an apiNode.
type apiKey struct {
	parent int32
	frame  *profile.Location
}

// maxStacks bounds the distinct stacks of library calls that a profile keeps
// apart; calls in others count for the calls around them.
const maxStacks = 1 << 16

// stack returns the number of a frame's stack, 0 for none.
func (p *Profile) stack(f *api.Frame) int32 {
	if f == nil {
		return 0
	}
	if n := int32(f.Mark[api.ProfileMark] >> markShift); n != 0 {
		return n
	}
	n := p.node(p.stack(f.Parent), p.frame(callName(f), "api/"+libraryName(f)))
	f.Mark[api.ProfileMark] |= int(n) << markShift
	return n
}

// node returns the number of a stack that has a frame more than another.
func (p *Profile) node(parent int32, frame *profile.Location) int32 {
	k := apiKey{parent, frame}
	n, ok := p.stacks[k]
	if !ok {
		if len(p.nodes) >= maxStacks {
			return parent
		}
		n = int32(len(p.nodes))
		p.nodes = append(p.nodes, apiNode(k))
		p.stacks[k] = n
	}
	return n
}

// calledFrom takes in where the call was made that a thread is in: its stack is that of the program's
// functions, among which are those of CUDA's libraries that have made the call.
func (p *Profile) calledFrom(ev *traces.Event) {
	f := p.in
	if f == nil || f.Name != ev.Name || ev.Flags&traces.FlagUnfinished != 0 {
		return
	}
	n := int32(0)
	list := ev.Stack()
	for i := len(list) - 1; i >= 0; i-- {
		n = p.node(n, p.place(&list[i]))
	}
	n = p.node(n, p.frame(callName(f), "api/"+libraryName(f)))
	f.Mark[api.ProfileMark] = f.Mark[api.ProfileMark]&markWanted | int(n)<<markShift
}

// place returns the location of a program's function.
func (p *Profile) place(f *traces.StackFrame) *profile.Location {
	name := f.Func
	if f.Language == traces.LanguageNative {
		if name == "" {
			name = f.String()
		} else if p.Demangle != nil {
			name = p.Demangle(name)
		}
	}
	return p.line(clip(name, maxName), clip(f.File, maxText), f.Line)
}

// appendStack appends the frames of a stack, the innermost first.
func (p *Profile) appendStack(dst []*profile.Location, n int32) []*profile.Location {
	for n != 0 {
		dst = append(dst, p.nodes[n].frame)
		n = p.nodes[n].parent
	}
	return dst
}
