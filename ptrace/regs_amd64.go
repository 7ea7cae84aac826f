package ptrace

// IP returns the instruction pointer.
func (r *Regs) IP() uint64 { return r.Rip }

// SetIP sets the instruction pointer.
func (r *Regs) SetIP(v uint64) { r.Rip = v }

// SP returns the stack pointer.
func (r *Regs) SP() uint64 { return r.Rsp }

// SetSP sets the stack pointer.
func (r *Regs) SetSP(v uint64) { r.Rsp = v }

// Ret returns the register in which a function returns an integer.
func (r *Regs) Ret() uint64 { return r.Rax }

// SetRet sets it.
func (r *Regs) SetRet(v uint64) { r.Rax = v }

// FSBase returns the thread pointer, the address that %fs:0 names.
func (r *Regs) FSBase() uint64 { return r.Fs_base }

// Arg returns argument i (0 to 5) of a function at its entry, if it is an integer
// or a pointer (System V ABI: rdi, rsi, rdx, rcx, r8, r9); 0 for another i.
// Arguments of system calls are in [Syscall].
func (r *Regs) Arg(i int) uint64 {
	if p := r.arg(i); p != nil {
		return *p
	}
	return 0
}

// SetArg sets argument i (0 to 5); nothing happens for another i.
func (r *Regs) SetArg(i int, v uint64) {
	if p := r.arg(i); p != nil {
		*p = v
	}
}

func (r *Regs) arg(i int) *uint64 {
	switch i {
	case 0:
		return &r.Rdi
	case 1:
		return &r.Rsi
	case 2:
		return &r.Rdx
	case 3:
		return &r.Rcx
	case 4:
		return &r.R8
	case 5:
		return &r.R9
	}
	return nil
}
