package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// CallStub is the code of [ReturnStubs].Calls. It puts a task back where it was held by
// rt_sigreturn, from a signal's frame that rbx points to; the result is in rdi then. Normally
// the tracer does that, and has the system call not made.
var CallStub = []byte{
	0x48, 0x89, 0xc7, // mov %rax,%rdi
	0x48, 0x89, 0xdc, // mov %rbx,%rsp
	0xb8, unix.SYS_RT_SIGRETURN, 0, 0, 0, // mov $rt_sigreturn,%eax
	0x0f, 0x05, // syscall
}

// Bits of the flags register that a function must not find set (System V ABI):
// the trap and the direction flag.
const badFlags = 1<<8 | 1<<10

// Call has a held task (see [Task.Hold]) run the function at addr in the program,
// with at most 64 integer arguments. fn is called on the tracing thread with what it
// returns when it has returned, and the task is held as before: fn, or whoever
// comes later, may make another call, and [Task.Release] lets the task go on as if
// nothing had happened. It is called with an error that matches ErrGone if the
// task dies in the function. Other tasks go on meanwhile.
//
// Call may be used in a function given to [Task.Interrupt] or in another call's
// fn, while the task is held at a breakpoint, or at the entry of a system call
// that a filter stopped. Whether the program can bear the function there is the
// caller's affair: one that is held inside a library with its locks taken must
// not call that library.
//
// The function runs on the stack that ends at stack, 0 being the task's own. All
// registers, those of floating point included, are as before afterwards. Signals
// wait until the function has returned, but for those that it causes itself.
// There is no limit of time.
//
// In a program that lives on if this process is killed, that works at breakpoints of programs
// that Attach traces: should nobody be there when the function returns, the task goes on as if
// nothing had happened all the same. With Options.NoExitKill no function can be called.
func (t *Task) Call(addr, stack uint64, args []uint64, fn func(t *Task, ret uint64, err error)) error {
	fail := func(err error) error { return fmt.Errorf("call of %#x in %d: %w", addr, t.TID, err) }
	tr := t.tr
	switch {
	case tr.outlived && (!t.StopsAtAll() || t.at != placeBreak), !t.parked || t.after != stopNone || t.afterSig != 0 || t.fcall != nil || t.wantExit,
		t.at != placeBreak && t.at != placeEntry, t.at == placeBreak && t.brk == nil:
		return fail(ErrState)
	case len(args) > 64:
		return fail(fmt.Errorf("%d arguments", len(args)))
	case tr.tasks[t.TID] != t || t.replaced():
		return fail(ErrGone)
	}
	c := &funcCall{fn: fn, at: t.at}
	if t.brk != nil {
		b := *t.brk
		c.brk, c.saved = &b, b.regs
	} else if e := t.getRegs(&c.saved); e != 0 {
		return fail(t.opError("read registers", e))
	}
	if c.saved.Cs != userCS {
		return fail(fmt.Errorf("%w: it runs no 64-bit code", ErrState))
	}
	r := c.saved
	if stack == 0 {
		stack = r.SP() - 128 // the red zone of a leaf function
	}
	c.back = CallReturn
	if tr.outlived {
		if tr.stubs.Calls == 0 {
			return fail(errors.New("there is no code to which it could return"))
		}
		c.back, c.frame = tr.stubs.Calls, (stack-sigframeSize)&^63
		stack = c.frame
	}
	if err := c.pushCall(t, stack, args); err != nil {
		return fail(err)
	}
	r.SetSP(c.sp - retSize)
	for i := range min(len(args), 6) {
		r.SetArg(i, args[i])
	}
	// A system call that is about to be made is not: its number is none.
	r.Rip, r.Rax, r.Orig_rax, r.Eflags = addr, 0, noCall, r.Eflags&^badFlags
	if c.frame != 0 {
		r.Rbx = c.frame
	}
	if err := c.begin(t, &r); err != nil {
		return fail(err)
	}
	t.fcall = c
	t.hold, t.parked, t.brk, t.at = false, false, nil, placeNone
	t.cont(0)
	return nil
}

