package ptrace

import (
	"fmt"

	"nvtrace/ptrace/proc"
)

// threadState is the state of a thread as in /proc/PID/stat; '?' if it is gone.
func threadState(pid, tid int) byte {
	s := proc.Stat(pid, tid, proc.StatState)
	if len(s) != 1 {
		return '?'
	}
	return s[0]
}

// isZombie says whether a thread has ended but is still listed, as a main
// thread is that ended before the others.
func isZombie(pid, tid int) bool {
	switch threadState(pid, tid) {
	case 'Z', 'X', '?':
		return true
	}
	return false
}

// whyNotOurs looks for the reason why a child of ours can't be traced: who
// follows forks (strace -f, another nvtrace) has it before us.
func whyNotOurs(pid int) string {
	if why := whoTraces(pid); why != "" {
		return why
	}
	if why := whyNoPtrace(); why != "" {
		return why
	}
	return " (the sandbox or container that this runs in forbids ptrace; nvtrace doctor says what to do)"
}

// whoTraces names the tracer of a process that has one already.
func whoTraces(pid int) string {
	tracer, ok := proc.StatusNumber(pid, "TracerPid")
	if !ok || tracer == 0 {
		return ""
	}
	tracer = tgidOf(tracer) // it is the tracing thread's id
	return fmt.Sprintf(" (it is traced by process %d, %s)", tracer, proc.Comm(tracer))
}
