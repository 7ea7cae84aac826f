// Package record turns the stops of package ptrace into the events of package
// traces: it knows which system calls can concern an NVIDIA GPU, keeps the
// descriptor tables of the traced processes, and has package ioctl say which
// memory to copy. It decodes nothing.
package record

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/traces"
)

// Sink takes the events of a recording, one after the other, on a goroutine of
// its own. An event is valid only during the call.
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

	CountsOnly bool // do not wait for the exit of ioctls: no results, times or written bytes; one stop each
	Munmap     bool // record munmap and mremap of device mappings too

	Sinks []Sink
	// OnHeader is called with the recording's header before the first event, nil for none.
	OnHeader func(*traces.Header)
	Tool     string       // nvtrace's version, for the header
	Logger   *slog.Logger // nil discards

	// What the machine looks like; nil takes the real one. Tests use others.
	NodeName  func(rdev uint64, path string) (name string, ok bool)   // names a device node, as [Nodes.Name]
	MayBeNode func(path []byte) bool                                  // cheap first look at an opened path
	Stat      func(pid int, fd int32) (rdev uint64, path string, ok bool) // a descriptor's device number and path
}

// Result is what a recording came to.
type Result struct {
	ptrace.Result
	Cost traces.Cost
}

// Run starts a program under the tracer and records it until it has ended.
func Run(ctx context.Context, o *Options) (Result, error) {
	return run(o, func(h ptrace.Handler, po *ptrace.Options) (ptrace.Result, error) {
		return ptrace.Run(ctx, po, h)
	}, 0)
}

// Attach records the running process pid until ctx ends or the process does.
func Attach(ctx context.Context, pid int, o *Options) (Result, error) {
	return run(o, func(h ptrace.Handler, po *ptrace.Options) (ptrace.Result, error) {
		return ptrace.Attach(ctx, pid, po, h)
	}, pid)
}

func run(o *Options, trace func(ptrace.Handler, *ptrace.Options) (ptrace.Result, error), pid int) (Result, error) {
	opts := *o
	nodes := ReadNodes("/proc/devices")
	opts.setDefaults(nodes)
	wall := time.Now()
	r := &recorder{opts: &opts, nodes: nodes, start: monotonic(), procs: make(map[int]*process)}
	header := r.header(wall, pid)
	r.watcher = ioctl.NewWatcher(header.Driver)
	q := newQueue()
	r.emit = q.put
	if opts.OnHeader != nil {
		opts.OnHeader(header)
	}
	sinks := guard(opts.Sinks, opts.Logger)
	go q.consume(func(ev *traces.Event) {
		for _, s := range sinks {
			s.event(ev)
		}
	}, func() {
		for _, s := range sinks {
			s.idle()
		}
	})

	opts.Ptrace.Rules = baseRules()
	cpu := processCPU()
	res, err := trace(r, &opts.Ptrace)
	cost := traces.Cost{
		Stops: res.Stops, Events: r.events, Bytes: r.bytes,
		TracerCPU: processCPU() - cpu, Wall: time.Since(wall).Nanoseconds(),
	}
	if err == nil {
		r.emit(&traces.Event{Kind: traces.KindEnd, Time: r.now(), FD: -1, Cost: &cost})
	}
	q.close()
	return Result{res, cost}, err
}

func (o *Options) setDefaults(n *Nodes) {
	if o.NodeName == nil {
		o.NodeName = n.Name
	}
	if o.MayBeNode == nil {
		o.MayBeNode = mayBeNode
	}
	if o.Stat == nil {
		o.Stat = statFD
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (r *recorder) header(wall time.Time, pid int) *traces.Header {
	h := &traces.Header{
		Schema: traces.SchemaVersion, Tool: r.opts.Tool, Start: wall.UnixNano(), Arch: runtime.GOARCH,
		Driver: driverVersion("/proc/driver/nvidia/version"), UVMMajor: r.nodes.UVMMajor(),
		Argv: r.opts.Ptrace.Argv, PID: int32(pid),
	}
	if pid != 0 {
		h.Argv = cmdline(pid)
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return h
}

// guarded is a sink whose panic ends the sink, not the recording.
type guarded struct {
	Sink
	log  *slog.Logger
	dead bool
}

func guard(sinks []Sink, log *slog.Logger) []*guarded {
	var g []*guarded
	for _, s := range sinks {
		g = append(g, &guarded{Sink: s, log: log})
	}
	return g
}

func (g *guarded) event(ev *traces.Event) {
	if g.dead {
		return
	}
	defer g.rescue()
	g.Sink.Event(ev)
}

func (g *guarded) idle() {
	if g.dead {
		return
	}
	defer g.rescue()
	g.Sink.Idle()
}

func (g *guarded) rescue() {
	if p := recover(); p != nil {
		g.dead = true
		fmt.Fprintf(os.Stderr, "nvtrace: BUG: %T stopped (the program and other outputs go on): %v\n", g.Sink, p)
		g.log.Error("sink panicked", "stack", string(debug.Stack()))
	}
}

// processCPU returns the CPU time of this process, in ns.
func processCPU() int64 {
	var ru unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &ru) // can't fail for RUSAGE_SELF
	return ru.Utime.Nano() + ru.Stime.Nano()
}
