// Package gpu runs the probes of a session on GPUs: it gives each CUDA
// context of a traced program memory for maps, rewrites the images that the
// program loads there, and reads the maps back.
//
// The simulated GPU asks what to do ([Simulated]). What follows is about real ones ([Tracer]):
// everything is done through the program's own driver, by calls that a thread of
// the program is made to run while it is held at a place where it could have made
// them itself: at the entry of a function that the driver exports, at libc's
// exit, or at exit_group. No thread is added to the program, nothing waits for its
// kernels but at its end and in trials, and its current context, capture mode and streams are
// as before after each visit.
//
// # How the driver is called
//
// The tracing thread is the only one that may touch a traced thread, and it must not wait. What
// has to wait, for the GPU or a compiler, runs on goroutines. So a breakpoint's handler
// holds the thread at which it is called ([ptrace.Task.Hold]) and starts a goroutine with a visit; that
// has the tracing thread make one call after another in the held thread (visit.do), and releases
// it. There is one visit at a time in a process. A visit begins by making the context
// current that it is for, with the thread's capture mode relaxed, so that a capture under way is not
// disturbed, and with a stream of its own (visit.enter), and ends by undoing that (visit.leave).
//
// Arguments that are pointers lead to scratch memory in the program: words for results, and a stage
// through which memory of the GPU is copied.
//
// What a process has is in a process: the driver's functions, its contexts, each with memory for maps
// and a session.Context. A process is known from the first image that it loads, a context from
// the first that is loaded into it. A context ends with its process, or when a function that ends
// it is about to be called; what was kept of its maps is shown then.
//
// # When maps are read
//
// At exit, which comes before the driver's own end: when the kernels that run have
// ended. What is launched after that, by functions that run at exit or by other threads,
// is followed by another reading as soon as the launch returns. Further before a context
// is destroyed, reset or released, and before execve. Rings and --interval are served at
// calls that synchronise or launch; a program that makes none for a while shows nothing
// meanwhile. At such calls maps are also read every few seconds: for a process that is
// killed, that is what is shown, with its age.
//
// # Trials
//
// Where the session verifies launches, one that is due is tried before it is made: at
// the entry of the launching function, all memory that the program has allocated on
// the GPU since its driver was mapped, the variables of the kernel's module and the
// maps are copied. The launch is then made twice with a copy of the kernel without
// programs, which the module was given for that, and twice with the kernel itself;
// memory is compared on the GPU and restored after each run. What follows is the
// program's own call. The other threads' calls that change memory wait at their
// entries, and a trial waits for those that are under way.
//
// The same copy is launched where the driver refuses a kernel because its threads
// take more registers with programs.
package gpu
