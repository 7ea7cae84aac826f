// Package nvattach puts eBPF programs into CUDA kernels. It knows probe objects:
// which sections name which places in a kernel ([Point]), what programs may read
// there (their context), which helpers they may call, how their maps lie in a
// GPU's memory and how the host reads, writes and prints them ([Maps]), and how
// programs are woven into PTX and into the images that hold it ([Plan]).
//
// It knows nothing of how a process is watched, who compiles PTX and how a GPU's
// memory is reached: whoever drives it gives a [Memory] and gets PTX. What an
// eBPF instruction does, and whether a program is safe, is ptx/bpf's to say.
//
// Objects written for the GPU examples of bpftime run unmodified; what is meant
// where those differ from eBPF in the Linux kernel is in the comments here. The
// numbers of helpers and map types are the Linux kernel's uapi/linux/bpf.h up to
// 211 and 33, and bpftime's from 500 and 1500 on; nvtrace's own helpers are 600 and more.
package nvattach
