package record

import (
	"bytes"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
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
	on    bool         // the agent logs ioctls
	abi   *rm.ABI      // of the plan in force
	ahead <-chan ahead // what is being made; nil: nothing
	// Known when they have been looked into: the vdso, and libraries that the program
	// most likely has.
	vdso   <-chan *agent.VDSO
	images <-chan []*agent.Image
	clock  bool   // the vdso is known
	events uint64 // ioctls that the agent logged
	ev     traces.Event

	stage batch   // events that wait for the agent's records of before, in order
	next  int     // of stage.events
	times []int64 // when they ended, CLOCK_MONOTONIC

	shared []string // calls that extensions want to see too

	task   *ptrace.Task // any
	timer  *time.Timer
	ticks  bool // the timer runs
	pause  time.Duration
	full   uint64 // Stats.Full at the last tick
	quiet  int    // ticks without a record
	last   uint64
	giving bool // events are being given out in order
}

// Intervals of the looks at the rings. Threads whose rings fill up call by themselves,
// but that stops them: so the next look comes sooner.
const (
	firstTick  = 4 * time.Millisecond // programs begin with a burst
	tick       = 20 * time.Millisecond
	shortTick  = 100 * time.Microsecond
	quietTicks = 2 // more without a record, and the next ioctl is made to stop for us instead: looks disturb, also on other CPUs
)

// maxStage is how many bytes may wait for the agent's records.
const maxStage = 8 << 20

// newAgent sets the agent up.
func (r *recorder) newAgent() *agent.Agent {
	return agent.New(&agent.Options{Bind: r.bind, Record: r.agentRecord, Paths: r.opts.NodePaths, Maps: !r.opts.Munmap, Files: true, Logger: r.opts.Logger})
}

// ahead is what is made beside the program's start, before it is needed.
type ahead struct {
	abi   *rm.ABI
	plan  *agent.EncodedPlan
	err   error
	nodes []openFile // in /dev
}

// lookAhead begins to make that: the rules of the tables in use.
func (r *recorder) lookAhead() {
	f := &r.fast
	if !f.on {
		return
	}
	brief, name, ag := r.opts.CountsOnly, r.opts.NodeName, r.agent
	done, images, vdso := make(chan ahead, 1), make(chan []*agent.Image, 1), make(chan *agent.VDSO, 1)
	f.ahead, f.images, f.vdso = done, images, vdso
	go func() {
		r.watcher() // it is the tracing thread's, and may know better by now than at first
		a := ahead{abi: r.tables}
		a.plan, a.err = plan(ioctl.NewPlan(a.abi, brief)).Encode()
		a.nodes = findNodes(name)
		done <- a
	}()
	go func() {
		vdso <- agent.OwnVDSO()
		rehearse()
		var list []*agent.Image
		for _, path := range libraries() {
			if im, err := ag.FindImage(path); err == nil {
				list = append(list, im)
			}
		}
		images <- list
	}()
}

// rehearse asks about this process what will be asked about the program while it
// waits: the first time takes long, for code that is new.
func rehearse() {
	pid := os.Getpid()
	_, _ = exePath(pid), cmdline(pid)
	for _, fd := range listFDs(pid) {
		_, _, _ = statFD(pid, fd)
	}
	agent.Rehearse()
}

// libraries are files in which most programs make their system calls. Where a program
// has others, its calls are rerouted as they come.
func libraries() []string {
	return []string{
		"/lib64/ld-linux-x86-64.so.2",
		"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6",
	}
}

// lookAround takes what has been found out meanwhile.
func (r *recorder) lookAround() {
	select {
	case v := <-r.fast.vdso:
		r.fast.clock = true
		r.agent.SetVDSO(v)
	case list := <-r.fast.images:
		r.agent.SetImages(list)
	default:
	}
}

