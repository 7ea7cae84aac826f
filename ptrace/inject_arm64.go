package ptrace

import "fmt"

// inject is not written for arm64. Use [Task.TraceAll] or [Options.ExtraInBase].
func (t *Task) inject(Program) error {
	return fmt.Errorf("%w: not supported on arm64", ErrInject)
}
