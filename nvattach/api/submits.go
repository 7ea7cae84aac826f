package api

import (
	"encoding/binary"
	"strings"
)

// A Submitter reads from calls of a function of the driver what they have a GPU run, as far as that can be seen in
// the GPU's channel, too.
type Submitter struct {
	Graph     bool // it launches a graph
	PerThread bool // the default stream is the thread's own
	// Captures and Ends: it launches nothing, but from its call, or up to its return, launches may become nodes of a graph.
	Captures, Ends bool

	subject, stream argPlace
	grid, block     [3]argPlace
}

// A Submission is what a call has a GPU run.
type Submission struct {
	Subject     uint64 // handle of the function or the graph
	Stream      uint64 // handle
	Grid, Block [3]uint32
}

// An argPlace is where an argument is: a register (0 to 5) or a word of the stack above the return address (from 6). With
// in, it points to a structure that has it at an offset.
type argPlace struct {
	known  bool
	arg    uint8
	in     bool
	offset uint32
}

var dimensions = [3]string{"X", "Y", "Z"}

// Submits returns how to read calls of f; nil if f launches nothing, or if the dimensions of what it launches are not
// in its arguments. f may be nil.
func (f *Function) Submits() *Submitter {
	if f != nil && f.Library == Driver {
		switch {
		case strings.HasPrefix(f.Name, "cuStreamBeginCapture"):
			return &Submitter{Captures: true}
		case strings.HasPrefix(f.Name, "cuStreamEndCapture"):
			return &Submitter{Ends: true}
		}
	}
	if !launches(f) || f.Library != Driver {
		return nil
	}
	s := &Submitter{Graph: strings.Contains(f.Name, "GraphLaunch"), PerThread: strings.HasSuffix(f.Name, "_ptsz")}
	for i := range f.Params {
		p := &f.Params[i]
		at := argPlace{known: true, arg: p.Loc.Index}
		switch p.Loc.Place {
		case PlaceStack:
			at.arg += 6
		case PlaceInt:
		default:
			continue
		}
		if p.Name == "config" && p.Type.Elem != nil {
			for _, field := range p.Type.Elem.Fields {
				s.note(field.Name, field.Type.Name, argPlace{true, at.arg, true, uint32(field.Offset)})
			}
			continue
		}
		s.note(p.Name, p.Type.Name, at)
	}
	for i := range 3 {
		if !s.Graph && (!s.grid[i].known || !s.block[i].known) {
			return nil
		}
	}
	if !s.subject.known || !s.stream.known {
		return nil
	}
	return s
}

// note notes where an argument is.
func (s *Submitter) note(name, typ string, at argPlace) {
	switch typ {
	case "CUstream":
		s.stream = at
	case "CUfunction", "CUgraphExec":
		s.subject = at
	}
	for i, d := range dimensions {
		switch name {
		case "gridDim" + d:
			s.grid[i] = at
		case "blockDim" + d:
			s.block[i] = at
		}
	}
}

// Read reads a call: its registers, the words of the stack above the return address, and memory that was copied at an
// address. It returns false if something wasn't copied.
func (s *Submitter) Read(args [6]uint64, stack []byte, memory func(address uint64) []byte) (x Submission, ok bool) {
	ok = true
	word := func(p argPlace, size int) uint64 {
		v := uint64(0)
		switch {
		case int(p.arg) < len(args):
			v = args[p.arg]
		case 8*(int(p.arg)-len(args)+1) <= len(stack):
			v = binary.LittleEndian.Uint64(stack[8*(int(p.arg)-len(args)):])
		default:
			ok = false
		}
		if p.in {
			b := memory(v)
			if int(p.offset)+size > len(b) {
				ok = false
				return 0
			}
			var eight [8]byte
			copy(eight[:size], b[p.offset:])
			v = binary.LittleEndian.Uint64(eight[:])
		}
		return v
	}
	const handle, dimension = 8, 4
	x.Subject, x.Stream = word(s.subject, handle), word(s.stream, handle)
	for i := range 3 {
		if !s.Graph {
			x.Grid[i], x.Block[i] = uint32(word(s.grid[i], dimension)), uint32(word(s.block[i], dimension))
		}
	}
	return x, ok
}
