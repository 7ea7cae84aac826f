package ptrace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// ErrState is wrapped when a method of [Task] needs the task at a stop of
// another kind.
var ErrState = errors.New("not possible at this stop")

// Regs returns the task's registers. At a breakpoint the instruction pointer is
// the breakpoint's address. The error matches ErrGone if the task has died, and
// ErrState if it is not stopped, see [Task.StopWorld].
func (t *Task) Regs() (*Regs, error) {
	r := new(Regs)
	if t.brk != nil {
		*r = t.brk.regs
		return r, nil
	}
	if e := t.getRegs(r); e != 0 {
		return nil, t.opError("read registers", e)
	}
	return r, nil
}

// SetRegs changes the task's registers.
func (t *Task) SetRegs(r *Regs) error {
	if t.brk != nil {
		t.brk.regs = *r
		return nil
	}
	if t.dead {
		return t.opError("set registers", unix.ESRCH)
	}
	if e := t.setRegs(r); e != 0 {
		return t.opError("set registers", e)
	}
	return nil
}

// PC returns the task's instruction pointer, also of a task that could not be
// stopped because it sleeps in the kernel: the address to which it will return.
func (t *Task) PC() (uint64, error) {
	if r, err := t.Regs(); err == nil {
		return r.IP(), nil
	} else if errors.Is(err, ErrGone) {
		return 0, err
	}
	// The line ends in the stack pointer and the instruction pointer.
	b, err := os.ReadFile(proc.Path(t.PID, "task/"+strconv.Itoa(t.TID)+"/syscall"))
	if err != nil {
		return 0, fmt.Errorf("instruction pointer of %d: %w", t.TID, err)
	}
	f := strings.Fields(string(b))
	if len(f) < 3 {
		return 0, fmt.Errorf("instruction pointer of %d: %w: it runs", t.TID, ErrState)
	}
	pc, err := strconv.ParseUint(f[len(f)-1], 0, 64)
	if err != nil {
		return 0, fmt.Errorf("instruction pointer of %d: %w", t.TID, err)
	}
	return pc, nil
}

func (t *Task) getRegs(r *Regs) unix.Errno { return getRegs(t.TID, (*unix.PtraceRegs)(r)) }

func (t *Task) setRegs(r *Regs) unix.Errno { return setRegs(t.TID, (*unix.PtraceRegs)(r)) }

// opError says why a ptrace request failed. ESRCH means that the task is dead,
// or not stopped.
func (t *Task) opError(what string, e unix.Errno) error {
	if e != unix.ESRCH {
		return fmt.Errorf("%s of %d: %w", what, t.TID, e)
	}
	if !t.dead && t.tr.tasks[t.TID] == t && t != t.tr.cur && t != t.tr.born && !isZombie(t.PID, t.TID) {
		return fmt.Errorf("%s of %d: %w: it is not stopped", what, t.TID, ErrState)
	}
	return fmt.Errorf("%s of %d: %w", what, t.TID, ErrGone)
}
