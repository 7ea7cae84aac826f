// Package nvattach puts eBPF programs into CUDA kernels, and runs them on the host. It proves the
// programs of probe objects safe ([Plan]; package object has the objects), and weaves them into
// PTX and into the images that hold it or machine code. Their maps are package mapmem's, the code
// for these package emit's, and the helpers that they may call are listed in package helper.
//
// It knows nothing of how a process is watched, who compiles PTX and how a GPU's
// memory is reached: whoever drives it gives a mapmem.Memory and gets PTX. What an
// eBPF instruction does, and whether a program is safe, is ptx/bpf's to say.
//
// Objects written for the GPU examples of bpftime run unmodified; what is meant
// where those differ from eBPF in the Linux kernel is in the comments here. The
// numbers of helpers and map types are the Linux kernel's uapi/linux/bpf.h up to
// 211 and 33, and bpftime's from 500 and 1500 on; nvtrace's own helpers are 600 and more.
//
// # Stability
//
// This package, and those below it, are unstable: they are nvtrace's own, and change with any commit.
package nvattach
