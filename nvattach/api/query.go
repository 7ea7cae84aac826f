package api

// queries are functions that programs ask thousands of times a second, and whose calls say
// nothing: what is current, what has failed before, what a device is.
var queries = map[string]bool{
	"cudaGetDevice": true, "cudaGetLastError": true, "cudaPeekAtLastError": true, "cudaDeviceGetAttribute": true,
	"cudaStreamIsCapturing": true, "cudaStreamGetCaptureInfo": true, "cudaStreamGetCaptureInfo_v2": true, "cudaStreamGetCaptureInfo_v3": true,
	"cuCtxGetDevice": true, "cuCtxGetCurrent": true, "cuDeviceGetAttribute": true, "cuDevicePrimaryCtxGetState": true,
	"cuStreamIsCapturing": true, "cuStreamGetCaptureInfo": true, "cuStreamGetCaptureInfo_v2": true, "cuStreamGetCaptureInfo_v3": true,
}

// Query reports whether a function is one of those that are called often and tell little, so
// that their calls are rather counted than recorded.
func Query(name string) bool { return queries[name] }
