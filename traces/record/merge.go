package record

import (
	"slices"
	"strconv"
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// merge keeps the agent's records and the events of stops in one order, by the time at
// which calls ended, so that nothing is seen to be used before it was made.
type merge struct {
	ev    traces.Event
	stage batch   // events that wait for the agent's records of before, in order
	next  int     // of stage.events
	times []int64 // when they ended, CLOCK_MONOTONIC

	task   *ptrace.Task // any
	timer  *time.Timer
	ticks  bool // the timer runs
	pause  time.Duration
	looked int64   // when the rings were looked at last
	rate   float64 // part of a ring that a thread fills in a ns where it is fastest; it forgets
	full   uint64  // Stats.Full at the last tick
	quiet  int     // ticks without a record
	last   uint64
	giving bool // events are being given out in order
}

// Intervals of the looks at the rings. Threads whose rings fill up call by themselves,
// but that stops them: so the next look comes sooner.
const (
	firstTick  = 4 * time.Millisecond // programs begin with a burst
	tick       = 20 * time.Millisecond
	shortTick  = 100 * time.Microsecond
	crowded    = 1.0 / 4 // what part of a ring may be full at a look: beyond that the next comes sooner
	filled     = 1.0 / 2 // what part may be by the time of the next, if all goes on as fast as it ever did of late
	forgets    = 0.999   // what remains of that at each look
	quietTicks = 2       // more without a record, and the next ioctl is made to stop for us instead: looks disturb, also on other CPUs
)

// maxStage is how many bytes may wait for the agent's records.
const maxStage = 8 << 20

// ahead is what is found out beside the program's start, before the agent needs it: the
// vdso, and libraries that the program most likely has.
type ahead struct {
	vdso   <-chan *agent.VDSO // nil: it is not looked for
	images <-chan []*agent.Image
	clock  bool // the vdso is known
}

// lookAhead begins to find that out, where system calls are recorded in the program.
func (r *Recorder) lookAhead() {
	if r.program == nil {
		return
	}
	ag := r.agent
	images, vdso := make(chan []*agent.Image, 1), make(chan *agent.VDSO, 1)
	r.ahead = ahead{images: images, vdso: vdso}
	go func() {
		vdso <- agent.OwnVDSO()
		var list []*agent.Image
		for _, path := range libraries() {
			if im, err := ag.FindImage(path); err == nil {
				list = append(list, im)
			}
		}
		images <- list
	}()
}

// libraries are files in which most programs make their system calls. Where a program
// has others, its calls are rerouted as they come.
func libraries() []string {
	return []string{
		"/lib64/ld-linux-x86-64.so.2",
		"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6",
	}
}

// PrepareAgent tells the agent what has been found out beside the program's start, and
// reports whether what it needs first is known: otherwise to put it in takes longer now than soon.
func (r *Recorder) PrepareAgent() bool {
	a := &r.ahead
	select {
	case v := <-a.vdso:
		a.clock = true
		r.agent.SetVDSO(v)
	case list := <-a.images:
		r.agent.SetImages(list)
	default:
	}
	return a.clock || a.vdso == nil
}

// watch makes sure that the agent's rings are looked at from time to time.
func (r *Recorder) watch() {
	f := &r.merge
	if f.ticks || f.task == nil {
		return
	}
	f.ticks, f.quiet, f.pause = true, 0, firstTick
	r.agent.Wake()
	r.schedule()
}

// Relieve does what a thread that stopped in the agent's code waits for, and has the rings
// looked at soon if it was full.
func (r *Recorder) Relieve(t *ptrace.Task, p *agent.Process, c *ptrace.Syscall) {
	if p.Relieve(t, c.SP, r.Flush) && r.merge.ticks {
		r.merge.timer.Reset(0)
	}
}

// attend is for after the extensions' turn, which may have put the agent to work.
func (r *Recorder) attend() {
	if !r.merge.ticks && r.agent.Active() {
		r.watch()
	}
}

// schedule asks for the next tick. The timer only asks; what it asks for happens
// on the tracing thread.
func (r *Recorder) schedule() {
	f := &r.merge
	if f.timer == nil {
		task := f.task
		f.timer = time.AfterFunc(f.pause, func() { task.Post(r.tick) })
		return
	}
	f.timer.Reset(f.pause)
}

// tick looks at the rings. When nothing happens for a while it is not needed
// any more: the next call stops for the supervisor.
func (r *Recorder) tick() {
	f := &r.merge
	r.Flush()
	now := ptrace.Now()
	if passed := now - f.looked; f.looked != 0 && passed > 0 {
		f.rate = max(f.rate*forgets, r.agent.Crowd()/float64(passed))
	}
	f.looked = now
	switch n := r.agent.Stats().Full; {
	case n != f.full:
		f.full, f.pause = n, shortTick
	case r.agent.Crowd() > crowded:
		f.pause = max(f.pause/2, shortTick)
	case r.agent.Crowd() > crowded/2:
	case r.events == f.last:
		f.pause = tick
	default:
		f.pause = min(f.pause*5/4, tick)
	}
	f.pause = soon(f.pause, f.rate)
	if f.quiet++; r.events != f.last {
		f.quiet, f.last = 0, r.events
	}
	if f.quiet > quietTicks && f.next == len(f.stage.events) && r.agent.Idle(true) {
		f.ticks = false
		return
	}
	r.schedule()
}

// soon returns a pause, or how long it takes until rings that fill so fast are full enough, if that is less:
// programs do by turns nothing and much.
func soon(pause time.Duration, rate float64) time.Duration {
	if rate*float64(pause) <= filled {
		return pause
	}
	return max(time.Duration(filled/rate), shortTick)
}

// put records an event. While the agent is at work, it waits for records of
// before.
func (r *Recorder) put(ev *traces.Event) {
	r.events++
	for i := range ev.Mem {
		r.bytes += uint64(len(ev.Mem[i].In))
	}
	f := &r.merge
	if f.giving || !r.agent.Active() && len(f.stage.events) == 0 {
		r.emit(ev)
		return
	}
	f.stage.add(ev)
	if ev.Kind == traces.KindClose {
		f.insert(ev.Time + r.start) // before all that may get the number
	} else {
		// The order of the tracing thread is kept.
		end := min(ev.Time+ev.Dur+r.start, ptrace.Now())
		if n := len(f.times); n > 0 {
			end = max(end, f.times[n-1])
		}
		f.times = append(f.times, end)
	}
	r.watch()
	if f.stage.bytes > maxStage {
		r.Flush()
	}
}

// insert moves the last staged event to its place by a time.
func (f *merge) insert(when int64) {
	at, _ := slices.BinarySearch(f.times[f.next:], when+1)
	at += f.next
	f.times = slices.Insert(f.times, at, when)
	list := f.stage.events
	ev := list[len(list)-1]
	copy(list[at+1:], list[at:])
	list[at] = ev
}

// Flush gives out all events whose order is known, also those that were sent.
func (r *Recorder) Flush() {
	r.receive()
	r.giveOut(r.agent.Collect())
}

// giveOut gives out the agent's records, and the events that waited for them, up to
// a time.
func (r *Recorder) giveOut(limit int64) {
	f := &r.merge
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
func (r *Recorder) finish() {
	if r.merge.timer != nil {
		r.merge.timer.Stop()
	}
	r.receive()
	r.giveOut(r.agent.Finish())
}

// bind implements agent.Options.Bind.
func (r *Recorder) bind(p *agent.Process, rec *agent.Record) any {
	if r.program == nil {
		return nil
	}
	return r.program.Bind(p, rec)
}

// started implements agent.Options.Started.
func (r *Recorder) started(p *agent.Process) {
	if r.program != nil {
		r.program.Started(p)
	}
}

// record implements agent.Options.Record.
func (r *Recorder) record(p *agent.Process, rec *agent.Record) {
	switch {
	case rec.Kind == agent.KindIoctl || rec.Kind == agent.KindSyscall:
		if r.program != nil {
			r.program.Record(p, rec)
		}
	case agent.CalledByUs(rec.Caller): // a call that nvtrace had the program make
	case rec.Kind == agent.KindTime:
		if w := &rec.Work; r.wanted(r.Time(w.Call)) {
			r.put(&traces.Event{
				Kind: traces.KindGPU, PID: int32(rec.PID), TID: int32(rec.TID), Time: r.Time(rec.End), FD: -1,
				Name: rec.Hook.Name, Path: rec.Hook.Library, Ret: w.Margin,
				Args: [6]uint64{uint64(r.Time(w.Call)), uint64(r.Time(w.Start)), uint64(w.Dur), w.Stream, w.Context, w.Subject},
			})
		}
	default:
		r.noteStart(rec)
		if !r.wanted(r.Time(rec.Begin)) {
			return
		}
		ev := &r.merge.ev
		callEvent(ev, rec)
		ev.Time -= r.start
		if rec.Alone && rec.Hook != nil {
			// What it was called with was not kept.
			call := traces.Event{
				Kind: traces.KindCall, Flags: traces.FlagTruncated, PID: ev.PID, TID: ev.TID, Time: ev.Time, FD: -1,
				Name: rec.Hook.Name, Path: rec.Hook.Library,
			}
			r.put(&call)
		}
		r.put(ev)
	}
}

// noteStart notes the first call that Options.StartOn is true of.
func (r *Recorder) noteStart(rec *agent.Record) {
	if on := r.opts.StartOn; on != nil && r.window.waits.Load() && rec.Kind == agent.KindCall && on(rec) {
		r.window.begin(r.Time(rec.Begin))
	}
}

// wanted reports whether a library call that began at a time is recorded.
func (r *Recorder) wanted(began int64) bool { return r.window.wanted(began) }

// Begin has Options.Delay begin now, where it waits for that. It may be called by any goroutine.
func (r *Recorder) Begin() { r.window.begin(r.Now()) }

// Record has library calls recorded that begin from now on, or not, whatever the options say. It
// may be called by any goroutine. It returns the time.
func (r *Recorder) Record(on bool) int64 {
	now := r.Now()
	r.window.turn(now, on)
	return now
}

// counted implements agent.Options.Counted.
func (r *Recorder) counted(p *agent.Process, c *agent.Count) {
	within := ""
	if c.Within != nil {
		within = c.Within.Name
	}
	r.put(&traces.Event{
		Kind: traces.KindCount, PID: int32(p.PID), TID: int32(c.TID), Time: r.Now(), FD: -1,
		Name: c.Hook.Name, Path: c.Hook.Library, Args: [6]uint64{c.Calls, c.Returned, uint64(c.Time), c.Nonzero},
		Data: appendBuckets(c.Buckets[:]), Text: within,
	})
}

// appendBuckets returns a histogram as JSON, without trailing zeros.
func appendBuckets(buckets []uint32) string {
	for len(buckets) > 0 && buckets[len(buckets)-1] == 0 {
		buckets = buckets[:len(buckets)-1]
	}
	b := []byte{'['}
	for i, n := range buckets {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(n), 10)
	}
	return string(append(b, ']'))
}

// callEvent makes the event of a record of a hooked function: KindCall or
// KindReturn, with Time in CLOCK_MONOTONIC. Memory is that of the record.
func callEvent(ev *traces.Event, rec *agent.Record) {
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
