package ptrace

import "errors"

// Task is a traced thread. It is made by [Run] and [Attach]; its methods may be
// called only from within a [Handler]'s methods.
type Task struct {
	TID  int      // in the tracer's pid namespace
	PID  int      // of the process, its thread group
	Proc *Process // shared by the threads of a process
	Data any      // the handler's own
}

// Process is what the threads of a process share.
type Process struct {
	PID  int
	Data any // the handler's own
}

// Range is a run of a task's memory to be read into Buf.
type Range struct {
	Addr uint64
	Buf  []byte
	N    int // bytes read, from the beginning of Buf
}

// ReadMem reads len(buf) bytes at addr. It reads as much as is mapped without a
// gap; n < len(buf) comes with an error. Bytes behind n are unspecified.
func (t *Task) ReadMem(addr uint64, buf []byte) (n int, err error) {
	return 0, errors.ErrUnsupported
}

// ReadMemV reads several ranges at the cost of one, and sets the N of each.
// The error is that of the first range that could not be read whole.
func (t *Task) ReadMemV(r []Range) error { return errors.ErrUnsupported }

// ReadString reads a NUL-terminated string of at most limit bytes, without the
// NUL. A string that is longer is cut, one that runs into unmapped memory is
// returned as far as it goes with an error.
func (t *Task) ReadString(addr uint64, limit int) (string, error) {
	return "", errors.ErrUnsupported
}

// WriteMem writes buf to the task's memory, as far as it is writable.
func (t *Task) WriteMem(addr uint64, buf []byte) (n int, err error) {
	return 0, errors.ErrUnsupported
}

// InjectFilter makes the task's process, and all that it starts from now on,
// stop for the calls that match rules, too (nil: Options.ExtraRules). It may be
// called at the entry or the exit of a call and at TaskNew. A second call with the
// same rules, or one in a process whose ancestor had it, does nothing.
//
// The error matches ErrInject if the kernel, the architecture or the program (one
// that has filters of its own, which might forbid it) does not allow
// it; see [Task.TraceAll].
func (t *Task) InjectFilter(rules []Rule) error { return errors.ErrUnsupported }

// TraceAll does the same as InjectFilter without touching the program, and always
// works, but from now on every call of the process costs two stops. Its other
// threads are interrupted once, as a debugger would.
func (t *Task) TraceAll(rules []Rule) error { return errors.ErrUnsupported }
