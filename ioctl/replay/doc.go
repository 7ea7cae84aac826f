// Package replay runs a program on a machine without an NVIDIA GPU and answers
// its device calls from a recording that was made on one that has it.
//
// It knows how to recognise a call in a recording, and how to put a recorded
// answer into another process. It does not know what calls mean (package ioctl
// and rm do), and it does not simulate anything: what is not in the recording is
// a miss, reported by name.
//
// # How
//
// The program runs under a seccomp filter that hands opens, ioctls and the
// calls that look at file names to this process (seccomp user notification); it
// is not ptraced and can be debugged. An open of a recorded node is answered
// with a memfd named after the node, which the kernel then dups, passes on over
// fork and exec, and closes as it would any other file; mmap works on it. An
// ioctl on such a file is answered by writing the recorded bytes into the
// program's memory. stat, access and readlink show the node as a character
// device. All else runs untouched.
//
// # Matching
//
// Calls are matched by structure, not by position in the recording, since
// handles, descriptors, addresses, process ids and the order of threads differ
// in every run. A call is asked on a subject: the object that it names, or the
// open file where it names none. Objects and files of the program are paired
// with those of the recording when they come into being: the n-th open of a node
// with the n-th recorded one, an allocation with the recorded allocation that
// answered it. For a call, the recorded ones of the same device, request, control
// command or class, and size of parameters are considered: first those on the
// paired subject, then those on any object of the same class, then all. Among
// these,
//
//   - the earliest unused one whose input is the same answers;
//   - failing that, the latest used one whose input is the same (the program asks
//     more often than the recorded one did: [Result.Repeated]);
//   - failing that, the one whose input differs least.
//
// The last, and any answer of another object than the paired one, is reported
// ([Result.Inexact]), or is a miss if [Options.Strict] is set.
//
// Inputs are the same if they differ in nothing but padding, bytes that the driver
// writes, pointers, handles of paired objects, descriptors of files of the same
// node, process ids, and what the program says about its machine. Of the answer, only the bytes that the driver changed are
// written (a status always); pointers stay the program's own, handles that the
// program chose stay its own, and handles that the driver chose are the recorded
// ones as long as no living object has them.
//
// # What can't replay
//
// Whatever completes through memory: the GPU writes to semaphores, notifiers and
// work queues, and nobody does here. Mapped device memory reads as zero and keeps
// what is written to it. So enumeration, queries, and allocations replay; kernel
// launches, and waiting for them, don't: the program waits for ever. Events are
// never signalled; poll on a device file says ready at once, as it does for any
// memfd. Descriptors that the driver made (dma-buf exports) are numbers without a
// file behind them. Files below /proc and /sys are the machine's own, but for
// /proc/driver/nvidia/version, /sys/module/nvidia/version and /proc/devices, which
// say what the recording's header knows. Calls by other ABIs (i386, x32) and by
// io_uring are not seen.
package replay
