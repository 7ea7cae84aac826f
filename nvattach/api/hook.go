package api

// HookSpec says what to copy when a function is entered and when it returns, so
// that its line can be printed. It is bounded whatever the prototype says.
type HookSpec struct {
	// StackWords is how many words of 8 bytes above the return address hold
	// arguments. They are given as the event's first segment: [traces.Event.Mem][0]
	// of the call, 8*StackWords long, at the address where they lie.
	StackWords uint8
	// Derefs are the memory that arguments point to. At entry (In) and at return
	// (Out) a segment at that address with what could be read is given.
	Derefs []Deref
}

// Deref is memory that an argument points to.
type Deref struct {
	Arg     uint8  // 0 to 5: integer register; from 6: word of the stack
	Off     uint32 // begin there
	Len     uint32 // bytes at most
	CString bool   // up to and with the zero byte
	In      bool   // copy it at entry
	Out     bool   // copy it at return, from the address that the argument had at entry
}

// Bounds of what a hook copies.
const (
	MaxString = 256  // bytes of a string
	MaxStruct = 512  // bytes of a structure
	maxDerefs = 8    // of a function
	maxOut    = 4    // of them at return
	maxCopy   = 1024 // bytes of all
)

// HookFor returns what to copy for a function that a library exports, and whether
// the function is one of its interface at all: libraries export others too. A
// function of the interface that the tables lack is hooked for its registers.
// Two names may be of one address (nccl, pnccl): it is for the caller to hook it once.
func (m Module) HookFor(symbol string) (h HookSpec, ok bool) {
	f := m.Lookup(symbol)
	switch {
	case m.Library == Unknown || f == nil && (m.Library == LibC || MatchSymbol(symbol) != m.Library):
		return h, false
	}
	return f.hook(), true
}

// hook returns what to copy for f. A nil f, a function that is not known, needs
// its registers only.
func (f *Function) hook() HookSpec {
	var h HookSpec
	if f == nil {
		return h
	}
	h.StackWords = uint8(f.Stack)
	total, outs := 0, 0
	for i := range f.Params {
		p := &f.Params[i]
		if p.Dir == DirNone || len(h.Derefs) == maxDerefs || p.Loc.Place != PlaceInt && p.Loc.Place != PlaceStack {
			continue
		}
		d := Deref{Arg: p.Loc.Index, In: p.Dir != DirOut, Out: p.Dir != DirIn}
		if p.Loc.Place == PlaceStack {
			d.Arg += 6
		}
		if e := p.Type.Elem; e.Kind == KindChar {
			d.CString, d.Len = true, MaxString
		} else {
			d.Len = uint32(min(e.Size, MaxStruct))
		}
		if d.Out {
			if outs++; outs > maxOut {
				continue
			}
		}
		if total += int(d.Len); total > maxCopy {
			break
		}
		h.Derefs = append(h.Derefs, d)
	}
	return h
}
