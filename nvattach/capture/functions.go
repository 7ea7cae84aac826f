package capture

import (
	"encoding/hex"
	"strings"
)

// action says what a function of the driver means to this package.
type action uint8

const (
	actLoad        action = iota + 1 // makes a module or library of an image in memory
	actLoadFile                      // the same of a file
	actLinkAdd                       // gives an image to the linker
	actLinkAddFile                   // the same of a file
	actLinkEnd                       // the linker's result
	actTable                         // cuGetExportTable
	actUnload                        // ends a module or library
	actLinkDestroy                   // ends a linker
	actLookup                        // finds a kernel, or another name for a module
	actEnumerate                     // finds all kernels
	actLaunch                        // starts a kernel, or puts it into a graph
	actSlot                          // nobody knows: it may take an image
)

// function is a function of the driver. Arguments are numbered from 0; those
// beyond the sixth lie on the stack.
type function struct {
	name string
	act  action

	image int8 // loads: the argument that is the image or the path
	size  int8 // loads: the argument with the image's size, none: the image says it
	kind  int8 // links: the argument with the CUjitInputType, none: any
	out   int8 // the argument that points to where the result goes; launches: to the kernel, see how
	count int8 // enumerations: the argument with the number of results
	owner int8 // lookups, unloads, enumerations: the argument with the handle it concerns
	label int8 // lookups: the argument with the kernel's name
	lib   bool // loads: the result is a library; lookups: the owner is one
	alias bool // lookups: what is found stands for the owner's module
	how   launchForm
	extra int8 // launches in an array: the argument with their number
}

// launchForm says how a launching function is told which kernel.
type launchForm uint8

const (
	launchHandle launchForm = iota // the argument is the function
	launchParams                   // it points to CUDA_KERNEL_NODE_PARAMS
	launchParam2                   // it points to CUDA_KERNEL_NODE_PARAMS_v2
	launchNode                     // it points to CUgraphNodeParams
	launchArray                    // it points to an array of CUDA_LAUNCH_PARAMS
)

const none = -1

// kernelGetFunction is the look-up that programs make again and again: cuDNN and PyTorch do before launches.
const kernelGetFunction = "cuKernelGetFunction"

// functions returns the functions of the driver that matter, by their exported
// names: prototypes of cuda.h and cudaTypedefs.h, CUDA 2.0 to 13.0. A name with
// _v2 is an export of its own. No loader has a variant per default stream.
func functions() []function {
	load := func(name string, lib bool) function {
		return function{name: name, act: actLoad, out: 0, image: 1, size: none, lib: lib}
	}
	file := func(name string, lib bool) function {
		return function{name: name, act: actLoadFile, out: 0, image: 1, size: none, lib: lib}
	}
	linkAdd := func(name string) function {
		return function{name: name, act: actLinkAdd, owner: 0, kind: 1, image: 2, size: 3, out: none}
	}
	linkFile := func(name string) function {
		return function{name: name, act: actLinkAddFile, owner: 0, kind: 1, image: 2, size: none, out: none}
	}
	launch := func(name string, arg int8, how launchForm) function {
		return function{name: name, act: actLaunch, out: arg, how: how}
	}
	return []function{
		load("cuModuleLoadData", false),
		load("cuModuleLoadDataEx", false),
		load("cuModuleLoadFatBinary", false),
		load("cuLibraryLoadData", true),
		file("cuModuleLoad", false),
		file("cuLibraryLoadFromFile", true),
		linkAdd("cuLinkAddData"),
		linkAdd("cuLinkAddData_v2"),
		linkFile("cuLinkAddFile"),
		linkFile("cuLinkAddFile_v2"),
		{name: "cuLinkComplete", act: actLinkEnd, owner: 0, out: 1, size: 2},
		{name: "cuGetExportTable", act: actTable, out: 0, image: 1},

		{name: "cuModuleUnload", act: actUnload, owner: 0},
		{name: "cuLibraryUnload", act: actUnload, owner: 0, lib: true},
		{name: "cuLinkDestroy", act: actLinkDestroy, owner: 0},

		{name: "cuModuleGetFunction", act: actLookup, out: 0, owner: 1, label: 2},
		{name: "cuLibraryGetKernel", act: actLookup, out: 0, owner: 1, label: 2, lib: true},
		{name: "cuLibraryGetModule", act: actLookup, out: 0, owner: 1, label: none, lib: true, alias: true},
		{name: kernelGetFunction, act: actLookup, out: 0, owner: 1, label: none},
		{name: "cuModuleEnumerateFunctions", act: actEnumerate, out: 0, count: 1, owner: 2},
		{name: "cuLibraryEnumerateKernels", act: actEnumerate, out: 0, count: 1, owner: 2, lib: true},

		launch("cuLaunchKernel", 0, launchHandle),
		launch("cuLaunchKernel_ptsz", 0, launchHandle),
		launch("cuLaunchKernelEx", 1, launchHandle),
		launch("cuLaunchKernelEx_ptsz", 1, launchHandle),
		launch("cuLaunchCooperativeKernel", 0, launchHandle),
		launch("cuLaunchCooperativeKernel_ptsz", 0, launchHandle),
		{name: "cuLaunchCooperativeKernelMultiDevice", act: actLaunch, out: 0, how: launchArray, extra: 1},
		launch("cuLaunch", 0, launchHandle),
		launch("cuLaunchGrid", 0, launchHandle),
		launch("cuLaunchGridAsync", 0, launchHandle),
		launch("cuGraphAddKernelNode", 4, launchParams),
		launch("cuGraphAddKernelNode_v2", 4, launchParam2),
		launch("cuGraphAddNode", 4, launchNode),
		launch("cuGraphAddNode_v2", 5, launchNode),
		launch("cuGraphKernelNodeSetParams", 1, launchParams),
		launch("cuGraphKernelNodeSetParams_v2", 1, launchParam2),
		launch("cuGraphNodeSetParams", 1, launchNode),
		launch("cuGraphExecKernelNodeSetParams", 2, launchParams),
		launch("cuGraphExecKernelNodeSetParams_v2", 2, launchParam2),
		launch("cuGraphExecNodeSetParams", 2, launchNode),
	}
}

