package nvattach

import (
	"maps"
	"slices"
)

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
