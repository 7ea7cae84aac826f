// Package record is the supervisor of a recording: it traces a program by package
// ptrace, gives its stops to extensions, keeps the records that package agent makes
// in the program and the events of stops in one order, and hands them to sinks. It
// records the life of processes itself; what else is recorded its extensions know.
package record

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// Sink takes the events of a recording, one after the other, on another goroutine than
// the tracing thread's, but for the last. An event is valid only during the call.
type Sink interface {
	// Event takes one event.
	Event(ev *traces.Event)
	// Idle is called when no further event is pending: the time to flush.
	Idle()
}

// BlockSink is a Sink that passes events on as blocks, which spares them being taken apart.
type BlockSink interface {
	Sink
	// Block takes a block that [traces.Batch.AppendTo] made. It is valid only during the call.
	Block(block []byte)
}

// Options says what to record and where to.
type Options struct {
	Ptrace ptrace.Options // what to run and how to trace it; its rules are set by this package
	// Extend is asked once, before anything is traced, for what watches the program.
	// The Recorder can be kept. nil: the life of processes alone is recorded.
	Extend func(r *Recorder) ([]Extension, error)

	// Library calls that begin before Delay, or after Duration more, if that is not 0, are not
	// recorded. What else happens is: what comes later refers to it.
	Delay, Duration time.Duration
	// StartOn, if not nil, has Delay begin with the first library call that it is true of.
	StartOn func(call *agent.Record) bool
	// Await has Delay begin with Recorder.Begin.
	Await bool

	// Buffer is how many bytes of events may wait for the sinks, 0 for 64 MiB. Then the program
	// waits; with Drop, library calls are dropped instead, and counted by KindLost.
	Buffer int64
	Drop   bool

	Header *traces.Header // nil makes one by [NewHeader]
	Sinks  []Sink
	// OnFault is told when a sink panicked and was stopped, nil for none.
	OnFault func(msg string)
	// Say is told what users are to know of a traced process, in a line; nil for none.
	Say func(text string)
	// CountStops has Result.Latter counted.
	CountStops bool
	Logger     *slog.Logger // nil discards
}

// Result is what a recording came to.
type Result struct {
	*ptrace.Result
	Cost  traces.Cost
	Agent agent.Stats
	// Latter are the stops of the latter part of the run; nil: they were not counted.
	Latter *Stops
}

// Run starts a program under the tracer and records it until it has ended.
func Run(ctx context.Context, o *Options) (Result, error) {
	return run(o, func(h ptrace.Handler, po *ptrace.Options) (*ptrace.Result, error) {
		return ptrace.Run(ctx, po, h)
	}, 0)
}

// Attach records the running process pid until ctx ends or the process does.
func Attach(ctx context.Context, pid int, o *Options) (Result, error) {
	return run(o, func(h ptrace.Handler, po *ptrace.Options) (*ptrace.Result, error) {
		return ptrace.Attach(ctx, pid, po, h)
	}, pid)
}

func run(o *Options, trace func(ptrace.Handler, *ptrace.Options) (*ptrace.Result, error), pid int) (Result, error) {
	opts := *o
	opts.setDefaults(pid)
	started := time.Now()
	sinks := Guard(opts.Sinks, opts.OnFault, opts.Logger)
	q := newQueue(sinks.Block, sinks.Idle)
	if opts.Buffer > 0 {
		q.max = int(opts.Buffer)
	}
	if opts.Drop {
		q.drop = &dropper{depth: make(map[int32]int)}
	}
	m, err := newMux(&opts, q.put)
	if err != nil {
		return Result{Result: new(ptrace.Result)}, err
	}
	r := m.Recorder
	r.start = ptrace.Now() - (started.UnixNano() - opts.Header.Start)
	begin := func() {
		m.begin()
		go q.consume()
	}
	if pid != 0 {
		begin()
	} else { // to start threads, and to fork while others are busy, takes a while
		forked := opts.Ptrace.Forked
		opts.Ptrace.Forked = func() {
			if forked != nil {
				forked()
			}
			begin()
		}
	}

	cpu := processCPU()
	var cost *traces.Cost
	var latter *Stops
	conclude := func(res *ptrace.Result) {
		latter = m.stops.latter(ptrace.Now())
		cost = m.conclude(res, started, cpu)
		q.close()
	}
	// What waits for the last event need not wait until the tracer has cleaned up.
	ended := opts.Ptrace.Ended
	opts.Ptrace.Ended = func(res *ptrace.Result) {
		if ended != nil {
			ended(res)
		}
		conclude(res)
	}
	res, err := trace(m, &opts.Ptrace)
	if res == nil {
		res = new(ptrace.Result)
	}
	if cost == nil { // nothing was traced
		conclude(res)
	}
	return Result{res, *cost, r.agent.Stats(), latter}, err
}

