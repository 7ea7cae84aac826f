package ptrace

import (
	"errors"
	"fmt"
)

type funcCall struct{}

// CallStub is not there on this architecture.
var CallStub []byte

// Call is not supported on this architecture.
func (t *Task) Call(addr, _ uint64, _ []uint64, _ func(t *Task, ret uint64, err error)) error {
	return fmt.Errorf("call of %#x in %d: %w", addr, t.TID, errors.ErrUnsupported)
}

// CancelCall is not supported on this architecture.
func (t *Task) CancelCall() error {
	return fmt.Errorf("cancel a call in %d: %w", t.TID, errors.ErrUnsupported)
}

func (tr *tracer) callReturned(*Task) bool { return false }

func (t *Task) callLost() {}
