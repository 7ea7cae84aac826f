package ptrace

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// signals passes this process's signals on to the traced program.
type signals struct {
	ch     chan os.Signal
	target atomic.Int64 // pidfd of the program, plus 1
	detach bool         // Attach: the first one ends tracing
}

// catchSignals starts to collect signals. Those that were ignored when this
// process started stay so.
func (tr *tracer) catchSignals(detach bool) *signals {
	s := &signals{detach: detach}
	if tr.o.NoSignals {
		return s
	}
	want := []os.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT}
	if detach {
		want = want[:3]
	} else {
		want = append(want, unix.SIGUSR1, unix.SIGUSR2)
	}
	want = slices.DeleteFunc(want, signal.Ignored)
	if len(want) > 0 {
		s.ch = make(chan os.Signal, 16)
		signal.Notify(s.ch, want...)
	}
	return s
}

// forward says which process the signals are for. A pidfd can't hit another
// process after this one is gone.
func (s *signals) forward(pid int) {
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		s.target.Store(int64(fd) + 1)
	}
}

func (s *signals) stop() {
	if s.ch != nil {
		signal.Stop(s.ch)
	}
	if fd := s.target.Swap(0); fd != 0 {
		unix.Close(int(fd) - 1)
	}
}

// deliver passes one signal on.
func (s *signals) deliver(sig os.Signal) {
	n, ok := sig.(unix.Signal)
	fd := s.target.Load()
	if !ok || fd == 0 {
		return
	}
	if (n == unix.SIGINT || n == unix.SIGQUIT) && inForeground() {
		return // the terminal sent it to the whole group, the program included
	}
	_ = unix.PidfdSendSignal(int(fd)-1, n, nil, 0) // ESRCH: it has ended
}

// inForeground says whether this process is in the foreground group of its
// terminal.
func inForeground() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// watch waits for signals and for ctx on another thread, until the returned
// function is called.
func (tr *tracer) watch(ctx context.Context, s *signals) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-ctx.Done():
				tr.interrupt(quit)
				return
			case sig := <-s.ch:
				if s.detach {
					signal.Stop(s.ch)
					tr.interrupt(quit)
					return
				}
				s.deliver(sig)
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// interrupt tells the tracing thread that it is to end. The signal could come
// just before the thread waits, so it is repeated.
func (tr *tracer) interrupt(quit chan struct{}) {
	tr.wake.Store(true)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !tr.seen.Load() {
		_ = unix.Tgkill(os.Getpid(), tr.tid, wakeSignal)
		select {
		case <-quit:
			return
		case <-tick.C:
		}
	}
}
