package ptrace

import "golang.org/x/sys/unix"

// Handler is told what the traced tasks do. All calls come from the one
// tracing thread, and the task in question is stopped during the call, so a
// handler must not block for long. It must not keep pointers to what it is given
// but for the *Task, which stays the same for the life of a thread. It must not
// start processes itself: children of the tracing thread are taken for tracees.
//
// If a handler panics, the program is let run on untraced as far as the kernel
// allows, nothing more is reported, and Run returns an [*HandlerError].
type Handler interface {
	// Enter is called before a call that a rule matches is executed.
	Enter(t *Task, c *Syscall) Verdict
	// Exit is called after a call for which Enter returned WantExit. c is the
	// same as at Enter, with Ret, Exit and Restarted filled in.
	Exit(t *Task, c *Syscall)
	// Task is called when a task begins, execs, gets a signal, stops or ends.
	Task(t *Task, e *TaskEvent)
}

// Verdict is a handler's answer at the entry of a call.
type Verdict uint8

// The verdicts.
const (
	Skip     Verdict = iota // let the call run; its exit is not wanted
	WantExit                // stop again when the call returns
)

// Syscall is one system call of a task.
type Syscall struct {
	Nr   uint64 // number, of the table that Arch (and bit 30, x32) selects
	Arch uint32 // AUDIT_ARCH_* of linux/audit.h
	IP   uint64 // instruction pointer, behind the instruction that made the call
	SP   uint64
	Args [6]uint64 // as in the registers at entry, not truncated
	Ret  int64     // result, negative errno on failure; valid at Exit

	Class uint16 // of the first rule that matched
	Enter int64  // when the entry was seen, CLOCK_MONOTONIC, ns
	Exit  int64  // when the exit was seen; 0 before

	// Restarted: a signal interrupted the call before it had an effect, Ret is
	// the kernel's internal -ERESTART* (-512 to -516), and the task most likely
	// makes the call again, as a new Syscall.
	Restarted bool
	// Compat: not the machine's own ABI, but i386 or x32 (on arm64: AArch32).
	Compat bool
}

// TaskKind says what a [TaskEvent] reports.
type TaskKind uint8

// The kinds of task events.
const (
	TaskNew        TaskKind = iota + 1 // the task exists; nothing that it did was reported before
	TaskExec                           // it runs a new program; TID is now the process's
	TaskExit                           // it ended; Status says how. The last event of a task
	TaskSignal                         // a signal is about to be delivered
	TaskStop                           // job control stopped it; Signal is the stop signal
	TaskUnfinished                     // Call will never be seen to return, since the task ends, execs or is left
	TaskDetach                         // the tracer left it running. The last event of a task
	TaskConfine                        // it is about to get a seccomp filter of its program's own; see [Task.Hides]
)

var taskKindNames = [...]string{
	TaskNew: "new", TaskExec: "exec", TaskExit: "exit", TaskSignal: "signal", TaskStop: "stop",
	TaskUnfinished: "unfinished", TaskDetach: "detach", TaskConfine: "confine",
}

// String returns the kind in one word.
func (k TaskKind) String() string {
	if int(k) < len(taskKindNames) && k != 0 {
		return taskKindNames[k]
	}
	return "invalid"
}

// TaskEvent is one change in a task's life. It is valid during the call only.
type TaskEvent struct {
	Kind TaskKind
	Time int64 // when it was seen, CLOCK_MONOTONIC, ns

	// TaskNew: who made it; where the child was reported before its maker, any
	// thread of the parent process, and Vfork is not known. Nil for the first task
	// of Run, for tasks that Attach found, and where the maker has died.
	Parent *Task
	Thread bool // TaskNew: a further thread of a process; otherwise a process
	Vfork  bool // TaskNew: its parent sleeps until it execs or ends
	// TaskNew: it was running before Attach came, and is not stopped now:
	// breakpoints can be set, for all else see [Task.Interrupt].
	Attached bool

	// TaskExec: the id of the thread that called execve. It differs from TID,
	// which is the process id now, when that was not the main thread; all
	// other threads are gone.
	OldTID int

	Status unix.WaitStatus // TaskExit
	// TaskExit of a main thread: it is gone because another thread called execve
	// and took over its id. The process goes on; a TaskExec follows.
	Replaced bool
	Signal   unix.Signal // TaskSignal, TaskStop
	Call     *Syscall    // TaskUnfinished
}
