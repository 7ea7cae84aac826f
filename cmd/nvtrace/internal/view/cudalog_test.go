package view

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCUDALog: a message goes to the innermost call of its thread in whose time it was written, in whatever zone; what
// belongs to none is shown apart.
func TestCUDALog(t *testing.T) {
	const log = `[23:59:59.999][71][CUDA][E] bytesize cannot be 0
[23:59:59.999][71][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
the program's own line
[00:00:03.100][72][CUDA][E][cuLaunchKernel] block has 2048 threads, 1024 are the most
[00:00:03.100][73][CUDA][W] of a thread without failures
[00:00:09.000][71][CUDA][E] too late
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
		{Call: "cudaMalloc", Result: "cudaErrorInvalidValue", First: 995e6, took: 9e6, tid: 71},
		{Call: "cuMemAlloc_v2", Result: "CUDA_ERROR_INVALID_VALUE", First: 998e6, took: 3e6, tid: 71},
		{Call: "cuLaunchKernel", Result: "CUDA_ERROR_INVALID_VALUE", First: 4.1e9, took: 1e3, tid: 72},
		{Call: "ioctl", Result: "EINVAL", First: 995e6},
	}
	l.join(list, start)
	for i, want := range [][]string{nil, {"bytesize cannot be 0"}, {"cuLaunchKernel: block has 2048 threads, 1024 are the most"}, nil} {
		if !slices.Equal(list[i].Log, want) {
			t.Errorf("%s: %q, want %q", list[i].Call, list[i].Log, want)
		}
	}
	var b strings.Builder
	l.write(&b, list)
	if got, want := b.String(), `
What CUDA's log says
  CUDA_ERROR_INVALID_VALUE of cuMemAlloc_v2: bytesize cannot be 0
  CUDA_ERROR_INVALID_VALUE of cuLaunchKernel: cuLaunchKernel: block has 2048 threads, 1024 are the most

CUDA's log has messages of other calls, too
  00:00:03.100 thread 73: of a thread without failures
  00:00:09.000 thread 71: too late
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
