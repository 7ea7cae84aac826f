// Package bpf compiles eBPF programs to PTX that stands inside a kernel, and to machine
// code of x86-64.
//
// [Verify] proves that a program can do no harm and knows afterwards what every
// register and every byte of the stack may hold. [Verified.Emit] writes the
// program as statements for one place in a kernel, as often as there are places.
// [Assemble] proves the same and makes machine code of the program, for the host.
// [Interpreter] runs the program one instruction after the other; it shares nothing with
// the compilers but the meaning of the instructions, and is their oracle.
//
// # What it knows
//
// The instruction set of RFC 9669 (version 4 of the ISA) as
// [github.com/cilium/ebpf/asm] presents it. It knows no helper, no map type and
// no context: the caller describes them in an [Env], with the code that each
// helper becomes. It refuses tail calls, callbacks, kernel functions, LD_ABS and
// LD_IND, recursion, and whatever else it cannot keep safe; [RefusedError] says
// which instruction, which source line, why, and what to do.
//
// # Safety
//
// Every access is held against the object that the pointer came from. What
// interval analysis proves costs nothing; what it does not prove becomes a test
// that ends the program, and says why and where ([End]). A run executes no more
// instructions than its fuel says: loops of which that is not proven, all together,
// are counted while they run. The code declares its own registers, reads and writes
// no memory but that of maps, and has no barrier and no .sync instruction, except a
// reconvergence of exactly the threads that came in if the caller asks for that.
//
// # What a program sees
//
// Division by zero gives 0, the remainder of it the dividend; shift counts are
// masked; the lowest integer divided by -1 is itself, with remainder 0. Stack
// bytes that were never written read as 0. r1 points to the context, or is NULL
// where there is none; r2 to r5 are not readable. What a program returns is
// ignored, unless the [Site] asks for it.
//
// # Stability
//
// Programs may import [Verify], [Assemble] and [Interpreter]. Before version 1.0 names may still
// change; the changelog says which. The code that is emitted changes with any version.
package bpf
