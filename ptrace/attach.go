package ptrace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// Attach traces the running process pid (and what it starts from now on), in
// [ModeSyscalls], until it ends or ctx is cancelled. It then lets every thread
// go, where it was. A cancelled ctx is not an error. pid may also be the id of
// one of its threads. With [Options].Others several processes are traced, until all have
// ended; the result is that of pid.
//
// The error matches ErrNoProcess or ErrPermission if that is the reason, and says
// what stands in the way.
func Attach(ctx context.Context, pid int, o *Options, h Handler) (*Result, error) {
	if o == nil {
		o = &Options{}
	}
	tr, err := newTracer(o, h)
	if err == nil {
		err = tr.compileExtra()
	}
	if err != nil {
		return nil, err
	}
	onFreeThread(func() { err = tr.attach(ctx, pid) })
	if err != nil && tr.root == 0 {
		return nil, err
	}
	return &tr.res, err
}

func (tr *tracer) attach(ctx context.Context, pid int) error {
	began, cpu := time.Now(), threadCPU()
	if pid <= 0 {
		return fmt.Errorf("attach to %d: %w", pid, ErrNoProcess)
	}
	pid = tgidOf(pid)
	tr.outlived = true
	defer tr.threadSetup()()
	// Before the first thread is seized: from here on a signal detaches.
	sigs := newSignals(tr.o, true)
	if err := sigs.catch(); err != nil {
		return err
	}
	defer sigs.stop()
	proc := newProcess(pid)
	proc.all = true
	new(space).join(proc)
	if err := tr.seizeAll(proc); err != nil {
		proc.closeMem()
		return err // the end of the thread's tracing lets those go that were seized
	}
	tr.root, tr.res.PID = pid, pid
	for _, other := range tr.o.Others {
		if err := tr.seizeOther(tgidOf(other)); err != nil {
			proc.closeMem()
			tr.root = 0
			return err
		}
	}
	tr.res.Mode, tr.res.Reason = ModeSyscalls, "attached"
	stop := tr.watch(ctx, sigs)
	defer stop()
	tr.announceAll()
	if tr.o.Started != nil {
		tr.o.Started(pid)
	}
	tr.toTheEnd(began, cpu, stop)
	if tr.crash != nil {
		return tr.crash
	}
	return nil
}

// seizeOther makes all threads of another process tracees, unless they are already.
func (tr *tracer) seizeOther(pid int) error {
	if tr.tasks[pid] != nil {
		return nil
	}
	if pid <= 0 {
		return fmt.Errorf("attach to %d: %w", pid, ErrNoProcess)
	}
	p := newProcess(pid)
	p.all = true
	new(space).join(p)
	if err := tr.seizeAll(p); err != nil {
		p.closeMem()
		return err
	}
	return nil
}

// seizeAll makes all threads tracees. Threads go on being born meanwhile; those
// of a thread that is seized already are tracees from birth. So it is done when
// a look at all of them finds no new one.
//
// PTRACE_SEIZE waits for an execve of another thread, and that for the threads
// that it ends, of which those that are seized already must be reaped by their
// tracer: another thread of this process does that meanwhile.
func (tr *tracer) seizeAll(p *Process) error {
	dead := newReaper()
	defer dead.stop()
	for tries := 0; ; {
		tids, err := proc.Threads(p.PID)
		if p.tasks == 0 && errors.Is(err, fs.ErrNotExist) && between(p.PID, &tries) {
			continue
		}
		if err != nil {
			tr.pending = append(tr.pending, dead.stop()...)
			tr.letGo()
			return attachError(p.PID, err)
		}
		fresh := 0
		for _, tid := range tids {
			if tr.tasks[tid] != nil {
				continue
			}
			e := seize(tid, seizeOptions)
			switch {
			case e == unix.ESRCH || e == unix.EPERM && (isZombie(p.PID, tid) || isOwnTracee(tid)):
				continue
			case e != 0:
				tr.pending = append(tr.pending, dead.stop()...)
				tr.letGo()
				return attachError(tid, e)
			}
			fresh++
			dead.add(tid)
			p.tasks++
			tr.tasks[tid] = &Task{TID: tid, PID: p.PID, Proc: p, tr: tr, attached: true}
		}
		if fresh == 0 {
			if p.tasks == 0 && between(p.PID, &tries) {
				continue
			}
			tr.pending = append(tr.pending, dead.stop()...)
			if p.tasks == 0 {
				tr.letGo()
				return attachError(p.PID, unix.ESRCH)
			}
			return nil
		}
	}
}

