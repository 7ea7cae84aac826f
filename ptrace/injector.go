package ptrace

import "golang.org/x/sys/unix"

// An Injector has code of its own in the traced processes, in memory at [ExemptPage] and
// elsewhere. It answers for what only that code's owner can know. Its methods are called
// on the tracing thread.
//
// With an Injector, calls made from the page at ExemptPage pass, whatever the rules say. A
// program that has code of its own there is not traced in it.
type Injector interface {
	// Fault is asked about each SIGSEGV and SIGBUS that is about to be delivered. If it
	// returns true, having repaired what is wrong, usually by [Task.SetRegs], the signal
	// is not delivered.
	Fault(t *Task, sig unix.Signal) bool
	// Uninterrupted is asked about each signal that is about to be delivered, but for
	// those that the thread's own instruction causes. While it returns true, the thread
	// executes an instruction first; a few thousand at most.
	Uninterrupted(t *Task) bool
	// Detour makes a breakpoint in a program that lives on when this process is killed: in
	// place of a breakpoint instruction, a jump is put at addr, the beginning of a
	// function. See [Task.Detoured].
	Detour(t *Task, addr uint64) (Detour, error)
	// Covers reports whether addr is within a jump that was put into the program's code, behind its first
	// byte: what lies there is no instruction.
	Covers(t *Task, addr uint64) bool
	// Confine is told that the task is at the entry of a call by which its program gets a seccomp filter of
	// its own. allows says whether all of the program's filters will allow a call, compare [Task.Allows]. What the
	// Injector's code does without being asked must be among that when Confine returns.
	Confine(t *Task, allows func(nr uint64, args ...uint64) bool)
	// Stubs are what there is for returns in such programs, see [Task.Returned]. It is
	// called once, before anything is traced.
	Stubs() ReturnStubs
}

// fault asks the Injector about a signal, and lets the task go on without it if that was
// dealt with.
func (tr *tracer) fault(t *Task, sig unix.Signal) bool {
	if tr.o.Injector == nil || !t.announced || tr.crash != nil || !tr.o.Injector.Fault(t, sig) {
		return false
	}
	tr.resume(t, 0)
	return true
}
