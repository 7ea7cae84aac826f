package nvattach

import (
	"maps"
	"slices"

	"nvtrace/nvattach/object"
)

// Kinds returns the kinds of places in kernels that sections name, cuda.KIND/KERNEL.
func Kinds() []object.Kind {
	return []object.Kind{object.KindEntry, object.KindExit, object.KindMem, object.KindInsn, object.KindBlock}
}

// MapTypes returns the types of maps that programs in kernels can have, by number.
func MapTypes() []object.MapType { return mapTypes(false) }

// HostMapTypes returns the types of maps that only programs on the host can have.
func HostMapTypes() []object.MapType { return mapTypes(true) }

func mapTypes(hostOnly bool) (list []object.MapType) {
	for _, t := range slices.Sorted(maps.Keys(object.MapTypeNames)) {
		if d := (&object.MapDef{Type: t}); d.Supported() && d.HostOnly() == hostOnly {
			list = append(list, t)
		}
	}
	return list
}
