package ptrace

import (
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// entry fills t.call from a task that is stopped at the entry of a call.
func (tr *tracer) entry(t *Task) bool {
	c := &t.call
	*c = Syscall{Enter: nanotime()}
	if !tr.noInfo {
		switch e := getSyscallInfo(t.TID, &tr.info); e {
		case 0:
			c.Nr, c.Arch, c.IP, c.SP, c.Args = tr.info.nr, tr.info.arch, tr.info.ip, tr.info.sp, tr.info.args
			c.Compat = call{c.Arch, uint32(c.Nr)}.compat()
			return true
		case unix.EIO, unix.EINVAL:
			tr.noInfo = true
		default:
			return false
		}
	}
	var r unix.PtraceRegs
	if getRegs(t.TID, &r) != 0 {
		return false
	}
	fillEntry(c, &r)
	c.Compat = call{c.Arch, uint32(c.Nr)}.compat()
	return true
}

// onSeccomp: a filter selected the call that the task is about to make.
func (tr *tracer) onSeccomp(t *Task) {
	if t.inKernel { // its entry has been seen by a stop for every call
		tr.resume(t, 0)
		return
	}
	if !tr.entry(t) {
		tr.resume(t, 0)
		return
	}
	if tr.noInfo {
		data, _ := getEventMsg(t.TID)
		t.call.Class = uint16(data)
	} else {
		t.call.Class = uint16(tr.info.data)
	}
	tr.enter(t, placeEntry)
}

// onSyscall: the task is at the entry or the exit of a call.
func (tr *tracer) onSyscall(t *Task) {
	exit := t.inKernel
	if !tr.noInfo {
		switch e := getSyscallInfo(t.TID, &tr.info); e {
		case 0:
			exit = tr.info.op == unix.PTRACE_SYSCALL_INFO_EXIT
		case unix.EIO, unix.EINVAL:
			tr.noInfo = true
		default: // killed; its end will be reported
			return
		}
	}
	if exit {
		t.interrupted = tr.noInfo || isRestart(int64(tr.info.nr)) // and nothing else may tell
		tr.exit(t)
		return
	}
	if t.fcall != nil && tr.callReturned(t) {
		return
	}
	if !t.Proc.all || !tr.entry(t) {
		tr.resume(t, 0)
		return
	}
	t.inKernel = true
	var ok bool
	if t.call.Class, ok = tr.selected(t); !ok {
		tr.resume(t, 0)
		return
	}
	tr.enter(t, placeCall)
}

// isInternal reports whether the supervisor wants a selected call for its own sake. The class alone does not tell:
// a filter that was injected gives its own.
func (tr *tracer) isInternal(c *Syscall) bool {
	if c.Class == ClassInternal {
		return true
	}
	class, ok := tr.base.match(c)
	return ok && class == ClassInternal
}

// enter gives a selected call to the handler.
func (tr *tracer) enter(t *Task, at place) {
	if t.wantExit { // can't be, but its handler must not wait for ever
		tr.unfinished(t)
	}
	t.changed.undo(t) // nor can this
	if tr.isInternal(&t.call) && !tr.internal(t, at) {
		return
	}
	if t.muted {
		tr.resume(t, 0)
		return
	}
	tr.res.Calls++
	t.at = at
	t.wantExit = tr.h.Enter(t, &t.call) == WantExit
	t.inKernel = t.wantExit || t.changed.pending || t.Proc.all && t.brk == nil // a detour's call is over
	tr.resume(t, 0)
}

// internal deals with a call that the supervisor stops at for its own sake. It returns false if nobody else
// wants it.
func (tr *tracer) internal(t *Task, at place) bool {
	switch name := t.call.Name(); {
	case strings.HasPrefix(name, "clone"):
		tr.keepTraced(t)
	case name == "seccomp" || name == "prctl":
		tr.confines(t, at)
	case tr.reserves(t):
		var r Regs
		if t.getRegs(&r) == 0 {
			r.refuse(unix.ENOMEM)
			t.setRegs(&r) // fails if it has died
		}
		tr.resume(t, 0)
		return false
	}
	if t.call.Class != ClassInternal {
		return true
	}
	if tr.o.Injector != nil && t.call.IP-ExemptPage < pageSize {
		tr.resume(t, 0)
		return false
	}
	for _, s := range slices.Backward(t.Proc.sets) {
		if class, ok := s.match.match(&t.call); ok {
			t.call.Class = class
			return true
		}
	}
	if class, ok := tr.users.match(&t.call); ok {
		t.call.Class = class
		return true
	}
	tr.resume(t, 0)
	return false
}

// exit: a call returns.
func (tr *tracer) exit(t *Task) {
	if t.wantExit && tr.noInfo {
		var r unix.PtraceRegs
		if getRegs(t.TID, &r) != 0 { // killed
			return
		}
		tr.finish(t, retOf(&r))
		return
	}
	tr.finish(t, int64(tr.info.nr))
}

// keepTraced takes CLONE_UNTRACED away from a call of clone, or of clone3, whose flags are the first word of
// its argument.
func (tr *tracer) keepTraced(t *Task) {
	if t.call.Name() == "clone3" {
		c := changedFlags{addr: t.call.Args[0], pending: true}
		var ok bool
		c.flags, ok = t.cloneFlags(c.addr)
		if ok && c.flags&unix.CLONE_UNTRACED != 0 && t.setCloneFlags(c.addr, c.flags&^unix.CLONE_UNTRACED) {
			t.changed, t.inKernel = c, true
		}
		return
	}
	var r unix.PtraceRegs
	if getRegs(t.TID, &r) != 0 {
		return
	}
	setArg0(&r, &t.call, t.call.Args[0]&^unix.CLONE_UNTRACED)
	setRegs(t.TID, &r)
}

// cloneFlags reads what a call of clone3 is to do.
func (t *Task) cloneFlags(at uint64) (flags uint64, ok bool) {
	var b [8]byte
	n, _ := t.ReadMem(at, b[:])
	return binary.LittleEndian.Uint64(b[:]), n == len(b)
}

// setCloneFlags changes it.
func (t *Task) setCloneFlags(at, flags uint64) bool {
	n, _ := t.WriteMem(at, binary.LittleEndian.AppendUint64(nil, flags))
	return n == 8
}

// onFork: t has made a task, which is or will be stopped before its first
// instruction. Both are held until the handler has been told, so that it can copy
// the parent's state as it was at the fork.
func (tr *tracer) onFork(t *Task, kind stopKind) {
	msg, e := getEventMsg(t.TID)
	if e != 0 { // killed
		return
	}
	if t.changed.pending { // the kernel has read them, and the child may share the memory
		t.changed.restore(t)
	}
	tid := int(msg)
	child := tr.tasks[tid]
	switch {
	case tid <= 0: // not in our pid namespace; nor can it be traced from here
	case child == nil:
		child = tr.await(tid)
	case !child.held: // adopted already
		child = nil
	}
	if child != nil {
		tr.adopt(child, t, kind)
	}
	t.changed.addr = 0 // what is there from now on is the program's
	tr.resume(t, 0)
}

// await waits for the first stop of a new task. That comes at once: nothing but
// its death can come between.
func (tr *tracer) await(tid int) *Task {
	st, known := tr.unqueue(tid)
	for !known {
		var r int
		var e unix.Errno
		r, e = waitAny(tid, &st)
		if e == unix.EINTR {
			continue
		}
		if e != 0 || r != tid {
			return nil
		}
		break
	}
	s := classify(st)
	child := &Task{TID: tid, tr: tr, first: s, held: true}
	if s.ended() {
		tr.pending = append(tr.pending, waited{tid: tid, status: st})
	} else {
		tr.res.Stops++
	}
	tr.tasks[tid] = child
	tr.held++
	return child
}

// stranger is a stop of a task that we don't know: a child that was quicker
// than its parent's event. Waiting for that would be wrong: it never comes if the
// parent is killed in between. The parent has not run since it made the child, so
// that /proc tells as much, except for which of its threads it was.
func (tr *tracer) stranger(tid int, s stop) {
	switch {
	case s.kind == stopExec: // of a main thread that had ended before we attached
		tr.onExec(tid)
		return
	case tr.detaching:
		tr.scrub(tid)
		ptraceOp(unix.PTRACE_DETACH, tid, uintptr(s.sig&signalMask(s)))
		return
	}
	t := &Task{TID: tid, PID: tid, tr: tr, first: s, held: true}
	tr.tasks[tid] = t
	tr.held++
	tr.cur = nil
	tr.adopt(t, nil, stopNone)
}

// signalMask is all ones if the stop's signal is one to be delivered.
func signalMask(s stop) unix.Signal {
	if s.kind == stopSignal {
		return ^unix.Signal(0)
	}
	return 0
}

// adopt makes a held task a full one, tells the handler, and lets it go. parent
// is nil if the parent's event has not come.
func (tr *tracer) adopt(t, parent *Task, kind stopKind) {
	tr.held--
	t.held = false
	thread := false
	if parent == nil {
		parent, thread = tr.guessParent(t)
	} else {
		thread = parent.Proc.hasThread(t.TID)
	}
	ended := t.first.ended()
	if ended && parent != nil {
		thread = kind == stopClone // reaped: /proc knows nothing of it any more
	}
	switch {
	case thread && parent != nil:
		t.PID, t.Proc = parent.PID, parent.Proc
	case parent != nil:
		t.PID = t.TID
		t.Proc = parent.Proc.fork(t.TID)
		tr.setMemory(t, parent)
		if parent.changed.pending && !ended && t.Proc.space != parent.Proc.space {
			parent.changed.restore(t) // its copy
		}
		t.checkFilters()
	default:
		t.PID = tgidOf(t.TID)
		t.Proc = newProcess(t.PID)
		tr.setMemory(t, nil)
		t.Proc.all = tr.res.Mode == ModeSyscalls
	}
	t.Proc.tasks++
	tr.res.Tasks++
	t.muted = parent != nil && parent.muted
	t.announced = !t.muted
	if tr.killing {
		_ = unix.Kill(t.PID, unix.SIGKILL)
	}
	if !ended {
		t.at = placeExit // of the call that made it
	}
	tr.born = t
	if t.announced {
		tr.event(t, TaskEvent{Kind: TaskNew, Parent: parent, Thread: thread, Vfork: kind == stopVfork})
	}
	tr.born = nil
	if !ended {
		tr.stopped(t, t.first)
	}
}

// guessParent finds out what made a task whose parent's event is missing. It
// may be another thread of the same process that did.
func (tr *tracer) guessParent(t *Task) (parent *Task, thread bool) {
	pid := tgidOf(t.TID)
	if thread = pid != t.TID; !thread {
		pid, _ = proc.StatusNumber(t.TID, "PPid")
	}
	if p := tr.tasks[pid]; p != nil && p != t && !p.held {
		return p, thread
	}
	for _, p := range tr.tasks { // its main thread has ended
		if p.PID == pid && p != t && !p.held {
			return p, thread
		}
	}
	return nil, thread
}

// execed finds the task that a stop for execve is about. All other threads of
// its process are gone. If it was not the main thread that called execve, it has
// taken over the main thread's id, and the main thread has ended without a word.
func (tr *tracer) execed(tid int) (t *Task, old int) {
	t, old = tr.tasks[tid], tid
	if msg, e := getEventMsg(tid); e == 0 && msg != 0 {
		old = int(msg)
	}
	caller := tr.tasks[old]
	if old == tid || caller == nil {
		return t, old
	}
	if t != nil {
		tr.gone(t, TaskEvent{Replaced: true})
	}
	delete(tr.tasks, old)
	caller.TID = tid
	tr.tasks[tid] = caller
	return caller, old
}

// onExec: a process began a new program.
func (tr *tracer) onExec(tid int) {
	t, old := tr.execed(tid)
	if t == nil { // not ours
		ptraceOp(unix.PTRACE_CONT, tid, 0)
		return
	}
	tr.cur, tr.last = t, t
	for _, o := range tr.tasks {
		if o != t && o.Proc == t.Proc {
			tr.gone(o, TaskEvent{})
		}
	}
	t.dropReturns()
	t.brk, t.skip = nil, 0
	t.changed = changedFlags{}
	tr.retire(t.Proc)
	t.Proc.openMem()
	new(space).join(t.Proc)
	t.at = placeExec
	if t.muted {
		tr.began(t)
	}
	t.inKernel = t.wantExit || t.Proc.all // the next stop for a call is the exit of execve
	tr.event(t, TaskEvent{Kind: TaskExec, OldTID: old})
	tr.afterExec(t)
}

// began: the child has become the program.
func (tr *tracer) began(t *Task) {
	t.muted, t.announced = false, true
	tr.res.Tasks++
	tr.res.Mode = ModeSeccomp
	hs := tr.child.hs
	tr.res.NoNewPrivs = load(&hs.nnp) != 0
	if e := unix.Errno(load(&hs.seccomp)); e != 0 {
		tr.res.Reason = "seccomp: " + e.Error()
		tr.log.Warn("no filter, every call stops", "reason", tr.res.Reason)
	}
	if t.Proc.ownKnown = true; tr.res.Reason != "" {
		tr.res.Mode = ModeSyscalls
		t.Proc.all = true
	} else {
		t.Proc.ours = 1
	}
	if tr.o.Started != nil {
		tr.o.Started(t.PID)
		if tr.refused() != nil {
			tr.cancelled()
		}
	}
	tr.event(t, TaskEvent{Kind: TaskNew})
}

// ended: a task is gone.
func (tr *tracer) ended(tid int, status unix.WaitStatus) {
	if t := tr.tasks[tid]; t != nil {
		tr.cur = nil
		t.queued = false
		if t.held {
			tr.adopt(t, nil, stopNone)
		}
		tr.gone(t, TaskEvent{Status: status})
	}
	if tid != tr.root {
		return
	}
	tr.res.Status, tr.res.Ended = status, true
	tr.over.Store(true)
	if tr.child == nil { // Attach: the others are no orphans of ours
		return
	}
	switch tr.o.Orphans {
	case OrphansKill:
		tr.killAll()
	case OrphansDetach:
		tr.detachAll()
	case OrphansAuto:
		if tr.res.Mode == ModeSyscalls {
			tr.detachAll()
		}
	}
	if tr.o.Waiting != nil && !tr.detaching && !tr.killing && len(tr.tasks) > 0 {
		tr.o.Waiting(tr.processes())
	}
}

// gone forgets a task, after telling the handler how it ended.
func (tr *tracer) gone(t *Task, how TaskEvent) {
	tr.forget(t)
	if t.announced {
		tr.unfinished(t)
		how.Kind = TaskExit
		tr.event(t, how)
	}
}

// unfinished reports that the exit of t's call will not be seen.
func (tr *tracer) unfinished(t *Task) {
	if t.wantExit {
		t.wantExit = false
		tr.event(t, TaskEvent{Kind: TaskUnfinished, Call: &t.call})
	}
}

// forget takes a task out of the tables.
func (tr *tracer) forget(t *Task) {
	delete(tr.tasks, t.TID)
	tr.noteStopped(t)
	t.callLost()
	if tr.last == t {
		tr.last = nil
	}
	if t.held {
		t.held = false
		tr.held--
	}
	if t.Proc == nil {
		return
	}
	t.dropReturns()
	if t.Proc.tasks--; t.Proc.tasks == 0 {
		tr.retire(t.Proc)
		t.Proc.closeMem()
	}
}

// noteStopped notes that a thread that was found running has stopped, and has done what it was
// wanted for then; or has ended.
func (tr *tracer) noteStopped(t *Task) {
	if !t.attached {
		return
	}
	t.attached = false
	if tr.running--; tr.running == 0 {
		tr.log.Debug("all threads have stopped")
	}
}

// scrub removes what a new task, of which nothing is known, has inherited.
func (tr *tracer) scrub(tid int) {
	t := &Task{TID: tid, PID: tid, Proc: newProcess(tid), tr: tr}
	new(space).join(t.Proc)
	for _, s := range tr.spaces() {
		s.scrub(t)
	}
	t.Proc.closeMem()
}
