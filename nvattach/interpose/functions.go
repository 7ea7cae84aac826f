package interpose

import "slices"

// Class is what a function of the driver does, as far as the shim cares. The
// numbers are a part of the wire format.
type Class uint8

// The classes.
const (
	ClassOther        Class = iota
	ClassLoad               // loads a module or library from memory
	ClassLoadFile           // the same from a file
	ClassLinkCreate         // begins a link
	ClassLinkAdd            // adds code from memory to a link
	ClassLinkAddFile        // the same from a file
	ClassLinkComplete       // ends a link; the image is its result
	ClassUnload             // unloads a module or library, ends a link state
	ClassLookup             // finds a kernel, variable or module: Handle is the result
	ClassEnumerate          // lists kernels
	ClassLaunch             // launches a kernel, or a graph; told once for each function
	ClassLaunchMulti        // launches kernels on several devices
	ClassNode               // makes or changes a node of a graph that launches a kernel
	ClassCtxCreate          // makes or retains a context
	ClassCtxDestroy         // destroys or releases a context
	ClassProcAddress        // cuGetProcAddress
	ClassExportTable        // cuGetExportTable
)

// String returns the class in a word.
func (c Class) String() string {
	names := [...]string{
		"other", "load", "load file", "link create", "link add", "link add file", "link complete", "unload", "lookup",
		"enumerate", "launch", "launch multi", "node", "context create", "context destroy", "proc address", "export table",
	}
	if int(c) < len(names) {
		return names[c]
	}
	return "class?"
}

// none is an argument that a function doesn't have.
const none = -1

// Function describes a wrapped function of the driver. The arguments are
// numbers from 0; -1 means that it has none such. Prototypes: cuda.h of CUDA 13,
// and of 12 for those that it dropped.
type Function struct {
	Name  string
	Class Class
	Args  int8 // how many, all of them integers or pointers
	Image int8 // the image or the path; nodes and multi-device launches: the parameters
	Size  int8 // the image's size, or how many; nodes: the layout of the parameters, 0 func at 0, 1 also kern at 56, 2 both 16 further on
	Out   int8 // where the resulting handle is written
	Of    int8 // the handle that the call concerns: module, library, function, context
	Text  int8 // a name: of a kernel, a variable, an input of a link
}