// replan gives the agent the rules of the tables in use.
func (r *recorder) replan() {
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

func (r *recorder) setPlan(p *agent.EncodedPlan, err error) {
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
func (r *recorder) speed(t *ptrace.Task, p *process, c *ptrace.Syscall) {
	if !r.fast.on || !p.narrow || c.Compat || t.StopsAtAll() { // the last: nothing would be gained
		return
	}
	ap := r.equip(t, p)
	if ap == nil {
		return
	}
	ap.Update(t)
	if r.agent.Owns(c.IP) {
		if ap.Relieve(t, c.SP, r.flush) && r.fast.ticks {
			r.fast.timer.Reset(0)
		}
	} else {
		ap.PatchSite(t, c.IP, c.Nr)
	}
	r.watch()
}

// equip puts the agent to work in a process, and returns nil where it can't.
func (r *recorder) equip(t *ptrace.Task, p *process) *agent.Process {
	r.lookAround()
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
	if p.agent != ap {
		p.agent, p.agents, p.changes = ap, nil, 0
		ap.Data = make(map[uint32]*openFile)
		for fd, f := range p.fds {
			ap.SetHeld(fd, agent.HeldDevice)
			ap.SetKind(fd, kindOf(f))
		}
	}
	return ap
}

// patience is how many calls of a process stop although they are about no device
// before the agent is put in to make them without: short programs shall not pay
// for that.
const patience = 4

// pass sees to it that calls like one that stopped do not stop any more. dull: it
// is about no device.
func (r *recorder) pass(t *ptrace.Task, c *ptrace.Syscall, dull bool) {
	f := &r.fast
	if !f.on || c.Compat || t.StopsAtAll() || !r.agent.Passable(c.Nr) || slices.Contains(f.shared, c.Name()) {
		return
	}
	r.lookAround()
	p := r.process(t.PID)
	ap := p.agent
	if dull {
		p.dull++
	}
	if ap == nil && dull {
		switch ap = r.agent.Mapped(t); {
		case p.dull%patience != 0: // not yet; and not each time if it can't be
		case !f.clock && f.vdso != nil: // soon
			p.dull--
		case p.narrow:
			ap = r.equip(t, p)
		case ap == nil:
			ap, _ = r.agent.Code(t) // says why not, once
		}
	}
	if ap != nil && !r.agent.Owns(c.IP) {
		ap.PatchSite(t, c.IP, c.Nr)
	}
}

// reserve keeps calls out of the agent's hands that an extension selects, but
// for mappings of code, which the agent leaves alone anyway.
func (r *recorder) reserve(rules []ptrace.Rule) {
	for i := range rules {
		for _, name := range rules[i].Names {
			code := name == "mmap" && slices.ContainsFunc(rules[i].Args, func(m ptrace.ArgMatch) bool {
				return m.Arg == 2 && m.Op == ptrace.Equal && m.Mask == unix.PROT_EXEC && m.Value == unix.PROT_EXEC
			})
			if !code {
				r.fast.shared = append(r.fast.shared, name)
			}
		}
	}
}

// watch makes sure that the rings are looked at from time to time.
func (r *recorder) watch() {
	f := &r.fast
	if f.ticks || f.task == nil {
		return
	}
	f.ticks, f.quiet, f.pause = true, 0, firstTick
	r.agent.Wake()
	r.schedule()
}

// attend is for after an extension's turn, which may have hooked functions in a
// process that had no agent.
func (r *recorder) attend() {
	if !r.fast.ticks && r.agent.Active() {
		r.watch()
	}
}

// schedule asks for the next tick. The timer only asks; what it asks for happens
// on the tracing thread.
func (r *recorder) schedule() {
	f := &r.fast
	if f.timer == nil {
		task := f.task
		f.timer = time.AfterFunc(f.pause, func() { task.Post(r.tick) })
		return
	}
	f.timer.Reset(f.pause)
}

// tick looks at the rings. When nothing happens for a while it is not needed
// any more: the next ioctl stops for the supervisor.
func (r *recorder) tick() {
	f := &r.fast
	r.flush()
	switch n := r.agent.Stats().Full; {
	case n != f.full:
		f.full, f.pause = n, max(f.pause/2, shortTick)
	case r.events == f.last:
		f.pause = tick
	default:
		f.pause = min(f.pause*5/4, tick)
	}
	if f.quiet++; r.events != f.last {
		f.quiet, f.last = 0, r.events
	}
	if f.quiet > quietTicks && f.next == len(f.stage.events) && r.agent.Idle(true) {
		f.ticks = false
		return
	}
	r.schedule()
}

// put records an event. While the agent is at work, it waits for records of
// before.
func (r *recorder) put(ev *traces.Event) {
	r.events++
	for i := range ev.Mem {
		r.bytes += uint64(len(ev.Mem[i].In))
	}
	f := &r.fast
	if f.giving || !r.agent.Active() && len(f.stage.events) == 0 {
		r.emit(ev)
		return
	}
	f.stage.add(ev)
	if ev.Kind == traces.KindClose {
		f.insert(ev.Time + r.start) // before all that may get the number
	} else {
		// The order of the tracing thread is kept.
		end := min(ev.Time+ev.Dur+r.start, monotonic())
		if n := len(f.times); n > 0 {
			end = max(end, f.times[n-1])
		}
		f.times = append(f.times, end)
	}
	r.watch()
	if f.stage.bytes > maxStage {
		r.flush()
	}
}

// insert moves the last staged event to its place by a time.
func (f *fast) insert(when int64) {
	at, _ := slices.BinarySearch(f.times[f.next:], when+1)
	at += f.next
	f.times = slices.Insert(f.times, at, when)
	list := f.stage.events
	ev := list[len(list)-1]
	copy(list[at+1:], list[at:])
	list[at] = ev
}

// flush gives out all events whose order is known.
func (r *recorder) flush() { r.merge(r.agent.Collect()) }

// merge gives out the agent's records, and the events that waited for them, up to
// a time.
func (r *recorder) merge(limit int64) {
	f := &r.fast
	f.giving = true
	for {
		end, ok := r.agent.Peek()
		waits := f.next < len(f.times) && f.times[f.next] <= limit
		switch {
		case ok && (!waits || end < f.times[f.next]):
			r.agent.Deliver()
		case waits:
			r.emit(&f.stage.events[f.next])
			f.next++
		default:
			f.giving = false
			if f.next == len(f.times) {
				f.stage.reset()
				f.times, f.next = f.times[:0], 0
			}
			return
		}
	}
}

// finish gives out what is left when everything has ended.
func (r *recorder) finish() {
	if r.fast.timer != nil {
		r.fast.timer.Stop()
	}
	r.merge(r.agent.Finish())
}

// setFD enters a descriptor into a process's table.
func (r *recorder) setFD(p *process, fd int32, f *openFile) {
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
func (r *recorder) withdraw(p *process, list []closedFD) {
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
func (r *recorder) withdrawTarget(t *ptrace.Task, c *ptrace.Syscall) {
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
func (r *recorder) restoreTarget(p *process, ev *traces.Event) {
	if fd := int32(uint32(ev.Args[1])); p.agent != nil && p.fds[fd] != nil {
		r.setFD(p, fd, p.fds[fd])
	}
}

// bind implements agent.Options.Bind: what the descriptor is now.
func (r *recorder) bind(ap *agent.Process, rec *agent.Record) any {
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

// agentRecord implements agent.Options.Record.
func (r *recorder) agentRecord(ap *agent.Process, rec *agent.Record) {
	ev := &r.fast.ev
	ev.Reset()
	if rec.Kind != agent.KindIoctl && rec.Kind != agent.KindSyscall {
		if rec.Caller == ptrace.CallReturn {
			return // a call that nvtrace had the program make
		}
		CallEvent(ev, rec)
		ev.Time -= r.start
		r.put(ev)
		return
	}
	ev.Kind, ev.PID, ev.TID = traces.KindIoctl, int32(rec.PID), int32(rec.TID)
	ev.Time, ev.Dur, ev.Args, ev.Ret = rec.Begin-r.start, rec.End-rec.Begin, rec.Args, rec.Ret
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
	r.put(ev)
}

// CallEvent makes the event of a record of a hooked function: KindCall or
// KindReturn, with Time in CLOCK_MONOTONIC. Memory is that of the record.
func CallEvent(ev *traces.Event, rec *agent.Record) {
	ev.Reset()
	ev.Kind = traces.KindCall
	ev.PID, ev.TID, ev.Time, ev.Args = int32(rec.PID), int32(rec.TID), rec.Begin, rec.Args
	if h := rec.Hook; h != nil {
		ev.Name, ev.Path = h.Name, h.Library
	}
	if rec.Kind == agent.KindReturn {
		ev.Kind, ev.Ret, ev.Dur = traces.KindReturn, rec.Ret, rec.End-rec.Begin
	}
	if rec.NoReturn && rec.Hook != nil && !rec.Hook.NoReturn {
		ev.Flags |= traces.FlagNoExit
	}
	if rec.Unfinished {
		ev.Flags |= traces.FlagUnfinished
	}
	if rec.Truncated {
		ev.Flags |= traces.FlagTruncated
	}
	for _, s := range rec.Segs {
		ev.Mem = append(ev.Mem, traces.Seg{Addr: s.Addr, Len: s.Len, In: s.In, Out: s.Out})
	}
}
