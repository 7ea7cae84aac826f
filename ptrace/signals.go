package ptrace

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// together is how far apart signals come that mean the same: timeout(1) sends its
// own to the process, and then to the group.
const together = time.Second

// signals passes this process's signals on to the traced program.
type signals struct {
	ch     chan os.Signal
	catch  func()       // has them collected from now on, once: for each, two threads wake each other
	stop   func()       // ends that, soon, once
	target atomic.Int64 // pidfd of the program, plus 1; below 0: minus its pid
	detach bool         // Attach: the first one ends tracing
	came   atomic.Bool  // one has, and what comes with it is still caught after the end
}

// newSignals returns what is to be collected. Those that were ignored when this
// process started stay so.
func newSignals(o *Options, detach bool) *signals {
	s := &signals{ch: make(chan os.Signal, 16), catch: func() {}, detach: detach}
	s.stop = sync.OnceFunc(s.end)
	if o.NoSignals {
		return s
	}
	want := []os.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT}
	if detach {
		want = want[:3]
	} else {
		want = append(want, unix.SIGUSR1, unix.SIGUSR2)
	}
	s.catch = sync.OnceFunc(func() {
		want = slices.DeleteFunc(want, signal.Ignored)
		if len(want) > 0 {
			signal.Notify(s.ch, want...)
		}
	})
	return s
}

// forward says which process the signals are for. A pidfd can't hit another
// process after this one is gone. Kernels before 5.3 lack it.
func (s *signals) forward(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		s.target.Store(-int64(pid))
		return
	}
	s.target.Store(int64(fd) + 1)
}

// end ends that, soon.
func (s *signals) end() {
	wait := time.Duration(0)
	if s.came.Load() || len(s.ch) > 0 {
		wait = together
	}
	time.AfterFunc(wait, func() {
		s.catch()
		signal.Stop(s.ch)
	})
	if fd := s.target.Swap(0); fd > 0 {
		unix.Close(int(fd) - 1)
	}
}

// deliver passes one signal on: to the program, or, when that has ended, to
// everything that it left behind, or nothing but SIGKILL could end this process.
func (tr *tracer) deliver(s *signals, sig os.Signal, quit chan struct{}) {
	n, ok := sig.(unix.Signal)
	if !ok {
		return
	}
	if !tr.over.Load() {
		if (n == unix.SIGINT || n == unix.SIGQUIT) && inForeground() {
			return // the terminal sent it to the whole group, the program included
		}
		var err error
		switch target := s.target.Load(); {
		case target > 0:
			err = unix.PidfdSendSignal(int(target)-1, n, nil, 0)
		case target < 0:
			err = unix.Kill(int(-target), n)
		}
		if err != unix.ESRCH {
			return
		}
	}
	tr.stray.Store(int32(n))
	tr.poke(quit, func() bool { return tr.stray.Load() == 0 })
}

// signalAll sends a signal to all that is traced, but for what has got it from
// the terminal.
func (tr *tracer) signalAll(sig unix.Signal) {
	got := 0
	if (sig == unix.SIGINT || sig == unix.SIGQUIT) && inForeground() {
		got = unix.Getpgrp()
	}
	sent := map[int]bool{}
	for _, t := range tr.tasks {
		if group, err := unix.Getpgid(t.PID); err != nil || group == got || sent[t.PID] {
			continue
		}
		sent[t.PID] = true
		_ = unix.Kill(t.PID, sig) // ESRCH: just ended
	}
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
	quit := make(chan struct{})
	var busy sync.Mutex // with what the function must not return in the middle of
	do := func(f func()) {
		busy.Lock()
		defer busy.Unlock()
		select {
		case <-quit:
		default:
			f()
		}
	}
	go func() {
		for {
			select {
			case <-quit:
				return
			case <-ctx.Done():
				do(func() { tr.interrupt(quit) })
				return
			case <-tr.kick:
				do(func() { tr.remind(quit) })
			case sig := <-s.ch:
				s.came.Store(true)
				if s.detach {
					// A later one ends this process, which may not get to detaching.
					time.AfterFunc(together, func() { signal.Stop(s.ch) })
					do(func() { tr.interrupt(quit) })
					return
				}
				do(func() { tr.deliver(s, sig, quit) })
			}
		}
	}()
	return sync.OnceFunc(func() { // to wait for the goroutine's end would take two threads' wake-ups
		close(quit)
		busy.Lock()
		defer busy.Unlock()
		s.stop()
	})
}

// interrupt tells the tracing thread that it is to end.
func (tr *tracer) interrupt(quit chan struct{}) {
	tr.wake.Store(true)
	tr.poke(quit, tr.seen.Load)
}

// nudge interrupts the tracing thread's wait.
func (tr *tracer) nudge() { _ = unix.Tgkill(os.Getpid(), tr.tid, wakeSignal) }

// remind interrupts the tracing thread again until it has seen that there is work:
// whoever asked for that has interrupted it once, but that could come just before
// the thread waits.
func (tr *tracer) remind(quit chan struct{}) {
	for pause := 50 * time.Microsecond; tr.work.Load(); pause = min(2*pause, 2*time.Millisecond) {
		select {
		case <-quit:
			return
		case <-time.After(pause):
		}
		if tr.work.Load() {
			tr.nudge()
		}
	}
}

// poke interrupts the tracing thread until it has noticed. The signal could come
// just before the thread waits, so it is repeated.
func (tr *tracer) poke(quit chan struct{}, noticed func() bool) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !noticed() {
		tr.nudge()
		select {
		case <-quit:
			return
		case <-tick.C:
		}
	}
}
