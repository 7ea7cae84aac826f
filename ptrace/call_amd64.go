package ptrace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// userCS is the code segment of 64-bit programs (asm/segment.h: __USER_CS).
const userCS = 0x33

// noCall in orig_rax says that the task is in no system call, so that none is
// restarted.
const noCall = ^uint64(0)

// syscallInsn is the instruction.
var syscallInsn = [2]byte{0x0f, 0x05}

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

func (in *injection) fail(what string, e unix.Errno) error {
	if e == unix.ESRCH {
		return fmt.Errorf("system call: %s of %d: %w", what, in.t.TID, ErrGone)
	}
	return fmt.Errorf("system call: %s of %d: %w", what, in.t.TID, e)
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

// noRestart says that the task is in no system call.
func (r *Regs) noRestart() { r.Orig_rax = noCall }
