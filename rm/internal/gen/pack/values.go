package pack

import (
	"maps"
	"slices"
	"strings"

	"nvtrace/rm/internal/gen/facts"
)

// Corrections of the names that members' values have. Constants are found by
// how they are spelled, so that a count, a limit, an old name, or a constant of
// another member may stand beside the name that a value ought to have.

// sameValues are members of parameters that take the values of another record's
// member: rmapi_deprecated_vidheapctrl.c copies one into the other, and so do
// the drivers' uses of them (system_mem.c, video_mem.c, os_desc_mem.c).
var sameValues = func() map[string]string {
	m := map[string]string{
		"NVOS32_PARAMETERS.data.Info.attr":                     "NV_MEMORY_ALLOCATION_PARAMS.attr",
		"NVOS32_PARAMETERS.data.AllocHintAlignment.alignType":  "NV_MEMORY_ALLOCATION_PARAMS.type",
		"NVOS32_PARAMETERS.data.AllocHintAlignment.alignAttr":  "NV_MEMORY_ALLOCATION_PARAMS.attr",
		"NVOS32_PARAMETERS.data.AllocHintAlignment.alignAttr2": "NV_MEMORY_ALLOCATION_PARAMS.attr2",
		"NVOS32_PARAMETERS.data.HwAlloc.allocType":             "NV_MEMORY_ALLOCATION_PARAMS.type",
		"NVOS32_PARAMETERS.data.HwAlloc.allocAttr":             "NV_MEMORY_ALLOCATION_PARAMS.attr",
		"NVOS32_PARAMETERS.data.HwAlloc.allocAttr2":            "NV_MEMORY_ALLOCATION_PARAMS.attr2",
		"NVOS32_PARAMETERS.data.HwAlloc.retAttr":               "NV_MEMORY_ALLOCATION_PARAMS.attr",
		"NVOS32_PARAMETERS.data.HwAlloc.retAttr2":              "NV_MEMORY_ALLOCATION_PARAMS.attr2",
		"NVOS32_PARAMETERS.data.AllocOsDesc.descriptorType":    "NV_OS_DESC_MEMORY_ALLOCATION_PARAMS.descriptorType",
		"NV_OS_DESC_MEMORY_ALLOCATION_PARAMS.flags":            "NV_MEMORY_ALLOCATION_PARAMS.flags",
	}
	for _, union := range []string{"AllocSize", "AllocSizeRange", "AllocTiledPitchHeight", "AllocDepthWidthHeight", "AllocOsDesc"} {
		for _, member := range []string{"type", "flags", "attr", "attr2"} {
			m["NVOS32_PARAMETERS.data."+union+"."+member] = "NV_MEMORY_ALLOCATION_PARAMS." + member
		}
	}
	return m
}()

// superseded are names that lose against another name of the same number: old
// names that the headers keep as aliases (class cl2080.h, nvos.h), and values of
// a member beside the index whose name does not begin like the index's
// (ctrl2080gpu.h spells COMPR_BIT_BACKING_COPY_TYPE without its R there).
var superseded = map[string]bool{
	"BSP": true, "VLD": true, "MSENC": true, "CIPHER": true, "GRAPHICS": true, "NVJPG": true, "OFA": true,
	"MAXIMIZE_4GB_ADDRESS_SPACE":          true,
	"COMP_BIT_BACKING_COPY_TYPE_PHYSICAL": true, "COMP_BIT_BACKING_COPY_TYPE_VIRTUAL": true,
}

// limit reports whether a name is that of a count or a place holder, not of a
// value, if some other name has the same number.
func limit(name string) bool {
	return name == "MAX" || name == "DUMMY" || name == "LAST" || strings.HasSuffix(name, "_SIZE")
}

// macros are combinations of flags, by the domain's prefix (nvos.h).
var macros = map[string]string{"NVOS32_ALLOC_FLAGS_": "VIRTUAL_ONLY"}

// manyMeanings are domains with bits that mean different things to different
// classes (nvos.h marks them as aliases): such a bit gets all its names.
var manyMeanings = map[string]bool{"NVOS32_ALLOC_FLAGS_": true}

// corrected returns a domain's plain values without the names that are not to
// be printed.
func corrected(d *facts.Domain) map[string]uint64 {
	byValue := map[uint64][]string{}
	for _, n := range slices.Sorted(maps.Keys(d.Vals)) {
		if n != macros[d.Prefix] {
			byValue[d.Vals[n]] = append(byValue[d.Vals[n]], n)
		}
	}
	out := map[string]uint64{}
	for v, names := range byValue {
		better := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return superseded[n] || limit(n) })
		if len(better) > 0 {
			names = better
		}
		if len(names) > 1 && manyMeanings[d.Prefix] {
			names = []string{strings.Join(names, "/")}
		}
		for _, n := range names {
			out[n] = v
		}
	}
	return out
}
