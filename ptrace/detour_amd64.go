package ptrace

import "golang.org/x/sys/unix"

// refuse has the system call at whose entry the task is fail instead.
func (r *Regs) refuse(e unix.Errno) { r.Orig_rax, r.Rax = noCall, uint64(-int64(e)) }
