// Package channels finds a process's GPU channels from outside, and says what they are at.
//
// A channel is a ring in memory by which a program hands work to the GPU. Ring, pushbuffers and the
// semaphores by which the GPU tells what is done lie in the program's address space, so that
// another process of the same user can read them (/proc/PID/mem): nothing is attached, stopped or
// changed, and no register of the GPU is read. What the bytes mean is package rm/channel's.
//
// Channels are found by their shape, and each candidate is proven by its own contents before it is
// believed ([Find]). [Channel.Look] reads one once: what runs, what waits, what was done last and
// when. [Names] finds the names of kernels in the memory of libcuda.
package channels
