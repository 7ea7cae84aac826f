package ptrace

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// borrow calls f with an injection into t, and puts t back.
func (t *Task) borrow(f func(in *injection) error) error {
	in := &injection{t: t, atEntry: t.at == placeEntry || t.at == placeCall}
	if t.at == placeNone {
		return fmt.Errorf("system call in %d: %w", t.TID, ErrState)
	}
	if t.replaced() {
		return in.fail("stop", unix.ESRCH)
	}
	if e := sigmask(unix.PTRACE_GETSIGMASK, t.TID, &in.mask); e != 0 {
		return in.fail("read signal mask", e)
	}
	err := in.begin()
	if err == nil {
		err = f(in)
		if !t.dead {
			if e := in.restore(); e != nil && err == nil {
				err = e
			}
		}
	}
	if t.dead {
		return err
	}
	var r Regs
	if err != nil && t.getRegs(&r) == unix.ESRCH { // killed, and its memory gone: that is the reason
		return in.fail("stop", unix.ESRCH)
	}
	if in.relay == 0 {
		sigmask(unix.PTRACE_SETSIGMASK, t.TID, &in.mask)
	}
	if t.brk != nil {
		t.tr.bequeath(t)
	}
	in.rejoin()
	return err
}

// block keeps signals from the task.
func (in *injection) block() error {
	// Not SIGSYS, with which a filter of the program's own may answer: the kernel
	// would unblock it and take its handler away.
	blocked := ^signalBit(unix.SIGSYS)
	if e := sigmask(unix.PTRACE_SETSIGMASK, in.t.TID, &blocked); e != 0 {
		return in.fail("block signals", e)
	}
	return nil
}

// unblock is the opposite, while the task is in the relay.
func (in *injection) unblock() error {
	if e := sigmask(unix.PTRACE_SETSIGMASK, in.t.TID, &in.mask); e != 0 {
		return in.fail("restore signal mask", e)
	}
	return nil
}

// outlive arranges for this process's death: then the task goes on as if
// nothing had been.
func (in *injection) outlive() error {
	t := in.t
	if err := t.Allows(unix.SYS_RT_SIGPROCMASK); err != nil { // which the relay makes
		return err
	}
	relay := t.relay()
	r := in.saved
	switch {
	case t.brk != nil:
		if st := t.Proc.space.at(t.brk.addr); st != nil && r.Rip == st.addr && st.resumeAt() != 0 {
			r.Rip = st.resumeAt()
		}
	case in.atEntry:
		r.Rip, r.Rax = r.Rip-2, r.Orig_rax
	case r.Orig_rax != noCall && isRestart(int64(r.Rax)):
		if r.Rip -= 2; int64(r.Rax) == -restartBlock && !t.Proc.noRestart {
			r.Rax = unix.SYS_RESTART_SYSCALL
		} else {
			r.Rax = r.Orig_rax
		}
	}
	if relay == 0 || !t.armRelay(relay, in.mask, &r) {
		if t.getRegs(&r) == unix.ESRCH {
			return in.fail("write the relay", unix.ESRCH)
		}
		return fmt.Errorf("system call in %d: there is no room for code that would put it back if this process were killed", t.TID)
	}
	in.relay = relay
	return nil
}

// begin saves the registers and finds an instruction to borrow.
func (in *injection) begin() error {
	t := in.t
	if t.at == placeExec { // the call that made the stop must end first; signals come behind its exit
		if err := in.step(unix.PTRACE_SYSCALL, stopSyscall); err != nil {
			return err
		}
		t.at, t.execed = placeExit, true
	}
	if t.at == placeGroup { // it leaves the stop of its process; see tracer.listen
		t.at = placeStop
	}
	if t.brk != nil {
		in.saved = t.brk.regs
	} else if e := t.getRegs(&in.saved); e != 0 {
		return in.fail("read registers", e)
	}
	if t.at == placeStop {
		t.abortSequence(&in.saved)
	}
	if in.saved.Cs != userCS {
		return fmt.Errorf("system call in %d: %w: it runs no 64-bit code", t.TID, ErrState)
	}
	if t.at != placeBreak {
		var code [2]byte
		if n, _ := t.ReadMem(in.saved.Rip-2, code[:]); n == 2 && code == syscallInsn {
			in.insn = in.saved.Rip - 2
		}
	}
	switch {
	case in.atEntry && in.insn == 0:
		return fmt.Errorf("system call in %d: %w: its call is not one of 64-bit code", t.TID, ErrState)
	case t.tr.outlived:
		return in.outlive()
	case in.insn == 0:
		var err error
		if in.insn, err = t.findSyscall(); err != nil {
			return err
		}
	}
	return in.block()
}

