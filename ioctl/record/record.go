// Package record has the system calls that can concern an NVIDIA GPU recorded: it is an
// extension of package traces/record that knows which these are, keeps the descriptor
// tables of the traced processes, and has package ioctl say which memory to copy. It
// decodes nothing.
//
// Most ioctls on RM and UVM descriptors need no stop: package agent logs them in
// the program, with the same bytes, by a plan that package ioctl makes of its
// tables. Nor do calls that open, close, duplicate and map devices, after the first
// open of each device, and such calls that are about other files.
package record

import (
	"log/slog"
	"sync"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// Options says what to record. The zero value records everything but unmappings.
type Options struct {
	// Fast says whether ioctls are recorded in the traced processes, without a stop,
	// where that is possible: under a seccomp filter, on amd64, in a program that
	// makes them through libc. The events are the same, but for one thing: an ioctl
	// that a signal interrupts and the kernel restarts is one event, not two.
	Fast FastMode

	CountsOnly bool // do not wait for the exit of ioctls: no results, times or written bytes; one stop each
	Munmap     bool // record munmap and mremap of device mappings too

	// Entered, if not nil, is called at the stop of an ioctl's entry, at which the thread stands still. It is called
	// of those alone that are not recorded in the processes: see Fast.
	Entered func(t *ptrace.Task, call string, when int64)

	Logger *slog.Logger // nil discards

	// What the machine looks like; nil takes the real one. Tests use others.
	NodeName  func(rdev uint64, path string) (name string, ok bool)       // names a device node, as [Nodes.Name]
	MayBeNode func(path []byte) bool                                      // cheap first look at an opened path
	NodePaths []agent.Path                                                // the same as paths, with which opens of others need no stop; nil with a MayBeNode: all stop
	Stat      func(pid int, fd int32) (rdev uint64, path string, ok bool) // a descriptor's device number and path
}

// New returns what records system calls for rec; o may be nil.
func New(rec *record.Recorder, o *Options) *Recorder {
	opts := new(Options)
	if o != nil {
		*opts = *o
	}
	opts.setDefaults(sync.OnceValue(MachineNodes))
	r := &Recorder{
		opts: opts, rec: rec, agent: rec.Agent(), threads: record.NewSlot[thread](rec),
		procs: make(map[int]*process), devices: make(map[uint64]string),
	}
	r.watcher = sync.OnceValue(func() *ioctl.Watcher {
		w := ioctl.NewWatcher(rec.Header().Driver)
		w.SetBrief(opts.CountsOnly)
		r.tables = w.ABI()
		return w
	})
	r.fast.on = opts.Fast == FastAuto
	return r
}

// Extension returns what has the Recorder told of the program. It should be the first
// of a recording's, so that others find a descriptor's events before theirs.
func (r *Recorder) Extension() record.Extension {
	e := record.Extension{Rules: baseRules(), ExtraRules: deviceRules(r.opts.Munmap), Handler: r, Before: r.before}
	if r.fast.on {
		e.Begin = r.lookAhead
		e.InProgram = &record.InProgram{
			Calls: agent.Calls{Paths: r.opts.NodePaths, Maps: !r.opts.Munmap, Files: true},
			Bind:  r.bind, Record: r.agentRecord, Started: r.agentStarted,
		}
	}
	return e
}

// fastIoctls is how many ioctls were recorded without a stop.
func (r *Recorder) fastIoctls() uint64 { return r.fast.events }

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

// DescribeDriver adds the driver to a header: its version and the number of its devices.
func DescribeDriver(h *traces.Header, nodes *Nodes) {
	h.Driver, h.UVMMajor = driverVersion("/proc/driver/nvidia/version"), nodes.uvmMajor()
}

// GPUs returns the UUIDs of this machine's GPUs. To ask for them may take a moment.
func GPUs() []string { return gpuUUIDs("/proc/driver/nvidia/gpus") }