// between says whether a process is there of which no thread was found that could be seized: it is
// in the midst of an execve by which another thread becomes its first. Then it is to be looked at
// again, a little later; a zombie remains one.
func between(pid int, tries *int) bool {
	const most, pause = 100, time.Millisecond
	if *tries++; *tries > most || unix.Kill(pid, 0) == unix.ESRCH {
		return false
	}
	time.Sleep(pause)
	return true
}

// reaper reaps tracees that end while the tracing thread can't.
type reaper struct {
	mu   sync.Mutex
	tids []int
	dead []waited
	quit chan struct{}
	done chan struct{}
}

func newReaper() *reaper {
	r := &reaper{quit: make(chan struct{}), done: make(chan struct{})}
	quit := r.quit
	go func() {
		defer close(r.done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				r.reap()
			}
		}
	}()
	return r
}

func (r *reaper) add(tid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tids = append(r.tids, tid)
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tids = slices.DeleteFunc(r.tids, func(tid int) bool {
		st, ok := reapDead(tid)
		if ok {
			r.dead = append(r.dead, waited{tid: tid, status: st})
		}
		return ok
	})
}

// stop ends the reaper and returns what it has reaped, the first time.
func (r *reaper) stop() []waited {
	if r.quit != nil {
		close(r.quit)
		<-r.done
		r.quit = nil
	}
	dead := r.dead
	r.dead = nil
	return dead
}

// announceAll tells the handler of the threads that were found, and stops them
// once: only then can they be made to stop at calls.
func (tr *tracer) announceAll() {
	tr.unstopped = true
	defer func() {
		tr.unstopped = false
		if v := recover(); v != nil {
			tr.crash = &HandlerError{Value: v, Stack: debug.Stack()}
			tr.h = deaf{}
			tr.cur = nil
			tr.unblock()
		}
	}()
	tids := make([]int, 0, len(tr.tasks))
	tr.running = len(tr.tasks)
	for tid := range tr.tasks {
		tids = append(tids, tid)
		ptraceOp(unix.PTRACE_INTERRUPT, tid, 0)
	}
	for _, tid := range sorted(tids, tr.root) {
		t := tr.tasks[tid]
		t.announced = true
		tr.res.Tasks++
		tr.event(t, TaskEvent{Kind: TaskNew, Thread: tid != t.PID, Attached: true})
	}
}

// letGo detaches what was seized before seizing the rest failed.
func (tr *tracer) letGo() {
	tr.h = deaf{}
	tr.detachAll()
	tr.loop()
}

// detachAll begins to let every task go. A task must be stopped to be detached;
// the loop does it as the stops come in.
func (tr *tracer) detachAll() {
	tr.detaching = true
	tr.former = tr.spaces()
	for _, t := range tr.tasks {
		switch {
		case t.held:
			tr.detach(t, t.first)
			continue
		case t.parked:
			t.hold, t.parked = false, false
			tr.cur = t
			s := stop{kind: t.after}
			if t.afterSig != 0 {
				s = stop{kind: stopSignal, sig: t.afterSig}
			}
			tr.detach(t, s)
			continue
		}
		ptraceOp(unix.PTRACE_INTERRUPT, t.TID, 0)
	}
}

