// Package sim is a CUDA driver and runtime without a GPU: it serves programs
// that run beside it, and executes their kernels on package ptx/emu.
//
// # How it works
//
// Three small libraries (lib/sim.c and a list of names each) with the sonames
// libcuda.so.1, libcudart.so.12 and libcudart.so.13 are preloaded into the
// program, so that the dynamic loader takes them for what the program asks for.
// Every entry sends its arguments over a socket ([Sim.Env] says where) and waits.
// All logic is here, in the process that serves: it reads and writes the program's
// memory with process_vm_readv and process_vm_writev. Device memory exists only
// here; the program can't touch it, as on a GPU. Managed and pinned memory is a
// memfd that both map, at addresses that both agree on.
//
// A program whose runtime is linked statically is redirected when it starts, by
// a jump at each public function of the runtime that its symbol table names.
// Without a symbol table it is refused with the line to relink. NVIDIA's own
// runtime is not served: cuGetExportTable knows no table.
//
// # What it knows
//
// The driver API and the runtime API as far as package-level tables of handlers
// go (drv_*.go, rt_*.go). A function of the runtime does its work in a call of the driver, as NVIDIA's does
// (rt_driver.go), so that what watches the driver sees programs of either kind. What is missing returns 801, not supported, and is
// counted in [Report]. Of an image the PTX with the highest target that the
// described GPU may run is taken; machine code is never run.
//
// Kernels and copies are executed in the order of their streams, each stream
// beside the others. Times are those of the simulation. Memory is checked at
// every access; a kernel that fails leaves its context unusable, and the report
// names kernel, thread and instruction.
//
// Nothing a program sends is trusted: lengths, handles, addresses and the order
// of messages are checked, and what a program can make this process hold is
// bounded.
//
// # What it does not do
//
// A driver that a program opens by a path is that file, not ours; a program that is
// linked statically as a whole can't be served ([Check] says so). Memory that is
// registered (cudaHostRegister) is moved into the shared file while the program
// waits: other threads must not write to its pages meanwhile. A program that
// outlives [Sim.Close] finds its GPU gone. Copies of arrays, textures, surfaces, tensor maps,
// IPC and conditional graph nodes are among the missing
// entries. Allocations in the order of a stream are there at once, and registers,
// and with them occupancy, are an estimate.
//
// The facts about the API are from the headers and documents that NVIDIA
// publishes with CUDA 11.8 to 13.5: names and their versions from cuda.h,
// cudaTypedefs.h and the exports of libcudart, layouts from cuda.h and
// driver_types.h.
package sim

//go:generate go run ./internal/mklib
