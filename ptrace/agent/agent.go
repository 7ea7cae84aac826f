package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// New returns an Agent. o may be nil.
func New(o *Options) *Agent {
	a := &Agent{procs: make(map[int]*Process), blob: embedded(), counter: newCounter()}
	if o != nil {
		a.o = *o
	}
	if a.o.Logger == nil {
		a.o.Logger = slog.New(slog.DiscardHandler)
	}
	if a.o.Say == nil {
		a.o.Say = func(string) {}
	}
	return a
}

// SetCalls says what the agent records of other system calls than ioctls, in processes
// that it is put into from now on.
func (a *Agent) SetCalls(c Calls) { a.calls, a.paths = c, encodePaths(c.Paths) }

// Rules select the system calls by which the agent calls for the supervisor.
// They must be among the rules of the trace, before all others.
func (a *Agent) Rules() []ptrace.Rule {
	return []ptrace.Rule{{
		Names: []string{"ioctl"}, Class: Class,
		Args: []ptrace.ArgMatch{{Arg: 0, Value: trapFD, Low: true}, {Arg: 1, Value: trapRequest, Low: true}},
	}}
}

// Stats returns what was done so far.
func (a *Agent) Stats() Stats { return a.stats }

// Find returns t's process if the agent is at work in it, or nil.
func (a *Agent) Find(t *ptrace.Task) *Process {
	if p := a.procs[t.PID]; p != nil && p.started {
		return p
	}
	return nil
}

// Process returns t's process with the agent at work. It is put in if need
// be, for which t must be stopped as [ptrace.Task.Syscall] wants; that stops
// the other threads for a moment. The error matches ErrUnsupported, and stays the
// same until the process execs, but where t is not so stopped.
func (a *Agent) Process(t *ptrace.Task) (*Process, error) {
	p := a.procs[t.PID]
	if p == nil {
		p = &Process{a: a, PID: t.PID, manners: usual}
		a.procs[t.PID] = p
	}
	switch {
	case p.started:
		return p, nil
	case p.err != nil:
		return nil, p.err
	}
	began := nanotime()
	if err := p.start(t); err != nil {
		return nil, p.refuse(err)
	}
	p.probeCalls(t)
	a.o.Logger.Debug("agent at work", "pid", p.PID, "took", time.Duration(nanotime()-began))
	a.stats.Processes++
	return p, nil
}

// refuse notes why the agent can't be put in, unless that may change.
func (p *Process) refuse(err error) error {
	out := fmt.Errorf("%w: process %d: %w", ErrUnsupported, p.PID, err)
	if !errors.Is(err, errBusy) && !errors.Is(err, ptrace.ErrState) { // the latter: as what is attached to is told of, before it has stopped
		p.err = out
		p.a.stats.Refused++
		p.a.o.Logger.Debug("no agent", "pid", p.PID, "err", err)
	}
	return out
}

// Code returns t's process with the agent's code in it, though it need not be
// at work: for Process.PatchSite, of system calls that open files. That costs
// less, and threads of the process cost nothing. Otherwise it is as Process.
func (a *Agent) Code(t *ptrace.Task) (*Process, error) {
	p := a.procs[t.PID]
	if p == nil {
		p = &Process{a: a, PID: t.PID, manners: usual}
		a.procs[t.PID] = p
	}
	switch {
	case p.err != nil:
		return nil, p.err
	case p.mapped:
		return p, nil
	}
	began := nanotime()
	_, resume, err := p.prepare(t)
	if err != nil {
		return nil, p.refuse(err)
	}
	resume()
	a.o.Logger.Debug("agent's code put in", "pid", p.PID, "took", time.Duration(nanotime()-began))
	return p, nil
}

// Mapped returns t's process if the agent's code is in it, or nil.
func (a *Agent) Mapped(t *ptrace.Task) *Process {
	if p := a.procs[t.PID]; p != nil && p.mapped && p.err == nil {
		return p
	}
	return nil
}

// Task must be told of the changes in tasks' lives, before anything else is done
// about them.
func (a *Agent) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch e.Kind {
	case ptrace.TaskNew:
		a.newTask(t, e)
	case ptrace.TaskExec:
		a.endProcess(t.PID, e.Time)
		a.freeBorrowed(t.TID)
	case ptrace.TaskExit, ptrace.TaskDetach:
		if p := a.procs[t.PID]; p != nil && p.mapped && e.Kind == ptrace.TaskDetach {
			_ = p.write64(confAddr+confDead, 2*p.number+1) // fails if it has died, too
		}
		a.freeBorrowed(t.TID)
		if t.TID == t.PID && !e.Replaced {
			a.endProcess(t.PID, e.Time)
			return
		}
		if p := a.procs[t.PID]; p != nil {
			p.endThread(t.TID, e.Time)
		}
	}
}

// newTask: a thread gets a ring, a forked process a state of its own.
func (a *Agent) newTask(t *ptrace.Task, e *ptrace.TaskEvent) {
	if p := a.procs[t.PID]; p != nil {
		if p.started {
			p.addThread(t, t)
		}
		return
	}
	if e.Parent == nil {
		a.orphan(t)
		return
	}
	parent := a.procs[e.Parent.PID]
	if parent != nil && parent.shares {
		parent = parent.host
	}
	if parent == nil || !parent.mapped {
		return
	}
	same, known := sharesMemory(t.PID, parent.PID)
	if !known {
		same = e.Vfork
	}
	if same {
		a.procs[t.PID] = &Process{a: a, PID: t.PID, shares: true, host: parent, err: fmt.Errorf("%w: process %d shares its memory with another", ErrUnsupported, t.PID)}
		if parent.started {
			parent.addThread(e.Parent, e.Parent) // whose thread pointer and stack the child has
		}
		parent.borrow(t)
		return
	}
	a.procs[t.PID] = parent.fork(t)
}