// findSyscall finds a syscall instruction in t's memory: the vDSO has one for the
// calls that it can't answer itself; otherwise in any code.
func (t *Task) findSyscall() (uint64, error) {
	s := t.Proc.space
	if s.syscall != 0 {
		var b [2]byte
		if n, _ := t.ReadMem(s.syscall, b[:]); n == 2 && b == syscallInsn {
			return s.syscall, nil
		}
	}
	maps, err := proc.Maps(t.TID)
	if err != nil {
		return 0, fmt.Errorf("system call in %d: %w", t.TID, err)
	}
	buf := make([]byte, 1<<16)
	for _, vdso := range []bool{true, false} {
		for _, m := range maps {
			if !m.Exec || (m.Path == "[vdso]") != vdso || m.Path == "[vsyscall]" {
				continue
			}
			for at := m.Start; at < m.End && at-m.Start < 16<<20; at += uint64(len(buf) - 1) {
				n, _ := t.ReadText(at, buf[:min(uint64(len(buf)), m.End-at)])
				if i := bytes.Index(buf[:n], syscallInsn[:]); i >= 0 {
					s.syscall = at + uint64(i)
					return s.syscall, nil
				}
			}
		}
	}
	return 0, fmt.Errorf("system call in %d: no syscall instruction found", t.TID)
}

// call executes one system call in the task.
func (in *injection) call(nr uint64, args ...uint64) (int64, error) {
	if err := in.t.Allows(nr, args...); err != nil {
		return 0, err
	}
	r := in.saved
	for i, p := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9} {
		if i < len(args) {
			*p = args[i]
		}
	}
	stops := 1 // the exit
	switch {
	case in.atEntry:
		r.Orig_rax = nr
		if in.relay != 0 {
			r.Rip = in.relay + uint64(len(syscallInsn))
		}
	case in.relay != 0:
		r.Rip, r.Rax, r.Orig_rax = in.relay, nr, noCall
		stops = 2
	default:
		r.Rip, r.Rax, r.Orig_rax = in.insn, nr, noCall
		stops = 2
	}
	in.atEntry = false
	if e := in.t.setRegs(&r); e != 0 {
		return 0, in.fail("set registers", e)
	}
	if in.relay != 0 && !in.begun { // only now: the relay ends that, too
		if err := in.block(); err != nil {
			return 0, err
		}
	}
	in.begun = true
	for range stops {
		if err := in.step(unix.PTRACE_SYSCALL, stopSyscall); err != nil {
			return 0, err
		}
	}
	if e := in.t.getRegs(&r); e != 0 {
		return 0, in.fail("read registers", e)
	}
	if ret := int64(r.Rax); ret < 0 && ret >= -4095 {
		return ret, fmt.Errorf("%s in task %d: %w", callName(nr), in.t.TID, unix.Errno(-ret))
	}
	return int64(r.Rax), nil
}

// restore puts the task back: at an entry by making it enter its call again,
// elsewhere by its registers.
func (in *injection) restore() error {
	if at := in.t.at; (at == placeEntry || at == placeCall) && !in.atEntry {
		if in.relay != 0 {
			return in.exchange()
		}
		return in.enterAgain()
	}
	r := in.saved
	restarts := isRestart(int64(r.Rax)) && r.Orig_rax != noCall
	if in.relay != 0 && in.begun {
		if err := in.unblock(); err != nil {
			return err
		}
		if restarts { // now, should this process be killed behind the next step
			ptraceOp(unix.PTRACE_INTERRUPT, in.t.TID, 0)
		}
	}
	if e := in.t.setRegs(&r); e != 0 {
		return in.fail("restore registers", e)
	}
	// An interrupted call. The kernel turns its result into a restart or
	// EINTR on the way through its signal code, where nothing might send
	// the task any more.
	in.stopped = in.stopped || restarts
	return nil
}

// enterAgain has the task execute the instruction of its call once more.
func (in *injection) enterAgain() error {
	r := in.saved
	r.Rip, r.Rax, r.Orig_rax = in.insn, r.Orig_rax, noCall
	if e := in.t.setRegs(&r); e != 0 {
		return in.fail("restore registers", e)
	}
	if in.t.at == placeCall {
		return in.step(unix.PTRACE_SYSCALL, stopSyscall)
	}
	return in.step(unix.PTRACE_CONT, stopSeccomp)
}

