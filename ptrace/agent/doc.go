// Package agent puts a small piece of code, the agent, into traced processes, so
// that things that happen there often are recorded without a stop.
//
// It has four jobs. System calls of ioctl(2) on descriptors that the supervisor
// named, with requests that a [Plan] describes, are made and logged by the agent:
// the `mov $16,%eax` in front of libc's syscall instruction becomes a jump.
//
// Calls that open files, and that close, duplicate and map descriptors, are
// rerouted in the same way. Nearly all of them are none of the supervisor's business:
// the path of an open is none of [Options].Paths, and fstat(2) says that the
// descriptor is no character device. These are just made. Those about devices that the supervisor
// knows ([Agent.AddDevice]) are logged. Then the agent numbers the files that it
// opens, and says in each record which one it is about, since the supervisor may
// come to see a record when the descriptor has long been something else.
//
// Calls of functions that [Process.Hook] names are logged at entry and return.
//
// And what such calls have a GPU do is timed, by events that the agent has the CUDA driver
// record, if [Process.Time] says where the driver's functions are.
//
// Everything that is not plain and expected takes the way through the
// supervisor as before: a process without the agent, a thread without a ring, a
// request without a rule, a ring that is full, memory that can't be read.
//
// The package knows code, rings and records. It knows nothing of what the
// requests and functions mean, and of NVIDIA only how the driver is asked for events.
//
// # In the process
//
// The agent is freestanding position-dependent code at [ptrace.ExemptPage],
// whose system calls pass the filter. It has no thread-local storage and
// allocates nothing. Each thread has a ring of its own in memory that it shares
// with the supervisor; the supervisor assigns rings, by the thread pointer
// (%fs:0), when it sees the thread first. A record is reserved by one
// compare-and-exchange, so that a signal handler in the middle is harmless, and
// becomes valid by its last store. Nothing is ever dropped: without room, the
// thread stops for the supervisor, which makes room.
//
// A process that maps something at the agent's addresses first, one with
// seccomp filters of its own, of another time namespace, or of another
// architecture than amd64 is left alone.
//
// Its memory, from which another supervisor can go on, by address (layout.go, layout.h):
//
//	baseAddr     the code; its first page is the exempt one
//	confAddr     settings, the same for all threads: the rules, the clock, who supervises
//	keysAddr     a hash table from thread pointers to slots
//	hookAddr     the hooked functions
//	slotAddr     a slot for each thread: which ring is its own, calls that have not returned
//	sharedAddr   shared with the supervisor: descriptors, heads and tails of the rings, then the rings
//	retsAddr     calls that programs wait for the return of
//	programAddr  programs, with their helpers and maps: shared by all processes
//
// Beside it there are arenas, near the code that is patched: a jump reaches 2 GiB. They hold the
// moved beginnings of functions, and stubs that lead on to the agent.
//
// # The life of a process
//
// [Agent.Process] puts the agent in, when the supervisor has a reason to: it maps the private
// memory and writes the code (prepare), maps the shared memory and gives each thread a ring (start).
// New threads get theirs as they are reported. A child that is forked has all of the code, its
// jumps included, but its gate is closed until it is started itself; a child of vfork lives in its
// parent's memory, whose rings are switched off meanwhile for the thread pointer that both have. An
// exec takes everything away. When a process has ended, its rings are read to their end first, and its
// shared memory is unmapped here.
//
// A thread comes to the agent by a jump, in place of the mov in front of a system call
// ([Process.PatchSite]) or of a function's beginning ([Process.Hook]). It finds its slot by its thread
// pointer, reserves a record in its ring, does the call, and completes the record. If
// anything is not as it should be, the system call is made in a way that the filter stops, and the
// supervisor does what it would have done without an agent.
//
// # Without a supervisor
//
// Where the program lives on when the supervisor is killed, whatever it was doing
// ([ptrace.Attach], [ptrace.Options].NoExitKill), nothing that the agent does needs one.
// The kernel marks a word in the shared memory when the tracing thread has ended, and a
// thread that calls for the supervisor notices that there is no answer: nothing is recorded
// from then on. Before memory of the program is copied, the kernel is asked, once a page,
// whether it is there; only for what has gone since, a supervisor repairs the fault.
// Functions whose calls shall stop have jumps to code of the agent's, too ([Agent.Detour]):
// the system call that stops fails then.
// A forked child finds no rings, since a page of the agent's is zero in it. A supervisor
// that is killed while it maps memory may leave that, or a descriptor that is closed on
// exec. Jumps stay; each costs a few nanoseconds. The next supervisor takes all of this
// over, if it is of the same version.
//
// # Trust
//
// The rings can be written by the program. The reader checks every number in
// them, keeps nothing that grows with what they claim, and a program that
// writes garbage spoils its own records only.
//
// # Order
//
// Records of one thread come in the order in which they were completed. Records
// of all threads are merged by time (CLOCK_MONOTONIC, read by the agent through
// the vdso): none is given out while another thread might still complete an
// earlier one. A call that closes a descriptor has its place at its beginning, before
// all that may be given the same number.
package agent
