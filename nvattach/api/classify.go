package api

import "strings"

// This file finds where parameters are passed: the classification of the System
// V ABI for x86-64 (AMD64 psABI, 3.2.3 Parameter Passing), for the types that
// C interfaces have. __int128, long double and vectors do not occur in them.

// class is what an eightbyte of a value is passed in.
type class uint8

const (
	classNone class = iota
	classInt
	classSSE
	classMemory
)

// classesOf returns the classes of a value's eightbytes; classMemory alone where
// the value is passed on the stack whatever registers are left.
func classesOf(t *Type) []class {
	switch t.Kind {
	case KindVoid:
		return nil
	case KindFloat:
		if t.Size > 8 {
			return []class{classMemory}
		}
		return []class{classSSE}
	case KindStruct, KindUnion, KindArray:
		if t.Size == 0 || t.Size > 16 {
			return []class{classMemory}
		}
		c := make([]class, (t.Size+7)/8)
		if !classifyFields(t, 0, c) {
			return []class{classMemory}
		}
		return c
	}
	return []class{classInt}
}

// classifyFields merges the classes of a structure's members into c. It is false
// where a member is not aligned, or lies outside.
func classifyFields(t *Type, at int, c []class) bool {
	switch t.Kind {
	case KindStruct, KindUnion:
		for i := range t.Fields {
			if !classifyFields(t.Fields[i].Type, at+t.Fields[i].Offset, c) {
				return false
			}
		}
		return true
	case KindArray:
		for i := range t.Count {
			if t.Elem == nil || i > 16 || !classifyFields(t.Elem, at+i*t.Elem.Size, c) {
				return false
			}
		}
		return true
	}
	if at/8 >= len(c) || t.Align > 1 && at%t.Align != 0 {
		return false
	}
	switch want := classesOf(t); {
	case len(want) != 1 || want[0] == classMemory:
		return false
	case want[0] == classInt || c[at/8] == classNone:
		c[at/8] = want[0] // an integer beside a float makes it an integer register
	}
	return true
}

// Numbers of registers that pass parameters.
const (
	intRegisters = 6
	sseRegisters = 8
)

// place assigns the places of a function's parameters.
func (f *Function) place() {
	ints, sses, stack := 0, 0, 0
	if c := classesOf(f.Result); len(c) == 1 && c[0] == classMemory {
		f.Hidden = true
		ints = 1
	}
	for i := range f.Params {
		p := &f.Params[i]
		c := classesOf(p.Type)
		needInt, needSSE := 0, 0
		memory := len(c) == 0
		for _, k := range c {
			switch k {
			case classMemory:
				memory = true
			case classSSE:
				needSSE++
			default:
				needInt++
			}
		}
		switch {
		case memory || ints+needInt > intRegisters || sses+needSSE > sseRegisters:
			words := (max(p.Type.Size, 1) + 7) / 8
			if p.Type.Align > 8 {
				stack += stack & 1
			}
			p.Loc = Loc{PlaceStack, uint8(min(stack, 255)), uint8(min(words, 255))}
			stack += words
			continue
		case needInt > 0 && needSSE > 0:
			p.Loc = Loc{PlaceMixed, uint8(ints), 2}
		case needSSE > 0:
			p.Loc = Loc{PlaceSSE, uint8(sses), uint8(needSSE)}
		default:
			p.Loc = Loc{PlaceInt, uint8(ints), uint8(needInt)}
		}
		ints += needInt
		sses += needSSE
	}
	f.Stack = min(stack, maxStack)
}

// maxStack is how many words of the stack are recorded at most.
const maxStack = 32

// undirected are parameters whose types say nothing of what they point to: arrays
// of arguments, and of options with their values, that the function reads.
var undirected = map[string]bool{
	"kernelParams": true, "extra": true, "args": true, "options": true, "optionValues": true, "optionsValues": true,
	"jitOptions": true, "jitOptionsValues": true, "libraryOptions": true, "libraryOptionValues": true,
}

// direct sets the directions of a function's pointers by their types: const says
// that the function reads; scalars, handles, pointers and small structures that
// are not const are results.
func (f *Function) direct() {
	for i := range f.Params {
		p := &f.Params[i]
		t := p.Type
		if t.Kind != KindPointer || t.Elem == nil || undirected[p.Name] || f.onDevice(t) {
			continue
		}
		switch e := t.Elem; {
		case e.Kind == KindVoid || e.Kind == KindFunc || e.Size == 0:
		case t.Const:
			p.Dir = DirIn
		case e.Kind == KindStruct || e.Kind == KindUnion:
			if e.Size <= MaxStruct {
				p.Dir = DirInOut
			}
		default:
			p.Dir = DirOut
		}
	}
}

// onDevice reports whether what a parameter of the function points to may be
// memory that the processor must not touch: the libraries' operands, which are on
// the GPU, or managed, where a look would move them. Handles, texts, size_t and
// larger structures are the host's; so are integers, and in functions called Get
// addresses, that a function returns about something.
func (f *Function) onDevice(t *Type) bool {
	switch f.Library {
	case Driver, Runtime, NVRTC, NVJitLink, LibC:
		return false
	}
	get := strings.Contains(f.Name, "Get") || strings.Contains(f.Name, "Query")
	switch e := t.Elem; e.Kind {
	case KindInt, KindUint:
		host := e.Name == "size_t" || strings.Contains(e.Name, "Handle") ||
			get || strings.Contains(strings.ToLower(f.Name), "buffersize")
		return t.Const || !host
	case KindFloat:
		return true
	case KindPointer:
		return t.Const || !get
	case KindStruct: // cuComplex, __half, …
		return e.Size <= 16
	}
	return false
}
