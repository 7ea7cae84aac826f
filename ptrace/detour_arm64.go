package ptrace

func (r *Regs) noRestart() {}

// skipCall reports that there are no detours on this machine.
func (t *Task) skipCall() bool { return false }