// pushCall writes the stack of a function's entry, and notes what the stack
// pointer is when it has returned.
func (c *funcCall) pushCall(t *Task, stack uint64, args []uint64) error {
	words := []uint64{c.back}
	if len(args) > 6 {
		words = append(words, args[6:]...)
	}
	size := uint64(8 * len(words))
	sp := (stack-size+retSize)&^15 - retSize // aligned before the return address is pushed
	b := make([]byte, 0, size)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	if _, err := t.WriteMem(sp, b); err != nil {
		return fmt.Errorf("stack at %#x: %w", sp, err)
	}
	c.sp = sp + retSize
	return nil
}

// A signal's frame as rt_sigreturn takes it (asm/ucontext.h, asm/sigcontext.h), but for what
// is below the struct ucontext. What functions need not leave as it was, such as the upper
// halves of vector registers, is not in it.
const (
	ucStackFlags = 24
	ucRegs       = 40
	ucFloats     = ucRegs + 184 // address of the FXSAVE area
	ucMask       = 296
	ucFloatsAt   = 320 // the area itself, aligned to 64 bytes
	floatsSize   = 512
	floatsUsed   = 464 // behind that lies what tells of more than the area
	sigframeSize = ucFloatsAt + floatsSize
)

// pushFrame writes the frame from which CallStub puts the task back where it was held.
func (c *funcCall) pushFrame(t *Task) error {
	b := make([]byte, sigframeSize)
	le := binary.LittleEndian
	le.PutUint32(b[ucStackFlags:], ^uint32(0)) // no valid ones: the signal stack stays as it is
	r := c.resumed(t)
	for i, v := range []uint64{
		r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.Rdi, r.Rsi, r.Rbp, r.Rbx, r.Rdx, r.Rax, r.Rcx, r.Rsp, r.Rip,
		r.Eflags, r.Cs | r.Ss<<48,
	} {
		le.PutUint64(b[ucRegs+8*i:], v)
	}
	le.PutUint64(b[ucFloats:], c.frame+ucFloatsAt)
	le.PutUint64(b[ucMask:], c.mask)
	copy(b[ucFloatsAt:], c.xstate[:min(len(c.xstate), floatsUsed)])
	if _, err := t.WriteMem(c.frame, b); err != nil {
		return fmt.Errorf("stack at %#x: %w", c.frame, err)
	}
	return nil
}

// begin saves what is not in the general registers, and sets these. If it fails,
// nothing has changed.
func (c *funcCall) begin(t *Task, r *Regs) error {
	if e := sigmask(unix.PTRACE_GETSIGMASK, t.TID, &c.mask); e != 0 {
		return t.opError("read signal mask", e)
	}
	if t.vectors == nil {
		t.vectors = make([]byte, maxXState)
	}
	buf := t.vectors
	c.set = ntX86XState
	n, e := getRegset(t.TID, c.set, buf)
	if e == unix.EINVAL || e == unix.ENODEV || e == unix.EIO { // not everywhere; what functions pass is there, too
		c.set = ntPrfpreg
		n, e = getRegset(t.TID, c.set, buf)
	}
	if e != 0 {
		return t.opError("read vector registers", e)
	}
	c.xstate = buf[:n]
	if c.frame != 0 {
		if err := c.pushFrame(t); err != nil {
			return err
		}
	}
	if e := t.setRegs(r); e != 0 {
		return t.opError("set registers", e)
	}
	// Now that the frame gives it back.
	blocked := ^uint64(faults)
	if e := sigmask(unix.PTRACE_SETSIGMASK, t.TID, &blocked); e != 0 {
		t.setRegs(c.resumed(t))
		return t.opError("block signals", e)
	}
	return nil
}

// resumed returns the registers with which the task goes on where it was held, whether this
// process is there or not.
func (c *funcCall) resumed(t *Task) *Regs {
	r := c.saved
	if c.frame == 0 {
		return &r
	}
	if st := t.Proc.space.at(c.brk.addr); st != nil && r.IP() == st.addr {
		if at := st.resumeAt(); at != 0 {
			r.SetIP(at)
		}
	}
	r.noRestart()
	return &r
}

