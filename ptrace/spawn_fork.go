//go:build !amd64 || race

package ptrace

import "syscall"

// cloneChild makes a child, a copy of this process, that calls childMain(p). The race
// detector needs that: what it and the coverage of tests put into childMain uses memory
// of this process.
//
//go:noinline
//go:nosplit
//go:norace
func cloneChild(_ uintptr, p *plan) (pid uintptr, e syscall.Errno) {
	pid, _, e = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 && e == 0 {
		childMain(p)
	}
	return pid, e
}