// loads reports whether an image comes with the call, or the way to a loader.
func (f *function) loads() bool { return f.act <= actTable }

// uuid is a CUuuid, as cuGetExportTable takes it.
type uuid [16]byte

// String returns "6BD5FB6C-5BF4-E74A-8987-D93912FD9DF9".
func (u uuid) String() string {
	s := strings.ToUpper(hex.EncodeToString(u[:]))
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// table is a hidden table that cuGetExportTable hands out.
type table struct {
	name  string
	slots map[int]function // those that matter
}

// tables returns the hidden tables that are known, by the identifiers that
// public libraries ask for. What the slots take was found by others by watching
// the runtimes (ZLUDA's notes; cricket) and measured on drivers 535 to 580. Other
// slots of these tables take no code, as far as is known; tables that are not in
// the list have all of their slots watched.
func tables() map[uuid]table {
	list := []struct {
		id, name string
		slots    map[int]function
	}{
		{"6BD5FB6C5BF4E74A8987D93912FD9DF9", "CUDART_INTERFACE", map[int]function{
			1: {act: actLoad, out: 0, image: 1, size: none},
			6: {act: actLoad, out: 0, image: 1, size: none},
			7: {act: actUnload, owner: 0},
			8: {act: actLoad, out: 1, image: 0, size: none},
			9: {act: actLaunch, out: 0, how: launchHandle},
		}},
		{"7F9212D6261DDD4D8AF638DD1AEB10AE", "DLSS", map[int]function{
			12: {act: actLoad, out: 1, image: 2, size: none},
		}},
		{"A094798C2E742E7493F20800200C0A66", "TOOLS_RUNTIME_CALLBACK_HOOKS", nil},
		{"42D85A8123F6CB478298F6E78A3AECDC", "TOOLS_TLS", nil},
		{"C693336E1121DF11A8C368F355D89593", "CONTEXT_LOCAL_STORAGE_INTERFACE_V0301", nil},
		{"D4082055BDE6704B8D34BA123C66E1F2", "INTEGRITY_CHECK", nil},
		{"263E88607CD2614392F6BBD5006DFA7E", "CONTEXT_CHECKS", nil},
		{"DD9E98A4F410484499B0E2AEB7B432B5", "HYBRID_CUDART", nil},
		{"0CA50B8C1004929A89A7D0DF10E77286", "CTX_CREATE_BYPASS", nil},
		{"195BCBF4D67D024AACC51D29CEA631AE", "HEAP_ACCESS", nil},
		{"B10541E1F7C7C74A9F64F223BE99F1E2", "DEVICE_EXTENDED_RT", nil},
		{"21318C60971432488CA641FF7324C8F2", "21318C60 (cuBLASLt, cuFFT)", nil},
		{"6E163FBEB958444D835CE182AFF1991E", "6E163FBE (cuFFT, tools)", nil},
		{"BFDB432DBF3C5A4A945EB34029E81E75", "BFDB432D (tools)", nil},
		{"7CB63F9B9CA48E42A484BEB66E6AED7F", "7CB63F9B (CUPTI)", nil},
		{"D7BD8AF8E7ACCA4ABDBCFB1F1B3FCF33", "D7BD8AF8 (CUPTI)", nil},
		{"2C8E0AD80710AB4E90DD54719FE5F74B", "2C8E0AD8 (tools)", nil},
		{"FC58AC1A057C444FA97772EE9AEFDB89", "FC58AC1A (CUPTI)", nil},
		{"C98D1AFAF2275B42B12DCD81B5F21EC1", "C98D1AFA (CUPTI)", nil},
		{"B9FD53270628C24F87A9988CDDF73089", "B9FD5327 (CUPTI)", nil},
		// Seen on driver 580 with CUDA 13 and PyTorch, each slot with a breakpoint:
		// never called with an image.
		{"F8CFF95121468B4EB9E2FB469E7C0DD9", "F8CFF951", nil},
		{"69A28E9F24498B47B030C5DA330EA4E9", "69A28E9F (NVML)", nil},
		{"1734DC26800D47458726C0F1E7DD8BCA", "1734DC26", nil},
	}
	known := make(map[uuid]table, len(list))
	for _, t := range list {
		var u uuid
		if n, err := hex.Decode(u[:], []byte(t.id)); err != nil || n != len(u) {
			panic("BUG: table " + t.id)
		}
		known[u] = table{t.name, t.slots}
	}
	return known
}
