package ptrace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// seizeOptions are what every tracee gets. PTRACE_O_TRACEEXIT is not among
// them: it would cost a stop for each thread's end. See endings.
const seizeOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
	unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESECCOMP

func newTracer(o *Options, h Handler) (*tracer, error) {
	tr := &tracer{o: o, h: h, log: o.Logger, tasks: map[int]*Task{}, kick: make(chan struct{}, 1)}
	if tr.log == nil {
		tr.log = slog.New(slog.DiscardHandler)
	}
	if o.Injector != nil {
		tr.stubs = o.Injector.Stubs()
	}
	internal := internalRules(o)
	rules := tr.baseRules(internal)
	err := checkClasses(o.Rules)
	if err == nil {
		tr.prog, err = tr.compile(rules)
	}
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if tr.base, err = newMatcher(rules); err != nil {
		return tr, err
	}
	tr.users, err = newMatcher(rules[len(internal):])
	return tr, err
}

// compileExtra compiles the rules that come into force later.
func (tr *tracer) compileExtra() (err error) {
	if len(tr.o.ExtraRules) == 0 {
		return nil
	}
	if tr.extra, err = tr.newRuleSet(tr.o.ExtraRules); err != nil {
		return fmt.Errorf("extra rules: %w", err)
	}
	return nil
}

// baseRules are in force in every task.
func (tr *tracer) baseRules(internal []Rule) []Rule {
	rules := append(slices.Clip(internal), tr.o.Rules...)
	if tr.o.ExtraInBase {
		rules = append(rules, tr.o.ExtraRules...)
	}
	return rules
}

// Run starts the program, traces it and everything that it starts, and returns
// when it (and, by default, the last of its descendants) has ended.
//
// When ctx is cancelled, everything traced is killed, and Run returns the
// context's cause. The Result is valid also with an error; it is nil only if
// nothing was started.
func Run(ctx context.Context, o *Options, h Handler) (*Result, error) {
	if o == nil {
		o = &Options{}
	}
	if o.Orphans == OrphansDetach && o.Seccomp != SeccompOff {
		return nil, errors.New("orphans can be left alone only if they have no filter (SeccompOff)")
	}
	sigs := newSignals(o, false)
	if err := sigs.catch(); err != nil { // one that comes before ends this process
		return nil, err
	}
	defer sigs.stop()
	tr, err := newTracer(o, h)
	if err != nil {
		return nil, err
	}
	onFreeThread(func() { err = tr.run(ctx, sigs) })
	if tr.root == 0 {
		return nil, err
	}
	return &tr.res, err
}

// onFreeThread calls f on a locked OS thread that has no children and will get none: this
// one, or else one that it waits for. A thread that has some is kept locked meanwhile,
// so that the next try gets another one.
func onFreeThread(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !getsOrphans() && threadIsFree() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onFreeThread(f)
	}()
	<-done
}

