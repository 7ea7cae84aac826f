package ptrace

import "errors"

// Breakpoints are not written for arm64: there is none to be hit or passed.

const (
	breakInsn   = 0
	breakLen    = 4
	retSize     = 8
	branchTaken = 0
)

func (st *site) decode() error { return breakError(st.addr, errors.ErrUnsupported) }

func (tr *tracer) pass(*Task, *site, *Regs) bool { return false }

func (t *Task) returnAddress(*Regs) (uint64, error) { return 0, errors.ErrUnsupported }

func (st *site) resumeAt() uint64 { return 0 }

func (st *site) pushesFlags() bool { return false }

func (t *Task) hideTrapFlag() {}

// sharesMemory is for the kernels that don't tell; without breakpoints it does
// not matter.
func (t *Task) sharesMemory() bool { return false }
