// Package nvtx has the library by which programs tell nvtrace of their NVTX ranges and marks.
// NVTX is NVIDIA's interface for such, a set of headers: where a program uses it, it loads the
// library that NVTX_INJECTION64_PATH names, and has that put its functions in place of ones that
// do nothing. This one's are recorded as those of other libraries are; nothing of NVIDIA's tools
// is needed. PyTorch has ranges by torch.cuda.nvtx, and with torch.autograd.profiler.emit_nvtx
// one for each operator.
package nvtx

//go:generate go run ./internal/gen
