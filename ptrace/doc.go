// Package ptrace supervises a tree of Linux processes: it starts a program (or
// attaches to a running one), follows every thread and child, stops them at
// the system calls that a set of rules selects, and calls a [Handler].
//
// It knows processes, signals, system calls and memory. It knows nothing of
// what the calls mean, and nothing of NVIDIA.
//
// A handler can also do what a debugger does: read and change registers and code
// ([Task.Regs], [Task.PokeText]), make system calls in a task ([Task.Syscall]), stop
// all threads of a process ([Task.StopWorld]) or keep one stopped ([Task.Hold]),
// and have functions called when a thread comes to an instruction
// ([Task.SetBreakpoint]) or returns from a call ([Task.OnReturn]). System calls
// and breakpoints need amd64; elsewhere the error matches [errors.ErrUnsupported].
//
// # Cost
//
// [Run] compiles the rules to a seccomp filter that is in place before the
// program's first instruction, so that a call that no rule matches runs at
// full speed in every thread. A matched call costs one stop, two when the
// handler wants its result. Where a filter is refused, and in [Attach], every
// call stops and the rules are applied here instead; the handler sees the same.
//
// A hit of a breakpoint costs one stop: the thread executes the program's
// instruction from a copy that jumps back, and no other thread is disturbed. An
// instruction that can't be copied costs two stops, and one of every other
// thread.
//
// # Threads
//
// The kernel ties a tracee to the one thread that traces it. Run and Attach
// therefore do everything, including all calls of the handler, on one locked
// OS thread, and return when it is done. Methods of [Task] must be called from
// within a call of the handler, except for [Task.Release] and [Task.Interrupt].
//
// While they run, SIGCHLD is set to its default with SA_NOCLDSTOP for the whole
// process: a handler for it, which Go installs, costs a quarter of each stop.
// Signal 63 wakes the thread; it no longer restarts system calls in this process.
// Children that other threads start, for example with os/exec, are not
// disturbed, and several programs can be traced at once.
//
// # What is inherent
//
// A traced program can't be traced by another: its PTRACE_TRACEME and its
// gdb fail with EPERM. A filter can't be taken away again: if the tracer dies,
// its programs die too ([Options.NoExitKill] makes matched calls fail with
// ENOSYS instead). Where the kernel demands no_new_privs for a filter, set-user-ID
// programs lose their privilege, as they do under any tracer without root.
// Go's runtime replaces inherited ignored signals, SIGHUP and SIGINT and those of
// job control excepted, before this package can see them; the program gets the
// default for the others (SIGPIPE, SIGQUIT).
//
// A child made by clone or clone3 with CLONE_UNTRACED is traced nevertheless; clone3,
// whose flags no filter can see, stops for that. What io_uring does is no system call of its own and not seen.
//
// If the tracer is killed and the program is not (NoExitKill, Attach), each thread goes
// on with its registers, its signals and its signal mask, whatever it was being made to do:
// see [Task.Syscall]. But breakpoint instructions are in the program's memory: the first
// thread that comes to one dies of SIGTRAP, unless another process has taken it away
// ([Options.Planted]).
//
// # Stability
//
// This package, and those below it, are unstable: they are nvtrace's own, and change with any commit.
package ptrace
