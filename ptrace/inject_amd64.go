package ptrace

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// injection makes system calls in a stopped task, and afterwards puts it back
// where it was.
//
// It borrows a `syscall` instruction of the program: at the entry of a call the
// one that is being executed, by exchanging the call; elsewhere the one before
// the instruction pointer, or the vDSO's. Signals are blocked meanwhile, so that
// the task can't run off into a handler; they stay pending in the kernel.
// Nothing of the program's memory is written.
//
// In a program that outlives this process it is the relay's instruction, and each
// step leaves the task in a state from which it goes on by itself: before its
// registers are changed, the relay knows them, and before they are its own again,
// so is its signal mask.
type injection struct {
	t       *Task
	saved   Regs
	mask    uint64
	insn    uint64 // address of a syscall instruction
	atEntry bool   // a call is about to be executed
	relay   uint64 // see Task.relay; 0: the program does not outlive this process
	begun   bool   // the task has had other registers than its own
	stopped bool   // job control wanted to stop the task meanwhile
	stopSig bool   // a SIGSTOP was held back
}

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

// restartBlock is ERESTART_RESTARTBLOCK of linux/errno.h.
const restartBlock = 516

// restarts reports whether a task goes on with an interrupted call by restart_syscall: when it leaves its stop, or
// as its next instruction, or at the entry of which it is. c is what is known of that call.
func (r *Regs) restarts(c *restarted) bool {
	const nr = unix.SYS_RESTART_SYSCALL
	switch {
	case r.Orig_rax != noCall && int64(r.Rax) == -restartBlock:
		if r.Orig_rax != nr {
			*c = restarted{r.Orig_rax, r.Rip}
			return true
		}
	case r.Rax == nr:
		return c.ip != 0 && r.Rip == c.ip-uint64(len(syscallInsn))
	case r.Orig_rax != nr || int64(r.Rax) != -int64(unix.ENOSYS):
		return false
	}
	if c.ip != r.Rip { // it was interrupted before it was traced
		*c = restarted{}
	}
	return true
}

// beginAgain has such a task execute the call again, unless a signal's handler comes first. If it is not known which
// call that is, it returns EINTR.
func (r *Regs) beginAgain(c *restarted) {
	const (
		eintr     = ^uint64(unix.EINTR - 1)
		noHandler = ^uint64(514 - 1) // ERESTARTNOHAND
	)
	switch interrupted := int64(r.Rax) == -restartBlock; {
	case r.Rax == unix.SYS_RESTART_SYSCALL:
		r.Rax, r.Orig_rax = c.nr, noCall
	case c.ip == 0 && interrupted:
		r.Rax = eintr
	case c.ip == 0: // at the entry: it makes none
		r.Rax, r.Orig_rax = eintr, noCall
	case interrupted:
		r.Rax, r.Orig_rax = noHandler, c.nr
	default:
		r.Orig_rax = c.nr
	}
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

// syscallInsn is the instruction.
var syscallInsn = [2]byte{0x0f, 0x05}

// userCS is the code segment of 64-bit programs (asm/segment.h: __USER_CS).
const userCS = 0x33

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

func (in *injection) fail(what string, e unix.Errno) error {
	if e == unix.ESRCH {
		return fmt.Errorf("system call: %s of %d: %w", what, in.t.TID, ErrGone)
	}
	return fmt.Errorf("system call: %s of %d: %w", what, in.t.TID, e)
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

// noCall in orig_rax says that the task is in no system call, so that none is
// restarted.
const noCall = ^uint64(0)

// step lets the task run up to the next stop of the wanted kind.
func (in *injection) step(req int, want stopKind) error {
	for {
		if e := ptraceOp(req, in.t.TID, 0); e != 0 {
			return in.fail("resume", e)
		}
		st, err := in.t.await()
		if err != nil {
			return err
		}
		s := classify(st)
		switch {
		case s.kind == want:
			return nil
		case s.kind == stopGroup || s.kind == stopTrap:
			in.stopped = true
		case s.kind == stopSignal && s.sig == unix.SIGSTOP:
			in.stopSig = true
		case s.kind == stopSignal: // SIGSYS, or it can't be blocked: the instruction itself causes it
			return fmt.Errorf("system call in task %d: it got %v", in.t.TID, s.sig)
		}
		// Others, like a filter's stop for our own call, are in between.
	}
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
