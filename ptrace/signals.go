package ptrace

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// together is how far apart signals come that mean the same: timeout(1) sends its
// own to the process, and then to the group.
const together = time.Second

// recent is for how long a signal that the program has got itself may be what this
// process gets, too: as long as it can take to look at it.
const recent = 10 * time.Second

// fatal are the signals that mean that a program is to end, or that it is at its end,
// whoever sends them.
var fatal = []unix.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS,
	unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS,
}

// newSignals returns what is to be collected.
func newSignals(o *Options, detach bool) *signals {
	s := &signals{ch: make(chan unix.Signal, 64), detach: detach}
	s.stop = sync.OnceFunc(s.end)
	switch {
	case o.NoSignals:
	case detach:
		s.want = fatal
	default:
		s.want = append(slices.Clip(fatal), unix.SIGUSR1, unix.SIGUSR2)
	}
	return s
}

// catch has them collected from now on.
func (s *signals) catch() error {
	if len(s.want) == 0 {
		return nil
	}
	return s.add()
}

// end ends that, soon: a signal may have come that no thread has got round to yet, since the
// program, which got it too, was faster.
func (s *signals) end() {
	if len(s.want) == 0 {
		return
	}
	awaitGroupSignal()
	if s.came.Load() || len(s.ch) > 0 || s.waits() {
		s.endLater()
		return
	}
	s.remove()
}

// endLater ends it when nothing waits any more.
func (s *signals) endLater() {
	time.AfterFunc(together, func() {
		if s.waits() {
			s.endLater()
			return
		}
		s.remove()
	})
}

// awaitGroupSignal returns when whoever is sending a signal to this process's group has sent
// it to all of it: that happens under a lock of the kernel's which this call takes, too.
func awaitGroupSignal() { _ = unix.Setpgid(0, unix.Getpgrp()) }

// passOn sees to it that the program gets a signal that this process has got, unless it
// has got it itself: it may have been sent to the group, by a terminal or by a process.
// When the program has ended, all that it left behind is meant, or nothing but SIGKILL
// could end this process.
func (tr *tracer) passOn(sig unix.Signal) {
	pids := []int{tr.root}
	if tr.over.Load() {
		pids = tr.processes()
	}
	got, waits := tr.account(sig, pids)
	for _, pid := range pids {
		if tr.lacks(pid, sig, got, waits[pid]) {
			tr.send(pid, sig)
		}
	}
	tr.arrived = slices.DeleteFunc(tr.arrived, func(a arrival) bool { return a.sig == sig })
}

