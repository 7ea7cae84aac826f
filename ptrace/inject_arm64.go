package ptrace

import (
	"errors"
	"fmt"
)

// inject is not written for arm64. Use [Task.TraceAll] or [Options.ExtraInBase].
func (t *Task) inject(Program) error {
	return fmt.Errorf("%w: not supported on arm64", ErrInject)
}

// syscall is not written for arm64.
func (t *Task) syscall(uint64, []uint64) (int64, error) {
	return 0, fmt.Errorf("system call in %d: %w", t.TID, errors.ErrUnsupported)
}

// unlock is not written for arm64.
func (t *Task) unlock(func(uint64, []byte) bool) error { return errors.ErrUnsupported }

func (*Regs) restarts(*restarted) bool { return false }

func (*Regs) beginAgain(*restarted) {}
