package view

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCUDALog: messages go to the call that returned behind them in their thread, at its time in whatever zone; what
// belongs to no call of the recording is shown apart.
func TestCUDALog(t *testing.T) {
	const log = `[23:59:59.999][140453850771776][CUDA][E] Requested 0 byte allocation
[23:59:59.999][140453696378560][CUDA][E] No CUDA context is current to the calling thread
[23:59:59.999][140453850771776][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
the program's own line
[23:59:59.999][140453696378560][CUDA][E] Returning 201 (CUDA_ERROR_INVALID_CONTEXT) from cuCtxGetDevice_v2
[00:00:00.000][140453850771776][CUDA][E] Returning 2 (CUDA_ERROR_OUT_OF_MEMORY) from cuMemAlloc_v2
[00:00:03.100][72][CUDA][E][cuLaunchKernel] block has 2048 threads, 1024 are the most
[00:00:09.000][140453850771776][CUDA][E] Requested 0 byte allocation
[00:00:09.000][140453850771776][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
[00:00:10.000][140453850771776][CUDA][E] an unspecified error
`
	file := filepath.Join(t.TempDir(), "cuda.log")
	if err := os.WriteFile(file, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := openCUDALog(file)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 11, 28, 18, 29, 59, 0, time.UTC).UnixNano() // the log's zone is 5:30 ahead
	list := []*failure{
		{Call: "cudaMalloc", Result: "cudaErrorInvalidValue", First: 995e6, took: 9e6, library: true},
		{Call: "cuMemAlloc_v2", Result: "CUDA_ERROR_INVALID_VALUE", First: 998e6, took: 3e6, library: true},
		{Call: "cuMemAlloc_v2", Result: "CUDA_ERROR_OUT_OF_MEMORY", First: 1e9, took: 3e6, library: true},
		{Call: "cuLaunchKernel", Result: "CUDA_ERROR_INVALID_VALUE", First: 4.1e9, took: 1e3, library: true},
		{Call: "cuMemAlloc_v2", Result: "CUDA_ERROR_INVALID_VALUE", First: 998e6},
	}
	l.join(list, start)
	for i, want := range [][]string{nil, {"Requested 0 byte allocation"}, nil, {"block has 2048 threads, 1024 are the most"}, nil} {
		if !slices.Equal(list[i].Log, want) {
			t.Errorf("%s: %q, want %q", list[i].Call, list[i].Log, want)
		}
	}
	var b strings.Builder
	l.write(&b, list)
	if got, want := b.String(), `
What CUDA's log says
  CUDA_ERROR_INVALID_VALUE of cuMemAlloc_v2: Requested 0 byte allocation
  CUDA_ERROR_INVALID_VALUE of cuLaunchKernel: block has 2048 threads, 1024 are the most

It says of other calls, too
  23:59:59.999 CUDA_ERROR_INVALID_CONTEXT of cuCtxGetDevice_v2: No CUDA context is current to the calling thread
  00:00:09.000 CUDA_ERROR_INVALID_VALUE of cuMemAlloc_v2: Requested 0 byte allocation
  00:00:10.000 a call that did not return: an unspecified error
`; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if err := os.WriteFile(file, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openCUDALog(file); err == nil || !strings.Contains(err.Error(), "CUDA_LOG_FILE=") {
		t.Errorf("%v", err)
	}
}
