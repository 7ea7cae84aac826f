package ptrace

import "errors"

// CallReturn is where the functions that [Task.Call] makes a task run return to: an
// address that nothing can be mapped at (below vm.mmap_min_addr), so that the fault
// tells of the return and no code of the program is touched. Who watches the
// program's calls can tell by it that they are not the program's. Those that may find no
// tracer when they return do so to [ReturnStubs].Calls.
const CallReturn = 0xca10

// ErrCanceled is what a call fails with that Task.CancelCall ended.
var ErrCanceled = errors.New("call was canceled")

// Calling reports whether the task runs a function for [Task.Call].
func (t *Task) Calling() bool { return t.fcall != nil }
