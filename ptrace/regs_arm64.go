package ptrace

// IP returns the instruction pointer.
func (r *Regs) IP() uint64 { return r.Pc }

// SetIP sets the instruction pointer.
func (r *Regs) SetIP(v uint64) { r.Pc = v }

// SP returns the stack pointer.
func (r *Regs) SP() uint64 { return r.Sp }

// SetSP sets the stack pointer.
func (r *Regs) SetSP(v uint64) { r.Sp = v }

// Ret returns the register in which a function returns an integer.
func (r *Regs) Ret() uint64 { return r.Regs[0] }

// SetRet sets it.
func (r *Regs) SetRet(v uint64) { r.Regs[0] = v }

// FSBase returns 0: the thread pointer is not among these registers.
func (r *Regs) FSBase() uint64 { return 0 }

// Arg returns argument i (0 to 5) of a function at its entry, if it is an integer
// or a pointer (x0 to x5); 0 for another i.
func (r *Regs) Arg(i int) uint64 {
	if i < 0 || i > 5 {
		return 0
	}
	return r.Regs[i]
}

// SetArg sets argument i (0 to 5); nothing happens for another i.
func (r *Regs) SetArg(i int, v uint64) {
	if i >= 0 && i <= 5 {
		r.Regs[i] = v
	}
}
