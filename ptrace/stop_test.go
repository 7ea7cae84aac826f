package ptrace

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestClassify(t *testing.T) {
	event := func(ev int, sig unix.Signal) unix.WaitStatus {
		return unix.WaitStatus(ev<<16 | int(sig)<<8 | 0x7f)
	}
	for _, c := range []struct {
		status unix.WaitStatus
		kind   stopKind
		sig    unix.Signal
	}{
		{0x0000, stopExited, 0},
		{0xff00, stopExited, 0},
		{0x000f, stopKilled, unix.SIGTERM},
		{0x008b, stopKilled, unix.SIGSEGV}, // with core
		{0x0040, stopKilled, 64},
		{0xffff, stopNone, 0}, // continued
		{event(0, unix.SIGTRAP|0x80), stopSyscall, 0},
		{event(0, unix.SIGTRAP), stopSignal, unix.SIGTRAP},
		{event(0, unix.SIGSTOP), stopSignal, unix.SIGSTOP},
		{event(0, 64), stopSignal, 64},
		{event(unix.PTRACE_EVENT_FORK, unix.SIGTRAP), stopFork, 0},
		{event(unix.PTRACE_EVENT_VFORK, unix.SIGTRAP), stopVfork, 0},
		{event(unix.PTRACE_EVENT_CLONE, unix.SIGTRAP), stopClone, 0},
		{event(unix.PTRACE_EVENT_EXEC, unix.SIGTRAP), stopExec, 0},
		{event(unix.PTRACE_EVENT_VFORK_DONE, unix.SIGTRAP), stopEvent, 0},
		{event(unix.PTRACE_EVENT_EXIT, unix.SIGTRAP), stopEnding, 0},
		{event(unix.PTRACE_EVENT_SECCOMP, unix.SIGTRAP), stopSeccomp, 0},
		{event(eventStop, unix.SIGTRAP), stopTrap, 0},
		{event(eventStop, unix.SIGSTOP), stopGroup, unix.SIGSTOP},
		{event(eventStop, unix.SIGTSTP), stopGroup, unix.SIGTSTP},
		{event(eventStop, unix.SIGTTIN), stopGroup, unix.SIGTTIN},
		{event(eventStop, unix.SIGTTOU), stopGroup, unix.SIGTTOU},
		{event(99, unix.SIGTRAP), stopEvent, 0},
	} {
		if got := classify(c.status); got != (stop{c.kind, c.sig}) {
			t.Errorf("%#x: %+v, want kind %d, signal %d", uint32(c.status), got, c.kind, c.sig)
		}
	}
}

// FuzzClassify compares with the macros of wait.h, as package unix has them.
func FuzzClassify(f *testing.F) {
	for _, s := range []uint32{0, 0xff00, 0x8b, 0xffff, 0x857f, 0x7057f, 0x80137f, 0x80057f, 0x137f} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, n uint32) {
		w := unix.WaitStatus(n)
		s := classify(w)
		if s.kind >= numStopKinds {
			t.Fatalf("kind %d", s.kind)
		}
		if (s.kind == stopExited) != w.Exited() || (s.kind == stopKilled) != w.Signaled() {
			t.Fatalf("%#x: kind %d, exited %t, signaled %t", n, s.kind, w.Exited(), w.Signaled())
		}
		if stopped := s.kind > stopKilled; stopped != w.Stopped() {
			t.Fatalf("%#x: kind %d, stopped %t", n, s.kind, w.Stopped())
		}
		// Only these may lead to a signal being passed on.
		if s.kind == stopSignal && (n>>16 != 0 || s.sig != w.StopSignal()) {
			t.Fatalf("%#x: signal %d", n, s.sig)
		}
		if s.kind == stopKilled && s.sig != w.Signal() {
			t.Fatalf("%#x: killed by %d", n, s.sig)
		}
	})
}
