package outside

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/unwind"
)

// maxStop is how long a thread is waited for that was asked to stop.
const maxStop = 50 * time.Millisecond

// stopped calls fn with the registers of a thread that it stops for so long, and reports whether it could. A thread
// that another tracer has can't be stopped.
func stopped(tid int, fn func(*unwind.Regs)) bool {
	done := make(chan bool)
	go func() {
		// The thread of the kernel that traces ends with this goroutine: whatever happens, that lets go of the other.
		runtime.LockOSThread()
		done <- stopFor(tid, fn)
	}()
	return <-done
}

func stopFor(tid int, fn func(*unwind.Regs)) bool {
	if unix.PtraceSeize(tid) != nil || unix.PtraceInterrupt(tid) != nil {
		return false
	}
	status, ok := awaitStop(tid)
	if !ok {
		return false
	}
	var regs unix.PtraceRegs
	read := unix.PtraceGetRegs(tid, &regs) == nil
	if read {
		fn(unwind.RegsOf((*ptrace.Regs)(&regs)))
	}
	// A signal that came first is delivered: only PTRACE_INTERRUPT's own stop is none.
	sig := status.StopSignal()
	if int(status)>>16 == unix.PTRACE_EVENT_STOP {
		sig = 0
	}
	_, _, _ = unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(sig), 0, 0) // the end of this thread does, too
	return read
}

// awaitStop waits until a thread has stopped.
func awaitStop(tid int) (status unix.WaitStatus, ok bool) {
	for begin := time.Now(); time.Since(begin) < maxStop; time.Sleep(50 * time.Microsecond) {
		switch n, err := unix.Wait4(tid, &status, unix.WNOHANG|unix.WALL, nil); {
		case err != nil || n == tid && !status.Stopped():
			return status, false // it has ended
		case n == tid:
			return status, true
		}
	}
	return status, false
}
