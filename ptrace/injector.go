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
	// Room is where the Injector's memory may lie, in every program, but for code near the program's own. It is
	// called once, before anything is traced.
	Room() []Span
	// Holds is asked about a call of the program's that would change what is mapped at some of size bytes at addr,
	// near that room. If it returns true, as some of that is the Injector's, the call fails with ENOMEM.
	Holds(t *Task, addr, size uint64) bool
	// Stubs are what there is for returns in such programs, see [Task.Returned]. It is
	// called once, before anything is traced.
	Stubs() ReturnStubs
}

// Memory of an [Injector] in the traced programs is used by code that runs in them: a program that maps something
// in its place, or takes it away, would end. It has chosen the address by itself, since the kernel never gives
// out one that is taken, and the kernel may refuse such a call as well (ENOMEM). Only addresses that come near
// stop: no program is known to use these as a matter of course.

// A Span is a range of addresses: First, up to End.
type Span struct{ First, End uint64 }

// leaves reports whether a call leaves the memory as it is, in children, too: most advice does.
func leaves(name string, args *[6]uint64) bool {
	if name != "madvise" {
		return false
	}
	switch uint32(args[2]) {
	case unix.MADV_DONTNEED, unix.MADV_FREE, unix.MADV_REMOVE, unix.MADV_DONTFORK, unix.MADV_WIPEONFORK, unix.MADV_DONTNEED_LOCKED, unix.MADV_GUARD_INSTALL:
		return false
	}
	return true
}

// Detour is a jump in place of a breakpoint.
type Detour struct {
	Orig uint64 // where the program's code that the jump replaced is executed
	Flag uint64 // address of 4 bytes: whether the code makes the system call
	On   uint32 // what they are then; otherwise 0
	Jump []byte // what is in the program's code, at At
	At   uint64
}

// ReturnStubs describes code that stands for return addresses: stub i, of Size
// bytes, makes a system call, and jumps to the address at Table + 8*i.
type ReturnStubs struct {
	Code, Size, Table uint64
	Count             int
	// Other code that return addresses are replaced by lies from Own to OwnEnd.
	Own, OwnEnd uint64
	Calls       uint64 // where [CallStub] is, to which functions of [Task.Call] return; 0: it is not there
}