// detach lets a stopped task go, with the signal that it was to get. One whose
// process is stopped by job control stays stopped.
func (tr *tracer) detach(t *Task, s stop) {
	if !tr.unbreak(t, &s) {
		return // it stops again
	}
	sig := s.sig & signalMask(s)
	switch s.kind {
	case stopExec: // its id has changed hands; tell nothing more about it
		t.wantExit = false
	case stopSyscall:
		if t.wantExit && getSyscallInfo(t.TID, &tr.info) == 0 && tr.info.op == unix.PTRACE_SYSCALL_INFO_EXIT {
			tr.lastExit(t)
		}
	}
	t.changed.undo(t)
	t.interrupted = true
	t.spareRestart()
	ptraceOp(unix.PTRACE_DETACH, t.TID, uintptr(sig))
	tr.forget(t)
	if t.announced {
		tr.unfinished(t)
		tr.event(t, TaskEvent{Kind: TaskDetach})
	}
}

// unbreak removes the breakpoints from the memory of a task that is about to be
// detached, and takes the task back to the instruction if it has run into one. It
// returns false if the task must go on to the signal of that first.
func (tr *tracer) unbreak(t *Task, s *stop) bool {
	if t.Proc == nil {
		tr.scrub(t.TID)
		return true
	}
	mem := t.Proc.space
	mem.clear()
	if t.brk != nil {
		tr.goOn(t)
		return true
	}
	if len(mem.tombs) == 0 || s.kind == stopExec {
		return true
	}
	t.leaveCopy()
	var r Regs
	if t.getRegs(&r) != 0 || !mem.wasOurs(r.IP()-breakLen) {
		return true
	}
	switch {
	case s.kind == stopSignal && s.sig == unix.SIGTRAP:
		var si siginfo
		if getSiginfo(t.TID, &si) == 0 && si.code == siKernel {
			r.SetIP(r.IP() - breakLen)
			t.setRegs(&r)
			*s = stop{}
		}
	case (s.kind == stopTrap || s.kind == stopGroup) && t.trapPending():
		ptraceOp(unix.PTRACE_CONT, t.TID, 0)
		return false
	}
	return true
}

// trapPending says whether a stopped task has run into a breakpoint, and the
// signal for that is still to come.
func (t *Task) trapPending() bool {
	var si [4]siginfo
	for from := uint64(0); ; from += uint64(len(si)) {
		n, e := pendingSignals(t.TID, from, si[:])
		if e != 0 || n <= 0 {
			return false
		}
		for i := range si[:n] {
			if si[i].signo == int32(unix.SIGTRAP) && si[i].code == siKernel {
				return true
			}
		}
	}
}

// lastExit reports an exit at which the task is detached.
func (tr *tracer) lastExit(t *Task) {
	c := &t.call
	c.Exit, c.Ret = nanotime(), int64(tr.info.nr)
	c.Restarted = isRestart(c.Ret)
	if c.Restarted {
		return // by our own interruption: unfinished
	}
	t.wantExit = false
	tr.res.Exits++
	tr.h.Exit(t, c)
}

// isOwnTracee says whether a thread is traced by this process already: it was
// born by a thread that is.
func isOwnTracee(tid int) bool {
	tracer, ok := proc.StatusNumber(tid, "TracerPid")
	return ok && tracer != 0 && tgidOf(tracer) == os.Getpid()
}

// attachError says why a process can't be traced.
func attachError(pid int, err error) error {
	switch {
	case errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("attach to %d: %w", pid, ErrNoProcess)
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES):
		return fmt.Errorf("attach to %d: %w", pid, err)
	}
	return fmt.Errorf("attach to %d: %w: %w%s", pid, ErrPermission, err, whyNotAttach(pid))
}

// whyNotAttach looks for the reason.
func whyNotAttach(pid int) string {
	if tgidOf(pid) == os.Getpid() {
		return " (it is this process)"
	}
	if why := whoTraces(pid); why != "" {
		return why
	}
	if uid, ok := proc.StatusNumber(pid, "Uid"); ok && os.Geteuid() != 0 && uid != os.Geteuid() {
		return fmt.Sprintf(" (it belongs to user %d; use sudo)", uid)
	}
	if why := whyNoPtrace(); why != "" {
		return why
	}
	return " (it may have made itself undumpable, or run in a container; try as root)"
}