// run is all of Run, on the tracing thread.
func (tr *tracer) run(ctx context.Context, sigs *signals) error {
	began, cpu := time.Now(), threadCPU()
	tr.refused = ctx.Err
	prog := tr.prog
	if tr.o.Seccomp != SeccompAuto {
		prog, tr.res.Reason = nil, "switched off"
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	child, err := spawn(tr.o, prog, 0, true)
	if err != nil {
		return err
	}
	defer child.close()
	tr.log.Debug("forked", "pid", child.pid)
	tr.child = child
	if err := tr.compileExtra(); err != nil {
		tr.abandonChild()
		return err
	}
	if err := tr.seizeChild(); err != nil {
		return err
	}
	defer tr.threadSetup()()
	tr.sigs = sigs
	if err := child.release(); err != nil {
		return fmt.Errorf("start %s: %w", child.path, err) // the child ends, as nobody lets it go
	}
	// While the child is busy.
	if tr.o.Forked != nil {
		tr.o.Forked()
	}
	tr.countFilters()
	stop := tr.watch(ctx, sigs)
	defer stop()
	tr.toTheEnd(began, cpu, stop)
	return tr.outcome(ctx)
}

// toTheEnd traces until no tracee is left, and then stops the watcher: a signal ends this
// process again, whatever it waits for. It began tracing when the thread's CPU time was
// cpu.
func (tr *tracer) toTheEnd(began time.Time, cpu int64, stop func()) {
	tr.loop()
	tr.res.Wall, tr.res.TracerCPU = time.Since(began), time.Duration(threadCPU()-cpu)
	stop()
	if tr.o.Ended != nil {
		tr.o.Ended(&tr.res)
	}
}

// seizeChild makes the waiting child a tracee.
func (tr *tracer) seizeChild() error {
	tr.root, tr.res.PID = tr.child.pid, tr.child.pid
	opts := uintptr(seizeOptions)
	tr.outlived = tr.o.NoExitKill
	if !tr.outlived {
		opts |= unix.PTRACE_O_EXITKILL
	}
	if tr.seesEnds {
		opts |= unix.PTRACE_O_TRACEEXIT
	}
	if e := ptraceOp(unix.PTRACE_SEIZE, tr.root, opts); e != 0 {
		why := whyNotOurs(tr.root)
		tr.abandonChild()
		return fmt.Errorf("trace own child: %w: %w%s", ErrPermission, e, why)
	}
	t := &Task{TID: tr.root, PID: tr.root, Proc: &Process{PID: tr.root, mem: -1, tasks: 1}, tr: tr, muted: true}
	new(space).join(t.Proc)
	tr.tasks[tr.root] = t
	return nil
}

// abandonChild has the waiting child end, which is no tracee.
func (tr *tracer) abandonChild() {
	tr.child.goW.Close()
	var st unix.WaitStatus
	waitAny(tr.child.pid, &st)
	tr.root = 0
}

// outcome makes the error of Run.
func (tr *tracer) outcome(ctx context.Context) error {
	if tr.res.Mode == 0 { // it never got to its program
		tr.root = 0
		if err := tr.child.failure(); err != nil {
			return err
		}
		if tr.killing {
			return context.Cause(ctx)
		}
		return &EndedError{Path: tr.child.path, Status: tr.res.Status}
	}
	switch {
	case tr.crash != nil:
		return tr.crash
	case tr.killing && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil
}

// loop runs until no tracee is left.
func (tr *tracer) loop() {
	for !tr.spin() {
	}
	for tid := range tr.tasks { // can't be, but the handler must hear of their end
		tr.log.Warn("task vanished", "tid", tid)
		tr.ended(tid, 0)
	}
}

// spin is the loop proper. It returns false when a handler panicked; the
// program must not suffer for that, so tracing goes on without the handler.
func (tr *tracer) spin() (done bool) {
	defer func() {
		if v := recover(); v != nil {
			tr.crash = &HandlerError{Value: v, Stack: debug.Stack()}
			tr.h = deaf{}
			tr.log.Error("trace handler panicked", "panic", v, "stack", string(tr.crash.Stack))
			tr.unblock()
		}
	}()
	for tr.dispatch(tr.next()) {
	}
	return true
}

// unblock lets those go whose turn it was when the handler panicked.
func (tr *tracer) unblock() {
	tr.thaw(0)
	for _, s := range tr.spaces() {
		s.clear()
	}
	for _, t := range tr.tasks {
		t.hold, t.onStop = false, nil
		if t.parked {
			t.parked = false
			if t == tr.cur {
				tr.cur = nil
			}
			tr.release(t)
		}
	}
	if t := tr.born; t != nil {
		tr.born = nil
		tr.stopped(t, t.first)
	}
	t := tr.cur
	switch {
	case t == nil || tr.tasks[t.TID] != t:
	case tr.detaching:
		tr.detach(t, stop{})
	default:
		tr.resume(t, 0)
	}
}

// deaf is the handler after a panic.
type deaf struct{}

func (deaf) Enter(*Task, *Syscall) Verdict { return Skip }
func (deaf) Exit(*Task, *Syscall)          {}
func (deaf) Task(*Task, *TaskEvent)        {}

// next returns the next stop or end. tid 0: interrupted; -1: no tracee is left.
func (tr *tracer) next() waited {
	if len(tr.pending) > 0 {
		w := tr.pending[0]
		tr.pending = tr.pending[1:]
		return w
	}
	var w waited
	var e unix.Errno
	if tr.wake.Load() && !tr.seen.Load() {
		return waited{}
	}
	if tr.work.Load() {
		// Requests may come faster than they are done, but a task that has stopped or
		// ended must not wait for the last of them.
		if tr.served {
			tr.served = false
			if tr.outlived {
				w, e = tr.look(-1, false)
			} else {
				w.tid, e = waitNow(-1, &w.status)
			}
			if e == 0 && w.tid > 0 {
				return w
			}
		}
		return waited{}
	}
	if tr.outlived {
		w, e = tr.look(-1, true)
	} else {
		w.tid, e = waitAny(-1, &w.status)
	}
	switch e {
	case 0:
		return w
	case unix.EINTR:
		return waited{}
	}
	return waited{tid: -1}
}

// dispatch deals with one stop or end, and returns false after the last.
func (tr *tracer) dispatch(w waited) bool {
	tr.cur = nil
	switch w.tid {
	case -1:
		return false
	case 0:
		if tr.wake.Load() && !tr.seen.Load() {
			tr.cancelled()
		}
		if tr.work.Load() {
			tr.serve()
			tr.served = true
		}
		return true
	}
	began := int64(0)
	if tr.o.Held != nil {
		began, tr.why = nanotime(), ""
	}
	if w.kept {
		tr.kept = w.tid
	}
	tr.react(w)
	if w.kept {
		if t := tr.tasks[w.tid]; tr.kept != 0 && t != nil && t.parked {
			waitNow(w.tid, &w.status) // it may stay there for long
		}
		tr.kept = 0
	}
	if tr.o.Held != nil {
		tr.o.Held(time.Duration(nanotime()-began), tr.why)
	}
	return true
}

// react deals with a stop or end of a task.
func (tr *tracer) react(w waited) {
	s := classify(w.status)
	if s.ended() {
		tr.ended(w.tid, w.status)
		return
	}
	tr.res.Stops++
	t := tr.last
	if t == nil || t.TID != w.tid {
		if t = tr.tasks[w.tid]; t == nil {
			tr.stranger(w.tid, s)
			return
		}
		tr.last = t
	}
	tr.cur = t
	t.queued, t.frozen = false, false
	if tr.detaching {
		tr.detach(t, s)
		return
	}
	tr.stopped(t, s)
	tr.noteStopped(t)
}

// stopped reacts to a stop of a known task.
func (tr *tracer) stopped(t *Task, s stop) {
	switch s.kind {
	case stopSeccomp:
		tr.onSeccomp(t)
	case stopSyscall:
		tr.onSyscall(t)
	case stopFork, stopVfork, stopClone:
		tr.onFork(t, s.kind)
	case stopExec:
		tr.onExec(t.TID)
	case stopEnding:
		tr.onEnding(t)
	case stopSignal:
		t.interrupted = true
		if s.sig == unix.SIGTRAP && tr.onTrap(t) {
			return
		}
		if s.sig == unix.SIGSEGV && tr.callReturned(t) {
			return
		}
		if (s.sig == unix.SIGSEGV || s.sig == unix.SIGBUS) && tr.fault(t, s.sig) {
			return
		}
		if tr.o.Injector != nil && !tr.stepOut(t, s.sig) {
			return
		}
		t.signalInCopy()
		tr.arrives(t, s.sig)
		tr.res.Signals++
		if t.announced {
			tr.event(t, TaskEvent{Kind: TaskSignal, Signal: s.sig})
		}
		if tr.doomed(t, s.sig) {
			tr.letDie(t, s.sig)
			return
		}
		tr.resume(t, s.sig)
	case stopGroup:
		t.stopAt(placeGroup)
		if t.announced && !t.listening {
			tr.event(t, TaskEvent{Kind: TaskStop, Signal: s.sig})
		}
		t.listening = true
		tr.interrupted(t)
		tr.listen(t)
	case stopTrap:
		t.listening, t.interrupted = false, true
		t.stopAt(placeStop)
		tr.interrupted(t)
		tr.resume(t, 0)
	default:
		tr.resume(t, 0)
	}
}

// mostSteps bounds the instructions that a signal waits for.
const mostSteps = 4096

// stepOut has a task that a signal is about to be delivered to execute the instructions that
// the Injector wants to be executed first, and returns false if it has died, or
// must get another signal first.
func (tr *tracer) stepOut(t *Task, sig unix.Signal) bool {
	var si siginfo
	if getSiginfo(t.TID, &si) != 0 {
		return true // which the next request will find out, too
	}
	if faults&signalBit(sig) != 0 && si.code > 0 {
		return true
	}
	stepped := false
	for range mostSteps {
		if !tr.o.Injector.Uninterrupted(t) {
			break
		}
		pc, err := t.PC()
		if err != nil {
			return true
		}
		if !tr.singleStep(t, pc) {
			return false
		}
		stepped = true
		if t.fault != 0 { // its own; the other one is lost unless it is sent again
			_ = unix.Tgkill(t.PID, t.TID, sig)
			sig, t.fault = t.fault, 0
			tr.resume(t, sig)
			return false
		}
	}
	if stepped {
		setSiginfo(t.TID, &si) // of the stop of the last step; fails if it has died
	}
	return true
}

// cancelled reacts to a cancelled context.
func (tr *tracer) cancelled() {
	tr.seen.Store(true)
	if tr.child == nil {
		tr.detachAll()
		return
	}
	tr.killAll()
}

// killAll ends everything that is traced.
func (tr *tracer) killAll() {
	tr.killing = true
	for _, t := range tr.tasks {
		_ = unix.Kill(t.PID, unix.SIGKILL) // ESRCH: just ended
	}
}

// threadSetup prepares the thread and returns what undoes it.
//
// Go's handler for SIGCHLD would cost a quarter of each stop, and a thread of
// Go's can't be interrupted in a blocking wait, since all of Go's handlers
// restart it. So one realtime signal loses that flag, and wakes the thread.
func (tr *tracer) threadSetup() (undo func()) {
	tr.tid = unix.Gettid()
	ignore := sigaction{flags: saNoCldStop}
	var chld, wake sigaction
	rtSigaction(unix.SIGCHLD, &ignore, &chld)
	rtSigaction(wakeSignal, nil, &wake)
	wake.flags &^= saRestart
	rtSigaction(wakeSignal, &wake, nil) // for good: another tracer may be waiting
	var mask uint64
	bit := uint64(1) << (wakeSignal - 1)
	rtSigprocmask(unix.SIG_UNBLOCK, &bit, &mask)
	return func() {
		rtSigprocmask(unix.SIG_SETMASK, &mask, nil)
		rtSigaction(unix.SIGCHLD, &chld, nil)
	}
}