// callReturned deals with the fault, or the entry of a system call, by which a called
// function returns. It returns false for another one.
func (tr *tracer) callReturned(t *Task) bool {
	c := t.fcall
	if c == nil {
		return false
	}
	var r Regs
	if t.getRegs(&r) != 0 {
		return true // killed; its end will be reported
	}
	ret := r.Ret()
	if c.frame != 0 {
		if r.IP() != c.back+uint64(len(CallStub)) || r.SP() != c.frame || r.Orig_rax != unix.SYS_RT_SIGRETURN {
			return false
		}
		ret = r.Arg(0)
	} else if r.IP() != CallReturn || r.SP() != c.sp {
		return false
	}
	t.fcall = nil
	if err := c.restore(t); err != nil {
		if t.dead {
			t.fcall = c // forget tells it
			return true
		}
		tr.log.Warn("a task could not be put back after a call", "tid", t.TID, "err", err)
	}
	if tr.crash != nil {
		tr.resume(t, 0)
		return true
	}
	t.hold, t.parked, t.after, t.afterSig = true, true, stopNone, 0
	c.fn(t, ret, nil)
	tr.thaw(0)
	return true
}

// restore puts the task back where it was held.
func (c *funcCall) restore(t *Task) error {
	if e := setRegset(t.TID, c.set, c.xstate); e != 0 {
		return t.opError("set vector registers", e)
	}
	t.at = c.at
	switch {
	case c.frame != 0:
		return c.unwind(t)
	case c.brk != nil:
		t.brkRoom = *c.brk
		t.brk = &t.brkRoom
		if e := t.setRegs(&c.saved); e != 0 { // for whoever looks at it from outside
			return t.opError("set registers", e)
		}
	default:
		blocked := ^uint64(0) &^ signalBit(unix.SIGSYS)
		sigmask(unix.PTRACE_SETSIGMASK, t.TID, &blocked)
		in := &injection{t: t, saved: c.saved, insn: c.saved.Rip - uint64(len(syscallInsn))}
		if err := in.restore(); err != nil {
			return err
		}
		if in.stopped {
			t.rejoin = true
		}
	}
	if e := sigmask(unix.PTRACE_SETSIGMASK, t.TID, &c.mask); e != 0 {
		return t.opError("restore signal mask", e)
	}
	return nil
}

// unwind puts a task back in a program that may outlive this process: at each moment, it goes
// on by itself if that is killed.
func (c *funcCall) unwind(t *Task) error {
	t.brkRoom = *c.brk
	t.brk = &t.brkRoom
	var r Regs
	if e := t.getRegs(&r); e != 0 {
		return t.opError("read registers", e)
	}
	if e := sigmask(unix.PTRACE_SETSIGMASK, t.TID, &c.mask); e != 0 {
		return t.opError("restore signal mask", e)
	}
	if e := t.setRegs(c.resumed(t)); e != 0 { // with them, no system call is made
		return t.opError("set registers", e)
	}
	if r.IP() != c.back+uint64(len(CallStub)) || r.Orig_rax != unix.SYS_RT_SIGRETURN {
		return nil // canceled
	}
	in := &injection{t: t}
	if err := in.step(unix.PTRACE_SYSCALL, stopSyscall); err != nil {
		return err
	}
	in.rejoin()
	return nil
}

// CancelCall ends a call of [Task.Call] that does not return, in a function given to
// [Task.Interrupt]: its fn is called with an error that matches ErrCanceled, and
// the task is held as before; fn must not make another call. What the function has done so far stays; locks that
// it holds are never released, so that this is for tasks that are about to end.
func (t *Task) CancelCall() error {
	c := t.fcall
	if c == nil || t.at != placeStop || t != t.tr.cur {
		return fmt.Errorf("cancel a call in %d: %w", t.TID, ErrState)
	}
	t.fcall = nil
	if err := c.restore(t); err != nil {
		t.fcall = c
		return fmt.Errorf("cancel a call in %d: %w", t.TID, err)
	}
	t.hold, t.parked, t.after, t.afterSig = true, true, stopNone, 0
	c.fn(t, 0, fmt.Errorf("function called in %d: %w", t.TID, ErrCanceled))
	return nil
}

// callLost tells of a call in which the task has died.
func (t *Task) callLost() {
	if c := t.fcall; c != nil {
		t.fcall = nil
		c.fn(t, 0, fmt.Errorf("function called in %d: %w", t.TID, ErrGone))
	}
}
