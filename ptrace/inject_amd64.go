package ptrace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// injection makes system calls in a stopped task, and afterwards puts it back
// where it was.
//
// It borrows the task's own `syscall` instruction, which lies before the
// instruction pointer: at the entry of a call by exchanging the call, at an exit
// by stepping back over it. Signals are blocked meanwhile, so that the task can't
// run off into a handler. Nothing of the program's memory is written: the filter
// lies in a page mapped for it, because the stack of a thread may have no room
// (Go's goroutines) and other threads may be using what lies below it.
type injection struct {
	t       *Task
	saved   unix.PtraceRegs
	atEntry bool // a call is about to be executed
	stopped bool // job control wanted to stop the task meanwhile
	stopSig bool // a SIGSTOP was held back
}

// inject installs a second filter in t's process.
func (t *Task) inject(p Program) (err error) {
	if t.at == placeNone {
		return fmt.Errorf("%w: task %d is not stopped at a call", ErrInject, t.TID)
	}
	if n, known := t.foreignFilters(); known && n > 0 {
		return fmt.Errorf("%w: process %d has %d filters of its own", ErrInject, t.PID, n)
	}
	in := &injection{t: t, atEntry: t.at == placeEntry}
	if err := in.check(); err != nil {
		return err
	}
	var mask uint64
	blocked := ^uint64(0)
	if e := sigmask(unix.PTRACE_GETSIGMASK, t.TID, &mask); e != 0 {
		return in.fail("read signal mask", e)
	}
	if e := sigmask(unix.PTRACE_SETSIGMASK, t.TID, &blocked); e != 0 {
		return in.fail("block signals", e)
	}
	err = in.install(p)
	if e := in.restore(); e != nil && err == nil {
		err = e
	}
	sigmask(unix.PTRACE_SETSIGMASK, t.TID, &mask)
	in.rejoin()
	return err
}

// check finds out whether the task can be borrowed.
func (in *injection) check() error {
	if e := getRegs(in.t.TID, &in.saved); e != 0 {
		return in.fail("read registers", e)
	}
	var insn [2]byte
	if _, err := in.t.ReadMem(in.saved.Rip-2, insn[:]); err != nil {
		return fmt.Errorf("%w: %w", ErrInject, err)
	}
	if in.saved.Cs != userCS || insn != [2]byte{0x0f, 0x05} { // syscall
		return fmt.Errorf("%w: task %d runs no 64-bit code", ErrInject, in.t.TID)
	}
	return nil
}

// userCS is the code segment of 64-bit programs (asm/segment.h: __USER_CS).
const userCS = 0x33

func (in *injection) fail(what string, e unix.Errno) error {
	if e == unix.ESRCH {
		return fmt.Errorf("%w: %s: %w", ErrInject, what, ErrGone)
	}
	return fmt.Errorf("%w: %s of %d: %w", ErrInject, what, in.t.TID, e)
}

// install makes the three calls.
func (in *injection) install(p Program) error {
	size := uint64(len(p)*8+16+pageSize-1) &^ (pageSize - 1)
	noFD := ^uint64(0)
	page, err := in.call("mmap", unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, noFD, 0)
	if err != nil {
		return err
	}
	_, err = in.t.WriteMem(page, p.bytes(page))
	if err == nil {
		var tid uint64
		tid, err = in.call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
			unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, page)
		if err == nil && tid != 0 {
			err = fmt.Errorf("%w: thread %d of process %d has filters of its own", ErrInject, tid, in.t.PID)
		}
	} else {
		err = fmt.Errorf("%w: %w", ErrInject, err)
	}
	if _, e := in.call("munmap", unix.SYS_MUNMAP, page, size); e != nil && err == nil {
		err = e
	}
	return err
}

// call executes one system call in the task.
func (in *injection) call(name string, nr uint64, args ...uint64) (uint64, error) {
	r := in.saved
	for i, p := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9} {
		if i < len(args) {
			*p = args[i]
		}
	}
	stops := 1 // the exit
	if in.atEntry {
		r.Orig_rax = nr
	} else {
		r.Rip, r.Rax, r.Orig_rax = r.Rip-2, nr, noCall
		stops = 2
	}
	in.atEntry = false
	if e := setRegs(in.t.TID, &r); e != 0 {
		return 0, in.fail("set registers", e)
	}
	for range stops {
		if err := in.step(unix.PTRACE_SYSCALL, stopSyscall); err != nil {
			return 0, err
		}
	}
	if e := getRegs(in.t.TID, &r); e != 0 {
		return 0, in.fail("read registers", e)
	}
	if ret := int64(r.Rax); ret < 0 && ret >= -4095 {
		return 0, in.fail("injected "+name, unix.Errno(-ret))
	}
	return r.Rax, nil
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
		var st unix.WaitStatus
		_, e := waitAny(in.t.TID, &st)
		for e == unix.EINTR {
			_, e = waitAny(in.t.TID, &st)
		}
		if e != 0 {
			return in.fail("wait", e)
		}
		s := classify(st)
		switch {
		case s.ended():
			in.t.tr.pending = append(in.t.tr.pending, waited{in.t.TID, st})
			return in.fail("wait", unix.ESRCH)
		case s.kind == want:
			return nil
		case s.kind == stopGroup || s.kind == stopTrap:
			in.stopped = true
		case s.kind == stopSignal && s.sig == unix.SIGSTOP:
			in.stopSig = true
		case s.kind == stopSignal: // can't be blocked: it comes from the instruction itself
			return fmt.Errorf("%w: task %d got %v", ErrInject, in.t.TID, s.sig)
		}
		// Others, like a stop of the new filter for our own munmap, are in between.
	}
}

// restore puts the task back: at an exit by its registers, at an entry by making
// it enter its call again.
func (in *injection) restore() error {
	r := in.saved
	if in.t.at != placeEntry || in.atEntry {
		if e := setRegs(in.t.TID, &r); e != 0 {
			return in.fail("restore registers", e)
		}
		return nil
	}
	r.Rip, r.Rax, r.Orig_rax = r.Rip-2, r.Orig_rax, noCall
	if e := setRegs(in.t.TID, &r); e != 0 {
		return in.fail("restore registers", e)
	}
	return in.step(unix.PTRACE_CONT, stopSeccomp)
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
