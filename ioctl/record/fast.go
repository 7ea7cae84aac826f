package record

import (
	"bytes"
	"os"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
	"nvtrace/rm"
	"nvtrace/traces"
)

// FastMode says whether ioctls are recorded in the traced processes.
type FastMode uint8

// The modes.
const (
	FastAuto FastMode = iota // wherever it is possible
	FastOff                  // nowhere
)

// Kinds of descriptors in the agent's plan.
const (
	fastNone uint8 = iota
	fastRM         // nvidiactl and GPUs
	fastUVM
)

// kindOf says what the agent may do with a file.
func kindOf(f *openFile) uint8 {
	switch ioctl.DeviceOf(f.name, f.rdev) {
	case ioctl.DeviceCtl, ioctl.DeviceGPU:
		return fastRM
	case ioctl.DeviceUVM:
		return fastUVM
	}
	return fastNone
}

// fast is the part of the recorder that deals with the agent.
type fast struct {
	on     bool         // the agent logs ioctls
	abi    *rm.ABI      // of the plan in force
	ahead  <-chan ahead // what is being made; nil: nothing
	events uint64       // ioctls that the agent logged
	ev     traces.Event
}

// ahead is what is made beside the program's start, before it is needed.
type ahead struct {
	abi   *rm.ABI
	plan  *agent.EncodedPlan
	err   error
	nodes []openFile // in /dev
}

// lookAhead begins to make that: the rules of the tables in use.
func (r *Recorder) lookAhead() {
	brief, name := r.opts.CountsOnly, r.opts.NodeName
	done := make(chan ahead, 1)
	r.fast.ahead = done
	go func() {
		r.watcher() // it is the tracing thread's, and may know better by now than at first
		a := ahead{abi: r.tables}
		a.plan, a.err = plan(ioctl.NewPlan(a.abi, brief)).Encode()
		a.nodes = findNodes(name)
		done <- a
	}()
	go func() { // the first time takes long, for code that is new
		pid := os.Getpid()
		for _, fd := range proc.FDs(pid) {
			_, _, _ = statFD(pid, fd)
		}
	}()
}

// replan gives the agent the rules of the tables in use.
func (r *Recorder) replan() {
	f := &r.fast
	if !f.on {
		return
	}
	if f.ahead != nil {
		a := <-f.ahead
		f.ahead, f.abi = nil, a.abi
		r.setPlan(a.plan, a.err)
		for i := range a.nodes {
			r.learn(a.nodes[i].rdev, &a.nodes[i])
		}
	}
	if abi := r.watcher().ABI(); f.on && f.abi != abi {
		f.abi = abi
		r.setPlan(plan(ioctl.NewPlan(abi, r.opts.CountsOnly)).Encode())
	}
}

func (r *Recorder) setPlan(p *agent.EncodedPlan, err error) {
	if err != nil {
		r.opts.Logger.Warn("ioctls are not recorded in the program", "err", err)
		r.fast.on = false
		return
	}
	r.agent.SetPlan(p)
}