// processes lists those that are traced.
func (tr *tracer) processes() (pids []int) {
	for _, t := range tr.tasks {
		if !t.held && !slices.Contains(pids, t.PID) {
			pids = append(pids, t.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

// account finds out how often this process, and others, have got a signal: all that was
// sent to a group before is known of all who are in it.
// waits are those in which it waits.
func (tr *tracer) account(sig unix.Signal, pids []int) (got []sent, waits map[int]bool) {
	const tries = 2000 // can't be: a thread that is about to write does so
	for try := range tries {
		awaitGroupSignal()
		list, all := tr.sigs.collect(sig)
		got = append(got, list...)
		if !all && try < tries-1 {
			yield()
			continue
		}
		waits = make(map[int]bool)
		for _, pid := range pids {
			waits[pid] = tr.noteStops(pid, sig)
		}
		awaitGroupSignal()
		if list, all = tr.sigs.collect(sig); len(list) == 0 && all {
			break
		}
		got = append(got, list...)
	}
	return got, waits
}

// noteStops notes a signal for which tasks have stopped that were not looked at yet. It
// returns whether one waits for the process.
func (tr *tracer) noteStops(pid int, sig unix.Signal) (waits bool) {
	pending := func() bool {
		set, _ := signalSet(pid, "ShdPnd")
		return set&signalBit(sig) != 0
	}
	for was := pending(); ; was = waits {
		for _, t := range tr.tasks {
			if t.PID != pid || t.queued || t.parked || t.frozen || t.held {
				continue
			}
			if w, e := tr.look(t.TID, false); e == 0 && w.tid != 0 {
				tr.queue(w)
			}
		}
		for _, w := range tr.pending {
			if t := tr.tasks[w.tid]; t != nil && t.PID == pid && !t.noted {
				if stop := classify(w.status); stop.kind == stopSignal && stop.sig == sig {
					tr.arrives(t, sig)
					t.noted = true
				}
			}
		}
		// The kernel takes a signal from those that wait, and stops the task, at once.
		if waits = pending(); waits == was {
			return waits
		}
	}
}

// lacks says whether this process has got a signal once more than another one.
func (tr *tracer) lacks(pid int, sig unix.Signal, got []sent, waits bool) bool {
	group, err := unix.Getpgid(pid)
	inGroup := err == nil && group == unix.Getpgrp()
	if waits = waits && inGroup; waits {
		same := func(a arrival) bool { return a.pid == pid && a.sig == sig }
		tr.expected = append(slices.DeleteFunc(tr.expected, same), arrival{sent: sent{sig: sig}, pid: pid})
	}
	balance := map[sent]int{}
	for _, s := range got {
		if s.from == 0 && (sig == unix.SIGINT || sig == unix.SIGQUIT) {
			continue // by a terminal: it was for the group, and nobody else
		}
		balance[s]++
	}
	for _, a := range tr.arrived {
		if a.pid == pid && inGroup {
			balance[a.sent]--
		}
	}
	for _, n := range balance {
		if n > 1 || n == 1 && !waits {
			return true
		}
	}
	return false
}

// send sends a signal.
func (tr *tracer) send(pid int, sig unix.Signal) {
	if (sig == unix.SIGUSR1 || sig == unix.SIGUSR2) && wouldDie(pid, sig) {
		tr.log.Warn("signal not passed on: the program does not handle it, and would end", "signal", sig.String(), "pid", pid)
		return
	}
	_ = unix.Kill(pid, sig) // ESRCH: just ended
}

// wouldDie says whether a process has made no arrangements for a signal.
func wouldDie(pid int, sig unix.Signal) bool {
	for _, name := range []string{"SigCgt", "SigIgn", "SigBlk"} {
		if set, ok := signalSet(pid, name); !ok || set&signalBit(sig) != 0 {
			return false
		}
	}
	return true
}

// arrives notes a signal that is about to be delivered, if this process may have got it,
// too.
func (tr *tracer) arrives(t *Task, sig unix.Signal) {
	if t.noted {
		t.noted = false
		return
	}
	if tr.sigs == nil || !slices.Contains(tr.sigs.want, sig) {
		return
	}
	var si siginfo
	if getSiginfo(t.TID, &si) != 0 {
		return
	}
	s := sent{sig: sig, code: si.code}
	switch {
	case si.code == siUser:
		if s.from = int32(si.addr); int(s.from) == os.Getpid() {
			return
		}
	case si.code != siKernel:
		return
	}
	for i, a := range tr.expected {
		if a.pid == t.PID && a.sig == sig {
			tr.expected = slices.Delete(tr.expected, i, i+1)
			return
		}
	}
	now := nanotime()
	tr.arrived = slices.DeleteFunc(tr.arrived, func(a arrival) bool { return now-a.when > int64(recent) })
	const most = 100
	if len(tr.arrived) == most {
		tr.arrived = slices.Delete(tr.arrived, 0, 1)
	}
	tr.arrived = append(tr.arrived, arrival{s, t.PID, now})
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
	left, ended := make(chan struct{}), ctx.Done()
	leave := sync.OnceFunc(func() {
		go func() {
			if s.detach && tr.o.Leave != nil {
				tr.o.Leave()
			}
			close(left)
		}()
	})
	go func() {
		for {
			select {
			case <-quit:
				return
			case <-ended:
				ended = nil
				leave()
			case <-left:
				do(func() { tr.interrupt(quit) })
				return
			case <-tr.kick:
				do(func() { tr.remind(quit) })
			case sig := <-s.ch:
				s.came.Store(true)
				if s.detach {
					// A later one ends this process, which may not get to detaching.
					s.endLater()
					leave()
					continue
				}
				if tr.o.Got != nil {
					tr.o.Got(sig)
				}
				awaitGroupSignal()
				tr.request(request{fn: func(*Task) { tr.passOn(sig) }, signal: true})
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
