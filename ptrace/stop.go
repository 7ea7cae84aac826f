package ptrace

import (
	"golang.org/x/sys/unix"
)

// stopKind says why wait4 returned a task.
type stopKind uint8

const (
	stopNone     stopKind = iota // nothing that a tracer should see; let the task go on
	stopExited                   // ended by exit
	stopKilled                   // ended by a signal
	stopSyscall                  // entry or exit of a call, under PTRACE_SYSCALL
	stopSeccomp                  // a filter said TRACE, at the entry of a call
	stopFork                     // a child was made; so do the next two
	stopVfork                    //
	stopClone                    //
	stopExec                     // execve is past the point of no return
	stopEnding                   // the task is about to end
	stopEvent                    // another ptrace event
	stopTrap                     // PTRACE_EVENT_STOP: first stop of a new task, PTRACE_INTERRUPT, end of a group stop
	stopGroup                    // job control stopped the process
	stopSignal                   // a signal is about to be delivered
	numStopKinds = iota
)

// stop is a classified wait status.
type stop struct {
	kind stopKind
	sig  unix.Signal // stopKilled, stopGroup, stopSignal
}

// ended says whether the task is gone.
func (s stop) ended() bool { return s.kind == stopExited || s.kind == stopKilled }

// eventStop is PTRACE_EVENT_STOP of linux/ptrace.h.
const eventStop = 128

// classify tells the stops of a seized task apart. It needs
// PTRACE_O_TRACESYSGOOD, without which a call's stop looks like a SIGTRAP.
func classify(status unix.WaitStatus) stop {
	low := status & 0xff
	switch {
	case low&0x7f == 0:
		return stop{kind: stopExited}
	case low&0x7f != 0x7f:
		return stop{kind: stopKilled, sig: unix.Signal(low & 0x7f)}
	case low != 0x7f: // 0xff: continued, which we don't wait for
		return stop{kind: stopNone}
	}
	sig := unix.Signal(status >> 8 & 0xff)
	switch event := status >> 16; event {
	case 0:
		if sig == unix.SIGTRAP|0x80 {
			return stop{kind: stopSyscall}
		}
		return stop{kind: stopSignal, sig: sig}
	case unix.PTRACE_EVENT_FORK:
		return stop{kind: stopFork}
	case unix.PTRACE_EVENT_VFORK:
		return stop{kind: stopVfork}
	case unix.PTRACE_EVENT_CLONE:
		return stop{kind: stopClone}
	case unix.PTRACE_EVENT_EXEC:
		return stop{kind: stopExec}
	case unix.PTRACE_EVENT_EXIT:
		return stop{kind: stopEnding}
	case unix.PTRACE_EVENT_SECCOMP:
		return stop{kind: stopSeccomp}
	case eventStop:
		switch sig {
		case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
			return stop{kind: stopGroup, sig: sig}
		}
		return stop{kind: stopTrap}
	default:
		return stop{kind: stopEvent}
	}
}
