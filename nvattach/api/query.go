package api

import "strings"

// queries are functions that programs ask thousands of times a second, and whose calls say
// nothing: what is current, what has failed before, what a device is. With them are those that
// fill in descriptions in the host's memory, and those by which compiled code passes on how a kernel is
// launched: what comes of that is in the calls behind them.
var queries = map[string]bool{
	"cudaGetDevice": true, "cudaGetLastError": true, "cudaPeekAtLastError": true, "cudaDeviceGetAttribute": true,
	"cudaStreamIsCapturing": true, "cudaStreamGetCaptureInfo": true, "cudaStreamGetCaptureInfo_v2": true, "cudaStreamGetCaptureInfo_v3": true,
	"cuCtxGetDevice": true, "cuCtxGetDevice_v2": true, "cuKernelGetAttribute": true, "cuCtxGetCurrent": true, "cuDeviceGetAttribute": true, "cuDevicePrimaryCtxGetState": true,
	"__cudaPushCallConfiguration": true, "__cudaPopCallConfiguration": true,
	"cudnnGetModuleForDescriptor": true, "cudaGetErrorString": true,
	"cudnnBackendCreateDescriptor": true, "cudnnBackendSetAttribute": true, "cudnnBackendDestroyDescriptor": true,
	"cublasLtMatmulDescInit_internal": true, "cublasLtMatmulDescSetAttribute": true, "cublasLtMatrixLayoutInit_internal": true, "cublasLtMatrixLayoutSetAttribute": true,
	"cublasLtMatmulPreferenceInit_internal": true, "cublasLtMatmulPreferenceSetAttribute": true,
	"cublasGetMathMode": true, "cublasSetMathMode": true, "cublasGetPointerMode_v2": true, "cublasSetPointerMode_v2": true,
	"cuStreamIsCapturing": true, "cuStreamGetCaptureInfo": true, "cuStreamGetCaptureInfo_v2": true, "cuStreamGetCaptureInfo_v3": true,
}

// Query reports whether a function is one of those that are called often and tell little, so
// that their calls are rather counted than recorded.
func Query(name string) bool { return queries[name] }

// Minor reports whether a call of a function says little where it is made within another one, as the runtime and
// libraries make them: it does not launch, copy, allocate, wait or load, and nothing that is said of a program is
// found out by it.
func (m Module) Minor(name string) bool {
	f := m.Lookup(name)
	switch m.Library {
	case Unknown, NCCL, NVRTC, NVJitLink, NVTX, LibC:
		return false
	}
	if f == nil || purposeOf(m, name) != NoPurpose || NamesHandles(name) || f.Submits() != nil || f.Waits() {
		return false
	}
	for _, part := range []string{"Capture", "Graph", "Prefetch", "Profiler", "ModuleGet"} {
		if strings.Contains(name, part) {
			return false
		}
	}
	_, ends := f.EndsContext()
	_, works := f.Work()
	return !ends && !works
}
