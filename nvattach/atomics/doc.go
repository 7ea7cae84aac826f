// Package atomics rewrites eBPF programs so that what their threads change at once in maps is
// not lost: "*p += n", and values of an array that are written back with n more, become
// atomic additions ([Increments], [Updates]). It also finds calls that only insert a key
// ([Insertions]), gives paths that share code a copy each ([Split]), and says what a register
// comes from on all paths ([Flow]).
//
// It proves nothing: what it returns is for package ptx/bpf to verify, as the original is.
package atomics

import "github.com/cilium/ebpf/asm"

// A Map is what rewriting needs to know of a map.
type Map struct {
	Name               string
	KeySize, ValueSize uint32
	Array, Hash        bool // what its values lie in, if either
	PerThread          bool // each thread has values of its own
	Data               bool // it is a section with variables
}

// Maps returns the map of a name, nil if there is none.
type Maps func(name string) *Map

// Helpers that maps are read and changed by, and flags of the latter (linux/bpf.h).
const (
	helperLookup = int64(asm.FnMapLookupElem)
	helperUpdate = int64(asm.FnMapUpdateElem)

	flagNoExist = 1
	flagExist   = 2
)
