// Package stepkill is for tests of what becomes of programs whose tracer is killed: it
// kills a tracer just before any chosen one of the system calls by which it does
// something to what it traces.
package stepkill

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Done is to be called by a tracer under test when it has done all that shall be
// tested, and would go on.
func Done() { _, _ = unix.Getpgid(done) }

// done is a process id that nobody asks for.
const done = 0x6d61726b

// Run starts a tracer, kills it just before its step number n, counted from 1, and waits
// for its end. It returns false if the tracer has called Done, or ended, before that;
// then it is killed, too. The command's files must be of type *os.File.
func Run(cmd *exec.Cmd, n int) (killed bool, err error) {
	fail := make(chan error, 1)
	go func() { // the goroutine's thread is not used for anything else, before or afterwards
		runtime.LockOSThread()
		var err error
		killed, err = run(cmd, n)
		fail <- err
	}()
	err = <-fail
	return killed, err
}

func run(cmd *exec.Cmd, n int) (killed bool, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return false, err
	}
	pid := cmd.Process.Pid
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // an error: it has been reaped
	}()
	var st unix.WaitStatus
	if _, err := unix.Wait4(pid, &st, unix.WALL, nil); err != nil {
		return false, err
	}
	// Its threads are followed, its children are not.
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return false, err
	}
	if err := unix.PtraceSyscall(pid, 0); err != nil {
		return false, err
	}
	over := false
	born := map[int]bool{pid: true}
	for {
		tid, err := unix.Wait4(-1, &st, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return killed, err
		case !st.Stopped():
			if tid == pid {
				return killed, nil
			}
			continue
		}
		sig := 0
		switch s := st.StopSignal(); {
		case s == unix.SIGTRAP|0x80:
			if over {
				break
			}
			switch stepOf(tid) {
			case isStep:
				if n--; n == 0 {
					killed, over = true, true
				}
			case isDone:
				over = true
			}
			if over {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		case s == unix.SIGTRAP: // an event
		case s == unix.SIGSTOP && !born[tid]:
		default:
			sig = int(s)
		}
		born[tid] = true
		_ = unix.PtraceSyscall(tid, sig) // it may have been killed
	}
}

const (
	isNothing = iota
	isStep
	isDone
)

// harmless are the requests of ptrace(2) that change nothing.
var harmless = map[uint64]bool{
	unix.PTRACE_PEEKTEXT: true, unix.PTRACE_PEEKDATA: true, unix.PTRACE_PEEKUSR: true, unix.PTRACE_GETREGS: true,
	unix.PTRACE_GETEVENTMSG: true, unix.PTRACE_GETSIGINFO: true, unix.PTRACE_GETREGSET: true,
	unix.PTRACE_PEEKSIGINFO: true, unix.PTRACE_GETSIGMASK: true, unix.PTRACE_GET_SYSCALL_INFO: true,
}
