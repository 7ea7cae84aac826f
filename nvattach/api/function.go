package api

import "nvtrace/nvattach/api/cuda"

// Function is the prototype of a library's function. It is shared and must not
// be changed.
type Function struct {
	Library Library
	Name    string // the symbol: "cuMemAlloc_v2"
	Result  *Type
	Params  []Param
	// Stack says how many words of 8 bytes the parameters take on the stack, above
	// the return address.
	Stack int
	// Hidden is true where the result is a structure that is returned in memory
	// whose address the caller passes as an argument before the first.
	Hidden bool
}

// Param is a parameter of a function.
type Param struct {
	Name string
	Type *Type
	Loc  Loc
	Dir  Dir // of what it points to; DirNone where it points to nothing that is known
}

// Place is the kind of place that a parameter is passed in.
type Place uint8

// The places.
const (
	PlaceInt   Place = iota // integer registers, rdi rsi rdx rcx r8 r9
	PlaceSSE                // xmm registers, which are not recorded
	PlaceStack              // words of the stack above the return address
	PlaceMixed              // a structure of one integer and one xmm register; Index is the integer's
)

// Loc is where a parameter is at the entry of a function.
type Loc struct {
	Place Place
	Index uint8 // the first register or word
	Count uint8 // how many of them
}

// Dir says what a function does with the memory that a parameter points to, as
// far as types tell.
type Dir uint8

// The directions.
const (
	DirNone  Dir = iota
	DirIn        // read by the function
	DirOut       // written by it
	DirInOut     // both
)

// Kind says what a value of a [Type] is.
type Kind uint8

// The kinds.
const (
	KindVoid    Kind = iota
	KindInt          // signed integer
	KindUint         // unsigned integer
	KindBool         // _Bool
	KindChar         // char, of which an array or a pointer is a text
	KindFloat        // IEEE 754 of Size bytes; half precision and such are KindStruct
	KindPointer      // to Elem
	KindHandle       // a pointer to what only the library knows: CUstream
	KindEnum         // one of Values
	KindFlags        // a sum of Values
	KindStruct       // Fields one after another
	KindUnion        // Fields that share their place
	KindArray        // Count elements of Elem
	KindFunc         // a function; only pointed to
	kinds
)

// Type is a C type. It is shared and must not be changed.
type Type struct {
	Kind   Kind
	Name   string // the typedef's or tag's name; "" for types that are only built of others
	Size   int    // in bytes; 0 where it is not known
	Align  int
	Const  bool    // KindPointer: what it points to is const
	Elem   *Type   // KindPointer, KindArray; nil for a pointer whose target is not in the tables
	Count  int     // KindArray
	Values []Value // KindEnum, KindFlags: by number, then in the order of the header
	Fields []Field // KindStruct, KindUnion
	Status bool    // an enum that says whether a function succeeded
}

// Value is a named value of an enumeration.
type Value struct {
	Name   string
	Number int64
}

// Field is a member of a structure or union.
type Field struct {
	Name   string
	Offset int
	Type   *Type
	Bit    int // of a bit-field: first bit in the unit at Offset
	Bits   int // of a bit-field: its width; 0 for other members
}

// ValueName returns the name of a number, "" where it has none. Of several names
// it is the first in the header.
func (t *Type) ValueName(n int64) string {
	lo, hi := 0, len(t.Values)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); t.Values[mid].Number < n {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(t.Values) && t.Values[lo].Number == n {
		return t.Values[lo].Name
	}
	return ""
}

// isInteger reports whether a value of t is a number in an integer register.
func (t *Type) isInteger() bool {
	switch t.Kind {
	case KindInt, KindUint, KindBool, KindChar, KindEnum, KindFlags:
		return true
	}
	return false
}

// Failed reports whether a result says that the function failed. Answers such as
// "not ready yet" are no failures.
func (f *Function) Failed(ret int64) bool {
	if f == nil || !f.Result.Status {
		return false
	}
	switch code := int64(int32(uint32(uint64(ret)))); f.Library {
	case Driver, Runtime:
		return code != 0 && code != notReady
	case NCCL:
		return code != 0 && code != ncclInProgress
	default:
		return code != 0
	}
}

// Results that are answers.
const (
	notReady       = cuda.CUDA_ERROR_NOT_READY // cudaErrorNotReady is the same
	ncclInProgress = 7                         // nccl.h
)
