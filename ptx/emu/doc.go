// Package emu executes PTX on the CPU. It is the oracle that tests compare
// rewritten kernels with, and the engine of the simulated GPU.
//
// # What it knows
//
// A [Machine] has a global address space ([Memory]) and runs kernels of modules
// ([Machine.Load], [Module.Kernel], [Machine.Launch]). Values are exact: every
// operation with a rounding mode is rounded once, by all modes, in every format;
// approximations (.approx) are the correctly rounded function, which is within
// the ISA's bounds but not a GPU's bits. Where the ISA leaves a result open (NaN
// payloads, division by zero, .ftz of results that round up to a normal number)
// the machine does what an H200 was seen to do. Matrix instructions add as the matrix
// unit of the simulated compute capability does, bit for bit. Bounds and alignment of every
// access are checked; a [Fault] names kernel, instruction, thread and address.
//
// It refuses to guess: an instruction, modifier or type that it does not have
// fails with [ErrNotImplemented] when a thread reaches it. Those are textures and
// surfaces, tensor maps, wgmma, tcgen05, multimem, formats of 4 and 6 bits,
// matrix instructions of compute capabilities whose sums are not known,
// and generic addresses of windows in 32-bit modules.
//
// What ptxas refuses as an instruction that does not exist is refused here, too.
//
// # How threads run
//
// Threads of a warp that are at the same instruction of the same activation form
// a group and execute together. Of several groups the one in the deepest call with
// the lowest instruction goes first, so that branches reconverge at their end; every
// other turn goes to the group that has waited longest, so that threads of a warp
// may wait for one another, as independent thread scheduling promises. Instructions
// with a membermask wait for the lanes they name, wherever those are. Barriers count
// threads, not warps. A worker runs one block (or cluster) after the other, in
// the grid's order, and takes up the next beside it when threads only poll or a
// long time has passed, so blocks may wait for blocks started before them; a
// cooperative launch keeps all blocks running.
//
// With [Options].Workers = 1 everything is deterministic, clocks included. With
// more, blocks run at the same time and atomics are real ones, also towards other
// users of the same memory. Ordinary loads and stores of up to 8 bytes are not
// torn; memory is as strongly ordered as the host's, which is stronger than PTX
// asks for, so missing fences are not found. Asynchronous copies are complete as
// soon as they are issued.
//
// All facts about PTX are from NVIDIA's "Parallel Thread Execution ISA"; those
// marked as measured come from the vectors in testdata.
//
// # Stability
//
// Programs may import this package. Before version 1.0 names may still change; the changelog says
// which. Results are a GPU's and change only where they were wrong.
package emu
