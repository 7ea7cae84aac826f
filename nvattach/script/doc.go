// Package script compiles a small language for probes, which is bpftrace's as far as it
// makes sense inside CUDA kernels, to eBPF:
//
//	kernel:*gemm* /smid == 0/ { @[kernel, warpid] = count(); }
//
// [Compile] makes an object of a program; that goes the way of every other: it is proven
// safe, woven into kernels, and its maps are read at the end. What a map's bytes mean,
// and how it is shown, the [Program] knows. Its BEGIN and END run on the host, by an
// interpreter.
//
// The tables are the language: [Kinds], [Builtins] and [Functions] say what there is.
// The package knows neither GPUs nor processes.
package script