// exchange has the relay come to its own system call, and exchanges that for the call
// at whose entry the task was. The task does not leave the kernel in between, where a
// signal could come first.
func (in *injection) exchange() error {
	if err := in.step(unix.PTRACE_SYSCALL, stopSyscall); err != nil {
		return err
	}
	if err := in.unblock(); err != nil {
		return err
	}
	r := in.saved
	if e := in.t.setRegs(&r); e != 0 {
		return in.fail("restore registers", e)
	}
	if in.t.at == placeCall {
		return nil
	}
	return in.step(unix.PTRACE_CONT, stopSeccomp) // a filter looks at a call behind this stop
}

// rejoin makes the task notice a stop by job control that came meanwhile.
func (in *injection) rejoin() {
	if in.stopSig {
		_ = unix.Tgkill(in.t.PID, in.t.TID, unix.SIGSTOP)
	}
	if in.stopped {
		// If the process is stopped still, the task reports that next.
		ptraceOp(unix.PTRACE_INTERRUPT, in.t.TID, 0)
	}
}

// inject installs a second filter in t's process. It lies in a page mapped for
// it, because the stack of a thread may have no room (Go's goroutines) and other
// threads may be using what lies below it.
func (t *Task) inject(p Program) error {
	for _, nr := range []uint64{unix.SYS_MMAP, unix.SYS_SECCOMP, unix.SYS_MUNMAP} {
		if err := t.Allows(nr); err != nil {
			return fmt.Errorf("%w: %w", ErrInject, err)
		}
	}
	err := t.borrow(func(in *injection) error {
		size := uint64(len(p)*8+16+pageSize-1) &^ (pageSize - 1)
		page, err := in.call(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0), 0)
		if err != nil {
			return err
		}
		if _, err = t.WriteMem(uint64(page), p.bytes(uint64(page))); err == nil {
			var tid int64
			tid, err = in.call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
				unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uint64(page))
			if err == nil && tid != 0 {
				err = fmt.Errorf("thread %d of process %d has filters of its own", tid, t.PID)
			}
		}
		if _, e := in.call(unix.SYS_MUNMAP, uint64(page), size); e != nil && err == nil {
			err = e
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInject, err)
	}
	return nil
}

// unlock opens the memory of a child that an undumpable process has forked, which nobody but root may open. The
// child makes itself dumpable for that moment, and only if the program knows nothing between that and undumpable
// (fs.suid_dumpable). It is at its first stop, behind the call that made it, and code is that call's instruction
// as the parent has it. Should this process be killed in here, the child has a call's registers: a relay for that
// would have to be written to its memory.
func (t *Task) unlock(code func(addr uint64, buf []byte) bool) error {
	in := &injection{t: t}
	if e := t.getRegs(&in.saved); e != 0 {
		return in.fail("read registers", e)
	}
	in.insn = in.saved.Rip - uint64(len(syscallInsn))
	var insn [2]byte
	if in.saved.Cs != userCS || !code(in.insn, insn[:]) || insn != syscallInsn {
		return fmt.Errorf("system call in %d: %w: its call is not one of 64-bit code", t.TID, ErrState)
	}
	if e := sigmask(unix.PTRACE_GETSIGMASK, t.TID, &in.mask); e != 0 {
		return in.fail("read signal mask", e)
	}
	if err := in.block(); err != nil {
		return err
	}
	v, err := in.call(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE)
	if err == nil && v == 0 {
		if _, err = in.call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1); err == nil {
			t.Proc.openMem()
			_, err = in.call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0)
		}
	}
	if t.dead {
		return err
	}
	if e := in.restore(); e != nil && err == nil {
		err = e
	}
	sigmask(unix.PTRACE_SETSIGMASK, t.TID, &in.mask)
	in.rejoin()
	return err
}

// syscall is Task.Syscall.
func (t *Task) syscall(nr uint64, args []uint64) (ret int64, err error) {
	err = t.borrow(func(in *injection) error {
		ret, err = in.call(nr, args...)
		return err
	})
	return ret, err
}

// skipCall makes the task, which is at the entry of a system call, not make it,
// and stop behind it.
func (t *Task) skipCall() bool {
	var r Regs
	if t.getRegs(&r) != 0 {
		return false
	}
	orig := r
	r.noRestart()
	if t.setRegs(&r) != 0 {
		return false
	}
	in := &injection{t: t}
	if in.step(unix.PTRACE_SYSCALL, stopSyscall) != nil {
		return false
	}
	in.rejoin()
	return t.setRegs(&orig) == 0
}
