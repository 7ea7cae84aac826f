package record

import (
	"bytes"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// threadNames records what threads are called.
type threadNames struct {
	r *Recorder
}

// ThreadNames returns an extension that records the names that threads give themselves, as
// pthread_setname_np(3) of the thread itself does, and those that they have when they are
// attached to. A name that another thread gives by a file of /proc is not seen.
func ThreadNames(r *Recorder) Extension {
	return Extension{Handler: &threadNames{r}, Rules: []ptrace.Rule{{
		Names: []string{"prctl"}, Class: ExtensionClass, Args: []ptrace.ArgMatch{{Arg: 0, Value: unix.PR_SET_NAME, Low: true}},
	}}}
}

// maxThreadName is how long a name can be; the kernel cuts off the rest.
const maxThreadName = 15

// Enter implements ptrace.Handler. A call that is seen succeeds if its name can be read, and no second
// stop is made for its result: one that a filter of the program's own refuses does not stop, but in
// threads that were attached to and have no filter of ours.
func (h *threadNames) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	var b [maxThreadName]byte
	n, err := t.ReadMem(c.Args[1], b[:])
	name, _, whole := bytes.Cut(b[:n], []byte{0})
	if err != nil && !whole {
		return ptrace.Skip // the call will fail
	}
	h.emit(t, string(name), 0)
	return ptrace.Skip
}

func (h *threadNames) emit(t *ptrace.Task, name string, flags traces.Flags) {
	h.r.Emit(&traces.Event{Kind: traces.KindThread, Flags: flags, PID: int32(t.PID), TID: int32(t.TID), Time: h.r.Now(), FD: -1, Text: name})
}

// Exit implements ptrace.Handler.
func (h *threadNames) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (h *threadNames) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Kind != ptrace.TaskNew || !e.Attached || t.TID == t.PID {
		return
	}
	if name := proc.Comm(t.TID); name != "" && name != proc.Comm(t.PID) {
		h.emit(t, name, traces.FlagAttached)
	}
}
