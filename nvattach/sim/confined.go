package sim

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// Programs that confine themselves (seccomp(2)): with a GPU they make ioctls, and here they call by a socket, which
// their filter may not know of.

// dialled are the system calls by which a thread of a program calls.
var dialled = map[string]uint64{
	"socket": unix.SYS_SOCKET, "connect": unix.SYS_CONNECT, "sendmsg": unix.SYS_SENDMSG, "recvmsg": unix.SYS_RECVMSG,
}

// Confined is to be called when a process gets a filter of its own, with what all its filters allow then. Where they
// do not let it call, that is said in the report.
func (s *Sim) Confined(pid int, allows func(nr uint64) bool) {
	var forbidden []string
	for name, nr := range dialled {
		if !allows(nr) {
			forbidden = append(forbidden, name)
		}
	}
	list, err := proc.Maps(pid)
	if len(forbidden) == 0 || err != nil || !slices.ContainsFunc(list, func(m proc.Mapping) bool { return strings.HasPrefix(m.Path, s.libs+"/") }) {
		return // it calls no driver of ours
	}
	slices.Sort(forbidden)
	s.hint("the program's own seccomp filter forbids " + strings.Join(forbidden, ", ") + ", by which it would call; a driver takes ioctl instead. Its calls of CUDA do what the filter says, or fail")
}