// Functions returns every function that the shim wraps, ascending by name: its
// index is its number in messages.
func Functions() []Function {
	f := []Function{
		// Loaders.
		{"cuModuleLoad", ClassLoadFile, 2, 1, none, 0, none, none},
		{"cuModuleLoadData", ClassLoad, 2, 1, none, 0, none, none},
		{"cuModuleLoadDataEx", ClassLoad, 5, 1, none, 0, none, none},
		{"cuModuleLoadFatBinary", ClassLoad, 2, 1, none, 0, none, none},
		{"cuLibraryLoadData", ClassLoad, 8, 1, none, 0, none, none},
		{"cuLibraryLoadFromFile", ClassLoadFile, 8, 1, none, 0, none, none},
		{"cuLinkCreate", ClassLinkCreate, 4, none, none, 3, none, none},
		{"cuLinkCreate_v2", ClassLinkCreate, 4, none, none, 3, none, none},
		{"cuLinkAddData", ClassLinkAdd, 8, 2, 3, none, 0, 4},
		{"cuLinkAddData_v2", ClassLinkAdd, 8, 2, 3, none, 0, 4},
		{"cuLinkAddFile", ClassLinkAddFile, 6, 2, none, none, 0, none},
		{"cuLinkAddFile_v2", ClassLinkAddFile, 6, 2, none, none, 0, none},
		{"cuLinkComplete", ClassLinkComplete, 3, 1, 2, none, 0, none},
		// Unloading.
		{"cuLinkDestroy", ClassUnload, 1, none, none, none, 0, none},
		{"cuModuleUnload", ClassUnload, 1, none, none, none, 0, none},
		{"cuLibraryUnload", ClassUnload, 1, none, none, none, 0, none},
		// Lookup.
		{"cuModuleGetFunction", ClassLookup, 3, none, none, 0, 1, 2},
		{"cuModuleGetGlobal", ClassLookup, 4, none, none, 0, 2, 3},
		{"cuModuleGetGlobal_v2", ClassLookup, 4, none, none, 0, 2, 3},
		{"cuModuleGetTexRef", ClassLookup, 3, none, none, 0, 1, 2},
		{"cuModuleGetSurfRef", ClassLookup, 3, none, none, 0, 1, 2},
		{"cuModuleEnumerateFunctions", ClassEnumerate, 3, none, 1, 0, 2, none},
		{"cuLibraryGetKernel", ClassLookup, 3, none, none, 0, 1, 2},
		{"cuLibraryGetModule", ClassLookup, 2, none, none, 0, 1, none},
		{"cuLibraryGetGlobal", ClassLookup, 4, none, none, 0, 2, 3},
		{"cuLibraryGetManaged", ClassLookup, 4, none, none, 0, 2, 3},
		{"cuLibraryGetUnifiedFunction", ClassLookup, 3, none, none, 0, 1, 2},
		{"cuLibraryEnumerateKernels", ClassEnumerate, 3, none, 1, 0, 2, none},
		{"cuKernelGetFunction", ClassLookup, 2, none, none, 0, 1, none},
		{"cuKernelGetLibrary", ClassLookup, 2, none, none, 0, 1, none},
		{"cuFuncGetModule", ClassLookup, 2, none, none, 0, 1, none},
		// Launches.
		{"cuLaunchKernel", ClassLaunch, 11, none, none, none, 0, none},
		{"cuLaunchKernel_ptsz", ClassLaunch, 11, none, none, none, 0, none},
		{"cuLaunchKernelEx", ClassLaunch, 4, none, none, none, 1, none},
		{"cuLaunchKernelEx_ptsz", ClassLaunch, 4, none, none, none, 1, none},
		{"cuLaunchCooperativeKernel", ClassLaunch, 10, none, none, none, 0, none},
		{"cuLaunchCooperativeKernel_ptsz", ClassLaunch, 10, none, none, none, 0, none},
		{"cuLaunchCooperativeKernelMultiDevice", ClassLaunchMulti, 3, 0, 1, none, none, none},
		{"cuLaunch", ClassLaunch, 1, none, none, none, 0, none},
		{"cuLaunchGrid", ClassLaunch, 3, none, none, none, 0, none},
		{"cuLaunchGridAsync", ClassLaunch, 4, none, none, none, 0, none},
		{"cuGraphLaunch", ClassLaunch, 2, none, none, none, 0, none},
		{"cuGraphLaunch_ptsz", ClassLaunch, 2, none, none, none, 0, none},
		// Graph nodes.
		{"cuGraphAddKernelNode", ClassNode, 5, 4, 0, none, 1, none},
		{"cuGraphAddKernelNode_v2", ClassNode, 5, 4, 1, none, 1, none},
		{"cuGraphAddNode", ClassNode, 5, 4, 2, none, 1, none},
		{"cuGraphAddNode_v2", ClassNode, 6, 5, 2, none, 1, none},
		{"cuGraphKernelNodeSetParams", ClassNode, 2, 1, 0, none, 0, none},
		{"cuGraphKernelNodeSetParams_v2", ClassNode, 2, 1, 1, none, 0, none},
		{"cuGraphExecKernelNodeSetParams", ClassNode, 3, 2, 0, none, 0, none},
		{"cuGraphExecKernelNodeSetParams_v2", ClassNode, 3, 2, 1, none, 0, none},
		{"cuGraphNodeSetParams", ClassNode, 2, 1, 2, none, 0, none},
		{"cuGraphExecNodeSetParams", ClassNode, 3, 2, 2, none, 0, none},
		// Contexts.
		{"cuCtxCreate", ClassCtxCreate, 3, none, none, 0, none, none},
		{"cuCtxCreate_v2", ClassCtxCreate, 3, none, none, 0, none, none},
		{"cuCtxCreate_v3", ClassCtxCreate, 5, none, none, 0, none, none},
		{"cuCtxCreate_v4", ClassCtxCreate, 4, none, none, 0, none, none},
		{"cuCtxAttach", ClassCtxCreate, 2, none, none, 0, none, none},
		{"cuDevicePrimaryCtxRetain", ClassCtxCreate, 2, none, none, 0, 1, none},
		{"cuGreenCtxCreate", ClassCtxCreate, 4, none, none, 0, none, none},
		{"cuCtxFromGreenCtx", ClassCtxCreate, 2, none, none, 0, 1, none},
		{"cuCtxDestroy", ClassCtxDestroy, 1, none, none, none, 0, none},
		{"cuCtxDestroy_v2", ClassCtxDestroy, 1, none, none, none, 0, none},
		{"cuCtxDetach", ClassCtxDestroy, 1, none, none, none, 0, none},
		{"cuDevicePrimaryCtxRelease", ClassCtxDestroy, 1, none, none, none, 0, none},
		{"cuDevicePrimaryCtxRelease_v2", ClassCtxDestroy, 1, none, none, none, 0, none},
		{"cuDevicePrimaryCtxReset", ClassCtxDestroy, 1, none, none, none, 0, none},
		{"cuDevicePrimaryCtxReset_v2", ClassCtxDestroy, 1, none, none, none, 0, none},
		{"cuGreenCtxDestroy", ClassCtxDestroy, 1, none, none, none, 0, none},
		// Ways to more functions.
		{"cuGetProcAddress", ClassProcAddress, 4, none, none, 1, none, 0},
		{"cuGetProcAddress_v2", ClassProcAddress, 5, none, none, 1, none, 0},
		{"cuGetExportTable", ClassExportTable, 2, none, none, 0, none, 1},
		// The dynamic linker's own, told but not bound to a thunk.
		{"dlmopen", ClassOther, 3, none, none, none, none, 1},
		{"dlopen", ClassOther, 2, none, none, none, none, 0},
	}
	slices.SortFunc(f, func(a, b Function) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return f
}
