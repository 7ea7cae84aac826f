package ptrace

import "errors"

// Rule selects system calls: those of one of the numbers whose arguments match
// all of Args. The first rule of a list that matches decides.
type Rule struct {
	Names []string // of calls, as in the manual: "ioctl"; names that the architecture lacks are ignored
	Nrs   []uint32 // further calls, by number on this architecture
	Args  []ArgMatch
	Class uint16 // handed to the handler as Syscall.Class
	// Compat also selects the calls of the same names by the machine's other ABIs
	// (i386 and x32 on amd64, AArch32 on arm64).
	Compat bool
}

// ArgMatch is a condition on one argument.
type ArgMatch struct {
	Arg   int    // 0 to 5
	Op    Op     // how it is compared with Value
	Mask  uint64 // is ANDed to the argument first; 0 means all bits
	Value uint64
	// Low compares the low 32 bits only. Wanted for what the kernel takes as an
	// int or unsigned int (descriptors, ioctl requests): the high half of the
	// register can hold anything.
	Low bool
}

// Op is a comparison.
type Op uint8

// The comparisons, unsigned.
const (
	Equal Op = iota
	NotEqual
	LessEqual
)

// Action is what a filter does with a call that a rule matches.
type Action uint32

// The actions; see seccomp(2). Other calls are allowed.
const (
	ActionTrace  Action = 0x7ff00000 // stop for the tracer; Class goes along
	ActionNotify Action = 0x7fc00000 // ask the listener
	ActionErrno  Action = 0x00050000 // fail with errno Class
)

// Insn is a classic BPF instruction, struct sock_filter of linux/filter.h.
type Insn struct {
	Code   uint16
	Jt, Jf uint8
	K      uint32
}

// Program is a seccomp filter.
type Program []Insn

// Compile makes a filter of rules.
func Compile(rules []Rule, a Action) (Program, error) { return nil, errors.ErrUnsupported }

// SyscallName returns the name of call nr of the ABI arch, "" if it is not known.
func SyscallName(arch uint32, nr uint64) string { return "" }
