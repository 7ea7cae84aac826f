//go:build !race

package ptrace

import "syscall"

// cloneChild makes a child that shares this process's memory until it execs, and calls
// childMain(p) in it, on the stack that ends at stack. A fork would copy the page tables,
// and afterwards each page that this process writes to.
//
// Unlike vfork's, the child does not halt this thread, which must let it go.
//
//go:noescape
func cloneChild(stack uintptr, p *plan) (pid uintptr, e syscall.Errno)

var _ = childMain // which only assembly calls