// plan translates.
func plan(p *ioctl.Plan) *agent.Plan {
	out := new(agent.Plan)
	for _, t := range p.Tables {
		var list []agent.Entry
		for _, e := range t {
			n := agent.Length(e.Length)
			switch e.Length {
			case ioctl.LengthClaimed:
				n = agent.LengthClaimed
			case ioctl.LengthUnknown:
				n = agent.LengthSupervisor
			default:
				if e.Length >= ioctl.LengthNested {
					n = agent.LengthNested(int(e.Length - ioctl.LengthNested))
				}
			}
			list = append(list, agent.Entry{Value: e.Value, Length: n})
		}
		out.Tables = append(out.Tables, list)
	}
	for _, q := range p.Nested {
		n := agent.Nested{Size: q.Size}
		for _, e := range q.Pointers {
			n.Pointers = append(n.Pointers, agent.Pointer(e))
		}
		out.Nested = append(out.Nested, n)
	}
	for _, q := range p.Requests {
		kind := fastRM
		if q.UVM {
			kind = fastUVM
		}
		rule := agent.Rule{
			Kind: kind, Request: q.Request, Size: q.Size, Ptr: agent.NoField, Len: agent.NoField,
			Select: agent.NoField, Flags: agent.NoField, Null: agent.NoField, Max: agent.MaxLength,
		}
		if q.Follow {
			rule.Follow, rule.Ptr, rule.Select, rule.Table = true, q.Ptr, q.Select, q.Table
			rule.Len, rule.Flags, rule.Mask, rule.Null = q.Len, q.Flags, q.Mask, q.Null
			rule.Default = agent.LengthClaimed
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

// speed puts the agent to work in a process that makes ioctls on devices, if
// that is possible: at an ioctl that the filter stopped.
func (r *Recorder) speed(t *ptrace.Task, p *process, c *ptrace.Syscall) {
	if !r.fast.on || !p.narrow || c.Compat || t.StopsAtAll() { // the last: nothing would be gained
		return
	}
	ap := r.useAgent(t, p)
	if ap == nil {
		return
	}
	ap.Update(t)
	if r.agent.Owns(c.IP) {
		r.rec.Relieve(t, ap, c)
	} else {
		ap.PatchSite(t, c.IP, c.Nr)
	}
}

// useAgent puts the agent to work in a process, and returns nil where it can't.
func (r *Recorder) useAgent(t *ptrace.Task, p *process) *agent.Process {
	r.rec.PrepareAgent()
	if r.replan(); !r.fast.on || !p.narrow {
		return nil
	}
	ap := r.agent.Find(t)
	if ap == nil {
		var err error
		if ap, err = r.agent.Process(t); err != nil {
			return nil
		}
	}
	r.adopt(p, ap)
	return ap
}

// agentStarted implements agent.Options.Started: others put the agent in, too, as for hooks. It
// would take descriptors that it knows nothing of for ordinary files.
func (r *Recorder) agentStarted(ap *agent.Process) {
	p := r.procs[ap.PID]
	if p == nil || !p.narrow {
		return // until it is narrow, the supervisor opens its devices
	}
	if r.replan(); r.fast.on {
		r.adopt(p, ap)
	}
}

// adopt has the agent of a process record its ioctls, by the rules that it has by now.
func (r *Recorder) adopt(p *process, ap *agent.Process) {
	if p.agent == ap {
		return
	}
	p.agent, p.agents, p.changes = ap, nil, 0
	ap.Data = make(map[uint32]*openFile)
	for fd, f := range p.fds {
		ap.SetHeld(fd, agent.HeldDevice)
		ap.SetKind(fd, kindOf(f))
	}
	ap.OpenDevices()
}

// patience is how many calls of a process stop although they are about no device
// before the agent is put in to make them without: short programs shall not pay
// for that.
const patience = 4

// pass sees to it that calls like one that stopped do not stop any more. irrelevant: it
// is about no device.
func (r *Recorder) pass(t *ptrace.Task, c *ptrace.Syscall, irrelevant bool) {
	if !r.fast.on || c.Compat || t.StopsAtAll() || !r.agent.Passable(c.Nr) || r.rec.Shared(c.Name()) {
		return
	}
	prepared := r.rec.PrepareAgent()
	p := r.process(t.PID)
	ap := p.agent
	if irrelevant {
		p.irrelevant++
	}
	if ap == nil && irrelevant {
		switch ap = r.agent.Mapped(t); {
		case p.irrelevant%patience != 0: // not yet; and not each time if it can't be
		case !prepared: // soon
			p.irrelevant--
		case p.narrow:
			ap = r.useAgent(t, p)
		case ap == nil:
			ap, _ = r.agent.Code(t) // says why not, once
		}
	}
	if ap != nil && !r.agent.Owns(c.IP) {
		ap.PatchSite(t, c.IP, c.Nr)
	}
}

// setFD enters a descriptor into a process's table.
func (r *Recorder) setFD(p *process, fd int32, f *openFile) {
	p.fds[fd] = f
	delete(p.agents, fd)
	if p.agent != nil && p.narrow {
		p.agent.Disown(fd)
		p.agent.SetHeld(fd, agent.HeldDevice)
		p.agent.SetKind(fd, kindOf(f))
	}
}

// withdraw keeps the agent from descriptors that are about to mean something
// else, and finds out what it has done with them.
func (r *Recorder) withdraw(p *process, list []closedFD) {
	if p.agent == nil {
		return
	}
	for _, e := range list {
		p.agent.SetKind(e.fd, fastNone)
		p.agent.SetHeld(e.fd, agent.HeldBusy)
	}
	r.agent.Settle(p.pid)
}

// withdrawTarget does so with the target of a call of dup2 or dup3.
func (r *Recorder) withdrawTarget(t *ptrace.Task, c *ptrace.Syscall) {
	p := r.process(t.PID)
	if p.agent == nil {
		return
	}
	if name := c.Name(); name != "dup2" && name != "dup3" {
		return
	}
	if from, to := int32(uint32(c.Args[0])), int32(uint32(c.Args[1])); from != to && p.fds[to] != nil {
		r.withdraw(p, []closedFD{{fd: to}})
	}
}

// restoreTarget ends that for a call that failed.
func (r *Recorder) restoreTarget(p *process, ev *traces.Event) {
	if fd := int32(uint32(ev.Args[1])); p.agent != nil && p.fds[fd] != nil {
		r.setFD(p, fd, p.fds[fd])
	}
}

// bind implements agent.Options.Bind: what the descriptor is now.
func (r *Recorder) bind(ap *agent.Process, rec *agent.Record) any {
	p := r.procs[ap.PID]
	if p == nil || p.agent != ap {
		return nil
	}
	fd := int32(uint32(rec.Args[0]))
	if f := p.fds[fd]; f != nil {
		return f
	}
	if f := p.beingClosed(fd); f != nil {
		return f
	}
	return nil
}

// agentRecord implements agent.Options.Record, of system calls.
func (r *Recorder) agentRecord(ap *agent.Process, rec *agent.Record) {
	ev := &r.fast.ev
	ev.Reset()
	ev.Kind, ev.PID, ev.TID = traces.KindIoctl, int32(rec.PID), int32(rec.TID)
	ev.Time, ev.Dur, ev.Args, ev.Ret = r.rec.Time(rec.Begin), rec.End-rec.Begin, rec.Args, rec.Ret
	if rec.Own {
		ev.Flags |= traces.FlagOwn
	}
	f := r.fileOf(ap, rec)
	if rec.Kind == agent.KindSyscall {
		r.agentSyscall(ev, rec, f)
		return
	}
	if f == nil {
		return // no device's, as it turned out
	}
	ev.FD = int32(uint32(rec.Args[0]))
	setFile(ev, f)
	switch {
	case r.opts.CountsOnly:
		ev.Flags |= traces.FlagNoExit
		ev.Dur, ev.Ret = 0, 0
	case rec.Unfinished:
		ev.Flags |= traces.FlagUnfinished
		ev.Dur = 0
	}
	if rec.Truncated {
		ev.Flags |= traces.FlagTruncated
	}
	for _, s := range rec.Segs {
		seg := traces.Seg{Addr: s.Addr, Len: s.Len, In: s.In}
		if ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0 {
			if seg.Out = s.Out; bytes.Equal(s.In, s.Out) {
				seg.Out = seg.In
			}
		}
		ev.Mem = append(ev.Mem, seg)
	}
	r.fast.events++
	r.rec.Emit(ev)
}
