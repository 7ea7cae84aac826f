// Package record turns the stops of package ptrace into the events of package
// traces: it knows which system calls can concern an NVIDIA GPU, keeps the
// descriptor tables of the traced processes, and has package ioctl say which
// memory to copy. It decodes nothing.
//
// Most ioctls on RM and UVM descriptors need no stop: package agent logs them in
// the program, with the same bytes, by a plan that package ioctl makes of its
// tables. Nor do calls that open, close, duplicate and map devices, after the first
// open of each device, and such calls that are about other files. Their events and those of stops are merged by the time at which the calls
// ended, so that nothing is seen to be used before it was made.
package record

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// Sink takes the events of a recording, one after the other, on another goroutine than
// the tracing thread's, but for the last. An event is valid only during the call.
type Sink interface {
	// Event takes one event.
	Event(ev *traces.Event)
	// Idle is called when no further event is pending: the time to flush.
	Idle()
}

// Options says what to record and how. The zero value records everything but
// unmappings, under a seccomp filter.
type Options struct {
	Ptrace ptrace.Options // what to run and how to trace it; its rules are set by this package

	// Fast says whether ioctls are recorded in the traced processes, without a stop,
	// where that is possible: under a seccomp filter, on amd64, in a program that
	// makes them through libc. The events are the same, but for one thing: an ioctl
	// that a signal interrupts and the kernel restarts is one event, not two.
	Fast FastMode
	// Extend, if not nil, is asked once, before anything is traced, for what else is
	// to watch the program. The Recorder can be kept.
	Extend func(r *Recorder) ([]Extension, error)

	CountsOnly bool // do not wait for the exit of ioctls: no results, times or written bytes; one stop each
	Munmap     bool // record munmap and mremap of device mappings too

	Header *traces.Header // of [NewHeader]; nil makes one
	Sinks  []Sink
	// OnFault is told when a sink panicked and was stopped, nil for none.
	OnFault func(msg string)
	Logger  *slog.Logger // nil discards

	// What the machine looks like; nil takes the real one. Tests use others.
	NodeName  func(rdev uint64, path string) (name string, ok bool)       // names a device node, as [Nodes.Name]
	MayBeNode func(path []byte) bool                                      // cheap first look at an opened path
	NodePaths []agent.Path                                                // the same as paths, with which opens of others need no stop; nil with a MayBeNode: all stop
	Stat      func(pid int, fd int32) (rdev uint64, path string, ok bool) // a descriptor's device number and path
}

// Result is what a recording came to.
type Result struct {
	*ptrace.Result
	Cost traces.Cost
	// FastIoctls is how many ioctls were recorded without a stop.
	FastIoctls uint64
	Agent      agent.Stats
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
	nodes := sync.OnceValue(MachineNodes)
	if opts.Header == nil {
		opts.Header = NewHeader(opts.Ptrace.Argv, pid, "", nodes())
		DescribeMachine(opts.Header, pid)
	}
	opts.setDefaults(nodes)
	started := time.Now()
	r := &recorder{opts: &opts, procs: make(map[int]*process), devices: make(map[uint64]string)}
	r.watcher = sync.OnceValue(func() *ioctl.Watcher {
		w := ioctl.NewWatcher(opts.Header.Driver)
		w.SetBrief(opts.CountsOnly)
		r.tables = w.ABI()
		return w
	})
	r.agent, r.fast.on, r.stops = r.newAgent(), opts.Fast == FastAuto, newStopCounts(opts.Logger)
	if r.stops != nil {
		opts.Ptrace.Held = r.stops.held
	}
	handler, err := r.extend()
	if err != nil {
		return Result{Result: new(ptrace.Result)}, err
	}
	r.start = monotonic() - (started.UnixNano() - opts.Header.Start)
	sinks := Guard(opts.Sinks, opts.OnFault, opts.Logger)
	q := newQueue(sinks.Event, sinks.Idle)
	r.emit = q.put
	begin := func() {
		r.lookAhead()
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
	conclude := func(res *ptrace.Result) {
		cost = r.conclude(res, started, cpu)
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
	res, err := trace(handler, &opts.Ptrace)
	if res == nil {
		res = new(ptrace.Result)
	}
	if cost == nil { // nothing was traced
		conclude(res)
	}
	return Result{res, *cost, r.fast.events, r.agent.Stats()}, err
}

// conclude records the last events, KindEnd behind all others. Recording began at started,
// when the process's CPU time was cpu.
func (r *recorder) conclude(res *ptrace.Result, started time.Time, cpu int64) *traces.Cost {
	r.finish()
	if n := r.agent.Stats().Garbage; n > 0 {
		text := fmt.Sprintf("threads whose records the program has overwritten: %d; calls of theirs are missing", n)
		r.put(&traces.Event{Kind: traces.KindGap, Time: r.now(), FD: -1, Text: text})
	}
	for _, end := range r.ends {
		end()
	}
	r.finish() // what they had to say
	r.stops.log(r.opts.Logger, res)
	cost := &traces.Cost{
		Stops: res.Stops, Events: r.events, Bytes: r.bytes,
		TracerCPU: processCPU() - cpu, Wall: time.Since(started).Nanoseconds(),
	}
	r.emit(&traces.Event{Kind: traces.KindEnd, Time: r.now(), FD: -1, Cost: cost})
	return cost
}

func (o *Options) setDefaults(nodes func() *Nodes) {
	if o.NodeName == nil {
		o.NodeName = nodes().Name
	}
	if o.MayBeNode == nil && o.NodePaths == nil {
		o.NodePaths = nodePaths()
	}
	if o.MayBeNode == nil {
		o.MayBeNode = anyPath(o.NodePaths)
	}
	if o.Stat == nil {
		o.Stat = statFD
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// NewHeader describes this machine and what is going to be recorded now: the
// command argv, or the running process pid. tool is nvtrace's version, nodes are the
// machine's. [DescribeMachine] adds the rest.
func NewHeader(argv []string, pid int, tool string, nodes *Nodes) *traces.Header {
	h := &traces.Header{
		Schema: traces.SchemaVersion, Tool: tool, Start: time.Now().UnixNano(), Arch: runtime.GOARCH,
		Driver: driverVersion("/proc/driver/nvidia/version"), UVMMajor: nodes.UVMMajor(),
		Argv: argv, PID: int32(pid), Rank: rankOf(environ(pid)),
	}
	if pid != 0 {
		h.Argv = cmdline(pid)
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
func Guard(sinks []Sink, onFault func(msg string), logger *slog.Logger) Sink {
	var all guarded
	for _, s := range sinks {
		all = append(all, &guardedSink{Sink: s, onFault: onFault, logger: logger})
	}
	return all
}

type guarded []*guardedSink

// Event implements Sink.
func (g guarded) Event(ev *traces.Event) {
	for _, s := range g {
		s.do(func() { s.Sink.Event(ev) })
	}
}

// Idle implements Sink.
func (g guarded) Idle() {
	for _, s := range g {
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