// setDefaults completes the options of recording the command in them, or the process pid.
func (o *Options) setDefaults(pid int) {
	if o.Header == nil {
		o.Header = NewHeader(o.Ptrace.Argv, pid, "")
		o.Header.Container = Container(pid)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// conclude records the last events, KindEnd behind all others. Recording began at started,
// when the process's CPU time was cpu.
func (m *mux) conclude(res *ptrace.Result, started time.Time, cpu int64) *traces.Cost {
	r := m.Recorder
	r.finish()
	if n := r.agent.Stats().Garbage; n > 0 {
		text := fmt.Sprintf("threads whose records the program has overwritten: %d; calls of theirs are missing", n)
		r.put(&traces.Event{Kind: traces.KindGap, Time: r.Now(), FD: -1, Text: text})
	}
	if r.window.waits.Load() {
		r.Note(nil, "no library call was recorded: what the recording was to start with did not come")
	}
	for i := range m.exts {
		if end := m.exts[i].Finish; end != nil {
			end()
			r.receive()
		}
	}
	r.finish() // what they had to say
	r.stops.log(r.opts.Logger, res)
	cost := &traces.Cost{
		Stops: res.Stops, Events: r.events, Bytes: r.bytes,
		TracerCPU: processCPU() - cpu, Wall: time.Since(started).Nanoseconds(),
	}
	r.emit(&traces.Event{Kind: traces.KindEnd, Time: r.Now(), FD: -1, Cost: cost})
	return cost
}

// NewHeader describes this machine and what is going to be recorded now: the
// command argv, or the running process pid. tool is nvtrace's version. What the
// machine has beyond that is added by those who know it, as is its [Container],
// which takes a moment to find out.
func NewHeader(argv []string, pid int, tool string) *traces.Header {
	h := &traces.Header{
		Schema: traces.SchemaVersion, Tool: tool, Start: time.Now().UnixNano(), Arch: runtime.GOARCH,
		Argv: argv, PID: int32(pid),
	}
	if pid != 0 {
		h.Argv, h.Rank = proc.Cmdline(pid), ranks.Pick(proc.Environ(pid))
	} else {
		h.Rank = ranks.Pick(os.Environ())
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel, h.Host = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Nodename[:])
	}
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		h.Boot = strings.TrimSpace(string(b))
	}
	return h
}

// Guard makes one sink of several, in which the panic of one ends that one and
// not the others. onFault, if not nil, is told of it.
func Guard(sinks []Sink, onFault func(msg string), logger *slog.Logger) BlockSink {
	g := new(guarded)
	for _, s := range sinks {
		g.sinks = append(g.sinks, &guardedSink{Sink: s, onFault: onFault, logger: logger})
	}
	return g
}

type guarded struct {
	sinks []*guardedSink
	apart traces.Unbatcher
}

// Event implements Sink.
func (g *guarded) Event(ev *traces.Event) {
	for _, s := range g.sinks {
		s.do(func() { s.Sink.Event(ev) })
	}
}

// Block implements BlockSink. Sinks that take no blocks get the events.
func (g *guarded) Block(block []byte) {
	var others []*guardedSink
	for _, s := range g.sinks {
		if b, ok := s.Sink.(BlockSink); ok {
			s.do(func() { b.Block(block) })
		} else {
			others = append(others, s)
		}
	}
	if len(others) == 0 {
		return
	}
	err := g.apart.Each(block, func(ev *traces.Event) {
		for _, s := range others {
			s.do(func() { s.Sink.Event(ev) })
		}
	})
	if err != nil {
		panic(fmt.Sprintf("BUG: events can't be read back: %v", err))
	}
}

// Idle implements Sink.
func (g *guarded) Idle() {
	for _, s := range g.sinks {
		s.do(s.Sink.Idle)
	}
}

type guardedSink struct {
	Sink
	onFault func(string)
	logger  *slog.Logger
	dead    bool
}

// do calls f, unless the sink has panicked before.
func (g *guardedSink) do(f func()) {
	if g.dead {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			g.dead = true
			if g.logger != nil {
				g.logger.Error("sink panicked", "panic", p, "stack", string(debug.Stack()))
			}
			if g.onFault != nil {
				g.onFault(fmt.Sprintf("BUG: %T stopped, the program and other outputs go on: %v", g.Sink, p))
			}
		}
	}()
	f()
}

// processCPU returns the CPU time of this process, in ns.
func processCPU() int64 {
	var ru unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &ru) // can't fail for RUSAGE_SELF
	return ru.Utime.Nano() + ru.Stime.Nano()
}
