package ptrace

import (
	"slices"

	"golang.org/x/sys/unix"
)

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

// fault asks the Injector about a signal, and lets the task go on without it if that was
// dealt with.
func (tr *tracer) fault(t *Task, sig unix.Signal) bool {
	if tr.o.Injector == nil || !t.announced || tr.crash != nil || !tr.o.Injector.Fault(t, sig) {
		return false
	}
	tr.resume(t, 0)
	return true
}

// Memory of an [Injector] in the traced programs is used by code that runs in them: a program that maps something
// in its place, or takes it away, would end. It has chosen the address by itself, since the kernel never gives
// out one that is taken, and the kernel may refuse such a call as well (ENOMEM). Only addresses that come near
// stop: no program is known to use these as a matter of course.

// A Span is a range of addresses: First, up to End.
type Span struct{ First, End uint64 }

// reservedCalls are those that change what is mapped at an address that the program names, or what a child gets of
// it. A size of noSize is no argument of the call: then the address alone counts.
var reservedCalls = []struct {
	names      []string
	addr, size int
	fixed      []ArgMatch
}{
	{[]string{"mmap"}, 0, 1, []ArgMatch{{Arg: 3, Mask: unix.MAP_FIXED, Value: unix.MAP_FIXED, Low: true}}},
	{[]string{"mremap"}, 4, 2, []ArgMatch{{Arg: 3, Mask: unix.MREMAP_FIXED, Value: unix.MREMAP_FIXED, Low: true}}},
	{[]string{"munmap", "mprotect", "pkey_mprotect", "mremap"}, 0, 1, nil},
	{[]string{"madvise"}, 0, 1, []ArgMatch{ // one range is short in a filter, see leaves
		{Arg: 2, Op: GreaterEqual, Value: unix.MADV_DONTNEED, Low: true}, {Arg: 2, Op: LessEqual, Value: unix.MADV_GUARD_INSTALL, Low: true},
	}},
	{[]string{"shmat"}, 1, noSize, []ArgMatch{{Arg: 2, Mask: shmRemap, Value: shmRemap, Low: true}}},
}

const (
	noSize   = -1
	shmRemap = 0x4000 // SHM_REMAP of linux/shm.h
)

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

// reservedRules select the calls that may change what lies in spans. A filter can't add, so not the end is
// compared: either the address lies within a span, or not further below than that is long, or the size is no
// smaller than the span's.
func reservedRules(spans []Span) (rules []Rule) {
	for _, c := range reservedCalls {
		for _, s := range spans {
			length := s.End - s.First
			if c.size == noSize {
				length = 0
			}
			before := append(slices.Clip(c.fixed), ArgMatch{Arg: c.addr, Op: LessEqual, Value: s.End - 1})
			near := slices.Clip(before)
			if s.First > length {
				near = append(near, ArgMatch{Arg: c.addr, Op: GreaterEqual, Value: s.First - length})
				if c.size != noSize {
					long := append(slices.Clip(before), ArgMatch{Arg: c.size, Op: GreaterEqual, Value: length})
					rules = append(rules, Rule{Names: c.names, Class: ClassInternal, Args: long})
				}
			}
			rules = append(rules, Rule{Names: c.names, Class: ClassInternal, Args: near})
		}
	}
	return rules
}

// reserves reports whether t's call would change memory of the Injector's.
func (tr *tracer) reserves(t *Task) bool {
	if tr.o.Injector == nil || t.call.Compat {
		return false
	}
	name, args := t.call.Name(), &t.call.Args
	if leaves(name, args) {
		return false
	}
	for _, c := range reservedCalls {
		if !slices.Contains(c.names, name) || slices.ContainsFunc(c.fixed, func(m ArgMatch) bool { return !m.matches(args) }) {
			continue
		}
		addr, size := args[c.addr], uint64(1)
		if c.size != noSize {
			size = args[c.size]
		}
		if size > 0 && tr.o.Injector.Holds(t, addr, size) {
			return true
		}
	}
	return false
}
