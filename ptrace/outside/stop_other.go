//go:build !amd64

package outside

import "nvtrace/ptrace/unwind"

// stopped can't stop threads: their callers can't be followed on this architecture.
func stopped(int, func(*unwind.Regs)) bool { return false }
