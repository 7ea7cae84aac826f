package rm

import (
	"slices"
	"strconv"
	"strings"
)

// Struct is the layout of a record or union as one driver version has it, by
// the rules that x86-64 and arm64 Linux share for these headers.
type Struct struct {
	Name   string // the driver's name; nested anonymous ones are named Outer.member
	Size   int    // bytes
	Align  int    // bytes
	Union  bool   // all members start at 0
	Fields []Field
}

// Field is one member of a [Struct].
type Field struct {
	Name   string  // "" for an anonymous struct or union member
	Offset int     // bytes from the start of the struct
	Size   int     // bytes of the whole member, arrays included
	Type   string  // the driver's name of the (element) type: NvU32, NvHandle, NVOS00_PARAMETERS
	Kind   Kind    // what a (single) element is
	Elem   int     // bytes of one element; Size if the member is no array
	Struct *Struct // layout of an element of KindStruct, else nil
	Dims   []int   // array dimensions, outermost first; nil: no array; 0: flexible array
	BitOff int     // bit-field: first bit, counted from the least significant bit of the bytes at Offset
	Bits   int     // bit-field: width; 0: not a bit-field
	Role   Role    // what the value stands for; by the member's type and spelling: for printing
	Count  string  // sibling member that counts the array's valid elements; by spelling: for printing
	Domain *Domain // names of the values, nil if there are none
	Dir    Dir     // in which direction the driver's documentation says the member travels
}

// Kind says how an element's bytes are read.
type Kind uint8

// The kinds.
const (
	KindUint Kind = iota // unsigned integer of Elem bytes, little endian
	KindInt              // signed integer
	KindFloat
	KindPointer // address in the program's memory (NvP64 or a C pointer)
	KindEnum    // enumeration; Domain names its values
	KindStruct  // nested record; Struct
)

// Role says what a number stands for.
type Role uint8

// The roles.
const (
	RoleNone    Role = iota
	RoleHandle       // object handle, of the client that the call names
	RoleFD           // file descriptor of the calling process
	RolePID          // process id
	RoleClass        // object class, [ABI.Class]
	RolePointer      // address in the program's memory
	RoleStatus       // [Status]
	RoleUUID         // 16 bytes that identify a GPU or another processor
	RoleAddress      // address or offset on the GPU or bus
	RoleBytes        // a number of bytes
	RoleGPU          // gpuId as the driver numbers GPUs
	RoleString       // NUL-terminated characters
)

// Dir is the direction in which a member or a pointed-to buffer travels.
type Dir uint8

// The directions; DirUnknown is the zero value.
const (
	DirUnknown Dir = iota
	DirIn          // from the program to the driver
	DirOut         // from the driver to the program
	DirInOut
)

// Find returns where a member lies, by a path such as params.hClient or gpuIds[1].info; false if there is none of that name.
func (s *Struct) Find(path string) (at int, member *Field, ok bool) {
	for name := range strings.SplitSeq(path, ".") {
		name, index, indexed := strings.Cut(strings.TrimSuffix(name, "]"), "[")
		i := -1
		if s != nil {
			i = slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name })
		}
		if i < 0 {
			return 0, nil, false
		}
		member = &s.Fields[i]
		at += member.Offset
		if indexed {
			n, err := strconv.Atoi(index)
			if err != nil || n < 0 || (n+1)*member.Elem > member.Size {
				return 0, nil, false
			}
			at += n * member.Elem
		}
		s = member.Struct
	}
	return at, member, true
}