// orphan deals with a process whose parent has died: it may have been forked
// from one with the agent, whose rings it does not have.
func (a *Agent) orphan(t *ptrace.Task) {
	if a.blob == nil || len(a.procs) == 0 && a.stats.Processes == 0 {
		return
	}
	if !a.begins(t) {
		return
	}
	p := &Process{a: a, PID: t.PID, manners: usual, err: fmt.Errorf("%w: process %d: its parent has died", ErrUnsupported, t.PID)}
	a.procs[t.PID] = p
	for _, o := range a.procs {
		if same, _ := sharesMemory(t.PID, o.PID); same && o != p && o.mapped {
			p.shares, p.host = true, o
			o.borrow(t)
			return
		}
	}
	p.mapped = true
	if err := p.open(); err == nil {
		_ = p.write64(gateAddr, 0) // fails if it has died, too
	}
}

// freeBorrowed ends what Process.borrow began.
func (a *Agent) freeBorrowed(tid int) {
	for _, p := range a.procs {
		p.unborrow(tid)
	}
}

// endProcess forgets a process that has ended, but for what it has recorded.
func (a *Agent) endProcess(pid int, when int64) {
	p := a.procs[pid]
	if p == nil {
		return
	}
	delete(a.procs, pid)
	p.unconfine()
	p.counts() // while the memory is there
	p.untimed()
	p.gone = true
	for _, r := range p.rings {
		if r != nil {
			r.end(when)
		}
	}
	p.release()
}

// Settle has Options.Bind told of all ioctls that t's process is making, or has
// made and that were not given out. A descriptor that was withdrawn by
// Process.SetKind before is in no record that comes later: the agent looks at the kind again
// when it has reserved the record, and either it sees that the kind is gone, or this
// sees the record.
func (a *Agent) Settle(pid int) {
	p := a.procs[pid]
	if p == nil || !p.started {
		return
	}
	for _, r := range p.rings {
		if r != nil {
			r.scan()
		}
	}
}

// Fault implements [ptrace.Injector]: it repairs faults of the agent at memory
// that the program named and that is not there, and where it may not read the processor's counter.
func (a *Agent) Fault(t *ptrace.Task, _ unix.Signal) bool {
	p := a.procs[t.PID]
	if p == nil || !p.mapped && !p.shares {
		return false
	}
	r, err := t.Regs()
	if err != nil {
		return false
	}
	switch r.IP() {
	case a.blob.copyInsn: // rep movsb
		r.SetIP(r.IP() + 2)
	case a.blob.tpInsn: // mov %fs:0,%rax
		r.SetIP(r.IP() + 9)
	default:
		if !p.readCounter(t, r) {
			return false
		}
	}
	return t.SetRegs(r) == nil
}

// Uninterrupted implements [ptrace.Injector]: a helper of eBPF must not be
// interrupted where it has locked something, since a signal handler may want the same.
func (a *Agent) Uninterrupted(t *ptrace.Task) bool {
	if a.programs == nil {
		return false
	}
	ip, err := t.PC()
	return err == nil && critical(ip)
}

// SetPlan sets the rules for ioctls, in all processes.
func (a *Agent) SetPlan(plan *EncodedPlan) {
	a.plan, a.rules = plan.bytes, plan.requests
	for _, p := range a.procs {
		p.planned = false
		if p.started {
			_ = p.writePlan() // fails if the process has ended
		}
	}
}

// Idle reports whether no process has records that were not given out, and
// threads are in the middle of none. Then, and if arm is set, the next ioctl in
// any process stops for the supervisor, once: until then there need be no look
// at the rings, and a supervisor with nothing to do can sleep. Between the first look and
// the arming a thread may have recorded something; hence the second look.
func (a *Agent) Idle(arm bool) bool {
	idle := true
	for _, r := range a.rings {
		r.scan()
		idle = idle && len(r.pend) == 0
	}
	if !arm || !idle {
		return idle
	}
	for _, p := range a.procs {
		p.arm(true)
	}
	a.awaitStores()             // a thread that has not seen that yet is seen itself
	for _, r := range a.rings { // what came just before
		r.scan()
		idle = idle && len(r.pend) == 0
	}
	if !idle {
		a.Wake()
	}
	return idle
}

// Wake ends what Idle began.
func (a *Agent) Wake() {
	for _, p := range a.procs {
		p.arm(false)
	}
}

// Active reports whether the agent is at work anywhere, or has records left.
func (a *Agent) Active() bool { return len(a.rings) > 0 || a.next < len(a.ready) }

// Owns reports whether an instruction pointer lies in the agent's code.
func (a *Agent) Owns(ip uint64) bool { return ip >= baseAddr && ip < confAddr }

// drop takes a ring off the list.
func (a *Agent) drop(r *ring) {
	a.rings = slices.DeleteFunc(a.rings, func(o *ring) bool { return o == r })
}

// SetVDSO says what the vdso of the processes most likely is, which saves the time to
// look into it while one waits.
func (a *Agent) SetVDSO(v *VDSO) { a.vdso = v }
