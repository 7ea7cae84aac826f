package record

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/traces"
)

// Untraced records a program that is not traced: its beginning, its end, and what others see
// of it.
type Untraced struct {
	o     *Options
	start int64 // CLOCK_MONOTONIC at time 0

	mu   sync.Mutex
	sink Sink
}

// NewUntraced prepares to run the program in o.Ptrace, of which Argv and Env alone are
// looked at. o.Header must be set.
func NewUntraced(o *Options) *Untraced {
	return &Untraced{
		o: o, start: ptrace.Now() - (time.Now().UnixNano() - o.Header.Start), sink: Guard(o.Sinks, o.OnFault, o.Logger),
	}
}

// Send records an event, whose Time is CLOCK_MONOTONIC in ns. It may be called on any
// goroutine until Run returns.
func (u *Untraced) Send(ev *traces.Event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ev.Time -= u.start
	u.sink.Event(ev)
	u.sink.Idle()
}

// send records an event that happens now.
func (u *Untraced) send(ev *traces.Event) {
	ev.FD, ev.Time = -1, ptrace.Now()
	u.Send(ev)
}

// Run runs the program, and passes signals on to it. begun is called when it has begun; if
// it returns an error, the program is killed. ended is called when it has ended, for those
// who have something left to send.
func (u *Untraced) Run(begun func(pid int) error, ended func()) (Result, error) {
	res := Result{Result: new(ptrace.Result)}
	began := ptrace.Now()
	defer func() {
		res.Cost.Wall = ptrace.Now() - began
		u.send(&traces.Event{Kind: traces.KindEnd, Cost: &res.Cost})
	}()
	argv := u.o.Ptrace.Argv
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = u.o.Ptrace.Env, os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s: %w", argv[0], ptrace.ErrNotFound)
		} else if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%s: %w", argv[0], ptrace.ErrNotExecutable)
		}
		return res, err
	}
	pid := cmd.Process.Pid
	if err := begun(pid); err != nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		return res, err
	}
	u.send(&traces.Event{Kind: traces.KindExec, PID: int32(pid), TID: int32(pid), Path: cmd.Path, Argv: argv})
	stop := passSignals(cmd.Process)
	_ = cmd.Wait() // the status tells
	stop()
	res.PID, res.Ended = pid, true
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		res.Status = unix.WaitStatus(ws)
	}
	u.send(&traces.Event{Kind: traces.KindExit, PID: int32(pid), TID: int32(pid), Ret: int64(res.Status)})
	ended()
	return res, nil
}

// passSignals passes signals on to a process until stop is called.
func passSignals(p *os.Process) (stop func()) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	go func() {
		for sig := range signals {
			// A terminal sends its signals to the program, too.
			if pg, err := unix.IoctlGetInt(0, unix.TIOCGPGRP); err != nil || pg != unix.Getpgrp() || sig != unix.SIGINT && sig != unix.SIGQUIT {
				_ = p.Signal(sig) // it may have ended
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}
