package nvattach

import (
	"maps"
	"slices"

	"nvtrace/ptx/bpf"
)

// HelperInfo describes a helper that programs call by its number.
type HelperInfo struct {
	Number int32
	Name   string
	Args   []string // what each takes: "map", "key", "number", …
	Never  bool     // it ends the thread, and has to be allowed
}

// argNames are what helpers take, in words.
var argNames = map[bpf.ArgKind]string{
	bpf.ArgAny: "any", bpf.ArgScalar: "number", bpf.ArgConst: "constant", bpf.ArgMap: "map", bpf.ArgKey: "key", bpf.ArgValue: "value",
	bpf.ArgRead: "memory", bpf.ArgWrite: "memory to write", bpf.ArgContext: "context", bpf.ArgString: "text", bpf.ArgRecord: "record",
	bpf.ArgShared: "value of a map",
}

// Helpers returns the helpers of programs in kernels, by number.
func Helpers() (list []HelperInfo) {
	all := new(unit).helpers()
	for _, n := range slices.Sorted(maps.Keys(all)) {
		h := all[n]
		info := HelperInfo{Number: n, Name: h.Name, Never: h.Ret == bpf.RetNever}
		for _, a := range h.Args {
			info.Args = append(info.Args, argNames[a.Kind])
		}
		list = append(list, info)
	}
	return list
}

// Kinds returns the kinds of places in kernels that sections name, cuda.KIND/KERNEL.
func Kinds() []Kind { return []Kind{KindEntry, KindExit, KindMem, KindInsn, KindBlock} }

// MapTypes returns the types of maps that programs in kernels can have, by number.
func MapTypes() (list []MapType) {
	for _, t := range slices.Sorted(maps.Keys(mapTypeNames)) {
		if d := (&MapDef{Type: t}); d.Supported() && !d.HostOnly() {
			list = append(list, t)
		}
	}
	return list
}
