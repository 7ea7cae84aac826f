package ptrace

import "syscall"

// cloneChild makes a child, a copy of this process, that calls childMain(p).
//
//go:noinline
//go:norace
func cloneChild(_, _ uintptr, p *plan) (pid uintptr, e syscall.Errno) {
	pid, _, e = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 && e == 0 {
		childMain(p)
	}
	return pid, e
}
