package pack

import "strings"

// isSuccess are the names for 0 of the enumerations that say whether a function
// succeeded.
var isSuccess = map[string]bool{
	"CUDA_SUCCESS": true, "cudaSuccess": true, "CUBLAS_STATUS_SUCCESS": true, "CUDNN_STATUS_SUCCESS": true,
	"CUFFT_SUCCESS": true, "CUSPARSE_STATUS_SUCCESS": true, "CUSOLVER_STATUS_SUCCESS": true, "CURAND_STATUS_SUCCESS": true,
	"ncclSuccess": true, "NVRTC_SUCCESS": true, "NVJITLINK_SUCCESS": true,
}

// flagParams are the integers that hold a sum of an enumeration's values: what
// prototypes do not say and the headers' comments do. The function's name is its
// beginning: what follows are versions.
var flagParams = []struct{ library, function, param, enum string }{
	{"driver", "cuCtxCreate", "flags", "CUctx_flags"},
	{"driver", "cuCtxSetFlags", "flags", "CUctx_flags"},
	{"driver", "cuDevicePrimaryCtxSetFlags", "flags", "CUctx_flags"},
	{"driver", "cuStreamCreate", "Flags", "CUstream_flags"},
	{"driver", "cuStreamCreateWithPriority", "flags", "CUstream_flags"},
	{"driver", "cuEventCreate", "Flags", "CUevent_flags"},
	{"driver", "cuEventRecordWithFlags", "flags", "CUevent_record_flags"},
	{"driver", "cuStreamWaitEvent", "Flags", "CUevent_wait_flags"},
	{"driver", "cuMemAllocManaged", "flags", "CUmemAttach_flags"},
	{"driver", "cuStreamAttachMemAsync", "flags", "CUmemAttach_flags"},
	{"driver", "cuMemHostAlloc", "Flags", "CUmemhostalloc_flags"},
	{"driver", "cuMemHostRegister", "Flags", "CUmemhostregister_flags"},
	{"driver", "cuStreamWaitValue32", "flags", "CUstreamWaitValue_flags"},
	{"driver", "cuStreamWaitValue64", "flags", "CUstreamWaitValue_flags"},
	{"driver", "cuStreamWriteValue32", "flags", "CUstreamWriteValue_flags"},
	{"driver", "cuStreamWriteValue64", "flags", "CUstreamWriteValue_flags"},
	{"driver", "cuIpcOpenMemHandle", "Flags", "CUipcMem_flags"},
	{"runtime", "cudaStreamCreateWithFlags", "flags", "cudaStreamFlags"},
	{"runtime", "cudaStreamCreateWithPriority", "flags", "cudaStreamFlags"},
	{"runtime", "cudaEventCreateWithFlags", "flags", "cudaEventFlags"},
	{"runtime", "cudaHostAlloc", "flags", "cudaHostAllocFlags"},
	{"runtime", "cudaHostRegister", "flags", "cudaHostRegisterFlags"},
	{"runtime", "cudaSetDeviceFlags", "flags", "cudaDeviceFlags"},
	{"runtime", "cudaMallocManaged", "flags", "cudaMemAttachFlags"},
	{"runtime", "cudaStreamAttachMemAsync", "flags", "cudaMemAttachFlags"},
}

// flagsOf returns the enumeration whose values a parameter sums up, "" for none.
func flagsOf(library, function, param string) string {
	name := function
	for _, suffix := range []string{"_ptsz", "_ptds"} {
		name = strings.TrimSuffix(name, suffix)
	}
	if i := strings.LastIndex(name, "_v"); i > 0 {
		name = name[:i]
	}
	for _, f := range flagParams {
		if f.library == library && f.function == name && f.param == param {
			return f.enum
		}
	}
	return ""
}
